"""Deep networks: what went into a wide convolution is solved for, then the layers below it, then the image behind them.

Three steps, of which only the last one is a search, without any gradient of weights in it:

    wide     the input of the first convolution with as many channels as places, by rank (see `wide`)
    below    the inputs of the layers below it, one by one, while equations determine them (see `below`)
    image    x with f(x) = h, where f is what lies before the lowest input h that is known: Adam on |f(x) - h|^2 / |h|^2

A model that draws noise below its wide layers, as behind CVB's bottleneck, is read alike: nothing is random above the
noise, and below it image and noise are searched for together, now with the gradients of these few layers (see `drawn`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter import checks, rng
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.base import Attack, Found, Solve
from dosimeter.attacks.solve import below, drawn
from dosimeter.attacks.solve.certificate import Solver, Update
from dosimeter.attacks.solve.drawn import variation
from dosimeter.attacks.solve.first_layer import SEARCH, in_double, probes_of, traced
from dosimeter.attacks.solve.latent import Draw, find_draw
from dosimeter.attacks.solve.wide import solve_wide
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.errors import SettingError
from dosimeter.networks.remember import remembered
from dosimeter.networks.trace import Section, Trace
from dosimeter.types import Ended, Gradient, Observation, Outcome, Secretive, Target

AGREE = 0.01
"""Patches that disagree by more than this share of their size are not those of one picture: noise, or low rank."""

NEAR = 1e-4
"""An image whose features are off by this share of their squared size is not searched for again."""
TRIES = (1, 3, 3)
"""Searches from different starts at most, and what each multiplies the learning rate by."""


class Goal(NamedTuple):
    """What went into a layer of the victim's."""

    at: int  # the number of its call
    value: Tensor  # (c, h, w)
    slope: Tensor | None = None  # (1, c, h, w) dL/d of it, or of what went into the ReLU that made it


@dataclass(frozen=True, kw_only=True)
class Deep(Attack):
    """One image an update of a deep network with convolutions, by what its wide layers tell; no labels are granted.

    A victim is `recovered` when its image reproduces the observed update to rounding and `not determined` otherwise;
    `match` is the relative error of the simulated update. Ours: the equations of `wide` are a generalisation of
    Inverting Gradients, Prop. 1, to layers that see an image in many places.

    Args:
        labels: layers below the first that is solved need them, and the check of the result.
        iterations: of Adam, for the image behind the lowest input that is known.
        lr: its learning rate on normalised images, which goes to 0 along a cosine.
        tv: weight of the total variation, for the first half of the steps.
    """

    name: str = "deep"
    labels: labels_.Labels = labels_.FromLastLayer()
    iterations: int = 300
    lr: float = 0.3
    tv: float = 1e-4

    def __post_init__(self) -> None:
        checks.count("The attack 'deep'", "iterations", self.iterations, least=0, most=1_000_000)
        checks.positive("The attack 'deep'", "a learning rate lr", self.lr)
        checks.at_least("The attack 'deep'", "a weight tv", self.tv, 0)

    def check(self, target: Target, batch: int) -> None:
        """Refuse what cannot be solved, before any work."""
        if batch != 1:
            raise SettingError(
                f"The attack 'deep' solves for one image, but an update holds {batch}, whose gradients are summed; "
                f"use --batch 1 or {SEARCH}."
            )
        if target.step is not None:
            raise SettingError(
                f"The attack 'deep' solves one gradient, but the client sends {target.step!r}; "
                f"leave the step out or {SEARCH}."
            )
        exact = in_double(target)
        if exact.secrets:
            trace = traced(exact)
            read_draw(exact, trace, find_wide(trace))
        else:
            wide_of(exact)
        super().check(target, batch)

    def blind(self) -> "Deep":
        """Without a step the image stays blank."""
        return replace(self, name=f"{self.name} without the update", iterations=0)

    def prepare(self, target: Target, seen: Observation, labels: Tensor, *, seed: int) -> Solve:
        if seen.statistics:
            raise SettingError(f"The attack 'deep' cannot use batch-norm statistics that were sent; {SEARCH}.")
        return DeepSolver(self, target, seen, labels, seed).solve


@remembered
def wide_of(target: Target) -> list[below.Learned]:
    """`find_wide` of a model in float64."""
    return find_wide(traced(target))


def find_wide(trace: Trace) -> list[below.Learned]:
    """The convolutions whose inputs their gradients determine, the one nearest to the image first."""
    found = [
        layer
        for layer in below.learned(trace)
        if layer.shift is not None and layer.window.overlaps and _fits(trace, layer)
    ]
    if not found:
        raise SettingError(
            "No convolution of the model has as many channels as places, overlapping patches, and a bias or a running "
            f"batch norm behind it, so that no input can be solved for; {SEARCH}."
        )
    return found


def _fits(trace: Trace, layer: below.Learned) -> bool:
    weight: Tensor = trace.calls[layer.at].inputs[1]
    return layer.window.places <= min(weight.shape[0], weight[0].numel())


class Noise(NamedTuple):
    """The one draw of a model."""

    name: str  # the buffer that holds it
    draw: Draw  # where it enters, in a trace
    penalty: Tensor | None  # what it adds to the loss there


def read_draw(target: Target, trace: Trace, wide: Sequence[below.Learned]) -> Noise:
    """The draw of a model that makes one, before all that is solved for without it; a refusal of any other."""
    name, *others = target.secrets
    if others or target.secrets[name].scope != "image":
        raise SettingError(f"The attack 'deep' cannot run a model that draws more than noise in one place; {SEARCH}.")
    draw = find_draw(trace, name)
    random = trace.after([draw.latent])
    sources = [trace.calls[layer.at].inputs[0] for layer in wide]
    if not any(id(source) in random and below.cuts(trace, source) for source in sources):
        raise SettingError(f"The attack 'deep' needs wide convolutions behind what the model draws; {SEARCH}.")
    layer = trace.model.get_submodule(name.rpartition(".")[0])
    penalty = layer.penalty if target.penalised and isinstance(layer, Secretive) else None
    return Noise(name, draw, penalty)


class DeepSolver(Solver):
    """The victims of one observation, one after another."""

    def __init__(self, attack: Deep, target: Target, seen: Observation, labels: Tensor, seed: int) -> None:
        super().__init__(target, seen, labels)
        self.attack, self.seed = attack, seed
        probe = probes_of(self.exact)[2:]
        self.trace = Trace(self.exact.model, probe)
        self.plain = Trace(target.model, probe.to(target.mean))
        self.wide = find_wide(self.trace)
        self.first = below.learned(self.trace)[0].weight
        self.noise = read_draw(target, self.plain, find_wide(self.plain)) if target.secrets else None

    def solve(self, v: int, beat: Beat = unheard) -> Found:
        observed, labels = self.update(v)
        image, goal, ran = blank(self.exact), None, self.exact
        if self.attack.iterations and all(g.isfinite().all() for g in observed.values()):
            goal = self.goal(observed, labels, beat)
        if goal is not None and self.noise is None:
            image = self.behind(goal, self.seen.ids[v], beat).double()
        elif goal is not None and self.noise is not None:
            found = self.beside(goal, self.noise, observed, self.seen.ids[v], beat)
            image, ran = found.image.double(), replace(ran, drawn={self.noise.name: found.noise.double()})
        update = Update(ran, self.first, observed, labels, rounding=self.precision)
        match = update.mismatch(image)
        read = goal is not None and match <= update.bound
        return Found(image, match, Ended(Outcome.RECOVERED if read else Outcome.NOT_DETERMINED))

    def goal(self, observed: Gradient, labels: Tensor, beat: Beat) -> Goal | None:
        """The lowest layer whose input is known and has as many numbers as the image, else the one with the most.

        Behind a draw it must have a known slope too.
        """
        known: dict[int, Tensor] = {}
        slopes: dict[int, Tensor] = {}
        for layer in self.wide:
            source = self.trace.calls[layer.at].inputs[0]
            assert layer.shift is not None
            assert layer.scale is not None
            returned = observed[layer.shift] * layer.scale
            solved = solve_wide(observed[layer.weight].flatten(1), returned, layer.window, beat)
            if solved.apart > AGREE or solved.spread < 1 / AGREE:
                continue
            known.setdefault(layer.at, solved.value)
            if below.cuts(self.trace, source) and id(source) in self.trace.maker:
                joined = self.noise is not None
                lower = below.descend(
                    self.exact, self.trace, source, solved.value, observed, labels, beat, joined=joined
                )
                known |= lower.inputs
                slopes = lower.slopes
                break
        if self.noise is not None:
            known = {at: value for at, value in known.items() if self._before(at)[0] in slopes}
        enough = [at for at, value in known.items() if value.numel() >= math.prod(self.exact.shape)]
        if not known:
            return None
        at = min(enough) if enough else max(known, key=lambda at: known[at].numel())
        return Goal(at, known[at], slopes.get(self._before(at)[0]))

    def _before(self, at: int) -> tuple[int, bool]:
        """The id of what goes into a layer, or into the ReLU that makes that, and whether one does."""
        source = self.trace.calls[at].inputs[0]
        maker = self.trace.maker.get(id(source))
        rectified = maker is not None and maker.name == "relu"
        return id(maker.inputs[0] if maker is not None and rectified else source), rectified

    def beside(self, goal: Goal, noise: Noise, observed: Gradient, name: str, beat: Beat) -> drawn.Found:
        """Image and noise that give a layer this input and the layers below it their gradients."""
        (_, rectified), source = self._before(goal.at), self.plain.calls[goal.at].inputs[0]
        tensor = self.plain.maker[id(source)].inputs[0] if rectified else source
        assert goal.slope is not None
        value = goal.value[None] * (goal.value[None] > below.noise(goal.value)) if rectified else goal.value[None]
        wanted = drawn.Wanted(tensor, value.to(self.target.mean), goal.slope.to(self.target.mean), rectified)
        buffer = self.plain.model.get_buffer(noise.name)
        small = drawn.Drawn(self.target, self.plain, buffer, noise.draw, noise.penalty, wanted, observed)
        start = rng.stream(self.seed, "start", name)
        steps, tv = 2 * self.attack.iterations, 10 * self.attack.tv
        return small.search(start, steps, self.attack.lr / 3, tv, beat)

    def behind(self, goal: Goal, name: str, beat: Beat) -> Tensor:
        """(C, H, W): the image that gives a layer this input; of several starts the nearest, where the first is far."""
        best, least = torch.zeros(self.target.shape), math.inf
        for number, faster in enumerate(TRIES):
            start = torch.randn(1, *self.target.shape, generator=rng.stream(self.seed, "start", name, number))
            image, left = self._search(goal, start.to(self.target.mean), faster * self.attack.lr, beat)
            if left < least:
                best, least = image, left
            if least <= NEAR:
                break
        return best

    def _search(self, goal: Goal, x: Tensor, lr: float, beat: Beat) -> tuple[Tensor, float]:
        """The image (C, H, W) that is found from normalised pixels x (1, C, H, W), and |f(x) - h|^2 / |h|^2 there."""
        mean, std, steps = self.target.mean, self.target.std, self.attack.iterations
        ahead = Section(self.plain, self.plain.images, self.plain.calls[goal.at].inputs[0])
        wanted = goal.value.to(mean)
        low, high = (0 - mean) / std, (1 - mean) / std

        def left(x: Tensor) -> Tensor:
            apart: Tensor = ahead(x * std + mean) - wanted
            return apart.square().sum() / wanted.square().sum()

        x = x.requires_grad_()
        by = torch.optim.Adam([x], lr=lr)
        for step in range(steps):
            beat()
            by.param_groups[0]["lr"] = lr * (1 + math.cos(math.pi * step / steps)) / 2
            with torch.enable_grad():
                loss = left(x)
                if step < steps / 2:  # a prior leads to the right place, and away from it in the end
                    loss = loss + self.attack.tv * variation(x)
                (x.grad,) = torch.autograd.grad(loss, x)
            by.step()
            with torch.no_grad():
                x.copy_(torch.minimum(torch.maximum(x, low), high))
        with torch.no_grad():
            return (x * std + mean)[0], float(left(x).nan_to_num(math.inf))
