"""What a search minimises:  -log p(g | x, y, u) - log p(x) - log p(u)  and its slope in all unknowns of candidates."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter import trees
from dosimeter.attacks.search import likelihoods, masks, priors, spaces, starts, treatments
from dosimeter.engine import Matcher, Products
from dosimeter.types import Observation, Secrets, Target


class Values(NamedTuple):
    match: Tensor  # (n,) the matching loss
    loss: Tensor  # (n,) with the priors
    slope: Tensor  # (n, D) of the whole loss


class Draws(NamedTuple):
    """What a step draws for its candidates, k samples of each."""

    secrets: Secrets  # {name: (n, k, ...)}
    nudge: Tensor | None  # (n, k, B, C, H, W) how far each sample is from the candidate, in pixels

    def rows(self, where: Tensor) -> "Draws":
        """Those of some candidates; the same object where there are none, which is the usual case."""
        return self if not self.secrets and self.nudge is None else trees.rows(self, where)


class Terms(NamedTuple):
    """How the parts of the loss are weighed at a step, for candidates that need not agree in it."""

    prior: priors.Prior
    ramp: Tensor | float = 1.0  # on the match, (n,)
    setting: Tensor | None = None  # (n,) whose choice of tensors counts, where there are several


class Unknowns:
    """Which numbers of a candidate's flat row (D,) are what: images, logits of labels, draws inside the model.

    Args:
        target: the model and the form of its images.
        batch: images of one update.
        space: where images are looked for.
        classes: of the labels that are searched; 0 where labels are given.
        searched: whether draws inside the model are unknowns too.
    """

    def __init__(self, target: Target, batch: int, space: spaces.Space, classes: int, *, searched: bool) -> None:
        self._batch, self._dtype = batch, target.mean.dtype
        self.target, self.classes = target, classes
        self.field = space.field(target, batch, classes)
        made = classes > 0 and self.field.logits(self._blank(1)) is not None
        wanted = {name: secret.full_shape(batch) for name, secret in target.secrets.items()} if searched else {}
        shapes = {"labels": (batch, classes)} if classes and not made else {}
        self._places: dict[str, tuple[slice, tuple[int, ...]]] = {}
        at = self.field.size
        for name, shape in (shapes | wanted).items():
            self._places[name] = (slice(at, at + math.prod(shape)), shape)
            at += math.prod(shape)
        self.size = at
        self._secrets = tuple(wanted)
        tied = [
            torch.arange(self._places[name][0].start, self._places[name][0].stop)
            for name in wanted
            if target.secrets[name].scope == "client"
        ]
        self.of_client = torch.cat(tied) if tied else None
        """Where in a row the draws are that stay the same in all steps of a client."""

    def _blank(self, n: int) -> Tensor:
        return torch.zeros(n, self.field.size, dtype=self._dtype, device=self.target.mean.device)

    def _part(self, x: Tensor, name: str) -> Tensor:
        where, shape = self._places[name]
        return x[:, where].reshape(-1, *shape)

    def _of_images(self, x: Tensor) -> Tensor:
        return x if self.size == self.field.size else x[:, : self.field.size]

    def draw(
        self, start: starts.Start, images: torch.Generator, others: torch.Generator, client: torch.Generator
    ) -> Tensor:
        """One candidate's first row; whatever is not images starts standard normal, a client's own from its stream."""
        first = self.field.draw(start, images).to(self._dtype)
        row = torch.cat([first, torch.randn(self.size - self.field.size, generator=others).to(self._dtype)])
        if self.of_client is not None:
            row[self.of_client] = torch.randn(len(self.of_client), generator=client).to(self._dtype)
        return row

    def normalised(self, x: Tensor) -> Tensor:
        """(n, B, C, H, W)"""
        return self.field.images(self._of_images(x))

    def images(self, x: Tensor) -> Tensor:
        """(n, B, C, H, W) in the range of pixels."""
        return self.normalised(x) * self.target.std + self.target.mean

    def found(self, x: Tensor) -> Tensor:
        """(n, B, C, H, W) what the search gives back, in the range of pixels."""
        return self.field.found(self._of_images(x)) * self.target.std + self.target.mean

    def logits(self, x: Tensor) -> Tensor:
        """(n, B, classes) of the labels that are searched."""
        if "labels" in self._places:
            return self._part(x, "labels")
        made = self.field.logits(self._of_images(x))
        assert made is not None
        return made

    def loss(self, x: Tensor) -> Tensor | float:
        """(n,): what the space itself says of its unknowns."""
        return self.field.loss(self._of_images(x))

    def secrets(self, x: Tensor) -> dict[str, Tensor]:
        """{name: (n, ...)} of the draws that are searched."""
        return {name: self._part(x, name) for name in self._secrets}

    def with_images(self, x: Tensor, normalised: Tensor) -> Tensor:
        """The rows with other images, where the unknowns are the images themselves."""
        return torch.cat([normalised.flatten(1), x[:, self.field.size :]], 1)

    def boxed(self, x: Tensor) -> Tensor:
        """Pixels clamped to [0, 1]."""
        inside = self.field.boxed(self._of_images(x))
        return inside if self.size == self.field.size else torch.cat([inside, x[:, self.field.size :]], 1)


class Objective:
    """The loss of candidates whose unknowns are flat rows (n, D).

    Args:
        unknowns: what the rows hold; draws that stay the same in all steps of a client are moved alike for all of its
            updates.
        seen: what the server saw.
        likelihood: compares simulated and observed updates.
        only: which tensors are matched, by the number of the setting.
        secrets: what is supposed of draws inside the model.
    """

    def __init__(
        self,
        unknowns: Unknowns,
        seen: Observation,
        *,
        likelihood: likelihoods.Likelihood,
        only: Sequence[masks.Mask],
        secrets: treatments.Treatment,
    ) -> None:
        self.unknowns, self.target = unknowns, unknowns.target
        self.likelihood, self.treatment = likelihood, secrets
        self.blind = isinstance(likelihood, likelihoods.Nothing)
        self.seen = seen
        self.matcher = Matcher(self.target, seen.gradient, statistics=seen.statistics, exact=likelihood.exact)
        self.weights = torch.stack([each.weights(self.target, self.matcher.norms) for each in only])  # (S, V, P)
        self._repeated: tuple[Tensor, Tensor] | None = None
        senders = {name: at for at, name in enumerate(dict.fromkeys(seen.clients))}
        several = len(senders) < len(seen.clients) and unknowns.of_client is not None
        self.senders = torch.tensor([senders[name] for name in seen.clients]) if several else None
        """(V,) whose updates share numbers, where any do."""

    def __call__(
        self,
        x: Tensor,
        labels: Tensor,
        owner: Tensor,
        draws: Draws,
        terms: Terms,
        *,
        restart: Tensor,
        slopes: bool = True,
    ) -> Values:
        """Unknowns (n, D), given labels (n, B), which victim each candidate wants to be (n,), this step's draws and
        how the loss is weighed.

        `restart` (n,) tells candidates of the same victim apart.
        """
        mine = owner
        x = x.detach().requires_grad_(slopes)
        n, unknowns = len(x), self.unknowns
        normalised = unknowns.normalised(x)
        if unknowns.classes:
            labels = unknowns.logits(x).softmax(-1)
        searched = unknowns.secrets(x)
        k = max([1, *(value.shape[1] for value in (*draws.secrets.values(), draws.nudge) if value is not None)])
        drawn = {name: value.flatten(0, 1) for name, value in draws.secrets.items()}
        if k > 1:
            normalised, labels = (t.repeat_interleave(k, 0) for t in (normalised, labels))
            owner = self._repeat(owner, k)
        if draws.nudge is not None:
            normalised = normalised + draws.nudge.flatten(0, 1) / self.target.std
        secrets = self.treatment.values(self._revealed(owner), drawn, trees.repeat(searched, k))
        images = normalised * self.target.std + self.target.mean
        view = priors.View(
            images=images,
            normalised=normalised,
            labels=labels,
            target=self.target,
            owner=owner,
            statistics=self.seen.statistics,
        )
        match = self._match(images, labels, owner, secrets, terms.setting)
        loss = (terms.ramp * match + terms.prior.loss(view)).reshape(n, k).mean(1)
        loss = loss + self.treatment.loss(searched) + unknowns.loss(x)
        (slope,) = torch.autograd.grad(loss.sum(), x, allow_unused=True) if slopes else (None,)
        match = match.detach().reshape(n, k).mean(1)
        slope = torch.zeros_like(x) if slope is None else self.tied(slope, mine, restart)
        return Values(match, loss.detach(), slope)

    def compared(
        self, x: Tensor, labels: Tensor, owner: Tensor, draws: Draws, compare: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """(n, P, ...) what `compare` gives of the entries of every simulated and observed tensor; of several draws the
        first counts."""
        x, unknowns = x.detach(), self.unknowns
        normalised = unknowns.normalised(x)
        if unknowns.classes:
            labels = unknowns.logits(x).softmax(-1)
        drawn = {name: value[:, 0] for name, value in draws.secrets.items()}
        secrets = self.treatment.values(self._revealed(owner), drawn, unknowns.secrets(x))
        images = (normalised * self.target.std + self.target.mean).detach()
        return self.matcher.entries(images, labels, owner, compare, secrets).detach()

    def tied(self, values: Tensor, owner: Tensor, restart: Tensor) -> Tensor:
        """Unknowns or slopes (n, D) in which what a client keeps for all its steps is the mean over its updates."""
        if self.senders is None or self.unknowns.of_client is None:
            return values
        group = self.senders.to(owner.device)[owner] * (int(restart.max()) + 1) + restart
        _, group = torch.unique(group, return_inverse=True)
        mine = values[:, self.unknowns.of_client]
        total = torch.zeros(int(group.max()) + 1, mine.shape[1]).to(mine).index_add_(0, group, mine)
        values = values.clone()
        values[:, self.unknowns.of_client] = (total / group.bincount()[:, None])[group]
        return values

    def _repeat(self, owner: Tensor, k: int) -> Tensor:
        """Each owner k times; the same tensor for the same owners, so that observations are not copied every step."""
        if self._repeated is None or self._repeated[0] is not owner:
            self._repeated = (owner, owner.repeat_interleave(k))
        return self._repeated[1]

    def _revealed(self, owner: Tensor) -> Secrets:
        return {name: value[owner] for name, value in (self.seen.secrets or {}).items()}

    def _match(self, images: Tensor, labels: Tensor, owner: Tensor, secrets: Secrets, setting: Tensor | None) -> Tensor:
        if self.blind:
            return 0 * images.flatten(1).sum(1)
        weights = self.weights[0 if setting is None else setting, owner]
        if isinstance(self.likelihood, likelihoods.Entrywise):
            entries = self.matcher.entries(images, labels, owner, self.likelihood.entry_loss, secrets)
            return (weights * entries).sum(1)
        products = self.matcher(images, labels, owner, secrets)
        return self.likelihood.loss(Products(*(weights * p for p in products)))
