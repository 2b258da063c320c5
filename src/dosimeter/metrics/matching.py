"""Which reconstruction belongs to which image of a batch: an update does not tell their order."""

import torch
from torch import Tensor

from dosimeter.errors import DataError
from dosimeter.metrics.images import clip


def match_batch(reconstructed: Tensor, original: Tensor) -> Tensor:
    """The order of the reconstructions with the least total MSE to the originals. (B, C, H, W) twice -> (B,) long.

        perm = argmin over permutations of  sum_j mse(clip(reconstructed[perm[j]]), original[j])

    so `reconstructed[perm]` lines up with `original`. It reads the truth and belongs to scoring, never to an attack.
    Reconstructions are clipped to [0, 1] as for their scores; unclipped, one that diverged would drown the others'
    differences. One with a value that is not finite counts as the worst match of every original and takes the place
    that is left.
    """
    from scipy.optimize import linear_sum_assignment  # here, since every start of a program would wait for it

    if reconstructed.shape != original.shape or reconstructed.ndim != 4:
        raise DataError(
            "Expected two batches (B, C, H, W) of the same shape to match, got "
            f"{tuple(reconstructed.shape)} and {tuple(original.shape)}."
        )
    # One row at a time: B x B x C x H x W at once would not fit for large images.
    rows = [(original - clip(image)).square().flatten(1).mean(dim=1) for image in reconstructed.detach()]
    if not rows:
        return torch.zeros(0, dtype=torch.long, device=reconstructed.device)
    whole = reconstructed.isfinite().flatten(1).all(dim=1)
    # 1 is the largest MSE in [0, 1]; any constant would do, since it favours no original.
    cost = torch.where(whole[:, None], torch.stack(rows), 1)  # (B, B), reconstruction by original
    _, perm = linear_sum_assignment(cost.T.cpu().numpy())
    return torch.as_tensor(perm, dtype=torch.long, device=reconstructed.device)


def match_batches(reconstructed: Tensor, original: Tensor) -> Tensor:
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
    return torch.stack([match_batch(*pair) for pair in zip(reconstructed, original, strict=True)])
