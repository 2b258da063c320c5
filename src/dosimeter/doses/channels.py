"""From the facts of a defense to what a reader sees of every tensor: noise, zeros, clipping, or nothing.

Where a tensor has no noise at all, what is left is the rounding of the numbers it is sent in.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dosimeter.channel import Channel, Clip, Draws, Hides, Mask, Noise, Rounding, Transforms, words
from dosimeter.doses.information import Part
from dosimeter.doses.others import Bent, Others
from dosimeter.errors import SettingError
from dosimeter.types import Gradient

UNIT = 2.0**-24
"""Half the distance of two float32 numbers, relative to them."""


@dataclass(frozen=True, eq=False)
class Seen:
    """How a reader sees one update. Tensors that are missing are not seen at all."""

    variance: Mapping[str, float]  # of the noise on every entry
    share: Mapping[str, float]  # of entries that are left where a mask is drawn
    kept: Gradient  # {tensor: 1 where an entry is left, else 0} where a mask goes by size
    clip: Clip | None
    plain: frozenset[str]  # tensors that have no noise but the rounding of float32
    notes: tuple[str, ...] = ()
    louder: float = 1.0  # how many times their deviation those tensors have, for float64 to resolve it
    others: Others | None = None  # updates of other clients that it was added to, as noise


def seen(channel: Channel, gradient: Gradient, *, batch: int) -> Seen:
    """What the facts make of an update like this one, or a refusal by the first fact that is not linear."""
    variance = dict.fromkeys(gradient, 0.0)
    share = dict.fromkeys(gradient, 1.0)
    kept: dict[str, Tensor] = {}
    clip: Clip | None = None
    notes: list[str] = []
    for fact in channel.facts:
        on = getattr(fact, "on", None)
        where = [name for name in variance if on is None or name in on]
        match fact:
            case Draws():
                continue
            case Noise(kind, scale):
                for name in where:
                    variance[name] += scale**2  # a Laplace density of scale b has a Fisher information of 1 / b^2
                if kind == "laplace":
                    notes.append("Laplace noise counts by its Fisher information, 1 / scale^2 an entry")
            case Mask(rate, "random"):
                share |= {name: share[name] * (1 - rate) for name in where}
                notes.append("drawn masks count in expectation, as if their places were known")
            case Mask(rate, "size"):
                _refuse_if(any(variance[name] for name in where), fact, "which entries survive depends on the noise")
                kept |= {name: survivors(gradient[name], rate) for name in where}
            case Rounding(step, relative):
                for name in where:
                    size = step * (float(gradient[name].abs().max()) if relative else 1.0)
                    variance[name] += size**2 / 12
                notes.append("rounding counts as even noise of step^2 / 12 an entry")
            case Clip(_, of):
                _refuse_if(
                    any(variance.values()) or bool(kept) or clip is not None, fact, "it acts on a perturbed update"
                )
                _refuse_if(of == "example" and batch > 1, fact, "the update of a batch has one factor an image")
                clip = fact
            case Hides():
                _refuse_if(len(where) == len(variance), fact, "no fact says how")
                variance = {name: value for name, value in variance.items() if name not in where}
            case Transforms():
                _refuse_if(True, fact, "what it determines are the changed images, not these")
    _refuse_if(
        bool(kept) and clip is not None, Clip(clip.bound if clip else 0.0), "survivors of a clipped update move with it"
    )
    plain = [name for name, value in variance.items() if value == 0]
    for name in plain:
        variance[name] = _rounding(gradient, name)
    return Seen(variance, share, kept, clip, frozenset(plain), tuple(dict.fromkeys(notes)))


def _refuse_if(wrong: bool, fact: Clip | Hides | Mask | Transforms, why: str) -> None:
    if wrong:
        raise SettingError(
            f"The dose is linear algebra on the update, which does not describe this: {words(fact)}, since {why}. "
            "Attack it instead (dosimeter audit --attack auto)."
        )


def mean_of(how: Seen, clients: int) -> Seen:
    """The mean of so many clients' updates, each with its own noise; what has none is rounded once, as a mean."""
    quieter = {name: v if name in how.plain else v / clients for name, v in how.variance.items()}
    return replace(how, variance=quieter)


def among(how: Seen, others: Others, clients: int) -> Seen:
    """The sum of so many clients' updates, those of the others being noise beside what every one of them adds."""
    return replace(how, variance={name: v * clients for name, v in how.variance.items()}, others=others)


def resolved(how: Seen, times: float) -> Seen:
    """The same with so many times the variance on tensors that have no noise of their own, or on all if all have."""
    louder = {name: v * times if name in how.plain or not how.plain else v for name, v in how.variance.items()}
    return replace(how, variance=louder, louder=how.louder * math.sqrt(times))


def survivors(g: Tensor, rate: float) -> Tensor:
    """1 for the entries that are not among the smallest, else 0."""
    gone = round(rate * g.numel())
    left = torch.ones_like(g.flatten())
    left[g.flatten().abs().argsort(stable=True)[:gone]] = 0
    return left.reshape(g.shape)


def _rounding(gradient: Gradient, name: str) -> float:
    """The variance of rounding to float32, by the root mean square of a tensor; of zeros by that of the update."""
    g = gradient[name]
    square = float(g.square().mean())
    if square == 0:
        square = sum(float(t.square().sum()) for t in gradient.values()) / sum(t.numel() for t in gradient.values())
    return max(UNIT**2 * square, 1e-60)


def joined(parts: Mapping[str, Part], how: Seen, only: Collection[str] | None = None) -> Tensor:
    """The information (N, N) of an update, or of some of its tensors, as it is seen.

    A clipped gradient c g / |g| moves by c / |g| (I - g g^T / |g|^2) dg: only its direction is left.
    """
    names = [name for name in how.variance if only is None or name in only]
    pull = torch.stack([part.pull for part in parts.values()]).sum(0)
    total = pull.new_zeros(len(pull), len(pull))
    cut = next((part.cut for part in parts.values() if part.cut is not None), None)  # the same of all that have one
    behind = None if cut is None else pull.new_zeros(cut.size, cut.size)
    square = sum(part.square for part in parts.values())
    bent: dict[str, Bent] = {}
    for name in names:
        part, weight = parts[name], how.share[name] / how.variance[name]
        scale, along, inside, own = _clipped(how.clip, part, square, pull)
        into = total if part.cut is None or behind is None else behind
        into.add_(part.inner, alpha=weight * scale**2)
        if scale < 1:
            cross = torch.outer(own, along)
            total.add_(inside * torch.outer(along, along) - cross - cross.T, alpha=weight * scale**2)
        together = part.square if how.clip is not None and how.clip.of == "tensor" else square
        bent[name] = Bent(weight, scale, along, math.sqrt(max(together, 1e-300)))
    if cut is not None and behind is not None:
        total.add_(cut.spread(behind))
    return total if how.others is None or not bent else total - how.others.hides(bent)


def _clipped(clip: Clip | None, part: Part, square: float, pull: Tensor) -> tuple[float, Tensor, float, Tensor]:
    """Factor, J^T g / |g| of all that is clipped together, this part's share of |g|^2, and J^T g / |g| of its own."""
    whole = part.square if clip is not None and clip.of == "tensor" else square
    norm = math.sqrt(max(whole, 1e-300))
    along = (part.pull if clip is not None and clip.of == "tensor" else pull) / norm
    scale = 1.0 if clip is None else min(1.0, clip.bound / norm)
    return scale, along, part.square / max(whole, 1e-300), part.pull / norm
