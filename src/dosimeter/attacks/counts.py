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

Local training sends a sum of such gradients, w_i for image i, while p moves. Two things move it, and `fit_labels` holds
one against the other: the last layer learns, which can be simulated on the features m_k, as Data Leakage in Federated
Averaging (Dimitrov et al., TMLR 2022) estimates outputs at every step; or features change, of which the last layer says
little. Then, to first order, all gradients shrink by one share a, and the sum is (1 - a) sum_i w_i  times the first;
with the right a counts come out whole.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter import rng
from dosimeter.types import Local, Step, Target

ROUNDS, DAMPING = 30, 0.3
"""How often features and counts are fitted in turn, and how far each time; undamped they may go back and forth."""

TRIED = 9
"""Shares by which gradients may have shrunk that are tried."""

SURER = 0.4
"""So many times as near to whole numbers counts must be that suppose shrinking, which has a number to fit."""

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


class Gradients(NamedTuple):
    """What the last layer and one update of it say, and images of the attacker's own."""

    weight: Tensor  # W (classes, features)
    bias: Tensor | None  # b (classes,); None for none
    slope: Tensor | None  # dW (classes, features); None where only the bias is trained
    offsets: Tensor  # db (classes,), or what `pseudo_bias` makes of dW
    own: Tensor  # (n, features) of images of the attacker's own

    def over(self, total: float) -> "Gradients":
        """The gradient of which the update is so many times."""
        return self._replace(slope=None if self.slope is None else self.slope / total, offsets=self.offsets / total)


class Course(NamedTuple):
    """How an update came to be the sum of gradients."""

    total: float = 1.0  # of how many
    shrinks: float = 0.0  # at most so large a share of their sum was lost on the way
    steps: int = 1
    rate: float = 0.0  # of the steps


def course(step: Step | None, images: int, offsets: Tensor, squares: float) -> Course:
    """What is known of an update before its labels are.

    While clients train locally the loss falls by about  lr |update|^2 / gradients,  and gradients shrink with it: by no
    more than twice the share of the loss, which is at least half of |db|_1. However fast clients learn, the first step
    counts in full. Of steps that are not told only a least number is certain: no entry of a gradient is below -n / B.

    Args:
        step: how clients made the update.
        images: B.
        offsets: db (classes,).
        squares: |update|^2.
    """
    if step is None:
        return Course()
    size = float(offsets.abs().sum()) / 2
    if not isinstance(step, Local):
        return Course(8 * size, 7 / 8)
    total, steps = float(step.weights(images).sum()), step.count(images)
    shrinks = min(1 - 1 / steps, 2 * step.lr * squares / max(size, 1e-12))
    return Course(total, shrinks, steps, step.lr * total / steps)


def fit_labels(seen: Gradients, weights: Tensor, along: Course) -> Tensor:
    """(B,) labels of one update, sorted by class among images that count alike.

    Args:
        seen: the sum of gradients of B images.
        weights: (B,) how much each of them counts in it, 1 on average.
        along: how it came to be.
    """

    def labelled(counts: Tensor, wanted: Tensor) -> tuple[float, Tensor]:
        labels = nearest_labels(counts, weights)
        there = torch.zeros_like(counts).index_add_(0, labels, weights)
        return float((wanted - there).square().sum()), labels

    mean, batch = seen.over(along.total), len(weights)
    off, best = labelled(*fit_counts(mean, batch, along.steps, along.rate))
    off *= SURER
    for at in range(TRIED if along.shrinks else 0):
        apart, labels = labelled(*fit_counts(mean.over(1 - along.shrinks * at / (TRIED - 1)), batch))
        if apart < off:
            off, best = apart, labels
    return best


def nearest_labels(wanted: Tensor, weights: Tensor) -> Tensor:
    """(B,): labels of images with these weights (B,) whose sums are about the wanted ones (classes,).

    The heaviest image goes first, to the class of which most is left; with equal weights that is `nearest_counts`.
    """
    left, labels = wanted.clone(), torch.zeros(len(weights), dtype=torch.long, device=wanted.device)
    rounded = (1e6 * weights).round()
    for place in rounded.argsort(descending=True, stable=True).tolist():
        labels[place] = left.argmax()
        left[labels[place]] -= weights[place]
    for value in set(rounded.tolist()):
        alike = rounded == value
        labels[alike] = labels[alike].sort().values
    return labels


def fit_counts(seen: Gradients, batch: int, steps: int = 1, rate: float = 0.0) -> tuple[Tensor, Tensor]:
    """(classes,) counts of one gradient of `batch` images, not rounded: fitted from 0 on, and what db asks for.

    It may be the mean over `steps` in which the last layer alone is taken to learn, at a rate.
    """
    weight, bias, slope, offsets, own = seen
    spread = (own - own.mean(0)) @ weight.T  # (n, classes)

    def outputs(features: Tensor, shares: Tensor, labels: Tensor) -> Tensor:
        """(K, classes): mean outputs of images with about these features (K, features), shares (K,) of the batch."""
        logits, alike, total = F.linear(features, weight, bias), features @ features.T + 1, torch.zeros(())
        for step in range(steps):
            p = (logits.unsqueeze(-2) + spread).softmax(-1).mean(-2)
            total = total.to(p) + p / steps
            if step < steps - 1:
                logits = logits - rate * alike @ (shares[:, None] * (p - labels))
        return total

    def output(features: Tensor, counts: Tensor) -> Tensor:
        """(classes,): the same of a whole batch with these features."""
        return outputs(features[None], torch.ones(1).to(weight), counts[None] / batch)[0]

    prior = own.mean(0)
    counts = torch.full_like(offsets, batch / len(offsets))
    if slope is None:
        wanted = batch * (output(prior, counts) - offsets)
        return wanted, wanted
    noise = noise_variance(slope) / own.var(0).mean().clamp_min(1e-12)  # against the variance of features
    for _ in range(3):
        # A class that is not there shows p_c m, one that is there also its own images: the fewer, the surer.
        surest = offsets / (counts + 0.5)
        told = surest @ offsets
        trust = TRUST + noise * surest.square().sum() / told.clamp_min(1e-12)
        mean = (surest @ slope + trust * prior) / (told + trust)
        p = output(mean, counts)
        counts = nearest_counts(batch * (p - offsets), batch).to(offsets)
    each = p.expand(len(p), -1).clone()  # (k, c): the output c of images of class k
    for _ in range(ROUNDS):
        there = (counts > 1e-3).nonzero().squeeze(1)
        shares = counts[there] / batch
        features = _class_features(slope, mean, each[there], there, shares, batch, RIDGE / batch + noise)
        each[there] = outputs(features, shares, F.one_hot(there, len(p)).to(shares))
        wanted = batch * (shares @ each[there] - offsets)
        kept = wanted.clamp_min(0)
        counts = counts + DAMPING * (batch * kept / kept.sum() - counts)
    return counts, wanted


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
