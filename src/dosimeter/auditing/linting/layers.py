"""What every layer's gradient determines of the layer's input at most, by the shapes of a run.

A weight (m, k) that is applied at T places has the gradient D^T X, with D (T, m) of what came back and X (T, k) of what
the places see. If D is known, that is min(T, m) k equations for X.
"""

from collections.abc import Iterator

from dosimeter.auditing.linting.findings import LayerRank
from dosimeter.networks.trace import CONV, Call, Trace, arguments


def layer_ranks(trace: Trace) -> Iterator[LayerRank]:
    """Of all trained linear layers and convolutions, in the order in which an image meets them."""
    trained = {id(p): name for name, p in trace.model.named_parameters() if p.requires_grad}
    for call in trace.calls:
        if call.name in ("linear", "conv2d") and len(call.inputs) > 1 and id(call.inputs[1]) in trained:
            yield _rank(call, trained[id(call.inputs[1])])


def _rank(call: Call, name: str) -> LayerRank:
    inputs, weight = call.inputs[:2]
    groups = arguments(call.args[1:], call.kwargs, **CONV)[-1] if call.name == "conv2d" else 1
    width, size = len(weight) // groups, weight[0].numel()
    places = call.outputs[0].numel() // len(weight)
    rank = min(inputs.numel(), groups * min(places, width) * size)
    return LayerRank(name, tuple(weight.shape), places, inputs.numel(), rank)
