"""Transformers by hand: products of gradients and their slope in four passes, without autograd.

As `chain`, for networks whose parts are linear layers over tokens, attention, layer norm, activations, sums, tokens and
positions (see `tokens`). What nothing depends on is not computed: where the classifier looks at one token, the last
block works on that token alone but for its keys and values.
"""

import torch
from torch import Tensor

from dosimeter.engine.affine import Shift
from dosimeter.engine.hand import ByHand
from dosimeter.engine.heads import Heads
from dosimeter.engine.nodes import Node, Rows
from dosimeter.engine.projection import Gram, Projection
from dosimeter.engine.pruning import pruned
from dosimeter.engine.reading import NotStraight
from dosimeter.engine.tokens import Reader
from dosimeter.types import Gradient, Target


class Transformer(ByHand):
    """A network as nodes in the order in which they run.

    Args:
        target: the model and its loss.
        observed: {name: (V, ...)} of all parameters.
        batch: images of one candidate.
    """

    def __init__(self, target: Target, observed: Gradient, batch: int) -> None:
        super().__init__(target, batch)
        reader = Reader(target, observed, batch, self.memory)
        values = reader.values
        if not any(isinstance(node, Heads) for node in values.nodes):
            raise NotStraight("it has no attention")
        self._nodes, self._output = pruned(values, reader.output), reader.output
        self._settle(values.shapes, target, observed)

    def _settle(self, shapes: list[tuple[int, ...]], target: Target, observed: Gradient) -> None:
        """Forms of all layers, the columns of what is compared, and which values have parameters below."""
        grams: dict[int, Gram] = {}
        positions = {0: 0}
        self._below = {0: False}
        self.forms = {}
        sizes = dict.fromkeys(observed, 0)
        for node in self._nodes:
            positions[node.output] = _positions(node, shapes, positions)
            self._below[node.output] = bool(node.pieces) or any(self._below[i] for i in node.inputs)
            for place, name in enumerate(node.pieces):
                if isinstance(node, Projection):
                    sizes[name] += node.observed[place][0].numel()
                else:
                    sizes[name] += observed[name][0].numel()
            if isinstance(node, Projection):
                node.settle(self.batch * positions[node.inputs[0]], grams.setdefault(node.inputs[0], Gram()))
                self.forms.setdefault(node.pieces[0], node.form)
        if any(sizes[name] != g[0].numel() for name, g in observed.items()):
            raise NotStraight("some parameters are used outside known layers, twice or not at all")
        names = list(observed)
        columns = [names.index(name) for node in self._nodes for name in node.pieces]
        self._columns = torch.tensor(columns, device=target.mean.device)
        self._parameters = len(names)

    def _take(self, owner: Tensor) -> None:
        for node in self._nodes:
            node.take(owner)

    def _forth(self) -> tuple[Tensor, Tensor]:
        values = {0: self._images}
        for node in self._nodes:
            values[node.output] = node.forward(*(values[i] for i in node.inputs))
        scores = values[self._output]
        self._chances = torch.softmax(scores, 1)
        true = self._labels[:, None] == torch.arange(scores.shape[1], device=scores.device)
        backs = {self._output: (self._chances - true.to(scores.dtype)) / self.batch}
        for node in reversed(self._nodes):
            if self._below[node.output] and node.output in backs:
                needed = [self._below[i] for i in node.inputs]
                self._collect(backs, node, node.backward(backs.pop(node.output), needed), "back")
        rows = [pair for node in self._nodes for pair in node.products()]
        cross, squared = (self._by_parameter(torch.stack(column, 1)) for column in zip(*rows, strict=True))
        return cross, squared

    def _by_parameter(self, pieces: Tensor) -> Tensor:
        """(N, pieces) -> (N, P)"""
        return torch.index_add(pieces.new_zeros(len(pieces), self._parameters), 1, self._columns, pieces)

    def _collect(self, backs: dict[int, Tensor], node: Node, found: list[Tensor | None], key: str) -> None:
        """Add what comes back from one more use of a value; never in place, since nodes keep what they gave."""
        for place, back in zip(node.inputs, found, strict=True):
            if back is None:
                continue
            held = backs.get(place)
            backs[place] = back if held is None else torch.add(held, back, out=node.held((key, "sum", place), back))

    def _back(self) -> Tensor:
        slopes = torch.index_select(self._slopes, 2, self._columns)
        pairs = [(slopes[0, :, place], slopes[1, :, place]) for place in range(slopes.shape[2])]
        dots: dict[int, Tensor | None] = {0: None}
        for node in self._nodes:
            node.turn([pairs.pop(0) for _ in node.pieces])
            dots[node.output] = node.tangent(*(dots[i] for i in node.inputs))
        dot, p = dots[self._output], self._chances
        assert dot is not None
        backs = {self._output: (p * (dot - (p * dot).sum(1, keepdim=True))) / self.batch}
        for node in reversed(self._nodes):
            self._collect(backs, node, node.returning(backs.pop(node.output)), "returned")
        return backs[0]


def _positions(node: Node, shapes: list[tuple[int, ...]], known: dict[int, int]) -> int:
    """Rows of one image in what a node gives."""
    if isinstance(node, Rows):  # or `Place`
        return getattr(node, "tokens", node.count)
    if isinstance(node, Heads):
        return known[node.places[0].value]
    if node.pointwise or isinstance(node, Shift):
        return known[node.inputs[0]]
    return torch.Size(shapes[node.output][:-1]).numel()
