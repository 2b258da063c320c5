"""Solving for the image instead of searching for it, where the first layer is fully connected.

With one image the gradient of that layer, z = W x + b, is  dW = (dL/dz) x^T  and  db = dL/dz,  so that x is in it:

    with a bias     x = dW^T db / |db|^2, all rows' ratios dW_i / db_i weighted by db_i^2 (Inverting Gradients, Prop. 1)
    without one     dW has rank one, its right singular vector is x up to sign and scale; these two numbers come from
                    the range of pixels and a one-dimensional match of the whole update

Noise on the bias spoils the ratio long before it spoils the singular vector, so an update that the ratio does not
explain is solved in the second way as well and the image that explains more of it is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.first_layer import SEARCH, FirstLayer, find_first_layer, in_double
from dosimeter.engine import Matcher
from dosimeter.errors import SettingError
from dosimeter.types import Curve, Observation, Reconstruction, Target, ThreatModel, Watch

RECOVERED, NOT_DETERMINED, INTERRUPTED = "recovered", "not determined", "interrupted"

ROUNDING = 1000
"""A certificate allows so many units of rounding of the update's precision: 1.2e-4 in float32, 2.2e-13 in float64."""

SCALES = 64
"""Scales that are tried on the range that keeps pixels in [0, 1], of both signs."""

BASINS = 3
"""The best of them that are better than their neighbours are refined, one after another until one reproduces it."""

SLACK = 0.01
"""How far pixels may leave [0, 1] while scales are tried, so that rounding at 0 and 1 shuts no scale out."""


@dataclass(frozen=True, kw_only=True)
class Analytic:
    """Inverting Gradients, Prop. 1, and its counterpart for a first layer without bias; no steps, no starts.

    A victim is `recovered` when its image reproduces the observed update to rounding: the relative error of the whole
    simulated update and that of the first layer's weight, the larger of which is `match`, are at most `ROUNDING` units
    of the update's precision. With a bias no other image does. Everything else is `not determined`, for instance the
    update of a layer all of whose neurons are dead, or one under noise: its image is the nearest that was found, which
    may still be good to look at.
    """

    name: str = "analytic"
    labels: labels_.Labels = labels_.FromLastLayer()
    """Only the check and the scale of a layer without bias need them."""

    def needs(self) -> ThreatModel:
        return ThreatModel(labels=self.labels.granted)

    def check(self, target: Target, batch: int) -> None:
        """Refuse what cannot be solved, before any work."""
        if batch != 1:
            raise SettingError(
                f"The analytic attack solves for one image, but an update holds {batch}, whose gradients are summed; "
                f"use --batch 1 or {SEARCH}."
            )
        if target.step is not None:
            raise SettingError(
                f"The analytic attack solves one gradient, but the client sends {target.step!r}; "
                f"leave the step out or {SEARCH}."
            )
        find_first_layer(in_double(target))

    def blind(self) -> "Blank":
        """Without the update there is nothing to solve."""
        return Blank(name=f"{self.name} without the update", labels=self.labels)

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        seen = _only(observations)
        self.check(target, seen.batch)
        solver = _Solver(target, seen, self.labels.find(target, seen).to(target.mean.device))
        victims = len(seen.ids)
        found = [_Found(blank(target), torch.inf, INTERRUPTED)] * victims
        try:
            for v in range(victims):
                _tell(watch, v, victims, found)
                found[v] = solver.solve(v)
            _tell(watch, victims, victims, found)
        except KeyboardInterrupt:
            pass
        return _reconstruction(target, solver.labels, found)


@dataclass(frozen=True, kw_only=True)
class Blank:
    """What is known before any update: the image that the model's normalisation takes to 0, grey where it has none."""

    name: str = "blank"
    labels: labels_.Labels = labels_.FromLastLayer()

    def needs(self) -> ThreatModel:
        return ThreatModel(labels=self.labels.granted)

    def blind(self) -> "Blank":
        return self

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        seen = _only(observations)
        found = [_Found(blank(target), 0.0, NOT_DETERMINED)] * len(seen.ids)
        return _reconstruction(target, self.labels.find(target, seen), found)


@dataclass(frozen=True)
class _Found:
    """One victim's image (C, H, W), how far its update is from the observed one, and what that says."""

    image: Tensor
    match: float
    verdict: str


class _Solver:
    """The victims of one observation, one after another, in float64."""

    def __init__(self, target: Target, seen: Observation, labels: Tensor) -> None:
        self.target, self.seen, self.labels = target, seen, labels
        self.exact = in_double(target)
        self.layer: FirstLayer = find_first_layer(self.exact)
        self.matcher = Matcher(target, seen.gradient, statistics=seen.statistics)
        self.bound = ROUNDING * torch.finfo(target.mean.dtype).eps

    def solve(self, v: int) -> _Found:
        observed = {name: self.seen.gradient[name][v].double() for name in self.exact.parameters}
        weight = observed[self.layer.weight]
        slopes = observed[self.layer.bias] if self.layer.bias else None  # dL/dz
        update = _Update(self.exact, self.layer.weight, observed, self.labels[v])
        if not weight.any():
            image = blank(self.exact)
            return _Found(image, update.mismatch(image), NOT_DETERMINED)
        image, match = blank(self.exact), torch.inf
        if slopes is not None and slopes.any():
            image = self.layer.image(weight.T @ slopes / slopes.square().sum())
            match = update.mismatch(image)
        if match > self.bound:
            image, match = min((image, match), self._scaled(v, direction(weight), update), key=lambda pair: pair[1])
        return _Found(image, match, RECOVERED if match <= self.bound else NOT_DETERMINED)

    def _scaled(self, v: int, unit: Tensor, update: "_Update") -> tuple[Tensor, float]:
        """The image on the line through 0 along `unit` whose update is nearest to the observed one."""
        low, high = scale_range(self.layer, unit)
        scales = torch.linspace(low, high, SCALES, dtype=unit.dtype, device=unit.device)
        images = torch.stack([self.layer.image(s * unit) for s in scales]).unsqueeze(1)  # (SCALES, 1, C, H, W)
        owner = torch.full((SCALES,), v, device=unit.device)
        with torch.no_grad():
            products = self.matcher(images.to(self.target.mean), self.labels[owner], owner)
        apart = products.difference.sum(1).detach()  # (SCALES,)
        best = (blank(self.exact), torch.inf)
        for start in _valleys(apart)[:BASINS]:
            scale = update.refine(lambda s: self.layer.image(s * unit), float(scales[start]), (high - low) / SCALES)
            image = self.layer.image(scale * unit)
            best = min(best, (image, update.mismatch(image)), key=lambda pair: pair[1])
            if best[1] <= self.bound:
                break
        return best


class _Update:
    """One victim's observed update, and how far an image's is from it."""

    def __init__(self, target: Target, first: str, observed: dict[str, Tensor], labels: Tensor) -> None:
        self._target, self._first, self._observed = target, first, observed
        self._labels = labels.double() if labels.is_floating_point() else labels
        self._parameters = target.parameters

    def mismatch(self, image: Tensor) -> float:
        """The relative error of the simulated update, or of its first layer's weight if that is larger."""
        simulated = self._simulate(image)
        apart = {name: (simulated[name] - g).square().sum() for name, g in self._observed.items()}
        sizes = {name: g.square().sum() for name, g in self._observed.items()}
        whole = sum(apart.values(), torch.zeros(())) / sum(sizes.values(), torch.zeros(()))
        error = float(torch.maximum(whole, apart[self._first] / sizes[self._first]).sqrt())
        return error if error == error else torch.inf

    def refine(self, image_of: Callable[[float], Tensor], scale: float, width: float) -> float:
        """Gauss-Newton in one number, the scale; a step that does not come nearer is halved until it does."""
        nudge = 1e-6 * width
        rest = self._rest(image_of(scale))
        for _ in range(20):
            slope = (self._rest(image_of(scale + nudge)) - rest) / nudge
            move = -float(slope @ rest / slope.square().sum())
            before = float(rest.square().sum())
            for _ in range(5):
                trial = self._rest(image_of(scale + move))
                after = float(trial.square().sum())
                if after < before:
                    break
                move /= 2
            else:
                break
            scale, rest = scale + move, trial
            if after > 0.9 * before:  # what is left is rounding or noise
                break
        return scale

    def _rest(self, image: Tensor) -> Tensor:
        """Simulated minus observed, as one vector."""
        simulated = self._simulate(image)
        return torch.cat([(simulated[name] - g).flatten() for name, g in self._observed.items()])

    def _simulate(self, image: Tensor) -> dict[str, Tensor]:
        simulated: dict[str, Tensor] = grad(self._target.objective)(self._parameters, image[None], self._labels)
        return simulated


def direction(weight: Tensor) -> Tensor:
    """(n,): the right singular vector of the largest singular value of (m, n), by power iteration from its largest row.

    On a matrix of rank one the first iteration ends it; the others average noise.
    """
    row = weight[weight.square().sum(1).argmax()]
    unit: Tensor = row / torch.linalg.vector_norm(row)
    for _ in range(20):
        before, unit = unit, weight.T @ (weight @ unit)
        unit /= torch.linalg.vector_norm(unit)
        if torch.allclose(unit, before, rtol=0, atol=1e-15):
            break
    return unit


def _valleys(heights: Tensor) -> list[int]:
    """Places that are no higher than their neighbours, the lowest first."""
    heights = heights.nan_to_num(torch.inf)
    fence = torch.nn.functional.pad(heights, (1, 1), value=torch.inf)
    low = (heights <= fence[:-2]) & (heights <= fence[2:])
    found: list[int] = heights.masked_fill(~low, torch.inf).argsort(stable=True)[: int(low.sum())].tolist()
    return found


def scale_range(layer: FirstLayer, unit: Tensor) -> tuple[float, float]:
    """The scales s that keep the image behind the input s * unit in [0, 1], but for `SLACK`."""
    black = layer.image(torch.zeros_like(unit)).flatten()
    slope = layer.image(unit).flatten() - black
    moves = slope != 0
    ends = torch.stack([(edge - black[moves]) / slope[moves] for edge in (-SLACK, 1 + SLACK)])  # (2, pixels)
    return float(ends.amin(0).max()), float(ends.amax(0).min())


def blank(target: Target) -> Tensor:
    """(C, H, W): the image that the model's normalisation takes to 0, or grey where it does not normalise."""
    plain = not target.mean.any() and bool((target.std == 1).all())
    level = torch.full_like(target.mean, 0.5) if plain else target.mean
    return level.expand(target.shape)


def _only(observations: Sequence[Observation]) -> Observation:
    if len(observations) != 1:
        raise SettingError(f"The analytic attack reads one update of each victim, got {len(observations)}.")
    return observations[0]


def _tell(watch: Watch | None, done: int, total: int, found: list[_Found]) -> None:
    if watch is not None:
        watch(done=done, total=total, match=found[done - 1].match if done else torch.nan, active=total - done)


def _reconstruction(target: Target, labels: Tensor, found: list[_Found]) -> Reconstruction:
    match = torch.tensor([one.match for one in found]).to(target.mean)  # (V,)
    none = torch.zeros(len(found), dtype=torch.long, device=match.device)
    return Reconstruction(
        images=torch.stack([one.image.to(target.mean) for one in found]).unsqueeze(1),
        labels=labels,
        match=match,
        steps=none,
        restart=none,
        stopped=tuple(one.verdict for one in found),
        curve=Curve((0,), match.unsqueeze(1)),
    )
