"""How often each class occurs in a batch of B images, from the gradient of the last layer.

The gradient of the bias is  db = p - n / B  with the batch's mean output p and the counts n, so

    n = B (p - db),  exact as soon as p is known to 1 / (2 B) in every class.

What is left is to estimate p. Where images of class k have about the features m_k, the layer's gradient is

    dW = sum_k n_k / B (p_k - e_k) m_k^T      db = sum_k n_k / B (p_k - e_k)      p_k = E softmax(W (m_k + d) + b)

with d the spread of features within a class. `fit_counts` goes round: features from dW and counts, outputs from
features, counts from outputs and db. What the update leaves open, the spread and a first guess of the mean, it takes
from images of the attacker's own. That dW and db give features is the idea of iLRG (Ma et al., ICLR 2023), which takes
each class's from the ratio of its row to its bias; that fails where db is near 0, as it is for most classes once B is
far above their number.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter import rng
from dosimeter.types import Target

ROUNDS, DAMPING = 30, 0.3
"""How often features and counts are fitted in turn, and how far each time; undamped they may go back and forth."""

TRUST = 3e-3
"""Weight of the own images' mean features against the update's, whose weight is the sum of db^2 / (n + 1/2). Noise on
the update adds to it, as it does to `RIDGE`."""

RIDGE = 1e-3
"""Weight, times 1 / B, of  sum_k n_k |m_k - m|^2,  which keeps classes' features near the batch's mean m."""


def nearest_counts(wanted: Tensor, total: int) -> Tensor:
    """Whole numbers from 0 on with the given sum that are nearest to wanted ones in squares. (..., C) -> (..., C) long.

    One more of class c adds  2 (n_c - wanted_c) + 1  to the sum of squares, which only grows with n_c; so always adding
    the cheapest one is exact.
    """
    left, counts = wanted.clone(), torch.zeros_like(wanted)
    for _ in range(total):
        one = F.one_hot(left.argmax(-1), wanted.shape[-1])
        left, counts = left - one, counts + one
    return counts.long()


def least_counts(offsets: Tensor, total: int, *, rounding: float) -> Tensor:
    """(classes,) how often each class occurs at least, which is certain: n = B (p - db) > -B db, since p > 0.

    Args:
        offsets: db (classes,) of one gradient that nothing was done to.
        total: B.
        rounding: how far an entry of db may be off.
    """
    return (total * (-offsets - rounding)).ceil().clamp_min(0).long()


def fit_counts(
    weight: Tensor, bias: Tensor | None, slope: Tensor | None, offsets: Tensor, own: Tensor, batch: int
) -> Tensor:
    """(classes,) counts of one batch.

    Args:
        weight: W (classes, features).
        bias: b (classes,); None for none.
        slope: dW (classes, features); None where only the bias is trained.
        offsets: db (classes,), or what `pseudo_bias` makes of dW.
        own: (n, features) of images of the attacker's own.
        batch: B.
    """
    spread = (own - own.mean(0)) @ weight.T  # (n, classes)

    def outputs(features: Tensor) -> Tensor:
        """(..., features) -> (..., classes): mean outputs of images with about these features."""
        logits = F.linear(features, weight, bias)
        return (logits.unsqueeze(-2) + spread).softmax(-1).mean(-2)

    prior = own.mean(0)
    if slope is None:
        return nearest_counts(batch * (outputs(prior) - offsets), batch)
    noise = noise_variance(slope) / own.var(0).mean().clamp_min(1e-12)  # against the variance of features
    counts = torch.full_like(offsets, batch / len(offsets))
    for _ in range(3):
        # A class that is not there shows p_c m, one that is there also its own images: the fewer, the surer.
        surest = offsets / (counts + 0.5)
        told = surest @ offsets
        trust = TRUST + noise * surest.square().sum() / told.clamp_min(1e-12)
        mean = (surest @ slope + trust * prior) / (told + trust)
        p = outputs(mean)
        counts = nearest_counts(batch * (p - offsets), batch).to(offsets)
    each = p.expand(len(p), -1).clone()  # (k, c): the output c of images of class k
    for _ in range(ROUNDS):
        there = (counts > 1e-3).nonzero().squeeze(1)
        shares = counts[there] / batch
        each[there] = outputs(_class_features(slope, mean, each[there], there, shares, batch, RIDGE / batch + noise))
        wanted = (batch * (shares @ each[there] - offsets)).clamp_min(0)
        counts = counts + DAMPING * (batch * wanted / wanted.sum() - counts)
    return nearest_counts(counts, batch)


def noise_variance(slope: Tensor) -> Tensor:
    """The variance of noise on an entry of dW (classes, features): without any, the rows of a column sum to 0."""
    return slope.sum(0).square().mean() / len(slope)


def _class_features(
    slope: Tensor, mean: Tensor, each: Tensor, there: Tensor, shares: Tensor, batch: int, ridge: Tensor
) -> Tensor:
    """(K, features): m_k of the K classes that are there, by least squares with the penalty that `ridge` weighs."""
    residuals = each - F.one_hot(there, each.shape[1])  # (K, classes)
    mixing = shares[:, None] * residuals
    scale = (shares * batch).rsqrt()[:, None]
    scaled = scale * mixing
    gram = scaled @ scaled.T + ridge * torch.eye(len(there)).to(scaled)
    found: Tensor = torch.linalg.solve(gram, scaled @ (slope - mixing.sum(0)[:, None] * mean))
    return mean + scale * found


def pseudo_bias(slope: Tensor, own: Tensor) -> Tensor:
    """(classes,): about db, from dW (classes, features) of a layer without bias.

    dW u = db where every image's features have the length 1 along u; the direction of the own images' mean comes near.
    """
    mean = own.mean(0)
    return slope @ mean / mean.square().sum()


def llg_counts(offsets: Tensor, total: int) -> Tensor:
    """(classes,): Label Leakage from Gradients (Wainakh et al., arXiv:2105.09369), from the update alone.

    Every class with a negative gradient is there once; further ones are those that are the most negative, after
    m = (1 + 1/classes) sum of the negative gradients / B  has been taken off a class for each time it was found.

    Deviations: on the gradient of the bias where there is one, and without the offset that the paper takes from images
    of the attacker's own.
    """
    left, counts = offsets.clone(), torch.zeros(len(offsets), dtype=torch.long, device=offsets.device)
    impact = (1 + 1 / len(offsets)) * left.clamp_max(0).sum() / total
    first = [c for c in left.argsort().tolist() if left[c] < 0][:total]
    for step in range(total):
        c = first[step] if step < len(first) else int(left.argmin())
        left[c] -= impact
        counts[c] += 1
    return counts


def own_images(target: Target, n: int = 64) -> Tensor:
    """(n, C, H, W) in [0, 1]: smooth noise, four knots a side, with the mean and spread that the model normalises by.

    Of white noise, noise with equal power in every octave and this, it served counts on trained networks best in trials
    on images that are no victims; on untrained ones all three do.
    """
    channels, height, width = target.shape
    knots = torch.randn(n, channels, 4, 4, generator=rng.stream(0, "own images"))
    noise = F.interpolate(knots, (height, width), mode="bicubic")
    noise = (noise / noise.std()).to(target.mean)
    plain = not target.mean.any() and bool((target.std == 1).all())  # the model does not say what its images look like
    return ((0.5 + 0.25 * noise) if plain else (target.mean + target.std * noise)).clamp(0, 1)
