"""What networks that are run by hand have in common: four passes in one memory, recorded once and then repeated."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.engine.contract import Owner, is_same
from dosimeter.engine.ops import Memory
from dosimeter.engine.program import Compiled, Program
from dosimeter.engine.reading import NotStraight
from dosimeter.types import Target

T = TypeVar("T")


class ByHand:
    """Products of gradients and their slope without autograd; who inherits has the layers and their passes.

    Args:
        target: the model and its loss.
        batch: images of one candidate.
    """

    forms: dict[str, str]
    """{weight: the form in which its gradient is compared}"""

    def __init__(self, target: Target, batch: int) -> None:
        if target.loss is not F.cross_entropy or target.step is not None:
            raise NotStraight("the loss is not cross-entropy on one gradient")
        self.batch, self.memory = batch, Memory()
        self.calls = 0
        self._owner: Owner = None
        self._rows = 0
        self._there: Program | None = None
        self._back_again: Program | None = None
        self._compiled = target.compiled
        self._images: Tensor
        self._labels: Tensor
        self._slopes: Tensor

    def __call__(self, images: Tensor, labels: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """<simulated, observed> and |simulated|^2, (N, P), differentiable once in the images (N, B, C, H, W)."""
        cross, squared = _Passes.apply(images, labels, owner, self)  # type: ignore[no-untyped-call]
        return cross, squared

    def step(self, images: Tensor, labels: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """The client's step for all images at once: forward, backward, products."""
        self.calls += 1
        rows = len(images) * self.batch
        if not is_same(owner, self._owner) or rows != self._rows:
            self._take(owner)
            self._owner, self._rows = (owner, owner._version), rows
            self.memory.begin(rows)
            self._there = self._back_again = None
        kept = self.memory("images", tuple(images.flatten(0, 1).shape), images)
        self._images = self._laid(kept)
        self._labels = self.memory("labels", (rows,), labels)
        kept.copy_(images.flatten(0, 1))
        self._labels.copy_(labels.flatten())
        self._there, (cross, squared) = self._repeat(self._there, self._forth)
        return cross.clone(), squared.clone()

    def slope(self, cross: Tensor, squared: Tensor, shape: torch.Size) -> Tensor:
        """The slope in the images, given the match's slopes (N, P) in the products of the last step."""
        self._slopes = self.memory("slopes", (2, *cross.shape), cross)
        torch.stack([cross, squared], out=self._slopes)
        self._back_again, found = self._repeat(self._back_again, self._back)
        slope = torch.empty(shape, dtype=cross.dtype, device=cross.device)  # never memory that the next step writes to
        self._laid(slope.flatten(0, 1)).copy_(found)
        return slope

    def _repeat(self, program: Program | None, work: Callable[[], T]) -> tuple[Program, T]:
        """Run a pass, the first time as it stands and then as a program."""
        if program is not None:
            return program, program.run()
        program = Compiled(work) if self._compiled else Program(work)
        return program, program.given

    def _take(self, owner: Tensor) -> None:
        """Have every layer look up what was observed of the candidates' owners."""
        raise NotImplementedError

    def _laid(self, images: Tensor) -> Tensor:
        """A view of images (n, C, H, W) in the order in which the layers have them."""
        return images

    def _forth(self) -> tuple[Tensor, Tensor]:
        """Forward and backward through all layers, and the products (N, P) twice."""
        raise NotImplementedError

    def _back(self) -> Tensor:
        """The slope of the match in the images, laid as the layers have them."""
        raise NotImplementedError


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, labels: Tensor, owner: Tensor, network: ByHand) -> tuple[Tensor, Tensor]:
        ctx.network, ctx.asked = network, (images, labels, owner)
        products = network.step(images, labels, owner)
        ctx.call = network.calls
        return products

    @staticmethod
    def backward(ctx: Any, cross: Tensor, squared: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.call != ctx.network.calls:  # another step was taken since, in the same memory
            ctx.network.step(*ctx.asked)
            ctx.call = ctx.network.calls
        return ctx.network.slope(cross, squared, ctx.asked[0].shape), None, None, None
