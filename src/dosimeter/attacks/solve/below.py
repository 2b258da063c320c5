"""From what one layer of a network saw to what layers below it saw: residual networks layer by layer.

Where all that the output owes to the image passes through one known tensor h, dL/dh is known, for the rest of the
network can be run. Below h slopes go on through sums, running batch norms and convolutions as they are, and through
ReLUs once their outputs are known; and the slopes of a convolution's output make its gradient linear equations for its
input (Inverting Gradients, Prop. 2; R-GAP, Zhu and Blaschko 2021), which is the output of the ReLU below. Shortcuts
only add up slopes, so residual blocks are no harder than straight networks. It ends where a layer has too few channels
for its pixels.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.attacks.solve.joined import Seen, Told, solve_joined
from dosimeter.attacks.solve.wide import Window, solve_given
from dosimeter.attacks.stages import Beat
from dosimeter.networks.trace import BATCH_NORM, CONV, Call, Section, Trace, arguments
from dosimeter.types import Gradient, Target

SUMS = ("add", "iadd", "radd")


class Learned(NamedTuple):
    """A convolution of a trace with what the update says of it."""

    at: int  # the number of its call
    weight: str  # the parameter's name
    window: Window
    shift: str | None  # a parameter whose gradient is the sum over places of what comes back, times `scale`
    scale: Tensor | None  # (o,)


def learned(trace: Trace) -> list[Learned]:
    """The trained convolutions that a trace calls once, in its order."""
    trained = {id(p): name for name, p in trace.model.named_parameters() if p.requires_grad}
    found: list[Learned] = []
    calls = [call for call in trace.calls if call.name == "conv2d"]
    often = [id(call.inputs[1]) for call in calls if len(call.inputs) > 1]
    for at, call in enumerate(trace.calls):
        window = window_of(call)
        if window is None or trained.get(id(call.inputs[1])) is None or often.count(id(call.inputs[1])) > 1:
            continue
        found.append(Learned(at, trained[id(call.inputs[1])], window, *_sum_of(trace, call, trained)))
    return found


def window_of(call: Call) -> Window | None:
    """How a convolution of one group moves over its input; None for any other call."""
    if call.name != "conv2d" or len(call.inputs) < 2:
        return None
    weight, _, *how, groups = arguments(call.args[1:], call.kwargs, **CONV)
    if groups != 1 or any(isinstance(each, str) for each in how):
        return None
    channels, height, width = call.inputs[0].shape[1:]
    return Window((channels, height, width), tuple(weight.shape[2:]), *map(_pair, how))


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _sum_of(trace: Trace, call: Call, trained: Mapping[int, str]) -> tuple[str | None, Tensor | None]:
    """The parameter whose gradient sums up what comes back to a convolution: its bias, or a running batch norm's."""
    bias = arguments(call.args[1:], call.kwargs, **CONV)[1]
    if bias is not None and id(bias) in trained:
        return trained[id(bias)], torch.ones_like(bias).detach()
    users = trace.users(call.outputs[0])
    if bias is None and len(users) == 1 and (factor := running(users[0])) is not None:
        shift = arguments(users[0].args[1:], users[0].kwargs, **BATCH_NORM)[3]
        if shift is not None and id(shift) in trained:
            return trained[id(shift)], factor
    return None, None


def running(call: Call) -> Tensor | None:
    """(c,): what a batch norm multiplies by, where it uses running statistics; None for any other call."""
    if call.name != "batch_norm":
        return None
    _, variance, weight, _, training, _, eps = arguments(call.args[1:], call.kwargs, **BATCH_NORM)
    if training or variance is None:
        return None
    factor: Tensor = (variance + eps).rsqrt()
    return (factor if weight is None else factor * weight).detach()


def cuts(trace: Trace, tensor: Tensor) -> bool:
    """Whether the output owes all to this tensor that it owes to the image."""
    return id(trace.output) not in trace.after([trace.images], without=[tensor])


class Descent(NamedTuple):
    """What is known below a layer, by tensors of a trace."""

    inputs: dict[int, Tensor]  # {number of a convolution's call: its input (c, h, w)}
    slopes: dict[int, Tensor]  # {id of a tensor: dL/d of it (1, ...)}


def descend(
    target: Target, trace: Trace, source: Tensor, value: Tensor, observed: Gradient, labels: Tensor, beat: Beat,
    *, joined: bool = False,
) -> Descent:  # fmt: skip
    """The inputs of all layers below that can be solved for.

    Args:
        target: the model, in float64.
        trace: of it, with one image.
        source: the tensor of the trace that is known, through which the output owes all to the image.
        value: (c, h, w) what it was for the victim.
        observed: the update, in float64.
        labels: (1,)
        beat: before every layer.
        joined: whether inputs that gradients leave partly open are solved with what layers gave, which takes longer.
    """
    known = value[None].requires_grad_()
    (slope,) = torch.autograd.grad(target.loss(Section(trace, source, trace.output)(known), labels), known)
    layers = {layer.at: layer for layer in learned(trace)}
    walk = _Walk(trace, {id(source): known.detach()}, {id(source): slope}, observed)
    found: dict[int, Tensor] = {}
    told: dict[int, dict[int, Told]] = {}  # {id of an input: {number of a call: what its gradient says}}
    for at, call in walk.backwards(source):
        beat()
        layer, made = layers.get(at), id(call.outputs[0])
        if joined and made in told and made not in walk.values:
            solved = solve_joined(trace, call.outputs[0], list(told[made].values()), walk.relus(), beat)
            if solved is not None:
                found[min(told[made])] = solved
                walk.values[made] = solved[None]
        slopes = walk.slopes.get(made)
        if layer is not None and slopes is not None:
            inputs = id(call.inputs[0])
            each = Told(observed[layer.weight].flatten(1), slopes[0].flatten(1), layer.window)
            solved = solve_given(*each)
            if solved is not None:
                found[at] = solved
                walk.values.setdefault(inputs, solved[None])
            told.setdefault(inputs, {})[at] = each
        walk.through(at, call)
    return Descent(found, walk.arrived)


class _Walk:
    """Slopes of one image's loss on their way down through the calls of a trace."""

    def __init__(self, trace: Trace, values: dict[int, Tensor], slopes: dict[int, Tensor], observed: Gradient) -> None:
        self._trace, self.values, self.slopes, self._observed = trace, values, slopes, observed
        self._trained = {id(p): name for name, p in trace.model.named_parameters() if p.requires_grad}
        self._seen = trace.after([trace.images])
        self._lost = set[int]()  # tensors of whose slopes a part is unknown
        self.arrived: dict[int, Tensor] = {}  # slopes of tensors of which all is known

    def backwards(self, source: Tensor) -> Iterator[tuple[int, Call]]:
        """The calls that lead to a tensor, the last one first."""
        calls = self._trace.calls
        (end,) = (at for at, call in enumerate(calls) if call is self._trace.maker[id(source)])
        yield from ((at, calls[at]) for at in range(end, -1, -1))

    def through(self, at: int, call: Call) -> None:
        """From the slopes of what a call gave to those of what it took."""
        out = id(call.outputs[0])
        slope, lost = self.slopes.pop(out, None), out in self._lost
        self._lost.discard(out)
        if slope is None and not lost:
            return
        ins = [t for t in call.inputs if id(t) in self._seen]
        if slope is not None and not lost:
            self.arrived[out] = slope
        passed = None if slope is None or lost else self._passed(at, call, slope)
        for tensor in ins:
            if passed is None or passed.shape != tensor.shape:
                self._lost.add(id(tensor))
                self.slopes.pop(id(tensor), None)
            elif id(tensor) not in self._lost:
                before = self.slopes.get(id(tensor))
                self.slopes[id(tensor)] = passed if before is None else before + passed

    def relus(self) -> list[Seen]:
        """The ReLUs whose outputs are known."""
        calls = [call for call in self._trace.calls if call.name == "relu" and id(call.outputs[0]) in self.values]
        values = [self.values[id(call.outputs[0])] for call in calls]
        return [
            Seen(call.inputs[0], call.outputs[0], value, value > noise(value))
            for call, value in zip(calls, values, strict=True)
        ]

    def _passed(self, at: int, call: Call, slope: Tensor) -> Tensor | None:
        """What every input that depends on the image gets; None where that is not known."""
        if call.name in SUMS:
            return slope
        if call.name == "relu":
            value = self.values.get(id(call.outputs[0]))
            return None if value is None else slope * on(value, slope, self._sum(at, call.inputs[0]))
        if (factor := running(call)) is not None:
            return slope * factor[:, None, None]
        if (window := window_of(call)) is not None:
            weight = call.inputs[1].detach()
            patches = slope[0].flatten(1).T @ weight.flatten(1)
            return window.laid(patches)[None]
        return None

    def _sum(self, at: int, tensor: Tensor) -> Tensor | None:
        """(c,): the observed sum over places of a tensor's slopes before call `at`: the gradient of what shifts it."""
        earlier = (n for n in range(at - 1, -1, -1) if any(t is tensor for t in self._trace.calls[n].outputs))
        made = next(earlier, None)
        if made is None:
            return None
        call = self._trace.calls[made]
        if call.name in SUMS:
            sums = (self._sum(made, t) for t in call.inputs if t.shape == tensor.shape)
            return next((each for each in sums if each is not None), None)
        shift = None
        if call.name == "batch_norm":
            shift = arguments(call.args[1:], call.kwargs, **BATCH_NORM)[3]
        elif call.name == "conv2d":
            shift = arguments(call.args[1:], call.kwargs, **CONV)[1]
        return self._observed.get(self._trained.get(id(shift), ""))


BAND = 30.0
"""Times the noise, within which it is not the value that says whether a unit was on."""


def on(value: Tensor, slope: Tensor, total: Tensor | None) -> Tensor:
    """Where units of a ReLU were on, from their solved outputs (1, c, h, w).

    Outputs that are off are known to be 0 and found to be noise. One unit that is taken for another changes all that is
    solved below, so where the sum over places of what passes is observed, `total` (c,), the bound between on and off is
    put in every channel where `slope` (1, c, h, w) adds up to it.
    """
    off = noise(value)
    if total is None:
        return value > off
    sizes, order = value[0].flatten(1).sort(1, descending=True)  # (c, places)
    sums = F.pad(slope[0].flatten(1).gather(1, order).cumsum(1), (1, 0))  # with the k largest on, k from 0
    least, most = (F.pad(sizes, side, value=edge) for side, edge in (((1, 0), torch.inf), ((0, 1), -torch.inf)))
    allowed = (least > 0) & (most <= BAND * off)  # the smallest that is on, and the largest that is off
    count = (sums - total[:, None]).abs().masked_fill(~allowed, torch.inf).argmin(1)  # (c,)
    rank = order.argsort(1)
    return (rank < count[:, None]).reshape(value.shape)


def noise(value: Tensor) -> Tensor:
    """How far solved outputs of a ReLU are off, which are negative by nothing else; thrice that, to be safe."""
    return 3 * (-value.min()).clamp_min(0)
