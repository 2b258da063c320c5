"""What a defense does to an update, found out by trying it.

The same gradient goes through `on_gradient` many times, as it is and so loud that noise drowns in it: what differs
between draws is noise or a random mask, what vanishes was masked, what lies on a grid was rounded, and what no longer
grows was clipped. What fits none of these is said to be hidden.
"""

import math
from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dosimeter import trees
from dosimeter.channel import Clip, Fact, Facts, Hides, Mask, Noise, Rounding, Tensors
from dosimeter.defenses.base import Around, Chain, Defense, parts
from dosimeter.errors import UpdateError
from dosimeter.rng import stream
from dosimeter.types import Gradient, Moment

DRAWS, ENTRIES, LOUD = 24, 4096, 1e4
"""Tries, entries of a tensor that are looked at, and how much louder than any noise a loud gradient is."""
FEW = 64
"""Entries from which a tensor tells a grid or a size by itself; smaller ones are taken to be like the others."""
LEAST = 1e-5
"""Of a tensor's root mean square: less is the rounding of numbers."""


class _Tried(NamedTuple):
    """One tensor before (E,) and after (K, E) so many tries."""

    given: Tensor
    sent: Tensor

    @property
    def size(self) -> float:
        return float(self.given.square().mean().sqrt())

    @property
    def still(self) -> bool:
        """Whether it left as it came."""
        return torch.equal(self.sent, self.given.expand_as(self.sent))

    @property
    def factor(self) -> float:
        """By how much entries grew that were not dropped."""
        large = self.given.abs() >= 0.5 * self.given.abs().max()
        ratios = (self.sent[:, large] / self.given[large]).flatten()
        return float(ratios[ratios.abs() > 1e-3 * ratios.abs().max()].median()) if bool(ratios.any()) else 0.0

    @property
    def slope(self) -> tuple[float, float]:
        """By how much all of it grew on average, and how far that is off by chance."""
        norm = max(float(self.given.norm()), 1e-300)
        slope = float((self.sent.mean(0) * self.given).sum()) / norm**2
        return slope, float(self.sent.std(0).square().mean().sqrt()) / norm / math.sqrt(DRAWS)


class _Spread(NamedTuple):
    """Of the noise on one tensor; the tail is the fourth moment over the squared second, 3 for a normal density."""

    deviation: float
    tail: float
    entries: int


def facts_of(defense: Defense, gradient: Gradient, moment: Moment, seed: int) -> tuple[Facts, tuple[str, ...]]:
    """All that a defense does to updates like this one, and the names of those of its parts that were probed."""
    found: list[Fact] = []
    measured = []
    for part in _acting(defense):
        stated = part.channel(moment) if _states(part) else None
        if stated is None:
            stated = probe(part, gradient, moment, seed)
            measured.append(type(part).__name__)
        found += stated
    return tuple(found), tuple(measured)


def probe(defense: Defense, gradient: Gradient, moment: Moment, seed: int) -> Facts:
    """The facts that show in what a defense makes of one gradient."""
    calm = _try(defense, gradient, moment, seed)
    if strange := [
        name for name, tried in calm.items() if not tried.sent.isfinite().all() and tried.given.isfinite().all()
    ]:
        raise UpdateError(
            f"The defense {type(defense).__name__} makes NaN or infinity of the update's tensor {strange[0]!r}; "
            "expected finite numbers."
        )
    noisiest = max(_blur(tried) / max(tried.size, 1e-30) for tried in calm.values())
    volume = LOUD * max(1.0, noisiest)
    loud = _try(defense, {name: volume * g for name, g in gradient.items()}, moment, seed)
    if all(torch.equal(loud[name].sent, calm[name].sent) for name in gradient):
        loud = calm  # the gradient is made anew from the batch, whatever is given
    found = {name: _look(calm[name], loud[name]) for name in gradient}
    clear = [seen for name, seen in found.items() if gradient[name].numel() >= FEW]
    if clear and not any(seen.hidden for seen in clear) and any(seen.rounding or seen.shown for seen in clear):
        rounded = all(seen.rounding for seen in clear)
        found = {name: clear[0] if seen.hidden or (rounded and seen.shown) else seen for name, seen in found.items()}
    return (
        *_clips(found, gradient, calm, loud),
        *_masks(found, "drowned"),
        *_noises(found),
        *_masks(found, "shown"),
        *_roundings(found),
        *_hidden(found),
    )


class _Seen(NamedTuple):
    """What happens to one tensor."""

    drowned: Mask | None = None  # before the noise
    noise: _Spread | None = None
    shown: Mask | None = None  # behind the noise, or without any
    rounding: Rounding | None = None
    hidden: bool = False


def _acting(defense: Defense) -> list[Defense]:
    """The parts that change an update; one that stands around another and changes more counts as one."""
    if isinstance(defense, Around) and type(defense).on_gradient is not Around.on_gradient:
        return [defense]
    inner = parts(defense) if isinstance(defense, Around | Chain) else (defense,)
    return [part for part in inner if type(part).on_gradient is not Defense.on_gradient]


def _states(defense: Defense) -> bool:
    """Whether its facts are its own: a class that changes `on_gradient` alone does not inherit those of its parent."""
    owner = {hook: next(c for c in type(defense).__mro__ if hook in vars(c)) for hook in ("channel", "on_gradient")}
    return issubclass(owner["channel"], owner["on_gradient"])


def _try(defense: Defense, gradient: Gradient, moment: Moment, seed: int) -> dict[str, _Tried]:
    places = {
        name: torch.randperm(g.numel(), generator=stream(seed, "probe", name))[:ENTRIES] for name, g in gradient.items()
    }
    sent: dict[str, list[Tensor]] = {name: [] for name in gradient}
    for draw in range(DRAWS):
        made = defense.on_gradient(gradient, moment, stream(seed, "probe", draw))
        trees.check_form(made, gradient)
        for name, where in places.items():
            sent[name].append(made[name].detach().flatten()[where].cpu().double())
    return {
        name: _Tried(g.detach().flatten()[places[name]].cpu().double(), torch.stack(sent[name]))
        for name, g in gradient.items()
    }


def _blur(tried: _Tried) -> float:
    return float(tried.sent.std(0).square().mean().sqrt())


def _look(calm: _Tried, loud: _Tried) -> _Seen:
    if not calm.size or (calm.still and loud.still):
        spread = _spread(calm.sent, torch.ones_like(calm.sent, dtype=torch.bool))
        return _Seen(noise=spread if spread.deviation > 0 else None)
    constant = torch.equal(calm.sent, calm.sent[:1].expand_as(calm.sent))
    if constant and (rounding := _rounding(calm, loud)) is not None:
        return _Seen(rounding=rounding)
    zeros = (calm.sent == 0) & (calm.given != 0)
    # Draws are the same in both, so what a mask dropped loudly it dropped before.
    gone, clear = _gone(loud)
    factor = _factor(calm, ~(gone | zeros))
    left = calm.sent - torch.where(gone | zeros, 0.0, factor * calm.given)
    spread = _spread(left, ~zeros)
    noise = spread if spread.deviation > LEAST * calm.size else None
    shown = _mask(calm.given, zeros, calm.given != 0)
    drowned = _mask(calm.given, gone, clear) if noise is not None and shown is None else None
    masks = [mask for mask in (shown, drowned) if mask is not None]
    if any(math.isnan(mask.rate) for mask in masks):
        return _Seen(hidden=True)
    if noise is not None and (_grows(calm, left, ~zeros & ~gone) or _replaced(calm, loud)):
        return _Seen(hidden=True)
    if noise is not None or masks:
        return _Seen(drowned, noise, shown)
    return _Seen(hidden=not _only_scaled(calm))


def _gone(loud: _Tried) -> tuple[Tensor, Tensor]:
    """Entries that were dropped (K, E), and those (E,) so far above the noise that this can be told."""
    expected = loud.factor * loud.given
    gone = (loud.sent.abs() < 0.5 * expected.abs()) & (loud.given != 0)
    blur = float((loud.sent - torch.where(gone, 0.0, expected)).square().mean().sqrt())
    clear = (expected.abs() > 20 * blur) & (loud.given != 0)
    return gone & clear, clear


def _factor(tried: _Tried, kept: Tensor) -> float:
    """By how much entries grew where they were kept (K, E), noise averaged out."""
    norm = float(torch.where(kept, tried.given.square(), 0).sum())
    return float(torch.where(kept, tried.sent * tried.given, 0).sum()) / norm if norm else 0.0


def _replaced(calm: _Tried, loud: _Tried) -> bool:
    """Whether what is sent varies as much as the gradient itself and has nothing of its direction."""
    louder = loud.size / calm.size
    if louder < 10 or _blur(loud) < 0.1 * louder * _blur(calm):
        return False
    given, sent = loud.given - loud.given.mean(), loud.sent - loud.sent.mean(1, keepdim=True)
    slope, off = _Tried(given, sent).slope
    return slope < max(0.05, 4 * off)


def _spread(left: Tensor, counted: Tensor) -> _Spread:
    """Over draws of the same entry, where they count, (K, E) twice."""
    many = counted.sum(0)
    counted = counted & (many > 1)
    mean = torch.where(counted, left, 0).sum(0) / many.clamp_min(1)
    apart = torch.where(counted, left - mean, 0)
    free = float((many[many > 1] - 1).sum())
    variance = float(apart.square().sum()) / max(1.0, free)
    fourth = float(apart.pow(4).sum()) / max(1.0, float(counted.sum()))
    second = float(apart.square().sum()) / max(1.0, float(counted.sum()))
    return _Spread(math.sqrt(variance), fourth / max(second**2, 1e-300), int(counted.sum()))


def _grows(tried: _Tried, left: Tensor, counted: Tensor) -> bool:
    """Whether what is left varies with the size of the entries it is on: it is then no noise that was added."""
    often = counted.sum(0) > 1
    sizes, left, counted = tried.given.abs()[often], left[:, often], counted[:, often]
    if len(sizes) < 8:
        return False
    large, small = sizes >= sizes.quantile(0.8), sizes <= sizes.quantile(0.5)
    one, other = (_spread(left[:, who], counted[:, who]).deviation for who in (large, small))
    return one > 2 * other


def _mask(given: Tensor, gone: Tensor, clear: Tensor) -> Mask | None:
    """Entries that were dropped (K, E), of those that would be seen; a rate of nan where nothing says which."""
    often, sizes = gone.double().mean(0)[clear], given.abs()[clear]
    if not bool(often.any()):
        return None
    if bool(((often > 0) & (often < 1)).any()):
        return Mask(float(often.mean()), "random")
    dropped, kept = sizes[often == 1], sizes[often == 0]
    if not len(kept) or float(dropped.max()) > float(kept.min()) * (1 + 1e-6):
        return Mask(math.nan, "size")
    return Mask(float((given.abs() <= dropped.max()).double().mean()), "size")


def _rounding(calm: _Tried, loud: _Tried) -> Rounding | None:
    step, again = _step(calm), _step(loud)
    if step is None:
        return None
    volume = loud.size / calm.size
    relative = again is not None and abs(again / step / volume - 1) < 0.01
    return Rounding(step / float(calm.sent.abs().max()) if relative else step, relative)


def _step(tried: _Tried) -> float | None:
    """The grid that all entries lie on, where there is one that is coarser than numbers are."""
    values = torch.from_numpy(np.unique(tried.sent[0].abs().numpy()))
    gaps = values.diff()
    gaps = gaps[gaps > LEAST * values.max()]
    if not len(gaps) or len(tried.given) < FEW:
        return None
    step, reach = float(gaps.min()), 8.0
    while reach < 2 * float(values.max()) / step:  # small multiples first, whose number an inexact step cannot miss
        near = values[values <= reach * step]
        many = (near / step).round()
        step = float((near * many).sum() / many.square().sum().clamp_min(1)) or step
        reach *= 2
    off = (tried.sent[0] / step - (tried.sent[0] / step).round()).abs().max()
    moved = (tried.sent[0] - tried.given).abs().max()
    return step if off < 0.05 and moved <= 1.01 * step else None


def _only_scaled(tried: _Tried) -> bool:
    sent = tried.sent[0]
    return torch.equal(tried.sent, sent.expand_as(tried.sent)) and float(
        (sent - tried.factor * tried.given).abs().max()
    ) <= 1e-4 * abs(tried.factor) * float(tried.given.abs().max())


def _masks(found: dict[str, _Seen], when: str) -> Iterator[Mask]:
    there = {name: mask for name, seen in found.items() if (mask := getattr(seen, when)) is not None}
    for by in ("size", "random"):
        names = [name for name, mask in there.items() if mask.by == by]
        if names:
            rates = sorted(there[name].rate for name in names)
            yield Mask(rates[len(rates) // 2], by, _on(names, found))


def _noises(found: dict[str, _Seen]) -> Iterator[Noise]:
    """Tensors whose noise is alike have one fact; whether it is Laplace's is asked of all of their entries."""
    groups: list[dict[str, _Spread]] = []
    for name, seen in found.items():
        if seen.noise is None:
            continue
        like = (g for g in groups if abs(math.log(next(iter(g.values())).deviation / seen.noise.deviation)) < 0.2)
        group = next(like, None)
        if group is None:
            groups.append({name: seen.noise})
        else:
            group[name] = seen.noise
    for group in groups:
        many = sum(spread.entries for spread in group.values())
        tail = sum(spread.entries * spread.tail for spread in group.values()) / many
        deviation = math.sqrt(sum(spread.entries * spread.deviation**2 for spread in group.values()) / many)
        on = _on(group, found)
        yield Noise("laplace", deviation / math.sqrt(2), on) if tail > 4.2 else Noise("gaussian", deviation, on)


def _roundings(found: dict[str, _Seen]) -> Iterator[Rounding]:
    for relative in (False, True):
        grids = {name: seen.rounding for name, seen in found.items() if seen.rounding is not None}
        steps = {name: grid.step for name, grid in grids.items() if grid.relative is relative}
        if steps:
            yield Rounding(sorted(steps.values())[len(steps) // 2], relative, _on(steps, found))


def _hidden(found: dict[str, _Seen]) -> Iterator[Hides]:
    names = [name for name, seen in found.items() if seen.hidden]
    if names:
        yield Hides(_on(names, found))


def _clips(
    found: dict[str, _Seen], gradient: Gradient, calm: dict[str, _Tried], loud: dict[str, _Tried]
) -> Iterator[Clip]:
    """A loud update, or each of its tensors, grew far less than it was made louder."""
    moving = [name for name, tried in calm.items() if tried.size]
    if not moving or loud is calm or any(found[name].hidden for name in moving):
        return
    norms = {name: float(gradient[name].norm()) * loud[name].size / _size(gradient[name]) for name in moving}
    whole = math.hypot(*norms.values())
    now, before = (sum(t[n].slope[0] * norm**2 for n, norm in norms.items()) / whole**2 for t in (loud, calm))
    slopes = {name: loud[name].slope for name in moving}
    if 0 < now < 0.1 * before and all(abs(slope - now) <= 0.1 * now + 6 * off for slope, off in slopes.values()):
        yield Clip(now * whole, "update")
    elif all(0 < slope + 4 * off < 0.1 * calm[name].slope[0] for name, (slope, off) in slopes.items()):
        yield Clip(max(slopes[name][0] * norm for name, norm in norms.items()), "tensor")


def _on(names: Collection[str], found: dict[str, _Seen]) -> Tensors:
    return None if len(names) == len(found) else frozenset(names)


def _size(g: Tensor) -> float:
    return float(g.double().square().mean().sqrt())
