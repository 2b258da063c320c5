"""Which reconstruction belongs to which image of a batch: an update does not tell their order."""

import torch
from torch import Tensor

from dosimeter.errors import DataError
from dosimeter.metrics.images import clip

PIXELS_AT_ONCE = 2**21
"""Pixels of a batch that are compared together, 16 MiB in float64."""


def match_batch(reconstructed: Tensor, original: Tensor, other: Tensor | None = None) -> Tensor:
    """The order of the reconstructions with the least total MSE to the originals. (B, C, H, W) twice -> (B,) long.

        perm = argmin over permutations of  sum_j mse(clip(reconstructed[perm[j]]), original[j])

    so `reconstructed[perm]` lines up with `original`. It reads the truth and belongs to scoring, never to an attack.
    Reconstructions are clipped to [0, 1] as for their scores; unclipped, one that diverged would drown the others'
    differences. One with a value that is not finite counts as the worst match of every original and takes the place
    that is left. `other` (B, C, H, W) are images that were made of the originals; the nearer one of the two counts.
    """
    from scipy.optimize import linear_sum_assignment  # here, since every start of a program would wait for it

    if reconstructed.shape != original.shape or reconstructed.ndim != 4:
        raise DataError(
            "Expected two batches (B, C, H, W) of the same shape to match, got "
            f"{tuple(reconstructed.shape)} and {tuple(original.shape)}."
        )
    if not len(original):
        return torch.zeros(0, dtype=torch.long, device=original.device)
    cost = _errors(reconstructed.detach().flatten(1), original.flatten(1))
    if other is not None:
        cost = torch.minimum(cost, _errors(reconstructed.detach().flatten(1), other.flatten(1)))
    _, perm = linear_sum_assignment(cost.T.cpu().numpy())
    return torch.as_tensor(perm, dtype=torch.long, device=original.device)


def match_batches(reconstructed: Tensor, original: Tensor, other: Tensor | None = None) -> Tensor:
    """`match_batch` for each of V updates: (V, B, C, H, W) twice -> (V, B) long.

    `torch.take_along_dim(reconstructed, perm[:, :, None, None, None], dim=1)` applies it.
    """
    if reconstructed.shape != original.shape or reconstructed.ndim != 5:
        raise DataError(
            "Expected the images of the same updates twice, (V, B, C, H, W), got "
            f"{tuple(reconstructed.shape)} and {tuple(original.shape)}."
        )
    if not len(reconstructed):
        return torch.zeros(reconstructed.shape[:2], dtype=torch.long, device=reconstructed.device)
    others = [None] * len(original) if other is None else other
    return torch.stack([match_batch(*each) for each in zip(reconstructed, original, others, strict=True)])


def _errors(reconstructed: Tensor, original: Tensor) -> Tensor:
    """The MSE of every reconstruction with every original, (B, D) twice -> (B, B), a few pixels of all at a time.

    By |r - o|^2 = |r|^2 + |o|^2 - 2 r.o, in float64: in float32 norms would round away how images differ. A difference
    for every pair would cost ten times as much, and many times its memory on a heap that it leaves in pieces.
    """
    total = torch.zeros(len(original), len(original), dtype=torch.float64, device=original.device)
    whole = torch.ones(len(original), dtype=torch.bool, device=original.device)
    pixels = max(1, PIXELS_AT_ONCE // len(original))
    for raw, true in zip(*(torch.split(t, pixels, 1) for t in (reconstructed, original)), strict=True):
        whole &= raw.isfinite().all(1)
        r, o = clip(raw).double(), true.double()
        total += r.square().sum(1)[:, None]
        total += o.square().sum(1)
        total.addmm_(r, o.T, alpha=-2)
    # 1 is the largest MSE in [0, 1]; any constant would do, since it favours no original.
    return torch.where(whole[:, None], total / original.shape[1], 1).float()  # so that equal images tie
