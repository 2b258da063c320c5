"""Common networks by hand: products of gradients and their slope in four passes, without autograd.

A network of linear layers, convolutions, batch norm with running statistics, ReLU, sigmoid, pooling, flattening and
constant scaling under cross-entropy needs no graph of autograd's. Its layers follow one another, or lines part and are
added again, as in residual networks. See `ops` for the passes.
"""

import torch
from torch import Tensor

from dosimeter.engine.direct import Direct
from dosimeter.engine.hand import ByHand
from dosimeter.engine.joints import Add
from dosimeter.engine.matrix import Matrix
from dosimeter.engine.ops import BatchNorm, Learned
from dosimeter.engine.reading import NotStraight, Reader
from dosimeter.engine.winograd import Winograd
from dosimeter.types import Gradient, Target


class Chain(ByHand):
    """A network as a list of layers, each with the places of what it takes and gives.

    Args:
        target: the model and its loss.
        observed: {name: (V, ...)} of all parameters.
        batch: images of one candidate.
    """

    def __init__(self, target: Target, observed: Gradient, batch: int) -> None:
        super().__init__(target, batch)
        self._nodes = Reader(target, observed, batch, self.memory).read()
        self._learned: list[Learned] = []
        self._moving: set[int] = set()  # places that depend on parameters
        for node in self._nodes:
            if isinstance(node.op, Matrix | Direct | Winograd | BatchNorm):
                self._learned.append(node.op)
                self._moving.add(node.output)
            elif self._moving.intersection(node.inputs):
                self._moving.add(node.output)
        names = [name for op in self._learned for name in op.names]
        if sorted(names) != sorted(observed):
            raise NotStraight("some parameters are used outside known layers, or twice")
        self._order = torch.tensor([names.index(name) for name in observed], device=target.mean.device)
        self._reverse = torch.argsort(self._order)
        self.forms = {
            op.names[0]: op.form if isinstance(op, Matrix | Direct | Winograd) else "vector" for op in self._learned
        }

    def _take(self, owner: Tensor) -> None:
        for layer in self._learned:
            layer.take(owner)

    def _laid(self, images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1)

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
