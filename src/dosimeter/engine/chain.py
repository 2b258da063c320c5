"""Straight networks by hand: products of gradients and their slope in four passes, without autograd.

A network whose layers follow one another (linear layers, convolutions, batch norm with running statistics, ReLU,
sigmoid, flattening, constant scaling) under cross-entropy needs no graph. See `ops` for the passes.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.engine.contract import Owner, cheaper_dense, is_same
from dosimeter.engine.layers import PATCHES_UP_TO, two
from dosimeter.engine.matrix import Matrix, Standing
from dosimeter.engine.ops import BatchNorm, Flatten, Learned, Memory, Op, ReLU, Scale, Sigmoid
from dosimeter.engine.patches import Window
from dosimeter.engine.program import Compiled, Program
from dosimeter.engine.tape import READS
from dosimeter.networks.trace import BATCH_NORM, CONV, Trace, arguments
from dosimeter.types import Gradient, Target

T = TypeVar("T")


class NotStraight(Exception):  # noqa: N818  it is an answer, not a failure
    """Why a network cannot be run as a chain."""


class Chain:
    """A network as a list of layers.

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
        self._ops = _Reader(target, observed, batch, self.memory).read()
        self._learned: list[Learned] = [op for op in self._ops if isinstance(op, Matrix | BatchNorm)]
        names = [name for op in self._learned for name in op.names]
        if sorted(names) != sorted(observed):
            raise NotStraight("some parameters are used outside known layers, or twice")
        self._order = torch.tensor([names.index(name) for name in observed], device=target.mean.device)
        self._reverse = torch.argsort(self._order)
        self._rows = 0
        self._there: Program | None = None
        self._back_again: Program | None = None
        self._compiled = target.compiled
        self.forms = {op.names[0]: op.form if isinstance(op, Matrix) else "vector" for op in self._learned}

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
        a = self._images
        for op in self._ops:
            a = op.forward(a)
        self._chances = torch.softmax(a, 1)
        true = self._labels[:, None] == torch.arange(a.shape[1], device=a.device)
        back: Tensor | None = (self._chances - true.to(a.dtype)) / self.batch
        first = self._ops.index(self._learned[0])
        for place in range(len(self._ops) - 1, first - 1, -1):
            assert back is not None
            back = self._ops[place].backward(back, needed=place > first)
        rows = [row for op in self._learned for row in op.products()]
        cross, squared = (torch.stack(column, 1)[:, self._order] for column in zip(*rows, strict=True))
        return cross, squared

    def _back(self) -> Tensor:
        slopes = self._slopes[:, :, self._reverse]
        pairs = [(slopes[0, :, place], slopes[1, :, place]) for place in range(slopes.shape[2])]
        for layer in self._learned:
            layer.turn([pairs.pop(0) for _ in layer.names])
        da: Tensor | None = None
        for op in self._ops:
            da = op.tangent(da)
        assert da is not None
        p = self._chances
        back = (p * (da - (p * da).sum(1, keepdim=True))) / self.batch
        for op in reversed(self._ops):
            back = op.returning(back)
        return back


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


def _refuse(name: str) -> None:
    """What a model may not call in a pass that is to be repeated."""
    if name in READS:
        raise NotStraight("it branches on its data")
    if name == "__setitem__":
        raise NotStraight("it sets entries of a tensor")


class _Reader:
    """Reads a model's layers off one run of it."""

    def __init__(self, target: Target, observed: Gradient, batch: int, memory: Memory) -> None:
        self._target, self._observed, self._batch, self._memory = target, observed, batch, memory
        self._names = {id(p): name for name, p in target.model.named_parameters() if p.requires_grad}

    def read(self) -> list[Op]:
        channels, height, width = self._target.shape
        now = self._target.mean.new_zeros(1, channels, height, width)
        try:
            trace = Trace(self._target.model, now, _refuse)
        except (RuntimeError, ValueError, TypeError) as reason:  # such as batch statistics of a single image
            raise NotStraight(f"one image alone cannot pass ({type(reason).__name__})") from None
        ops: list[Op] = []
        shape: tuple[int, ...] = (height, width, channels)
        for func, args, kwargs, out in trace.calls:
            if not isinstance(out, Tensor):
                continue
            if not args or args[0] is not now or any(value is now for value in (*args[1:], *kwargs.values())):
                raise NotStraight(f"{func.__name__} takes something else than the output of the layer before")
            now = out
            name = func.__name__
            op = self._op(name if name.startswith("_") else name.removesuffix("_"), args[1:], kwargs, shape)
            last = ops[-1] if ops else None
            if isinstance(op, Scale) and isinstance(last, Scale):
                op = last.then(op)
                ops.pop()
            if op is not None:
                ops.append(op)
                shape = tuple(op.forward(self._target.mean.new_zeros(1, *shape)).shape[1:])
        if trace.output is not now:
            raise NotStraight("the model returns something else than its last layer's output")
        return [op for op in ops if not (isinstance(op, Scale) and op.nothing())]

    def _op(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, ...]) -> Op | None:
        if name == "clone":
            return None
        if name == "dropout" and not (kwargs.get("training", args[1] if len(args) > 1 else True)):
            return None
        if name == "relu":
            return ReLU(self._memory)
        if name == "sigmoid":
            return Sigmoid(self._memory)
        if name == "flatten" and (*args, *kwargs.values())[:2] in ((1,), (1, -1)):
            return Flatten()
        if name in _SCALES and len(args) == 1 and not kwargs:
            return self._scale(name, args[0])
        if name == "linear" and len(shape) == 1:
            weight, bias = arguments(args, kwargs, weight=None, bias=None)
            return self._matrix(weight, bias, None, 1)
        if name == "conv2d":
            return self._conv(*arguments(args, kwargs, **CONV), shape=shape)
        if name == "batch_norm":
            return self._batch_norm(*arguments(args, kwargs, **BATCH_NORM))
        raise NotStraight(f"{name} is not run by hand")

    def _scale(self, name: str, value: Any) -> Op:
        if id(value) in self._names:
            raise NotStraight("a parameter is used outside known layers")
        constant = torch.as_tensor(value, dtype=self._target.mean.dtype, device=self._target.mean.device)
        if constant.ndim not in (0, 3):
            raise NotStraight("a constant is not one number a channel")
        constant = constant.movedim(0, -1) if constant.ndim == 3 else constant
        one, zero = torch.ones_like(constant), torch.zeros_like(constant)
        kind = _SCALES[name]
        if kind == "add":
            return Scale(one, constant, self._memory)
        if kind == "sub":
            return Scale(one, -constant, self._memory)
        return Scale(constant if kind == "mul" else 1 / constant, zero, self._memory)

    def _conv(
        self,
        weight: Tensor,
        bias: Tensor | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
        *,
        shape: tuple[int, ...],
    ) -> Op:
        if groups != 1 or isinstance(padding, str):
            raise NotStraight("a convolution has groups or padding by a word")
        window = Window((weight.shape[2], weight.shape[3]), *(two(v) for v in (stride, padding, dilation)))
        height, width = window.output(shape[0], shape[1])
        if height * width * weight[0].numel() > PATCHES_UP_TO:
            raise NotStraight("a convolution is large enough for native kernels")
        return self._matrix(weight, bias, window, height * width)

    def _matrix(self, weight: Tensor, bias: Tensor | None, window: Window | None, positions: int) -> Op:
        names = self._all_names(weight, bias)
        observed = [self._observed[name] for name in names]
        matrix = weight.detach()
        if window is not None:
            observed[0] = observed[0].permute(0, 1, 3, 4, 2).flatten(2)
            matrix = matrix.permute(0, 2, 3, 1).flatten(1)
        dense = positions * self._batch > 1 or cheaper_dense(1, matrix.shape[1], matrix.shape[0])
        kind = Standing if window is not None and dense and Standing.fits(len(matrix), self._batch) else Matrix
        return kind(
            matrix.contiguous(),
            None if bias is None else bias.detach(),
            window,
            names,
            observed,
            batch=self._batch,
            dense=dense,
            memory=self._memory,
        )

    def _batch_norm(
        self, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, _momentum: float, eps: float
    ) -> Op:
        if mean is None or training or weight is None or bias is None:
            raise NotStraight("batch norm uses the statistics of the batch, or has no parameters")
        names = self._all_names(weight, bias)
        observed = [self._observed[name] for name in names]
        inverse = (variance + eps).rsqrt()
        return BatchNorm(inverse, -mean * inverse, weight.detach(), bias.detach(), names, observed, self._batch)

    def _all_names(self, *parameters: Tensor | None) -> tuple[str, ...]:
        names = [self._names.get(id(p)) for p in parameters if p is not None]
        if None in names:
            raise NotStraight("a layer's parameters are partly frozen or made from others")
        return tuple(str(name) for name in names)


_SCALES = {
    "add": "add",
    "__add__": "add",
    "__iadd__": "add",
    "sub": "sub",
    "__sub__": "sub",
    "__isub__": "sub",
    "mul": "mul",
    "__mul__": "mul",
    "__imul__": "mul",
    "div": "div",
    "true_divide": "div",
    "__truediv__": "div",
    "__itruediv__": "div",
}
