"""Common networks by hand: products of gradients and their slope in four passes, without autograd.

A network of linear layers, convolutions, batch norm with running statistics, ReLU, sigmoid, pooling, flattening and
constant scaling under cross-entropy needs no graph of autograd's. Its layers follow one another, or lines part and are
added again, as in residual networks. See `ops` for the passes.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.engine.contract import Owner, is_same
from dosimeter.engine.joints import Add
from dosimeter.engine.matrix import Matrix
from dosimeter.engine.ops import BatchNorm, Learned, Memory
from dosimeter.engine.program import Compiled, Program
from dosimeter.engine.reading import NotStraight, Reader
from dosimeter.engine.winograd import Winograd
from dosimeter.types import Gradient, Target

T = TypeVar("T")


class Chain:
    """A network as a list of layers, each with the places of what it takes and gives.

    Args:
        target: the model and its loss.
        observed: {name: (V, ...)} of all parameters.
        batch: images of one candidate.
    """

    def __init__(self, target: Target, observed: Gradient, batch: int) -> None:
        if target.loss is not F.cross_entropy or target.step is not None:
            raise NotStraight("the loss is not cross-entropy on one gradient")
        self.batch, self.memory = batch, Memory()
        self._owner: Owner = None
        self.calls = 0
        self._nodes = Reader(target, observed, batch, self.memory).read()
        self._learned: list[Learned] = []
        self._moving: set[int] = set()  # places that depend on parameters
        for node in self._nodes:
            if isinstance(node.op, Matrix | Winograd | BatchNorm):
                self._learned.append(node.op)
                self._moving.add(node.output)
            elif self._moving.intersection(node.inputs):
                self._moving.add(node.output)
        names = [name for op in self._learned for name in op.names]
        if sorted(names) != sorted(observed):
            raise NotStraight("some parameters are used outside known layers, or twice")
        self._order = torch.tensor([names.index(name) for name in observed], device=target.mean.device)
        self._reverse = torch.argsort(self._order)
        self._rows = 0
        self._there: Program | None = None
        self._back_again: Program | None = None
        self._compiled = target.compiled
        self.forms = {op.names[0]: op.form if isinstance(op, Matrix | Winograd) else "vector" for op in self._learned}

    def __call__(self, images: Tensor, labels: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """<simulated, observed> and |simulated|^2, (N, P), differentiable once in the images (N, B, C, H, W)."""
        cross, squared = _Passes.apply(images, labels, owner, self)  # type: ignore[no-untyped-call]
        return cross, squared

    def step(self, images: Tensor, labels: Tensor, owner: Tensor) -> tuple[Tensor, Tensor]:
        """The client's step for all images at once: forward, backward, products."""
        self.calls += 1
        rows = len(images) * self.batch
        if not is_same(owner, self._owner) or rows != self._rows:
            for layer in self._learned:
                layer.take(owner)
            self._owner, self._rows = (owner, owner._version), rows
            self.memory.begin(rows)
            self._there = self._back_again = None
        n, height, width, channels = rows, images.shape[3], images.shape[4], images.shape[2]
        self._images = self.memory("images", (n, height, width, channels), images)
        self._labels = self.memory("labels", (n,), labels)
        self._images.copy_(images.flatten(0, 1).permute(0, 2, 3, 1))
        self._labels.copy_(labels.flatten())
        self._there, (cross, squared) = self._repeat(self._there, self._forth)
        return cross.clone(), squared.clone()

    def slope(self, cross: Tensor, squared: Tensor, shape: torch.Size) -> Tensor:
        """The slope in the images, given the match's slopes (N, P) in the products of the last step."""
        self._slopes = self.memory("slopes", (2, *cross.shape), cross)
        torch.stack([cross, squared], out=self._slopes)
        self._back_again, found = self._repeat(self._back_again, self._back)
        slope = torch.empty(shape, dtype=cross.dtype, device=cross.device)  # never memory that the next step writes to
        slope.flatten(0, 1).copy_(found.permute(0, 3, 1, 2))
        return slope

    def _repeat(self, program: Program | None, work: Callable[[], T]) -> tuple[Program, T]:
        """Run a pass, the first time as it stands and then as a program."""
        if program is not None:
            return program, program.run()
        program = Compiled(work) if self._compiled else Program(work)
        return program, program.given

    def _forth(self) -> tuple[Tensor, Tensor]:
        a = {0: self._images}
        for op, inputs, output in self._nodes:
            a[output] = op.forward(*(a[place] for place in inputs))
        scores = a[self._nodes[-1].output]
        self._chances = torch.softmax(scores, 1)
        true = self._labels[:, None] == torch.arange(scores.shape[1], device=scores.device)
        self._pull((self._chances - true.to(scores.dtype)) / self.batch, again=False)
        rows = [row for op in self._learned for row in op.products()]
        cross, squared = (torch.stack(column, 1)[:, self._order] for column in zip(*rows, strict=True))
        return cross, squared

    def _pull(self, back: Tensor, *, again: bool) -> Tensor | None:
        """Carry what comes back to the output down to the images; `again` by `returning`, else by `backward`."""
        waiting = {self._nodes[-1].output: back}
        for op, inputs, output in reversed(self._nodes):
            arrived = waiting.pop(output, None)
            if arrived is None or not (again or output in self._moving):
                continue
            if isinstance(op, Add):
                found: Tensor | None = arrived
            elif again:
                found = op.returning(arrived)
            else:
                found = op.backward(arrived, needed=inputs[0] in self._moving)
            for place in inputs:
                if found is not None:
                    waiting[place] = self._met(waiting.get(place), found, (op, place, again))
        return waiting.get(0)

    def _met(self, one: Tensor | None, other: Tensor, key: object) -> Tensor:
        """What comes back to a place by two lines."""
        return other if one is None else torch.add(one, other, out=self.memory(key, tuple(one.shape), one))

    def _back(self) -> Tensor:
        slopes = self._slopes[:, :, self._reverse]
        pairs = [(slopes[0, :, place], slopes[1, :, place]) for place in range(slopes.shape[2])]
        for layer in self._learned:
            layer.turn([pairs.pop(0) for _ in layer.names])
        da: dict[int, Tensor | None] = {0: None}
        for op, inputs, output in self._nodes:
            da[output] = op.tangent(*(da[place] for place in inputs))
        moved, p = da[self._nodes[-1].output], self._chances
        assert moved is not None
        slope = self._pull((p * (moved - (p * moved).sum(1, keepdim=True))) / self.batch, again=True)
        assert slope is not None
        return slope


class _Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, labels: Tensor, owner: Tensor, chain: Chain) -> tuple[Tensor, Tensor]:
        ctx.chain, ctx.asked = chain, (images, labels, owner)
        products = chain.step(images, labels, owner)
        ctx.call = chain.calls
        return products

    @staticmethod
    def backward(ctx: Any, cross: Tensor, squared: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.call != ctx.chain.calls:  # another step was taken since, in the same memory
            ctx.chain.step(*ctx.asked)
            ctx.call = ctx.chain.calls
        return ctx.chain.slope(cross, squared, ctx.asked[0].shape), None, None, None
