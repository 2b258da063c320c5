"""The layers of a straight network as four passes each, without autograd and in memory that is used again.

With g the gradient of the parameters and v = d match / d g, the slope of the match in the images is the derivative of
the input's gradient along v: one forward-over-reverse product. So every layer has

    forward    a -> z                    backward    what comes back to z -> what comes back to a   (the client's step)
    tangent    da along v -> dz          returning   the derivative of `backward` along v

Rows are images, those of a candidate together; images are (n, H, W, C).
"""

import math
from typing import Protocol

import torch
from torch import Tensor


class Memory:
    """Tensors that are made once and used again in every step; all are dropped when the number of images changes."""

    def __init__(self) -> None:
        self._held: dict[object, Tensor] = {}
        self._rows = 0

    def begin(self, rows: int) -> None:
        if rows != self._rows:
            self._held, self._rows = {}, rows

    def __call__(self, key: object, shape: tuple[int, ...], like: Tensor) -> Tensor:
        held = self._held.get(key)
        if held is None or held.shape != shape:
            held = self._held[key] = like.new_zeros(shape)
        return held

    def like(self, key: object, value: Tensor) -> Tensor:
        """Memory of a tensor's shape and, where it leaves no gaps, its order of axes."""
        held = self._held.get(key)
        if held is None or held.shape != value.shape:
            held = self._held[key] = torch.empty_like(value)
        return held

    def ones(self, size: int, like: Tensor) -> Tensor:
        held = self._held.get(("ones", size))
        if held is None:
            held = self._held["ones", size] = like.new_ones(size)
        return held

    def scratch(self, key: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Memory for what is used up before anybody asks again; shared by all layers, so that caches keep it."""
        size = math.prod(shape)
        held = self._held.get(key)
        if held is None or held.numel() < size:
            held = self._held[key] = like.new_empty(size)
        return held[:size].view(shape)


class Op(Protocol):
    """One layer. Passes are made in the order forward, backward, tangent, returning."""

    def forward(self, a: Tensor) -> Tensor: ...

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        """`needed` is False below the first layer with parameters."""
        ...

    def tangent(self, da: Tensor | None) -> Tensor | None:
        """None stands for zero: nothing changes below the first layer with parameters."""
        ...

    def returning(self, back: Tensor) -> Tensor: ...


class Learned(Op, Protocol):
    """A layer with parameters, whose gradients are compared."""

    names: tuple[str, ...]

    def take(self, owner: Tensor) -> None:
        """Use the observations of these victims."""
        ...

    def products(self) -> list[tuple[Tensor, Tensor]]:
        """(cross, squared), (N,) each, for every name."""
        ...

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        """Slopes of the match in the products, (N,) each, which give v."""
        ...


class Scale:
    """a * factor + shift with constants."""

    def __init__(self, factor: Tensor, shift: Tensor, memory: Memory) -> None:
        self.factor, self.shift, self.memory = factor, shift, memory

    def then(self, after: "Scale") -> "Scale":
        """Both in one."""
        return Scale(self.factor * after.factor, self.shift * after.factor + after.shift, self.memory)

    def nothing(self) -> bool:
        return bool((self.factor == 1).all() and (self.shift == 0).all())

    def _whole(self, constant: Tensor, value: Tensor, key: str) -> Tensor:
        """A constant in the shape and order of an image, many times the speed of one number a channel."""
        return self.memory.like((self, key), value[0]).copy_(constant) if constant.ndim else constant

    def _scaled(self, value: Tensor, key: str) -> Tensor:
        return torch.mul(value, self._whole(self.factor, value, "factor"), out=self.memory.like((self, key), value))

    def forward(self, a: Tensor) -> Tensor:
        factor, shift = self._whole(self.factor, a, "factor"), self._whole(self.shift, a, "shift")
        return torch.addcmul(shift, a, factor, out=self.memory.like((self, "z"), a))

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        return self._scaled(back, "backward") if needed else None

    def tangent(self, da: Tensor | None) -> Tensor | None:
        return None if da is None else self._scaled(da, "tangent")

    def returning(self, back: Tensor) -> Tensor:
        return self._scaled(back, "returning")


class ReLU:
    """max(a, 0)."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def forward(self, a: Tensor) -> Tensor:
        self.a = a
        return torch.clamp_min(a, 0, out=self.memory.like((self, "z"), a))

    def _through(self, value: Tensor, key: str) -> Tensor:
        passed = self.memory.like((self, key), self.a)
        torch.ops.aten.threshold_backward(value, self.a, 0, grad_input=passed)
        return passed

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        return self._through(back, "backward") if needed else None

    def tangent(self, da: Tensor | None) -> Tensor | None:
        return None if da is None else self._through(da, "tangent")

    def returning(self, back: Tensor) -> Tensor:
        return self._through(back, "returning")


class Sigmoid:
    """s = 1 / (1 + exp(-a)) with s' = s (1 - s) and s'' = s' (1 - 2 s)."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def forward(self, a: Tensor) -> Tensor:
        self.s = torch.sigmoid(a, out=self.memory.like((self, "s"), a))
        self.slope = torch.addcmul(self.s, self.s, self.s, value=-1, out=self.memory.like((self, "slope"), a))
        self.da: Tensor | None = None
        return self.s

    def _through(self, value: Tensor, key: str) -> Tensor:
        return torch.mul(value, self.slope, out=self.memory.like((self, key), self.slope))

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        self.back = back
        return self._through(back, "backward") if needed else None

    def tangent(self, da: Tensor | None) -> Tensor | None:
        self.da = None if da is None else self._through(da, "tangent")
        return self.da

    def returning(self, back: Tensor) -> Tensor:
        through = self._through(back, "returning")
        if self.da is not None:
            bent = torch.mul(self.back, self.da, out=self.memory.like((self, "bent"), self.slope))
            through.add_(bent).addcmul_(bent, self.s, value=-2)
        return through


class Flatten:
    """(n, H, W, C) -> (n, C * H * W), in the order in which torch flattens (n, C, H, W)."""

    def forward(self, a: Tensor) -> Tensor:
        self.shape, self.stands = a.shape, a.ndim == 4 and a.permute(0, 3, 1, 2).is_contiguous()
        return a.permute(0, 3, 1, 2).reshape(len(a), -1) if a.ndim == 4 else a

    def _images(self, value: Tensor) -> Tensor:
        if len(self.shape) != 4:
            return value
        n, h, w, c = self.shape
        images = value.reshape(n, c, h, w).permute(0, 2, 3, 1)
        return images if self.stands else images.contiguous()  # in the order in which they came

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        return self._images(back) if needed else None

    def tangent(self, da: Tensor | None) -> Tensor | None:
        return None if da is None else self.forward(da)

    def returning(self, back: Tensor) -> Tensor:
        return self._images(back)


class Small:
    """Gradients that are vectors: products, and v."""

    def __init__(self, observed: Tensor) -> None:
        self.observed = observed.flatten(1)

    def take(self, owner: Tensor) -> None:
        self.mine = self.observed[owner]

    def products(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        self.gradient = gradient
        return (gradient * self.mine).sum(1), gradient.square().sum(1)

    def turn(self, slopes: tuple[Tensor, Tensor]) -> Tensor:
        cross, squared = slopes
        return (self.mine * cross[:, None]).addcmul_(self.gradient, 2 * squared[:, None])


class BatchNorm:
    """(a * inverse + shift) * weight + bias with running statistics; channels are last."""

    def __init__(
        self,
        inverse: Tensor,
        shift: Tensor,
        weight: Tensor,
        bias: Tensor,
        names: tuple[str, ...],
        observed: list[Tensor],
        batch: int,
    ) -> None:
        self.names, self.batch = names, batch
        self.inverse, self.shift, self.weight, self.bias = inverse, shift, weight, bias
        self.parts = [Small(o) for o in observed]
        self.hold()

    def hold(self) -> None:
        """What else is made once."""

    def take(self, owner: Tensor) -> None:
        for part in self.parts:
            part.take(owner)

    def forward(self, a: Tensor) -> Tensor:
        self.normal = torch.addcmul(self.shift, a, self.inverse)
        return torch.addcmul(self.bias, self.normal, self.weight)

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        self.back = back
        return back * (self.weight * self.inverse) if needed else None

    def _each(self, value: Tensor) -> Tensor:
        """(N, positions of a candidate, C)"""
        return value.reshape(-1, self.batch * (value[0].numel() // value.shape[-1]), value.shape[-1])

    def products(self) -> list[tuple[Tensor, Tensor]]:
        sums = (self._each(self.back * self.normal).sum(1), self._each(self.back).sum(1))
        return [part.products(g) for part, g in zip(self.parts, sums, strict=True)]

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        self.v = [part.turn(s) for part, s in zip(self.parts, slopes, strict=True)]

    def tangent(self, da: Tensor | None) -> Tensor | None:
        moved = torch.addcmul(self.v[1][:, None], self._each(self.normal), self.v[0][:, None]).reshape(
            self.normal.shape
        )
        return moved if da is None else moved.addcmul_(da, self.weight * self.inverse)

    def returning(self, back: Tensor) -> Tensor:
        own = (self._each(self.back) * self.v[0][:, None]).reshape(back.shape)
        return own.addcmul_(back, self.weight).mul_(self.inverse)
