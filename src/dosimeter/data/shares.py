"""Which client of a federation holds which images."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dosimeter.errors import SettingError
from dosimeter.rng import numpy_stream

Places = NDArray[np.int64]

_LARGEST = 1e9  # all shares are equal long before, and near 1e308 the draw overflows


def partition(labels: ArrayLike, clients: int, *, alpha: float | None = None, seed: int) -> list[Places]:
    """Every client's places in the data: disjoint, all of them, at least one a client, in random order.

    Without alpha the split is iid and sizes differ by at most one. With alpha the share of class k that client i gets
    is p_k[i], p_k ~ Dirichlet(alpha, ..., alpha): the smaller alpha, the fewer classes a client sees (Hsu et al. 2019,
    "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification").

    Deviations: Hsu et al. fix every client's size and draw its mix of classes; here every class is spread over clients,
    as is usual since, so sizes differ too. A client left with nothing gets one image of the client with the most.
    """
    labels = np.asarray(labels)
    if clients < 1:
        raise SettingError(f"There must be at least 1 client, got {clients}.")
    if clients > len(labels):
        raise SettingError(
            f"{len(labels)} images cannot give {clients} clients one each; use fewer clients or more images."
        )
    if alpha is not None and not 0 < alpha <= _LARGEST:
        raise SettingError(
            f"alpha must be above 0 and at most {_LARGEST:g}, got {alpha}; leave it out for an iid split."
        )
    if alpha is not None and (labels.ndim != 1 or labels.dtype.kind not in "biu"):
        raise SettingError(
            f"A Dirichlet split needs one class an image, got {labels.dtype} of shape {labels.shape}; leave alpha out."
        )
    rng = numpy_stream(seed, "partition")
    if alpha is None:
        return np.array_split(rng.permutation(len(labels)), clients)
    parts = _dirichlet(labels, clients, alpha, rng)
    return [rng.permutation(part) for part in _none_empty(parts)]


def _dirichlet(labels: NDArray[Any], clients: int, alpha: float, rng: np.random.Generator) -> list[Places]:
    parts: list[list[Places]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        places = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        cuts = np.round(np.cumsum(shares)[:-1] * len(places)).astype(np.int64)
        for part, piece in zip(parts, np.split(places, cuts), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def _none_empty(parts: list[Places]) -> list[Places]:
    parts = list(parts)
    for i, part in enumerate(parts):
        if not len(part):
            largest = max(range(len(parts)), key=lambda j: len(parts[j]))
            parts[i], parts[largest] = parts[largest][-1:], parts[largest][:-1]
    return parts
