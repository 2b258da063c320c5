"""The figures of one image, from the information on it or from estimates of that."""

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from dosimeter import engine
from dosimeter.doses import algebra, channels
from dosimeter.doses.case import Case
from dosimeter.doses.free import estimated
from dosimeter.doses.information import needs
from dosimeter.doses.pictures import pictures_of
from dosimeter.doses.priors import STD, Known
from dosimeter.doses.result import ImageDose, TensorDose
from dosimeter.doses.slopes import Network
from dosimeter.doses.updates import Update, alone, first_network, measured
from dosimeter.errors import SettingError
from dosimeter.rng import stream
from dosimeter.types import Victims

SIGNS = 32
"""Random vectors of which a trace is estimated."""


def image_of(
    case: Case, update: Update, victims: Victims, v: int, b: int, *, show: bool, tensors: bool
) -> tuple[ImageDose, dict[str, Tensor]]:
    """Figures and pictures of one image."""
    matrix = alone(case, update.matrix, b, victims.batch)
    sizes = torch.linalg.eigvalsh(matrix).clamp_min(0)
    clear = sizes[sizes * STD**2 > 1]
    prior, even = case.prior, case.known.factor.ndim == 1
    behind = None if prior is None else algebra.posterior(matrix, prior.precision, prior.log_precision)
    many = int((sizes * case.known.factor[0] ** 2 > 1).sum()) if even else algebra.above(matrix - case.known.precision)
    each = ImageDose(
        id=victims.ids[v],
        place=b,
        number=int(victims.indices[v, b]),
        dimensions=len(matrix),
        determined=many,
        bits=None if behind is None else behind.bits,
        psnr=None if behind is None else algebra.psnr(behind.error),
        here=None if prior is None or behind is None else here_of(victims.images[v, b], matrix, prior, behind),
        unbiased=algebra.psnr(float((1 / clear).mean())) if len(clear) else None,
        white=len(clear),
        fisher=algebra.psnr(len(matrix) / max(float(matrix.trace()), 1e-300)),
        secrets=update.secrets,
        tensors=tensors_of(case, update, victims.batch, b) if tensors else {},
        error={},
        seconds=0.0,
    )
    shown = pictures_of(victims.images[v, b], matrix, prior, behind) if show else {}
    return each, shown


def here_of(image: Tensor, matrix: Tensor, prior: Known, behind: algebra.Posterior) -> float:
    """PSNR of the posterior mean on one image: what the prior pulls it away by, and the noise that is left in it.

    |C P (x - mu)|^2 + tr(C M C), C the posterior covariance; the trace by random signs, to a few per cent.
    """
    covariance, size = behind.covariance, len(matrix)
    pulled = covariance @ (prior.precision @ (image.flatten().double() - prior.mean))
    signs = torch.randint(0, 2, (size, SIGNS), generator=stream(0, "dose", "signs")).double() * 2 - 1
    spread = covariance @ signs
    noise = float((spread * (matrix @ spread)).sum()) / SIGNS
    return algebra.psnr((float(pulled.square().sum()) + noise) / size)


def tensors_of(case: Case, update: Update, batch: int, b: int) -> dict[str, TensorDose]:
    """Dimensions of an image that every tensor determines alone, and those that are determined without it.

    In the first round, at the prior's threshold.
    """
    network, parts, how = update.network, update.parts, update.how

    def determined(names: Sequence[str]) -> int:
        if not names:
            return 0
        own = measured(network, channels.joined(parts, how, names))
        return algebra.above(alone(case, own, b, batch) - case.known.precision)

    every = list(how.variance)
    asked = [[name] for name in every] + [[other for other in every if other != name] for name in every]
    workers = min(torch.get_num_threads(), 2)  # each holds a few matrices of its own
    many = engine.threads.run(determined, asked, workers=workers, stop=threading.Event())
    if len(many) < len(asked):
        raise KeyboardInterrupt
    return {name: TensorDose(many[i], many[len(every) + i]) for i, name in enumerate(every)}


def estimated_of(case: Case, victims: Victims, v: int) -> tuple[list[ImageDose], channels.Seen]:
    """Figures of the images of one update by products alone, with their errors."""
    network = first_network(case, victims, v)
    if case.updates.rounds > 1:
        raise SettingError(
            f"The exact dose of this model takes about {needs(network) / 2**30:.1f} GiB, and estimates are made of one "
            "update; allow more memory (--budget), or leave --rounds out."
        )
    how = channels.seen(case.channel, network.gradient, batch=victims.batch)
    return [_estimated(case, network, how, victims, v, b) for b in range(victims.batch)], how


def _estimated(case: Case, network: Network, how: channels.Seen, victims: Victims, v: int, b: int) -> ImageDose:
    found = estimated(network, how, case.known, case.client.seed, place=b)
    psnr, bare = algebra.psnr(found.error.value), case.prior is None
    errors = {
        "determined": found.determined.error,
        "bits": found.bits.error,
        "psnr": 10 / math.log(10) * found.error.error / max(found.error.value, 1e-30),
        "white": found.white.error,
    }
    return ImageDose(
        id=victims.ids[v], place=b, number=int(victims.indices[v, b]), dimensions=victims.images[v, b].numel(),
        determined=round(found.determined.value), bits=None if bare else found.bits.value, psnr=None if bare else psnr,
        here=None, unbiased=None, fisher=None, white=round(found.white.value), secrets={}, tensors={}, error=errors,
        seconds=0.0,
    )  # fmt: skip
