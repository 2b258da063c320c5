"""The dose of private images: what their update tells of them, by linear algebra at the truth instead of by a search.

    p(image | update)  ~  N(., (P + M)^-1),     M = J^T S^-1 J,     J = dg / d(image, draws)

at the true image and the true draws, for a channel of noise S and a prior of precision P. What is drawn inside the
model, and the other images of a batch, are eliminated. It is an estimate from above of what attacks reach from below:
a reader that is told the network's slopes at the truth.

Fisher information as a measure of leakage: Hannun et al. 2021 (arXiv:2102.11673), Guo et al. 2022 (arXiv:2201.12383).
*Deviations*: draws inside the model are unknowns, not part of an expectation.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dosimeter import clients, rng
from dosimeter.auditing.observe import like
from dosimeter.auditing.setting import Resources, Updates
from dosimeter.defenses import Defense
from dosimeter.doses import algebra, channels
from dosimeter.doses.bounds import bounds_of
from dosimeter.doses.case import Case, case_of
from dosimeter.doses.free import estimated
from dosimeter.doses.information import Part, information, needs
from dosimeter.doses.pictures import pictures_of
from dosimeter.doses.priors import STD, WHITE, Prior
from dosimeter.doses.result import Doses, ImageDose, SecretDose, TensorDose
from dosimeter.doses.slopes import IMAGES, Network
from dosimeter.errors import SettingError
from dosimeter.progress import bar
from dosimeter.servers import Tamper
from dosimeter.types import Loss, Secrets, Step, Victims

LIMIT = 1e12
"""Of the largest eigenvalue in units of the white prior: what is 1 beside it is still resolved in float64."""

Which = Literal["worst", "all", "none"]


class _Update(NamedTuple):
    """One update's information on its images, draws eliminated, and what is needed to say more of it."""

    network: Network
    parts: dict[str, Part]
    how: channels.Seen
    matrix: Tensor  # (B n, B n)
    secrets: dict[str, SecretDose]


def dose(
    model: nn.Module,
    victims: Victims,
    *,
    defense: Defense | str | None = None,
    server: Tamper | str | None = None,
    loss: Loss | str | None = None,
    step: Step | str | None = None,
    prior: Prior | None = WHITE,
    seed: int = 0,
    updates: Updates = Updates(),
    resources: Resources = Resources(dtype=torch.float64),
    tensors: Which = "worst",
    pictures: int = 8,
) -> Doses:
    """How much of every private image its update determines, without any attack.

    Args:
        model, victims, defense, server, loss, step, seed: as in `dosimeter.audit`; draws are of the same streams.
        prior: `White()`, `Images(images=...)` of public images that are no victims, or None for none.
        updates: batch-norm statistics, and rounds: updates of the same batch, whose information adds up.
        resources: the device, and the memory that the exact matrices may take. Precision is float64 in any case.
        tensors: of which images to say what each tensor of the update determines alone and what is left without it.
        pictures: of how many images to make pictures.
    """
    case = case_of(
        model, victims, defense=defense, server=server, loss=loss, step=step, prior=prior, seed=seed, updates=updates,
        resources=resources,
    )  # fmt: skip
    found: list[ImageDose] = []
    drawn: dict[str, dict[str, Tensor]] = {}
    how: channels.Seen | None = None
    exact = True
    with bar("dose", len(victims.ids), show=resources.progress) as advance:
        for v in range(len(victims.ids)):
            began = time.perf_counter()
            if too_large(case, victims, v):
                each, seen = _estimated(case, victims, v)
                found.append(each._replace(seconds=round(time.perf_counter() - began, 3)))
                how, exact = how or seen, False
                advance(v + 1)
                continue
            update = _measured(case, victims, v)
            how = how or update.how
            for b in range(victims.batch):
                each, shown = _image(case, update, victims, v, b, show=len(drawn) < pictures, tensors=tensors == "all")
                spent = (time.perf_counter() - began) / victims.batch
                found.append(each._replace(seconds=round(spent, 3)))
                if shown:
                    drawn[f"{each.id}/{b}"] = shown
            advance(v + 1)
    assert how is not None
    doses = Doses(
        images=tuple(found), prior="none" if case.prior is None else case.prior.name, channel=case.channel.words(),
        noise=min(how.variance.values()) ** 0.5, rounded=_times(how), notes=_notes(how, case), exact=exact,
        bounds=bounds_of(case.stated, victims.batch, updates.rounds),
        settings=_settings(case, victims), pictures=drawn,
    )  # fmt: skip
    return _with_tensors(doses, case, victims) if tensors == "worst" and exact else doses


def _measured(case: Case, victims: Victims, v: int) -> _Update:
    """The information of all rounds of one update on its images."""
    first: _Update | None = None
    total: Tensor | None = None
    for at in range(case.updates.rounds):
        network, parts, how = determining(case, victims, v, at)
        matrix = channels.joined(parts, how)
        scale = torch.ones(len(matrix), dtype=matrix.dtype)
        scale[network.layout.spans[IMAGES]] = STD
        peak = algebra.largest(scale[:, None] * matrix * scale)
        if peak > LIMIT:
            how = channels.resolved(how, peak / LIMIT)
            matrix = channels.joined(parts, how)
        secrets = _secrets(case, network, matrix, victims.batch) if first is None else {}
        kept = measured(network, matrix)
        total = kept if total is None else total + kept
        first = first or _Update(network, parts, how, kept, secrets)
    assert first is not None
    assert total is not None
    return first._replace(matrix=total)


def determining(case: Case, victims: Victims, v: int, at: int = 0) -> tuple[Network, dict[str, Part], channels.Seen]:
    """One update of one round: the network at the truth, the information of each tensor, and how these are seen."""
    fixed = clients.client_draws(case.client.target, case.client.defense, _stream(case, victims, v, "client"))
    network = _network(case, victims, v, at, fixed)
    how = channels.seen(case.channel, network.gradient, batch=victims.batch)
    return network, information(network, how.kept), how


def measured(network: Network, matrix: Tensor) -> Tensor:
    """(B n, B n) the information on images where draws are unknown, by their standard normal prior."""
    images = torch.arange(network.layout.size)[network.layout.spans[IMAGES]]
    return algebra.eliminated(matrix, images, torch.ones(len(matrix) - len(images), dtype=matrix.dtype))


def _stream(case: Case, victims: Victims, v: int, purpose: str, *again: str) -> torch.Generator:
    sender = v - v % case.updates.same_client if purpose == "client" else v
    return rng.stream(case.client.seed, purpose, victims.ids[sender], *again)


def _network(case: Case, victims: Victims, v: int, at: int, fixed: Secrets) -> Network:
    target, defense = case.client.target, case.client.defense
    stream = _stream(case, victims, v, "secrets", *((f"round {at}",) if at else ()))
    drawn = {**fixed, **clients.scoped_draws(target, defense, victims.batch, stream, "image")}
    unknown = () if defense.reveals else tuple(drawn)
    images = victims.images[v].to(target.mean)
    return Network(target, images, like(victims.labels[v], target), drawn, unknown)


def too_large(case: Case, victims: Victims, v: int) -> bool:
    """Whether the exact matrices of an update take more memory than there is."""
    return needs(_first(case, victims, v)) > case.budget


def _first(case: Case, victims: Victims, v: int) -> Network:
    fixed = clients.client_draws(case.client.target, case.client.defense, _stream(case, victims, v, "client"))
    return _network(case, victims, v, 0, fixed)


def _estimated(case: Case, victims: Victims, v: int) -> tuple[ImageDose, channels.Seen]:
    """Figures of one image by products alone, with their errors."""
    network = _first(case, victims, v)
    if victims.batch > 1 or case.updates.rounds > 1:
        raise SettingError(
            f"The exact dose of this model takes about {needs(network) / 2**30:.1f} GiB, and estimates are made of one "
            "update of one image; allow more memory (--budget), or leave --batch and --rounds out."
        )
    how = channels.seen(case.channel, network.gradient, batch=1)
    found = estimated(network, how, case.known, case.client.seed)
    size = network.layout.size
    psnr, bare = algebra.psnr(found.error.value), case.prior is None
    errors = {
        "determined": found.determined.error,
        "bits": found.bits.error,
        "psnr": 10 / math.log(10) * found.error.error / max(found.error.value, 1e-30),
        "white": found.white.error,
    }
    each = ImageDose(
        id=victims.ids[v], place=0, number=int(victims.indices[v, 0]), dimensions=size,
        determined=round(found.determined.value), bits=None if bare else found.bits.value, psnr=None if bare else psnr,
        unbiased=None, fisher=None, white=round(found.white.value), secrets={}, tensors={}, error=errors, seconds=0.0,
    )  # fmt: skip
    return each, how


def _secrets(case: Case, network: Network, matrix: Tensor, batch: int) -> dict[str, SecretDose]:
    """How much of what was drawn is determined, with images unknown."""
    spans = {name: span for name, span in network.layout.spans.items() if name != IMAGES}
    found = {}
    for name, span in spans.items():
        own = torch.arange(len(matrix))[span]
        others = algebra.blocks(
            *[case.known.precision] * batch,
            *(torch.eye(s.stop - s.start, dtype=matrix.dtype) for other, s in spans.items() if other != name),
        )
        left = algebra.eliminated(matrix, own, others)
        found[name] = SecretDose(len(own), algebra.above(left - torch.eye(len(own), dtype=matrix.dtype)))
    return found


def alone(case: Case, matrix: Tensor, b: int, batch: int) -> Tensor:
    """The information on one image of a batch, others unknown."""
    size = len(matrix) // batch
    if batch == 1:
        return matrix
    own = torch.arange(len(matrix))[b * size : (b + 1) * size]
    return algebra.eliminated(matrix, own, algebra.blocks(*[case.known.precision] * (batch - 1)))


def _image(
    case: Case, update: _Update, victims: Victims, v: int, b: int, *, show: bool, tensors: bool
) -> tuple[ImageDose, dict[str, Tensor]]:
    """Figures and pictures of one image."""
    matrix = alone(case, update.matrix, b, victims.batch)
    sizes = torch.linalg.eigvalsh(matrix).clamp_min(0)
    clear = sizes[sizes * STD**2 > 1]
    prior = case.prior
    behind = None if prior is None else algebra.posterior(matrix, prior.precision, prior.log_precision)
    white = prior is None or prior.name == "white"
    each = ImageDose(
        id=victims.ids[v],
        place=b,
        number=int(victims.indices[v, b]),
        dimensions=len(matrix),
        determined=len(clear) if white else algebra.above(matrix - case.known.precision),
        bits=None if behind is None else behind.bits,
        psnr=None if behind is None else algebra.psnr(behind.error),
        unbiased=algebra.psnr(float((1 / clear).mean())) if len(clear) else None,
        white=len(clear),
        fisher=algebra.psnr(len(matrix) / max(float(matrix.trace()), 1e-300)),
        secrets=update.secrets,
        tensors=_tensors(case, update, victims.batch, b) if tensors else {},
        error={},
        seconds=0.0,
    )
    shown = pictures_of(victims.images[v, b], matrix, prior, behind) if show else {}
    return each, shown


def _tensors(case: Case, update: _Update, batch: int, b: int) -> dict[str, TensorDose]:
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
    return {
        name: TensorDose(determined([name]), determined([other for other in every if other != name])) for name in every
    }


def _with_tensors(doses: Doses, case: Case, victims: Victims) -> Doses:
    """The most exposed image with what each tensor tells of it."""
    worst = doses.worst
    v = victims.ids.index(worst.id)
    update = _measured(replace(case, updates=replace(case.updates, rounds=1)), victims, v)
    told = worst._replace(tensors=_tensors(case, update, victims.batch, worst.place))
    return replace(doses, images=tuple(told if each is worst else each for each in doses.images))


def _times(how: channels.Seen) -> float | None:
    """How many times the rounding of float32 the noise on tensors without any is."""
    return how.louder if how.plain else None


def _notes(how: channels.Seen, case: Case) -> tuple[str, ...]:
    notes = list(how.notes)
    if how.plain:
        notes.append(
            f"{'no tensor has' if len(how.plain) == len(how.variance) else f'{len(how.plain)} tensors have no'} noise "
            f"of its own, and counts with {how.louder:.3g} times the rounding of float32"
        )
    if len(case.client.target.secrets) and not case.client.defense.reveals:
        notes.append("what is drawn inside the model is unknown, by its standard normal prior")
    if how.clip is not None:
        notes.append("clipping leaves the gradient's direction, and its length where that is below the bound")
    return tuple(notes)


def _settings(case: Case, victims: Victims) -> dict[str, Any]:
    target, defense = case.client.target, case.client.defense
    return {
        "parameters": sum(p.numel() for p in target.parameters.values()),
        "shape": list(target.shape),
        "defense": repr(defense),
        "step": "gradient" if target.step is None else repr(target.step),
        "batch": victims.batch,
        "rounds": case.updates.rounds,
        "seed": case.client.seed,
        "threshold": "a deviation of 0.25" if case.prior is None else "half of the prior's variance",
    }
