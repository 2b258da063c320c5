"""Which images of a pool an update is made of, by the gradient of the last layer: for batches too large to search for.

With softmax outputs p_i, labels y_i and features f_i that gradient is  1/B sum_i (p_i - y_i) [f_i, 1]^T,  a sum of one
matrix for each image of the batch. The matrices of the pool's images are known, so what is left is how much of each is
in the sum: least squares with weights from 0 on, which only needs inner products,

    minimise |g - sum_j w_j d_j [f_j, 1]^T|^2      d_j = p_j - y_j      K_ij = (d_i . d_j)(f_i . f_j + 1)

An image of the batch has the weight 1/B, or a multiple of it where it was there more than once. Where the pool explains
the gradient to rounding, no matrix of it is a sum of others and all weights are such multiples, they are the only ones
that do, and it is certain which images were in the batch. Weights of a pool without them are any numbers.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter.attacks.last_layer import features, find_last_layer
from dosimeter.types import Observation, Target

EXACT = 1e-3
"""The share of the gradient that may be left for the pool to explain it: rounding of weights that moved little."""
WHOLE = 0.1
"""How far B times a weight may be from a whole number."""
DULL = 1e-6
"""An image whose gradient is shorter than this, beside the longest, is not told by any update."""


class Members(NamedTuple):
    """What an update says of a pool."""

    weights: Tensor  # (n,) from 0 on
    left: float  # the share of the last layer's gradient that the pool does not explain
    certain: tuple[int, ...]  # images that are in the batch for certain, the heaviest first


def find_members(target: Target, seen: Observation, images: Tensor, labels: Tensor) -> Members:
    """How much of each image (n, C, H, W) of class labels (n,) is in the update of one victim."""
    layer = find_last_layer(target)
    slope, offsets = layer.gradients(seen)
    weight, bias = layer.values(target)
    inputs = features(target, layer, images.to(target.mean))  # (n, features)
    outputs = F.linear(inputs, weight, bias).softmax(1)
    back = outputs - F.one_hot(labels.to(outputs.device).long(), outputs.shape[1])  # (n, classes)
    gram, along = torch.zeros_like(inputs @ inputs.T), torch.zeros_like(inputs[:, 0])
    length = torch.zeros((), dtype=inputs.dtype, device=inputs.device)
    for gradient, ins in (
        (slope, inputs),
        (None if offsets is None else offsets[..., None], torch.ones_like(along)[:, None]),
    ):
        if gradient is not None:
            gram += (back @ back.T) * (ins @ ins.T)
            along += ((back @ gradient[0]) * ins).sum(1)
            length += gradient[0].square().sum()
    bright = gram.diagonal() > DULL**2 * gram.diagonal().max()
    weights = torch.zeros_like(along)
    weights[bright] = least_squares_from_zero(gram[bright][:, bright], along[bright])
    rest = (length - 2 * weights @ along + weights @ gram @ weights).clamp_min(0)
    left = float((rest / length).sqrt()) if length > 0 else 1.0
    times, sure = weights * seen.batch, ()
    whole = bool(((times - times.round()).abs() < WHOLE).all())
    if (
        left < EXACT
        and whole
        and int(torch.linalg.matrix_rank(gram[bright][:, bright], hermitian=True)) == int(bright.sum())
    ):
        sure = tuple(j for j in times.argsort(descending=True).tolist() if times[j] > 0.5)
    return Members(weights.cpu(), left, sure)


def least_squares_from_zero(gram: Tensor, along: Tensor) -> Tensor:
    """argmin w K w - 2 b w  over w >= 0, by active sets (Lawson and Hanson 1974; on K by Bro and de Jong 1997)."""
    n, scale = len(along), gram.diagonal().clamp_min(torch.finfo(gram.dtype).tiny).sqrt()
    gram = gram / (scale[:, None] * scale) + 1e-12 * torch.eye(n).to(gram)  # of columns of length 1
    along = along / scale
    free, found = torch.zeros(n, dtype=torch.bool, device=along.device), torch.zeros_like(along)
    least = 1e-10 * float(along.abs().max()) if n else 0.0
    for _ in range(3 * n):
        gain = torch.where(free, -torch.inf, along - gram @ found)
        if float(gain.max()) <= least:
            break
        free[gain.argmax()] = True
        while True:
            aim = torch.zeros_like(along)
            aim[free] = torch.linalg.solve(gram[free][:, free], along[free])
            below = free & (aim <= 0)
            if not below.any():
                found = aim
                break
            # As far towards it as all stay above 0; who gets there first leaves.
            share = (found[below] / (found[below] - aim[below]).clamp_min(torch.finfo(gram.dtype).tiny)).min()
            found = found + share * (aim - found)
            free &= found > 1e-14
            found = torch.where(free, found, 0.0)
    return found / scale
