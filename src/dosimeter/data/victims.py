"""Which images are attacked, and which others a reconstruction is told apart from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dosimeter import checks, spec
from dosimeter.data.dataset import SPLITS, Dataset
from dosimeter.errors import DataError, SettingError
from dosimeter.rng import numpy_stream
from dosimeter.types import Victims

POOL, MOST_POOLED = 50, 2**26
"""How many times as many decoys are held as a victim needs, and how many of their pixel values at most."""

Chosen = Sequence[int] | Sequence[Sequence[int]] | NDArray[np.integer[Any]] | Tensor


def pick(
    dataset: Dataset,
    n: int | None = None,
    *,
    batch: int = 1,
    seed: int = 0,
    split: str = "train",
    indices: Chosen | None = None,
    distinct: bool = False,
) -> Victims:
    """n private batches of B images, drawn without replacement or given by `indices`, (n,) or (n, B).

    A seed's first victims are the same whatever n is. An id names the split and the places: "train:17", "train:17+203".
    `distinct` draws batches whose images are all of different classes.
    """
    if batch < 1 or (n is not None and n < 1):
        raise SettingError(f"Victims must be at least 1 batch of at least 1 image, got {n} of {batch}.")
    if indices is not None:
        if distinct:
            raise SettingError("--distinct draws images of different classes, and --indices says which; leave one out.")
        places = _given(indices, n, batch)
    elif n is not None:
        places = (_distinct if distinct else _drawn)(dataset, n, batch, seed, split)
    else:
        raise SettingError("How many victims? Give their number n or their indices.")
    images = dataset.images(split, places.ravel())
    labels = torch.from_numpy(dataset.labels(split)[places])
    ids = tuple(f"{split}:{'+'.join(map(str, row))}" for row in places.tolist())
    if len(set(ids)) < len(ids):
        # Two victims of one id would meet the same random numbers and overwrite each other's records.
        twice = next(name for name in ids if ids.count(name) > 1)
        raise SettingError(f"The indices name the victim {twice} more than once; every victim may be there once.")
    return Victims(images.reshape(*places.shape, *dataset.shape), labels, torch.from_numpy(places), ids)


def places_of(words: str, batch: int) -> list[list[int]]:
    """Places in words, 3+17, as those of whole updates."""
    places = spec.several("--indices", words, int)
    checks.count("An update", "images (--batch)", batch)
    if len(places) % batch:
        raise SettingError(
            f"Expected --indices of whole updates, {batch} images each, got {len(places)}; name as many."
        )
    return [list(places[first : first + batch]) for first in range(0, len(places), batch)]


def pick_decoys(dataset: Dataset, victims: Victims, n: int, *, seed: int, split: str) -> Tensor:
    """n images (n, C, H, W) of a split that are no victims, fewer if there are not so many.

    A reconstruction identifies its victim when it is nearer to it than to every decoy.
    """
    if n < 0:
        raise SettingError(f"The number of decoys must be at least 0, got {n}.")
    order = numpy_stream(seed, "decoys", split).permutation(dataset.count(split))
    # Places in another split name other images; ids of any other form are taken to be from this one.
    others = tuple(f"{other}:" for other in SPLITS if other != split)
    here = torch.tensor([not name.startswith(others) for name in victims.ids], dtype=torch.bool)
    taken = victims.indices[here].numpy()
    return dataset.images(split, order[~np.isin(order, taken)][:n])


def pick_shadows(
    dataset: Dataset, n: int, *, batch: int = 1, seed: int, split: str = "train", victims: Victims | None = None
) -> Victims:
    """n batches of images of the attacker's own, on which it may choose its settings since none of them is a victim.

    Apart from these victims, or by default from all that an audit of that seed and split could pick: its draw begins at
    the other end of the same permutation, and only an audit of nearly all images would reach them.
    """
    if victims is None:
        order = _order(dataset, seed, split)[::-1]
    else:
        order = _order(dataset, seed + 1, split)
        order = order[~np.isin(order, victims.indices.numpy())]
    checks.count("An attacker of its own images", "shadows", n)
    if n * batch > len(order):
        raise DataError(
            f"Expected at least {n * batch} images of {dataset.name} beside the victims for {n} shadows of {batch}, "
            f"got {len(order)}; use fewer."
        )
    return pick(dataset, indices=order[: n * batch].reshape(n, batch), split=split)


def _order(dataset: Dataset, seed: int, split: str) -> NDArray[np.int64]:
    """The order in which victims are drawn."""
    return numpy_stream(seed, "victims", split).permutation(dataset.count(split))


def pool_of(dataset: Dataset, each: int) -> int:
    """How many decoys to hold where each image draws so many of its own (`Scoring.among`), so that few share many."""
    height, width, channels = dataset.shape
    return max(each, min(POOL * each, MOST_POOLED // (height * width * channels)))


def _drawn(dataset: Dataset, n: int, batch: int, seed: int, split: str) -> NDArray[np.int64]:
    count = dataset.count(split)
    if n * batch > count:
        raise DataError(
            f"The draw asks for {n * batch} images ({n} batches of {batch}) but the split {split!r} of {dataset.name} "
            f"has {count}; use fewer or smaller batches."
        )
    # Permuting all and cutting, rather than drawing n, keeps the first victims when n grows.
    return _order(dataset, seed, split)[: n * batch].reshape(n, batch)


def _distinct(dataset: Dataset, n: int, batch: int, seed: int, split: str) -> NDArray[np.int64]:
    """The same permutation dealt out: each image goes to the first batch that has room and lacks its class."""
    labels = dataset.labels(split)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(f"Batches of different classes need class labels, which {dataset.name} has not; leave it out.")
    batches: list[dict[int, int]] = []
    open_from = 0
    for place in _order(dataset, seed, split).tolist():
        label = int(labels[place])
        room = (b for b in batches[open_from:] if len(b) < batch and label not in b)
        chosen = next(room, None)
        if chosen is None:
            chosen = {}
            batches.append(chosen)
        chosen[label] = place
        while open_from < len(batches) and len(batches[open_from]) == batch:
            open_from += 1
        if open_from >= n:
            return np.array([list(b.values()) for b in batches[:n]], dtype=np.int64)
    raise DataError(
        f"The split {split!r} of {dataset.name} does not hold {n} batches of {batch} images of different classes; "
        "use fewer or smaller batches."
    )


def _given(indices: Chosen, n: int | None, batch: int) -> NDArray[np.int64]:
    try:
        places = np.asarray(indices)
    except ValueError:
        raise SettingError("Indices must be (n,) or (n, B) integers, got rows of different lengths.") from None
    if places.ndim not in (1, 2) or not places.size or places.dtype.kind not in "iu":
        raise SettingError(f"Indices must be (n,) or (n, B) integers, got {places.dtype} of shape {places.shape}.")
    if places.ndim == 1:
        places = places[:, None]
    if n not in (None, len(places)) or batch not in (1, places.shape[1]):
        raise SettingError(
            f"The indices name {len(places)} batches of {places.shape[1]}, not {n} of {batch}; leave n and batch out, "
            f"or make them agree."
        )
    return places.astype(np.int64)
