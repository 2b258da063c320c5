"""Deep networks: what went into a wide convolution is solved for, then the layers below it, then the image behind them.

Three steps, of which only the last one is a search, and that one without any gradient of weights in it:

    wide     the input of the first convolution with as many channels as places, by rank (see `wide`)
    below    the inputs of the layers below it, one by one, while equations determine them (see `below`)
    image    x with f(x) = h, where f is what lies before the lowest input h that is known: Adam on |f(x) - h|^2 / |h|^2
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter import checks, rng
from dosimeter.attacks import labels as labels_
from dosimeter.attacks.base import Attack, Found, Solve
from dosimeter.attacks.solve import below
from dosimeter.attacks.solve.certificate import Solver, Update
from dosimeter.attacks.solve.first_layer import SEARCH, in_double, probes_of
from dosimeter.attacks.solve.wide import solve_wide
from dosimeter.attacks.stages import Beat, blank, unheard
from dosimeter.errors import SettingError
from dosimeter.networks.trace import Section, Trace
from dosimeter.types import Ended, Gradient, Observation, Outcome, Target

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
        checks.count("The attack 'deep'", "iterations", self.iterations, least=0)
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
        if target.secrets:
            raise SettingError(f"The attack 'deep' cannot run a model that draws numbers inside; {SEARCH}.")
        exact = in_double(target)
        find_wide(Trace(exact.model, probes_of(exact)[2:]))
        super().check(target, batch)

    def blind(self) -> "Deep":
        """Without a step the image stays blank."""
        return replace(self, name=f"{self.name} without the update", iterations=0)

    def prepare(self, target: Target, seen: Observation, labels: Tensor, *, seed: int) -> Solve:
        if seen.statistics:
            raise SettingError(f"The attack 'deep' cannot use batch-norm statistics that were sent; {SEARCH}.")
        return DeepSolver(self, target, seen, labels, seed).solve


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

    def solve(self, v: int, beat: Beat = unheard) -> Found:
        observed, labels = self.update(v)
        update = Update(self.exact, self.first, observed, labels, rounding=self.precision)
        image, goal = blank(self.exact), None
        if self.attack.iterations and all(g.isfinite().all() for g in observed.values()):
            goal = self.goal(observed, labels, beat)
        if goal is None:
            return Found(image, update.mismatch(image), Ended(Outcome.NOT_DETERMINED))
        image = self.behind(goal, self.seen.ids[v], beat).double()
        match = update.mismatch(image)
        return Found(image, match, Ended(Outcome.RECOVERED if match <= update.bound else Outcome.NOT_DETERMINED))

    def goal(self, observed: Gradient, labels: Tensor, beat: Beat) -> Goal | None:
        """The lowest layer whose input is known and has as many numbers as the image, else the one with the most."""
        known: dict[int, Tensor] = {}
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
                known |= below.descend(self.exact, self.trace, source, solved.value, observed, labels, beat)
                break
        enough = [at for at, value in known.items() if value.numel() >= math.prod(self.exact.shape)]
        if not known:
            return None
        at = min(enough) if enough else max(known, key=lambda at: known[at].numel())
        return Goal(at, known[at])

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
                    loss = loss + self.attack.tv * _variation(x)
                (x.grad,) = torch.autograd.grad(loss, x)
            by.step()
            with torch.no_grad():
                x.copy_(torch.minimum(torch.maximum(x, low), high))
        with torch.no_grad():
            return (x * std + mean)[0], float(left(x).nan_to_num(math.inf))


def _variation(x: Tensor) -> Tensor:
    """Total variation as in Inverting Gradients, Eq. 4."""
    down, right = (x[..., 1:, :] - x[..., :-1, :]).abs(), (x[..., :, 1:] - x[..., :, :-1]).abs()
    return down.mean() + right.mean()
