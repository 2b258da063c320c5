"""What a search minimises:  -log p(g | x, y) - log p(x)  and its slope in all unknowns of every candidate."""

from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks import likelihoods, masks, priors
from dosimeter.engine import Matcher, Products
from dosimeter.types import Observation, Target


class Values(NamedTuple):
    match: Tensor  # (n,) the matching loss
    loss: Tensor  # (n,) with the prior
    slope: Tensor  # (n, D) of the whole loss


class Objective:
    """The loss of candidates whose unknowns are flat rows (n, D).

    A row holds the normalised images and, where labels are searched too, the logits of each image's label.

    Args:
        target: the model and its loss.
        seen: what the server saw.
        likelihood: compares simulated and observed updates.
        prior: what images look like.
        only: which tensors are matched.
        classes: of the labels that are searched; 0 where labels are given.
    """

    def __init__(
        self,
        target: Target,
        seen: Observation,
        *,
        likelihood: likelihoods.Likelihood | likelihoods.Entrywise,
        prior: priors.Prior,
        only: masks.Mask,
        classes: int = 0,
    ) -> None:
        self.target, self.likelihood, self.prior, self.classes = target, likelihood, prior, classes
        self.shape = (seen.batch, *target.shape)
        self.pixels = seen.batch * target.shape[0] * target.shape[1] * target.shape[2]
        self.blind = isinstance(likelihood, likelihoods.Nothing)
        exact = getattr(likelihood, "exact", False)
        self.matcher = Matcher(target, seen.gradient, statistics=seen.statistics, exact=exact)
        self.weights = only.weights(self.matcher.norms)  # (V, P)
        box = ((edge - target.mean) / target.std for edge in (0, 1))
        self.low, self.high = (edge.expand(self.shape).flatten() for edge in box)

    def normalised(self, x: Tensor) -> Tensor:
        """(n, B, C, H, W)"""
        return (x[:, : self.pixels] if self.classes else x).reshape(-1, *self.shape)

    def images(self, x: Tensor) -> Tensor:
        """(n, B, C, H, W) in the range of pixels."""
        return self.normalised(x) * self.target.std + self.target.mean

    def logits(self, x: Tensor) -> Tensor:
        """(n, B, classes) of the labels that are searched."""
        return x[:, self.pixels :].reshape(len(x), -1, self.classes)

    def boxed(self, x: Tensor) -> Tensor:
        """Pixels clamped to [0, 1]."""
        inside = torch.minimum(torch.maximum(x[:, : self.pixels], self.low), self.high)
        return torch.cat([inside, x[:, self.pixels :]], 1) if self.classes else inside

    def __call__(self, x: Tensor, labels: Tensor, owner: Tensor) -> Values:
        """Unknowns (n, D), given labels (n, B) and which victim each candidate wants to be (n,)."""
        x = x.detach().requires_grad_()
        images = self.images(x)
        if self.classes:
            labels = self.logits(x).softmax(-1)
        view = priors.View(images=images, normalised=self.normalised(x), labels=labels, target=self.target)
        match = self._match(images, labels, owner)
        loss = match + self.prior.loss(view)
        (slope,) = torch.autograd.grad(loss.sum(), x, allow_unused=True)
        return Values(match.detach(), loss.detach(), torch.zeros_like(x) if slope is None else slope)

    def _match(self, images: Tensor, labels: Tensor, owner: Tensor) -> Tensor:
        if self.blind:
            return 0 * images.flatten(1).sum(1)
        weights = self.weights[owner]
        if isinstance(self.likelihood, likelihoods.Entrywise):
            return (weights * self.matcher.entries(images, labels, owner, self.likelihood.entry_loss)).sum(1)
        products = self.matcher(images, labels, owner)
        return self.likelihood.loss(Products(*(weights * p for p in products)))
