"""Inner products of simulated and observed gradients, differentiable in the images.

All candidates (victims x restarts) share the model's weights, so they run through it as one batch by
`torch.func.vmap`. A model that vmap cannot take (branches on data, its own random draws) is simulated one candidate
after another, with the same result.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap

from dosimeter.errors import ModelError
from dosimeter.trees import squared_norms
from dosimeter.types import Gradient, Target


class Products(NamedTuple):
    """All that a matching loss needs to know of N candidates' gradients, for each of P tensors."""

    cross: Tensor  # (N, P) <simulated, observed>
    simulated: Tensor  # (N, P) |simulated|^2
    observed: Tensor  # (N, P) |observed|^2
    difference: Tensor  # (N, P) |simulated - observed|^2


class Matcher:
    """Compares the gradients that candidates would cause with those that were observed.

    Args:
        target: the model, its parameters and the loss.
        observed: {name: (V, ...)}, one gradient a victim.
    """

    def __init__(self, target: Target, observed: Gradient) -> None:
        self._target = target
        self._parameters = target.parameters
        self._observed = {name: observed[name] for name in self._parameters}
        self._norms = squared_norms(self._observed)  # (V, P)
        self._simulate: Callable[[Tensor, Tensor], dict[str, Tensor]] | None = None
        self.way = "not decided yet"

    @property
    def norms(self) -> Tensor:
        """(V, P): the observed gradients' squared norms, tensors in the model's order."""
        return self._norms

    def __call__(self, images: Tensor, labels: Tensor, owner: Tensor) -> Products:
        """Simulate a client's step for every candidate and compare it with its owner's observation.

        Args:
            images: (N, B, C, H, W) in [0, 1].
            labels: (N, B) classes or targets.
            owner: (N,) the victim that each candidate wants to be.
        """
        if self._simulate is None:
            self._simulate = self._choose(images, labels)
        simulated = self._simulate(images, labels)
        cross, squared, apart = [], [], []
        for name, s in simulated.items():
            s, o = s.flatten(1), self._observed[name].flatten(1)[owner]  # (N, entries)
            cross.append((s * o).sum(1))
            squared.append(s.square().sum(1))
            apart.append((s - o).square().sum(1))
        return Products(torch.stack(cross, 1), torch.stack(squared, 1), self._norms[owner], torch.stack(apart, 1))

    def _choose(self, images: Tensor, labels: Tensor) -> Callable[[Tensor, Tensor], dict[str, Tensor]]:
        """All candidates at once where the model allows it, found out by trying on the first."""
        first = images[:1].detach(), labels[:1]
        chosen = self._together
        self.way = "all candidates at once"
        try:
            together = self._together(*first)
        except RuntimeError as reason:
            self.way = f"one candidate at a time, because vmap cannot take this model ({str(reason).splitlines()[0]})"
            chosen = self._one_by_one
            together = self._one_by_one(*first)
        for name, alone in self._one_by_one(*first).items():
            if not torch.allclose(together[name], alone, rtol=1e-3, atol=1e-4 * float(alone.abs().max())):
                raise ModelError(
                    f"Two simulations of the same step differ in {name!r}: the model or loss draws random numbers. "
                    "An attack needs a deterministic model; take the randomness out of it or express it as a defense."
                )
        return chosen

    def _together(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        step = grad(self._target.objective)
        return dict(vmap(step, in_dims=(None, 0, 0))(self._parameters, images, labels))

    def _one_by_one(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        step = grad(self._target.objective)
        steps = [step(self._parameters, x, y) for x, y in zip(images, labels, strict=True)]
        return {name: torch.stack([s[name] for s in steps]) for name in self._parameters}
