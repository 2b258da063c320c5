"""The values of a network that is read, and its tensors as views of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.engine.nodes import Gather, Node, Rows, Scale
from dosimeter.engine.ops import Memory
from dosimeter.engine.reading import NotStraight

IMAGES = 2
"""In the run that is read: enough to see whether images meet."""


class View(NamedTuple):
    """A tensor as entries of a value, all times a number."""

    value: int
    entries: Tensor  # of the tensor's shape
    factor: float = 1.0


def numbers(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).view(shape)


class Values:
    """Nodes in the order in which they were read, and the values between them.

    `shapes` are those of all values for one image, and value 0 is the images. `like` has the numbers' type and device.
    """

    def __init__(self, shape: tuple[int, ...], memory: Memory, like: Tensor) -> None:
        self.memory, self.like = memory, like
        self.nodes: list[Node] = []
        self.shapes: list[tuple[int, ...]] = [shape]

    def whole(self, value: int) -> View:
        return View(value, numbers((IMAGES, *self.shapes[value])))

    def new(self, shape: tuple[int, ...]) -> int:
        self.shapes.append(shape)
        return len(self.shapes) - 1

    def add(self, node: Node) -> View:
        self.nodes.append(node)
        return self.whole(node.output)

    def plain(self, view: View) -> int:
        """The number of a value whose entries are those of the view in their order, images first."""
        shape = tuple(view.entries.shape[1:])
        size = torch.Size(self.shapes[view.value]).numel()
        if len(view.entries) != IMAGES:
            raise NotStraight("images are not along the first axis")
        flat = view.entries.reshape(IMAGES, -1)
        if not torch.equal(flat[1], flat[0] + size) or not bool((flat[0] < size).all()):
            raise NotStraight("entries of several images meet")
        value = view.value
        same = flat.shape[1] == size and torch.equal(flat[0], torch.arange(size))
        if not same or shape != self.shapes[value]:
            value = self._moved(value, flat[0], shape)
        if view.factor != 1:
            factor = self.like.new_tensor(view.factor)
            value = self.add(Scale([value], self.new(shape), self.memory, factor, None)).value
        return value

    def _moved(self, value: int, order: Tensor, shape: tuple[int, ...]) -> int:
        """Entries of each image in another order: some rows that follow one another, or any."""
        old = self.shapes[value]
        if len(old) == 2 and len(order) % old[1] == 0:
            first, count = int(order[0]) // old[1], len(order) // old[1]
            if count < old[0] and torch.equal(order, torch.arange(first * old[1], (first + count) * old[1])):
                value = self.add(Rows([value], self.new((count, old[1])), self.memory, first, count)).value
                order = torch.arange(len(order))
                if shape == self.shapes[value]:
                    return value
        if len(set(order.tolist())) != len(order):
            raise NotStraight("entries are used more than once")
        size = torch.Size(self.shapes[value]).numel()
        order = order.to(self.like.device)
        return self.add(Gather([value], self.new(shape), self.memory, order, shape, size)).value

    def rows(self, view: View) -> tuple[int, int]:
        """A view as a value (n, ..., W), and the axis along which images are in the view."""
        for axis in range(view.entries.ndim - 1):
            if view.entries.shape[axis] == IMAGES:
                try:
                    return self.plain(view._replace(entries=view.entries.movedim(axis, 0))), axis
                except NotStraight:
                    continue
        raise NotStraight("images are not along one axis")

    def pointwise(self, views: list[View], make: Callable[[list[int], int], Node]) -> View:
        """A node for every entry; where the views have all of their values in one order, of the values as they are."""
        first = views[0]
        shape = self.shapes[first.value]
        alike = all(
            view.factor == 1 and self.shapes[view.value] == shape and torch.equal(view.entries, first.entries)
            for view in views
        )
        if alike and torch.equal(first.entries.flatten().sort().values, numbers((IMAGES, *shape)).flatten()):
            return self.add(make([view.value for view in views], self.new(shape)))._replace(entries=first.entries)
        found = [self.rows(view) for view in views]
        if len({axis for _, axis in found}) > 1:
            raise NotStraight("images are along two axes")
        value, axis = found[0]
        new = self.add(make([each for each, _ in found], self.new(self.shapes[value])))
        return new._replace(entries=new.entries.movedim(0, axis))
