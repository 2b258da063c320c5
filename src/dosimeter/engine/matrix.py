"""Linear layers and convolutions of a straight network: a matrix product over windows, and its gradient's products."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.engine.contract import factor
from dosimeter.engine.layers import WIDE
from dosimeter.engine.ops import Memory, Small
from dosimeter.engine.patches import Window, add_windows, copy_windows


class Matrix:
    """A linear layer, or a convolution over windows: z = A W^T + b with A (n, positions, I).

    Args:
        weight: (O, I); for a convolution in the order (O, kernel, kernel, C).
        bias: (O,) or None.
        window: the convolution's geometry, None for a linear layer.
        observed: (V, O, I) in the weight's order, and (V, O) of the bias.
        positions: of one candidate, all images together.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        window: Window | None,
        names: tuple[str, ...],
        observed: list[Tensor],
        *,
        batch: int,
        positions: int,
        dense: bool,
        memory: Memory,
    ) -> None:
        self.names, self.batch, self.window, self.memory = names, batch, window, memory
        self.positions = positions
        self.outputs, self.weight = len(weight), weight
        self.form = "dense" if dense else "Gram"
        self._hold(bias, observed)

    def _hold(self, bias: Tensor | None, observed: list[Tensor]) -> None:
        """Bring bias and observations to the order in which they are multiplied."""
        extra = max(0, WIDE - self.outputs) if self.form == "dense" else 0
        self.wide = F.pad(self.weight, (0, 0, 0, extra)) if extra else self.weight
        self.bias = None if bias is None else F.pad(bias, (0, extra))
        matrix = F.pad(observed[0], (0, 0, 0, extra)) if extra else observed[0]  # a pad of nothing copies
        self.vector = Small(F.pad(observed[1], (0, extra))) if bias is not None else None
        self.left, self.right = matrix, None
        if self.form == "dense":
            self.left = matrix.transpose(1, 2).contiguous()  # (V, I, O), the order of A^T d
        elif factors := factor(matrix, self.batch):
            self.form = "factored"
            self.left, self.right = factors

    def take(self, owner: Tensor) -> None:
        same = len(owner) == len(self.left) and bool((owner == torch.arange(len(owner), device=owner.device)).all())
        self.mine = self.left if same else self.left[owner]
        self.others = self.right if same or self.right is None else self.right[owner]
        if self.vector is not None:
            self.vector.take(owner)

    def forward(self, a: Tensor) -> Tensor:
        self.shape = a.shape
        self.A = self._rows(a, "A")
        n, positions, width = self.A.shape
        z = self.memory((self, "z"), (n * positions, len(self.wide)), a)
        rows = self.A.reshape(n * positions, width)
        if self.bias is None:
            torch.mm(rows, self.wide.t(), out=z)
        else:
            torch.addmm(self.bias, rows, self.wide.t(), out=z)
        return self._leave(z)

    def _rows(self, a: Tensor, key: str) -> Tensor:
        """The layer's inputs as rows of a matrix, (n, positions, I)."""
        if self.window is None:
            return a.unsqueeze(1)
        n, height, width, channels = a.shape
        self.output = self.window.output(height, width)
        if self.window.as_it_is(height, width):
            return a.reshape(n, self.output[0] * self.output[1], -1)
        up, left = self.window.padding
        if up or left:
            padded = self.memory((self, key, "padded"), (n, height + 2 * up, width + 2 * left, channels), a)
            padded[:, up : up + height, left : left + width] = a
            a = padded
        size = self.window.kernel[0] * self.window.kernel[1] * channels
        full = (n, self.output[0] * self.output[1], size)
        rows = self.memory((self, key), full, a) if key == "A" else self.memory.scratch("rows", full, a)
        copy_windows(a.contiguous(), self.window, self.output, rows)
        return rows

    def _leave(self, z: Tensor) -> Tensor:
        """(n * positions, wide) -> what the next layer takes; views of memory that this layer keeps."""
        if self.window is None:
            return z[:, : self.outputs]
        height, width = self.window.output(self.shape[1], self.shape[2])
        return z.view(self.shape[0], height, width, -1)[..., : self.outputs]

    def _enter(self, back: Tensor, key: str) -> Tensor:
        """What comes back to z as rows (n * positions, wide)."""
        rows = back.reshape(-1, self.outputs)
        if len(self.wide) == self.outputs:
            return rows.contiguous()
        padded = self.memory((self, key), (len(rows), len(self.wide)), back)
        padded[:, : self.outputs] = rows
        return padded

    def _images(self, rows: Tensor, key: str) -> Tensor:
        """The adjoint of `_rows`; each pass has memory of its own, since layers below keep what came back to them."""
        if self.window is None or self.window.as_it_is(*self.shape[1:3]):
            kept = self.memory((self, "images", key), tuple(self.shape), rows)
            return kept.copy_(rows.view(self.shape))
        n, height, width, channels = self.shape
        up, left = self.window.padding
        high, wide = height + 2 * up, width + 2 * left
        padded = self.memory((self, "images", key), (n, high, wide, channels), rows)
        bands = self.memory.scratch("bands", (n, self.output[0], self.window.kernel[0], wide, channels), rows)
        add_windows(padded.zero_(), self.window, self.output, rows, bands.zero_())
        return padded[:, up : up + height, left : left + width]

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        self.d = self._enter(back, "d")
        if not needed:
            return None
        rows = self.memory.scratch("rows", tuple(self.A.shape), back)
        torch.mm(self.d[:, : self.outputs], self.weight, out=rows.view(len(self.d), -1))
        return self._images(rows, "backward")

    def _each(self, rows: Tensor) -> Tensor:
        """(N, positions of a candidate, ...)"""
        return rows.reshape(-1, self.batch * self.A.shape[1], rows.shape[-1])

    def products(self) -> list[tuple[Tensor, Tensor]]:
        a, d = self._each(self.A), self._each(self.d)
        if self.form == "dense":
            self.G = torch.bmm(a.transpose(1, 2), d, out=self.memory((self, "G"), (len(a), a.shape[2], d.shape[2]), a))
            squared = torch.linalg.vector_norm(self.G.flatten(1), dim=1).square()
            self.v = self.memory((self, "v"), tuple(self.G.shape), a)
            cross = torch.mul(self.G, self.mine, out=self.v).flatten(1).sum(1)
        else:
            a, d = a[:, 0], d[:, 0]
            self.aa, self.dd = a.square().sum(1), d.square().sum(1)
            squared = self.aa * self.dd
            if self.others is None:
                self.u = torch.bmm(a.unsqueeze(1), self.mine.transpose(1, 2)).squeeze(
                    1
                )  # G a; many times the speed of G @ a
                cross = (self.u * d).sum(1)
            else:
                self.du, self.av = (d * self.mine[:, :, 0]).sum(1), (a * self.others[:, 0]).sum(1)
                cross = self.du * self.av
        found = [(cross, squared)]
        if self.vector is not None:
            found.append(self.vector.products(self._summed(d) if d.ndim == 3 else d))
        return found

    def _summed(self, value: Tensor) -> Tensor:
        """(N, a, b) -> (N, b), as a product with ones: many times the speed of `sum` along that axis."""
        ones = self.memory.ones(value.shape[1], value)
        return torch.bmm(ones[None, None].expand(len(value), 1, -1), value)[:, 0]

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        cross, squared = slopes[0]
        self.cross, self.squared = cross[:, None], 2 * squared[:, None]
        if self.form == "dense":
            torch.mul(self.mine, cross[:, None, None], out=self.v).addcmul_(self.G, self.squared[:, :, None])
        self.vb = None if self.vector is None else self.vector.turn(slopes[1])

    def tangent(self, da: Tensor | None) -> Tensor | None:
        n, positions, width = self.A.shape
        dz = self.memory((self, "dz"), (n * positions, len(self.wide)), self.A)
        a, d = self._each(self.A), self._each(self.d)
        if self.form == "dense":
            torch.bmm(a, self.v, out=self._each(dz))
        else:
            along = self.u if self.others is None else self.mine[:, :, 0] * self.av[:, None]
            torch.mul(along, self.cross, out=dz).addcmul_(d[:, 0], self.squared * self.aa[:, None])
        if da is not None:
            dz.addmm_(self._rows(da, "dA rows").reshape(n * positions, width), self.wide.t())
        if self.vb is not None:
            self._each(dz).add_(self.vb[:, None])
        return self._leave(dz)

    def returning(self, back: Tensor) -> Tensor:
        rows = self.memory.scratch("rows", tuple(self.A.shape), back)
        flat = rows.view(-1, rows.shape[2])
        torch.mm(back.reshape(-1, self.outputs), self.weight, out=flat)
        a, d = self._each(self.A), self._each(self.d)
        if self.form == "dense":
            own = slice(self.outputs)
            self._each(rows).baddbmm_(d[:, :, own], self.v[:, :, own].transpose(1, 2))
        else:
            along = torch.bmm(d, self.mine)[:, 0] if self.others is None else self.others[:, 0] * self.du[:, None]
            flat.addcmul_(along, self.cross).addcmul_(a[:, 0], self.squared * self.dd[:, None])
        return self._images(rows, "returning")


class Standing(Matrix):
    """A convolution of few channels whose outputs stand: (n, O, positions), one image a candidate.

    Matrix products with fewer than `WIDE` columns run at half speed; here positions or inputs are the columns. Between
    layers such outputs are still (n, H, W, C), with the axes of memory in another order.
    """

    @staticmethod
    def fits(outputs: int, batch: int) -> bool:
        return outputs < WIDE and batch == 1

    def _hold(self, bias: Tensor | None, observed: list[Tensor]) -> None:
        self.bias, self.vector = bias, Small(observed[1]) if bias is not None else None
        self.left, self.right = observed[0].contiguous(), None

    def _weights(self) -> Tensor:
        """The weight for every image, (n, O, I)."""
        return self.weight.expand(len(self.A), -1, -1)

    def forward(self, a: Tensor) -> Tensor:
        self.shape = a.shape
        self.A = self._rows(a, "A")
        z = self.memory((self, "z"), (len(a), self.outputs, self.A.shape[1]), a)
        torch.bmm(self._weights(), self.A.transpose(1, 2), out=z)
        return self._leave(z if self.bias is None else z.add_(self.bias[:, None]))

    def _leave(self, z: Tensor) -> Tensor:
        assert self.window is not None
        height, width = self.window.output(self.shape[1], self.shape[2])
        return z.view(len(z), self.outputs, height, width).permute(0, 2, 3, 1)

    def _enter(self, back: Tensor, key: str) -> Tensor:
        """What comes back to z, (n, O, positions), in its place of the pair that `returning` multiplies."""
        pair = self.memory((self, "pair"), (len(back), 2 * self.outputs, self.A.shape[1]), back)
        own = pair[:, : self.outputs] if key == "d" else pair[:, self.outputs :]
        own.view(len(back), self.outputs, *back.shape[1:3]).copy_(back.permute(0, 3, 1, 2))
        return own

    def backward(self, back: Tensor, *, needed: bool) -> Tensor | None:
        self.d = self._enter(back, "d")
        if not needed:
            return None
        rows = self.memory.scratch("rows", tuple(self.A.shape), back)
        torch.bmm(self.d.transpose(1, 2), self._weights(), out=rows)
        return self._images(rows, "backward")

    def products(self) -> list[tuple[Tensor, Tensor]]:
        n, _, width = self.A.shape
        self.G = torch.bmm(self.d, self.A, out=self.memory((self, "G"), (n, self.outputs, width), self.A))
        squared = torch.linalg.vector_norm(self.G.flatten(1), dim=1).square()
        scratch = self.memory.scratch("entries", tuple(self.G.shape), self.G)
        found = [(torch.mul(self.G, self.mine, out=scratch).flatten(1).sum(1), squared)]
        if self.vector is not None:
            found.append(self.vector.products(self.d.sum(2)))
        return found

    def turn(self, slopes: list[tuple[Tensor, Tensor]]) -> None:
        cross, squared = slopes[0]
        self.both = self.memory((self, "v and W"), (len(self.G), 2 * self.outputs, self.G.shape[2]), self.G)
        self.both[:, self.outputs :] = self.weight
        self.v = self.both[:, : self.outputs]
        torch.mul(self.mine, cross[:, None, None], out=self.v).addcmul_(self.G, 2 * squared[:, None, None])
        self.vb = None if self.vector is None else self.vector.turn(slopes[1])

    def tangent(self, da: Tensor | None) -> Tensor | None:
        dz = self.memory((self, "dz"), (len(self.A), self.outputs, self.A.shape[1]), self.A)
        torch.bmm(self.v, self.A.transpose(1, 2), out=dz)
        if da is not None:
            dz.baddbmm_(self._weights(), self._rows(da, "dA rows").transpose(1, 2))
        return self._leave(dz if self.vb is None else dz.add_(self.vb[:, :, None]))

    def returning(self, back: Tensor) -> Tensor:
        self._enter(back, "returned")
        pair = self.memory((self, "pair"), (len(back), 2 * self.outputs, self.A.shape[1]), back)
        rows = self.memory.scratch("rows", tuple(self.A.shape), back)
        torch.bmm(pair.transpose(1, 2), self.both, out=rows)  # d v^T + what came back times W
        return self._images(rows, "returning")
