"""A network whose layers follow one another, read off one run of it.

These may be convolutions and fully connected layers, and between them activations that can be undone, constants, batch
norm with running statistics, average pooling, padding and flattening.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.attacks.solve.first_layer import SEARCH, probes_of, traced
from dosimeter.attacks.solve.inverses import INVERSES
from dosimeter.attacks.solve.ops import Affine, Bend, Block, Learned, Op, Pool, Reshape, Scale, apply
from dosimeter.errors import SettingError
from dosimeter.networks.remember import remembered
from dosimeter.networks.trace import BATCH_NORM, CONV, Trace, arguments
from dosimeter.types import Shape, Target

PIXELS_UP_TO = 64 * 64
"""Pixels of a layer's input up to which its equations are written out."""

RESHAPES = {"flatten", "reshape", "view", "squeeze", "unsqueeze"}
MORE = "it does more than its layers in a row do"
POOLS = {"avg_pool2d", "adaptive_avg_pool2d", "mean", "pad"}
NOTHING = {"contiguous", "clone", "detach", "to", "double"}
SCALES: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "add": lambda c: (torch.ones_like(c), c),
    "sub": lambda c: (torch.ones_like(c), -c),
    "mul": lambda c: (c, torch.zeros_like(c)),
    "div": lambda c: (1 / c, torch.zeros_like(c)),
    "true_divide": lambda c: (1 / c, torch.zeros_like(c)),
}


@remembered
def read_straight(target: Target) -> tuple[Block, ...]:
    """The blocks of a straight network in float64, or a refusal that says what else the model does."""
    trace = _run(traced, target)
    if all(out.ndim > 1 and len(out) == 1 for call in trace.calls for out in call.outputs):
        _read(target, trace)  # most are refused by what one image says already, unless its axis was squeezed away
    blocks = cut(read_ops(target, probes_of(target)), target.shape)
    if blocks[-1].learned.places.numel() != 1:
        raise refusal("it does not end in a fully connected layer")
    return blocks


def read_ops(target: Target, probes: Tensor) -> list[Op]:
    """What a straight network does one after another, from a run on probes (n, C, H, W), or (n, C) for (C, 1, 1)."""
    trace = _run(Trace, target.model, probes)
    ops = _read(target, trace)
    with torch.no_grad():
        again = apply(ops, probes.reshape(len(probes), *target.shape))
    if not torch.allclose(again.flatten(1), trace.output.flatten(1), rtol=1e-9, atol=1e-9):
        raise refusal(MORE)
    return ops


def _run(run: Callable[..., Trace], *of: Any) -> Trace:
    try:
        return run(*of)
    except (RuntimeError, ValueError, TypeError) as reason:
        raise refusal(f"it cannot be run ({str(reason).splitlines()[0]})") from None


def _read(target: Target, trace: Trace) -> list[Op]:
    """The calls of one run, each of which takes what the one before gave."""
    now = trace.images
    reader, earlier = _Reader(target, flat=now.ndim == 2), {id(now)}
    for call in trace.calls:
        func, args, kwargs, out = call
        if not isinstance(out, Tensor):
            continue
        name, others = call.name, (*args[1:], *kwargs.values())
        if not args or args[0] is not now or any(id(value) in earlier for value in others):
            raise refusal(f"{name} takes something else than the output of the layer before")
        reader.read(name, func, args[1:], kwargs, out)
        now = out
        earlier.add(id(out))
    if trace.output is not now:
        raise refusal(MORE)
    return reader.ops


class _Reader:
    """Turns calls into ops. Every shape has three axes here: n features are (n, 1, 1)."""

    def __init__(self, target: Target, *, flat: bool) -> None:
        self._names = {id(p): name for name, p in target.model.named_parameters() if p.requires_grad}
        self._shape, self._flat = target.shape, flat
        self._like = target.mean
        self.ops: list[Op] = []

    def read(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> None:
        op = self._op(name, func, args, kwargs, out)
        sizes = tuple(out.shape[1:])
        if len(sizes) not in (1, 3):
            raise refusal(f"{name} gives a tensor with {out.ndim} axes")
        self._flat = len(sizes) == 1
        self._shape = (sizes[0], 1, 1) if self._flat else (sizes[0], sizes[1], sizes[2])
        if op is not None:
            self.ops.append(op)

    def _op(self, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> Op | None:
        if name in NOTHING or (name == "dropout" and not arguments(args, kwargs, p=0.5, training=True)[1]):
            return None
        if name in INVERSES:
            settings = {key: value for key, value in kwargs.items() if key != "inplace"}
            return Bend(lambda x: func(x, *args, **settings), INVERSES[name](*args, **settings))
        if name in RESHAPES and out[0].numel() == self._shape[0] * self._shape[1] * self._shape[2]:
            sizes = tuple(out.shape[1:])
            return Reshape((sizes[0], *sizes[1:3]) if len(sizes) == 3 else (sizes[0], 1, 1))
        if name in SCALES and len(args) == 1 and not kwargs:
            constant = torch.as_tensor(args[0], dtype=self._like.dtype, device=self._like.device)
            return self._scale(*SCALES[name](constant))
        if name == "batch_norm":
            return self._batch_norm(*arguments(args, kwargs, **BATCH_NORM))
        if name == "linear" and self._flat:
            return self._linear(*arguments(args, kwargs, weight=None, bias=None))
        if name == "conv2d":
            return self._conv(*arguments(args, kwargs, **CONV))
        if (
            name in POOLS
            and not self._flat
            and out.ndim > 1
            and out.shape[1] == self._shape[0]
            and _of_pixels(name, args, kwargs)
        ):
            self._check_size()
            return Pool(lambda x: func(x, *args, **kwargs))
        raise refusal(f"it calls {name}")

    def _check_size(self) -> None:
        _, height, width = self._shape
        if height * width > PIXELS_UP_TO:
            raise refusal(f"a layer of it sees {height}x{width} pixels, more than {PIXELS_UP_TO:,}")

    def _scale(self, factor: Tensor, shift: Tensor) -> Scale:
        shape = self._shape[:1] if self._flat else self._shape
        numbers = [torch.broadcast_to(value, (1, *shape))[0].reshape(self._shape) for value in (factor, shift)]
        if any((value != value[:, :1, :1]).any() for value in numbers):
            raise refusal("it scales pixels of one channel differently")
        if (numbers[0] == 0).any():
            raise refusal("it multiplies a channel by 0")
        return Scale(numbers[0][:, :1, :1].detach(), numbers[1][:, :1, :1].detach())

    def _batch_norm(
        self, mean: Any, variance: Any, weight: Any, bias: Any, training: bool, _momentum: float, eps: float
    ) -> Scale:
        if mean is None or training:
            raise refusal("its batch norm uses the statistics of the batch")
        factor = (variance + eps).rsqrt() * (1 if weight is None else weight)
        shift = (0 if bias is None else bias) - mean * factor
        shape = (-1,) if self._flat else (-1, 1, 1)
        return self._scale(factor.reshape(shape), shift.reshape(shape))

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Learned:
        def run(x: Tensor) -> Tensor:
            return F.linear(x.flatten(1), weight, bias)[..., None, None]

        only = torch.ones(1, 1, dtype=torch.long, device=weight.device)
        return self._learned(weight, bias, weight.detach()[..., None, None], only, run)

    def _conv(
        self, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Learned:
        _, height, width = self._shape
        if groups != 1:
            raise refusal(f"it has a convolution in {groups} groups")
        self._check_size()
        k, m = weight.shape[2:]
        one_hot = torch.eye(k * m, dtype=weight.dtype, device=weight.device).reshape(k * m, 1, k, m)
        pixels = torch.arange(1, height * width + 1, dtype=weight.dtype, device=weight.device)
        places = F.conv2d(pixels.reshape(1, 1, height, width), one_hot, None, stride, padding, dilation)[0]

        def run(x: Tensor) -> Tensor:
            return F.conv2d(x, weight, bias, stride, padding, dilation)

        return self._learned(weight, bias, weight.detach(), places.flatten(1).round().long(), run)

    def _learned(
        self, weight: Tensor, bias: Tensor | None, kernel: Tensor, places: Tensor, run: Callable[[Tensor], Tensor]
    ) -> Learned:
        name = self._names.get(id(weight))
        if name is None:
            raise refusal("the weight of a layer is not trained or made from others")
        if any(isinstance(op, Learned) and op.weight == name for op in self.ops):
            raise refusal(f"{name!r} is used more than once")
        return Learned(name, self._names.get(id(bias)), kernel, places, run)


def _of_pixels(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a mean is taken over all pixels of a channel; other poolings always are over some."""
    over = arguments(args, kwargs, dim=None)[0]
    return name != "mean" or (isinstance(over, list | tuple) and sorted(axis % 4 for axis in over) == [2, 3])


def cut(ops: list[Op], shape: Shape) -> tuple[Block, ...]:
    """The blocks of ops that end in a learned layer.

    Cut after every activation; without one all that is affine goes to the next layer's input.
    """
    blocks: list[Block] = []
    places = [i for i, op in enumerate(ops) if isinstance(op, Learned)]
    if not places:
        raise refusal("it has no layer to solve")
    start = 0
    for place, end in zip(places, [*places[1:], len(ops)], strict=True):
        before, rest = ops[start:place], ops[place + 1 : end]
        bends = [i for i, op in enumerate(rest) if isinstance(op, Bend)]
        if len(bends) > 1 or any(isinstance(op, Bend) for op in before):
            raise refusal("it bends the output of a layer twice, or the image itself")
        after = rest[: bends[0]] if bends else []
        bend = rest[bends[0]] if bends else None
        learned = ops[place]
        assert isinstance(learned, Learned)
        assert bend is None or isinstance(bend, Bend)
        block = Block(shape, _affine(before), learned, _affine(after), bend)
        blocks.append(block)
        with torch.no_grad():
            blank = learned.kernel.new_zeros(1, *shape)
            sizes = block(blank).shape
        shape = (sizes[1], sizes[2], sizes[3])
        start = place + 1 + len(after) + (bend is not None)
    if start < len(ops) or blocks[-1].bend is not None:
        raise refusal("it does not end in a fully connected layer")
    return tuple(blocks)


def _affine(ops: Sequence[Op]) -> tuple[Affine, ...]:
    return tuple(op for op in ops if isinstance(op, Scale | Pool | Reshape))


def refusal(why: str) -> SettingError:
    return SettingError(
        "The analytic attack solves a fully connected first layer, or layers in a row one by one, but of this model "
        f"{why}; {SEARCH}."
    )
