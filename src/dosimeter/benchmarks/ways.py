"""One step in several ways: the cosine between simulated and observed gradients, and its slope in the images.

All ways see the same victims and give the same slopes. Setting them up, observations and factors included, is not
timed, and neither is moving the images along the slope.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dosimeter import engine, models, networks, rng
from dosimeter.attacks.search.likelihoods import Cosine
from dosimeter.benchmarks.cases import Case
from dosimeter.benchmarks.crew import crew
from dosimeter.benchmarks.rounds import Burst, Taken, on_threads, repeat
from dosimeter.types import Gradient, Loss, Target

SEED = 0
COPIES = 12
"""Gradients that vmap holds for one victim: simulated, observed, their products, all of them again backwards."""
SIDE = 1024
"""Of the square matrices whose product is the peak of the machine."""


class Tile(NamedTuple):
    """Candidates that step together; the matcher holds what was observed of their victims."""

    matcher: engine.Matcher
    images: Tensor  # (N, B, C, H, W)
    labels: Tensor  # (N, B)
    owner: Tensor  # (N,)

    def slope(self) -> Tensor:
        """(N, B, C, H, W): one step."""
        images = self.images.detach().requires_grad_()
        match = Cosine().loss(self.matcher(images, self.labels, self.owner))
        return torch.autograd.grad(match.sum(), images)[0]

    @property
    def work(self) -> int:
        """Image-steps of a step."""
        return self.labels.numel()

    def step(self) -> float:
        """One step; its work."""
        self.slope()
        return self.work


class Ready:
    """One case, set up. Of more victims than the budget holds at once, as an audit would hold them, the first tiles."""

    def __init__(self, case: Case, *, lean: bool = False, workers: int | None = None) -> None:
        """A lean one holds no more tiles than run side by side, by default one a core."""
        self.case = case
        with on_threads(1):
            self.target = _target(case)
            self.plan = self._planned(workers)
            size, workers = self.plan.victims, self.plan.workers
            self.each = self.plan.bytes // workers // size  # bytes a victim
            fitting = workers if lean else max(workers, engine.DEFAULT_BUDGET // (self.plan.bytes // workers))
            self.victims = min(case.victims, size * fitting)
            private, self.labels = draw(case, self.victims, "private")
            self.observed = _observe(self.target, case, private, self.labels)
            self.images, _ = draw(case, self.victims, "candidates")
            self.tiles = [self.tile(first, min(first + size, self.victims)) for first in range(0, self.victims, size)]

    def alone(self) -> Tile:
        """The first tile of an audit that has one core."""
        size = min(self.victims, self._planned(1).victims)
        first = self.tiles[0]
        return first if len(first.labels) == size else self.tile(0, size)

    def tile(self, first: int, last: int, way: Literal["vmap"] | None = None) -> Tile:
        """The victims from first to before last, with a model of their own: threads cannot share one."""
        target = replace(self.target, model=networks.clone_modules(self.target.model))
        observed = {name: g[first:last] for name, g in self.observed.items()}
        matcher = engine.Matcher(target, observed, way=way)
        tile = Tile(matcher, self.images[first:last], self.labels[first:last], torch.arange(last - first))
        with on_threads(1):
            tile.slope()  # the matcher makes its choice
        return tile

    def _planned(self, workers: int | None) -> engine.Plan:
        case = self.case
        return engine.plan(self.target, victims=case.victims, batch=case.batch, restarts=1, workers=workers)


def draw(case: Case, victims: int, purpose: str) -> tuple[Tensor, Tensor]:
    """Images of noise (V, B, C, H, W) and labels (V, B)."""
    stream = rng.stream(SEED, "bench", purpose)
    labels = torch.randint(case.classes, (victims, case.batch), generator=stream)
    return torch.rand(victims, case.batch, *case.shape, generator=stream), labels


def usual_loss(model: nn.Module, loss: Loss, observed: Sequence[Tensor], images: Tensor, labels: Tensor) -> Tensor:
    """(): 1 - cosine for one victim, with every gradient written out."""
    weights = [p for p in model.parameters() if p.requires_grad]
    simulated = torch.autograd.grad(loss(model(images), labels), weights, create_graph=True)
    cross = torch.stack([(s * o).sum() for s, o in zip(simulated, observed, strict=True)]).sum()
    norms = [torch.stack([g.square().sum() for g in gradient]).sum().sqrt() for gradient in (simulated, observed)]
    return 1 - cross / norms[0] / norms[1]


def usual_slope(model: nn.Module, loss: Loss, observed: Sequence[Tensor], images: Tensor, labels: Tensor) -> Tensor:
    """(B, C, H, W): the step of public tools, for one victim: differentiate twice."""
    images = images.detach().requires_grad_()
    return torch.autograd.grad(usual_loss(model, loss, observed, images, labels), images)[0]


def usual(ready: Ready, threads: int, seconds: float) -> Burst:
    """One victim a burst: public tools stay with a victim for all of its steps."""
    model, turn = copy.deepcopy(ready.target.model), 0

    def burst() -> Taken:
        nonlocal turn
        v, turn = turn % ready.victims, turn + 1
        seen = [g[v] for g in ready.observed.values()]

        def step() -> float:
            usual_slope(model, ready.target.loss, seen, ready.images[v], ready.labels[v])
            return ready.case.batch

        with on_threads(threads):
            taken = repeat(step, seconds)
        return taken if threads == 1 else taken._replace(of_core=math.nan)  # other threads' time is not known

    return burst


def vmapped(ready: Ready, seconds: float) -> tuple[Burst, int]:
    """`torch.func` over all victims at once, or as many as the budget holds, on one thread; and how many these are."""
    each = ready.each + COPIES * sum(g[0].numel() * g.element_size() for g in ready.observed.values())
    many = min(ready.victims, max(1, engine.DEFAULT_BUDGET // each))
    tile = ready.tile(0, many, "vmap")

    def burst() -> Taken:
        with on_threads(1):
            return repeat(tile.step, seconds)

    return burst, many


@contextmanager
def tiled(tiles: Sequence[Tile], workers: int, seconds: float, *, warm: bool = True) -> Iterator[Burst]:
    """The engine as an audit runs it: tiles side by side, a thread each."""
    with crew([[tile.step for tile in tiles[n::workers]] for n in range(workers)], warm=warm) as made:
        yield lambda: made.burst(seconds)


@contextmanager
def multiplied(workers: int, seconds: float) -> Iterator[Burst]:
    """The machine's peak: floating-point operations a second of so many matrix products side by side, a thread each."""
    a, b = torch.rand(2, SIDE, SIDE, generator=rng.stream(SEED, "bench", "peak"))

    def step() -> float:
        torch.mm(a, b)
        return 2.0 * SIDE**3

    with crew([[step]] * workers) as made:
        yield lambda: made.burst(seconds)


def flops(tile: Tile) -> float:
    """Floating-point operations in the matrix products and convolutions of the engine's step, for one image."""
    with on_threads(1), FlopCounterMode(display=False, custom_mapping=engine.native.flops()) as counter:
        tile.slope()
    return float(counter.get_total_flops()) / tile.work


def _target(case: Case) -> Target:
    scale = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    shape, classes = case.shape, case.classes
    model = models.build(case.model, shape=shape, classes=classes, seed=SEED, settings=case.settings, **scale).eval()
    return Target(model, F.cross_entropy, shape, *models.normalisation(model, shape[0]))


def _observe(target: Target, case: Case, images: Tensor, labels: Tensor) -> Gradient:
    """{name: (V, ...)}, written into one tensor each, since several copies of all gradients would not fit."""
    names, weights = zip(*((n, p) for n, p in target.model.named_parameters() if p.requires_grad), strict=True)
    observed = {name: torch.empty(len(images), *p.shape) for name, p in zip(names, weights, strict=True)}
    noise = rng.stream(SEED, "bench", "noise")
    for v, (x, y) in enumerate(zip(images, labels, strict=True)):
        update: Iterable[Tensor] = torch.autograd.grad(target.loss(target.model(x), y), weights)
        for name, g in zip(names, update, strict=True):
            observed[name][v] = g + case.sigma * torch.randn(g.shape, generator=noise) if case.sigma else g
    return observed
