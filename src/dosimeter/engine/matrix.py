"""Linear layers and convolutions of a straight network: a matrix product over windows, and its gradient's products."""

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.engine.contract import factor
from dosimeter.engine.ops import Memory, Small
from dosimeter.engine.patches import Window, add_windows, copy_windows
from dosimeter.engine.tape import WIDE


class Matrix:
    """A linear layer, or a convolution over windows: z = A W^T + b with A (n, positions, I).

    Args:
        weight: (O, I); for a convolution in the order (O, kernel, kernel, C).
        bias: (O,) or None.
        window: the convolution's geometry, None for a linear layer.
        observed: (V, O, I) in the weight's order, and (V, O) of the bias.
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
        dense: bool,
        memory: Memory,
    ) -> None:
        self.names, self.batch, self.window, self.memory = names, batch, window, memory
        self.outputs = len(weight)
        self.weight = weight
        self.wide = F.pad(weight, (0, 0, 0, max(0, WIDE - len(weight)))) if dense else weight
        extra = len(self.wide) - len(weight)
        self.bias = None if bias is None else F.pad(bias, (0, extra))
        matrix = F.pad(observed[0], (0, 0, 0, extra))
        self.vector = Small(F.pad(observed[1], (0, extra))) if bias is not None else None
        self.form = "dense" if dense else "Gram"
        self.left, self.right = matrix, None
        if dense:
            self.left = matrix.transpose(1, 2).contiguous()  # (V, I, O), the order of A^T d
        elif factors := factor(matrix, batch):
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
        if self.window.kernel == (height, width) and not any(self.window.padding):
            return a.reshape(n, 1, -1)
        self.output = self.window.output(height, width)
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
        if self.window is None or rows.shape[1] == 1:
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
            found.append(self.vector.products(d.sum(1) if d.ndim == 3 else d))
        return found

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
