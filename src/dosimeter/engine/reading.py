"""A model's layers and how they hang together, read off one run of it."""

from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dosimeter.engine.contract import cheaper_dense
from dosimeter.engine.direct import Direct
from dosimeter.engine.joints import Add, MaxPool, Mean
from dosimeter.engine.layers import two
from dosimeter.engine.matrix import Matrix, Standing
from dosimeter.engine.ops import BatchNorm, Flatten, Memory, Op, ReLU, Scale, Sigmoid
from dosimeter.engine.patches import Window
from dosimeter.engine.rows import Rank, RowNorm, known
from dosimeter.engine.tape import READS
from dosimeter.engine.thin import Thin
from dosimeter.engine.winograd import Winograd
from dosimeter.networks.trace import BATCH_NORM, CONV, Call, Trace, arguments
from dosimeter.types import Gradient, Target

WINDOWS_UP_TO = 2_000_000
"""Numbers in one image's windows up to which they are copied."""


class NotStraight(Exception):  # noqa: N818  it is an answer, not a failure
    """Why a network cannot be run by hand."""


class Node(NamedTuple):
    """A layer, the places of what it takes and the place of what it gives; place 0 are the images."""

    op: Op | Add
    inputs: tuple[int, ...]
    output: int


def _refuse(name: str) -> None:
    """What a model may not call in a pass that is to be repeated."""
    if name in READS:
        raise NotStraight("it branches on its data")
    if name == "__setitem__":
        raise NotStraight("it sets entries of a tensor")


class Reader:
    """Reads a model's layers off one run of it."""

    def __init__(self, target: Target, observed: Gradient, batch: int, memory: Memory) -> None:
        self._target, self._observed, self._batch, self._memory = target, observed, batch, memory
        self._names = {id(p): name for name, p in target.model.named_parameters() if p.requires_grad}

    def read(self) -> list[Node]:
        """All layers in the order in which they run; the last gives the model's output."""
        channels, height, width = self._target.shape
        images = self._target.mean.new_zeros(1, channels, height, width)
        try:
            trace = Trace(self._target.model, images, _refuse)
        except (RuntimeError, ValueError, TypeError) as reason:  # such as batch statistics of a single image
            raise NotStraight(f"one image alone cannot pass ({type(reason).__name__})") from None
        self._places = {id(images): 0}
        self._shapes: list[tuple[int, ...]] = [(height, width, channels)]
        self._uses = Counter(id(t) for call in trace.calls for t in call.inputs)
        nodes: list[Node] = []
        for at, call in enumerate(trace.calls):
            if isinstance(call.out, Tensor):
                self._guard(call, trace.calls[at + 1 :])
                self._note(call, nodes)
        if not nodes or self._places.get(id(trace.output)) != nodes[-1].output:
            raise NotStraight("the model returns something else than its last layer's output")
        return nodes

    def _guard(self, call: Call, later: list[Call]) -> None:
        """Refuse a model that overwrites a tensor and then reads it by another one that shows the same memory."""
        if not any(call.out is t for t in call.args):
            return
        memory = call.out.untyped_storage().data_ptr()
        for other in (t for c in later for t in c.inputs if t is not call.out and id(t) in self._places):
            if other.untyped_storage().data_ptr() == memory:
                raise NotStraight(f"{call.func.__name__} overwrites what is used again")

    def _note(self, call: Call, nodes: list[Node]) -> None:
        name = call.func.__name__
        name = name if name.startswith("_") else name.removesuffix("_")
        given = [self._places.get(id(t)) for t in call.args if isinstance(t, Tensor)]
        if name in _ADDS and len(call.args) == 2 and not call.kwargs and len(given) == 2 and None not in given:
            one, other = (int(place) for place in given if place is not None)
            if self._shapes[one] != self._shapes[other]:
                raise NotStraight("two lines of different shapes are added")
            self._append(call, Node(Add(self._memory), (one, other), len(self._shapes)), self._shapes[one], nodes)
            return
        others = (*call.args[1:], *call.kwargs.values())
        if not given or given[0] is None or any(id(v) in self._places for v in others if isinstance(v, Tensor)):
            raise NotStraight(f"{name} takes something else than the output of a layer before")
        place = given[0]
        op = self._op(name, call.args[1:], call.kwargs, self._shapes[place])
        last = nodes[-1] if nodes else None
        alone = self._uses[id(call.args[0])] == 1
        if isinstance(op, Scale) and last and isinstance(last.op, Scale) and last.output == place and alone:
            nodes.pop()
            op, place = last.op.then(op), last.inputs[0]
        if op is None or (isinstance(op, Scale) and op.nothing()):
            self._places[id(call.out)] = place
            return
        shape = tuple(op.forward(self._target.mean.new_zeros(1, *self._shapes[place])).shape[1:])
        self._append(call, Node(op, (place,), len(self._shapes)), shape, nodes)

    def _append(self, call: Call, node: Node, shape: tuple[int, ...], nodes: list[Node]) -> None:
        nodes.append(node)
        self._shapes.append(shape)
        self._places[id(call.out)] = node.output

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
            return self._matrix(weight, bias, None, (1, 1))
        if name == "conv2d":
            return self._conv(*arguments(args, kwargs, **CONV), shape=shape)
        if name == "batch_norm":
            return self._batch_norm(*arguments(args, kwargs, **BATCH_NORM), rows=len(shape) == 1)
        if len(shape) == 3 and name in _POOLS:
            return self._pool(name, args, kwargs, shape)
        raise NotStraight(f"{name} is not run by hand")

    def _pool(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], shape: tuple[int, ...]) -> Op:
        if name == "mean":
            axes, keep, dtype = arguments(args, kwargs, dim=None, keepdim=False, dtype=None)
            if dtype is None and not keep and isinstance(axes, list | tuple) and sorted(a % 4 for a in axes) == [2, 3]:
                return Mean(None, self._memory)
            raise NotStraight("a mean is taken over other axes than an image's")
        if name == "adaptive_avg_pool2d":
            if all(two(size) == (1, 1) for size in (*args, *kwargs.values())):
                return Mean((shape[0], shape[1]), self._memory)
            raise NotStraight("adaptive pooling gives more than one pixel")
        defaults = _POOLS[name]
        size, stride, padding, *rest = arguments(args, kwargs, **defaults)
        if rest != list(defaults.values())[3:]:
            raise NotStraight(f"{name} has settings that are not run by hand")
        window = Window(two(size), two(size if stride in (None, []) else stride), two(padding), (1, 1))
        if name == "max_pool2d":
            return MaxPool(window, self._memory)
        tiled = not any(side % size for side, size in zip(shape, window.kernel, strict=False))
        if window.stride != window.kernel or any(window.padding) or not tiled:
            raise NotStraight("average pooling overlaps or leaves pixels out")
        return Mean(window.kernel, self._memory)

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
        output = window.output(shape[0], shape[1])
        fast = Winograd.fits(weight, window, output, self._batch)
        if not fast and self._native(weight) and Direct.fits(weight, window, self._batch):
            positions = output[0] * output[1]
            if positions > 1 and cheaper_dense(positions, weight[0].numel(), len(weight)):
                names, own = self._all_names(weight, bias), None if bias is None else bias.detach()
                observed = [self._observed[name] for name in names]
                return Direct(weight.detach(), own, window, shape, names, observed, memory=self._memory)
        if not fast and output[0] * output[1] * weight[0].numel() > WINDOWS_UP_TO:
            raise NotStraight("a convolution is large enough for native kernels")
        return self._matrix(weight, bias, window, output, fast=fast)

    def _matrix(
        self, weight: Tensor, bias: Tensor | None, window: Window | None, output: tuple[int, int], *, fast: bool = False
    ) -> Op:
        names = self._all_names(weight, bias)
        observed = [self._observed[name] for name in names]
        weight, bias = weight.detach(), None if bias is None else bias.detach()
        positions = self._batch * output[0] * output[1]
        inputs, outputs = weight[0].numel(), len(weight)
        dense = cheaper_dense(positions, inputs, outputs)
        if fast:
            assert window is not None
            return Winograd(
                weight,
                bias,
                window,
                names,
                observed,
                batch=self._batch,
                positions=positions,
                dense=dense,
                memory=self._memory,
            )
        matrix = weight
        if window is not None:
            observed[0] = observed[0].permute(0, 1, 3, 4, 2).flatten(2)
            matrix = matrix.permute(0, 2, 3, 1).flatten(1)
        kind: type[Matrix] = Matrix
        if window is not None and dense and Standing.fits(outputs, self._batch):
            kind = Standing
        elif positions > 1 and not dense:
            kind = Thin
        elif positions == 1 and not dense and self._native(matrix):
            kind = Rank
        return kind(
            matrix.contiguous(),
            bias,
            window,
            names,
            observed,
            batch=self._batch,
            positions=positions,
            dense=dense,
            memory=self._memory,
        )

    def _batch_norm(
        self,
        mean: Any,
        variance: Any,
        weight: Any,
        bias: Any,
        training: bool,
        _momentum: float,
        eps: float,
        *,
        rows: bool,
    ) -> Op:
        if mean is None or training or weight is None or bias is None:
            raise NotStraight("batch norm uses the statistics of the batch, or has no parameters")
        names = self._all_names(weight, bias)
        observed = [self._observed[name] for name in names]
        inverse = (variance + eps).rsqrt()
        kind = RowNorm if rows and self._batch == 1 and self._native(weight) else BatchNorm
        return kind(inverse, -mean * inverse, weight.detach(), bias.detach(), names, observed, self._batch)

    def _native(self, like: Tensor) -> bool:
        return not self._target.compiled and known(like)

    def _all_names(self, *parameters: Tensor | None) -> tuple[str, ...]:
        names = [self._names.get(id(p)) for p in parameters if p is not None]
        if None in names:
            raise NotStraight("a layer's parameters are partly frozen or made from others")
        return tuple(str(name) for name in names)


_ADDS = ("add", "__add__", "__iadd__", "__radd__")
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
_SIZES: dict[str, Any] = {"kernel_size": None, "stride": None, "padding": 0}
_POOLS: dict[str, dict[str, Any]] = {
    "mean": {},
    "adaptive_avg_pool2d": {},
    "avg_pool2d": _SIZES | {"ceil_mode": False, "count_include_pad": True, "divisor_override": None},
    "max_pool2d": _SIZES | {"dilation": 1, "ceil_mode": False, "return_indices": False},
}
