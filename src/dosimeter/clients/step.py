"""The one step that a client takes, in audits, in rounds here and on Flower: what is audited is what is trained.

batch -> what the defense makes of it -> draws inside the model -> gradient -> what the defense makes of that

Of local training every step is one.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dosimeter import theirs, trees
from dosimeter.clients.local import ClippedGradient, LocalTraining
from dosimeter.errors import ModelError, SettingError
from dosimeter.types import Defends, Gradient, Moment, Secret, Secrets, Target


def gradient(target: Target, images: Tensor, labels: Tensor, rng: torch.Generator | None = None) -> dict[str, Tensor]:
    """g = d loss(theta; x, y) / d theta, the mean over the B images of one batch, or the target's own step.

    Args:
        target: model and loss; the model runs in the mode it is in, which an audit sets to evaluation.
        images: (B, C, H, W) in [0, 1].
        labels: (B,) classes or (B, ...) targets.
        rng: what a client draws from that shuffles its images.
    """
    step = target.step
    if isinstance(step, LocalTraining) and step.shuffle:
        step = step.shuffled(len(images), rng)
    try:
        update = target.gradient(images, labels) if step is None else step(target, target.parameters, images, labels)
    except (RuntimeError, ValueError, IndexError) as reason:  # such as statistics of one value a channel, or no label
        raise ModelError(f"The client's step cannot be taken: {theirs.words(reason).rstrip('.')}.") from reason
    return {name: g.detach() for name, g in update.items()}


def one_gradient() -> None:
    """One gradient of the loss on all images of the update (FedSGD)."""


Slopes = Callable[[Target, Tensor, Tensor, torch.Generator | None], Gradient]
"""(target with what was drawn, images, labels, stream of orders) -> the update before the defense acts on it."""


class Streams(NamedTuple):
    """Where a client's random numbers come from, one stream a purpose; what it does not draw needs none."""

    secrets: torch.Generator  # drawn anew for every image
    defense: torch.Generator  # on the update
    batch: torch.Generator | None = None  # on the images
    order: torch.Generator | None = None  # of a client that shuffles


class Sent(NamedTuple):
    """What leaves a client, and what stays with it."""

    update: Gradient
    drawn: Secrets
    images: Tensor  # (B, C, H, W) what it trained on; of local training what it was given


def take_step(
    target: Target,
    defense: Defends,
    images: Tensor,
    labels: Tensor,
    streams: Streams,
    *,
    fixed: Secrets,
    round_: int = 0,
    slopes: Slopes = gradient,
    perturb: bool = True,
) -> Sent:
    """One client's step on one batch, (B, C, H, W) in [0, 1] with labels (B, ...).

    Args:
        fixed: what the client drew for good, see `client_draws`.
        slopes: how the gradient is computed, by default as a pure function of the target's parameters.
        perturb: whether the defense acts on this update; not where it waits for the change of several steps.
    """
    step = target.step
    if isinstance(step, LocalTraining):
        return _take_steps(target, step, defense, images, labels, streams, fixed=fixed, round_=round_, perturb=perturb)
    if streams.batch is not None:
        images, labels = as_batch(defense.on_batch(images, labels, streams.batch), images, labels)
    images = images.to(target.mean)
    drawn = {**fixed, **scoped_draws(target, defense, len(images), streams.secrets, "image")}
    ran = replace(target, drawn=drawn)
    update = slopes(ran, images, labels, streams.order)
    if perturb:
        made = defense.on_gradient(update, Moment(round_, len(images), ran, images, labels), streams.defense)
        update = _as_update(made, update, target)
    return Sent(update, drawn, images)


def _take_steps(
    target: Target,
    step: LocalTraining,
    defense: Defends,
    images: Tensor,
    labels: Tensor,
    streams: Streams,
    *,
    fixed: Secrets,
    round_: int,
    perturb: bool,
) -> Sent:
    """Local training whose every step is taken as `take_step` takes one, on the weights that it has come to."""
    inside = step.perturbed == "steps"
    only = None if step.bound is None else ClippedGradient(bound=step.bound)
    live = replace(target, model=copy.deepcopy(target.model), step=only)
    weights = dict(live.model.named_parameters())

    def slopes(now: Gradient, _: slice | Tensor, x: Tensor, y: Tensor) -> Gradient:
        with torch.no_grad():
            for name, value in now.items():
                weights[name].copy_(value)
        return take_step(live, defense, x, y, streams, fixed=fixed, round_=round_, perturb=perturb and inside).update

    images = images.to(target.mean)
    update = step.taken(slopes, target.parameters, images, labels, step.orders(len(images), streams.order))
    if perturb and not inside:
        ran = replace(target, drawn=fixed)
        made = defense.on_gradient(update, Moment(round_, len(images), ran, images, labels), streams.defense)
        update = _as_update(made, update, target)
    return Sent(update, fixed, images)


def _as_update(made: object, before: Gradient, target: Target) -> Gradient:
    """What a defense made of an update; refused where tensors are missing, strange or of another form.

    One that computes it anew may have more of the model's parameters than it was given.
    """
    anew = made if isinstance(made, Mapping) else {}
    trees.check_form(made, {name: p for name, p in target.parameters.items() if name in before or name in anew})
    return anew


def as_batch(made: object, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What a defense made of a batch; refused where that is no batch of the same form."""
    whole = isinstance(made, tuple) and len(made) == 2 and all(isinstance(each, Tensor) for each in made)
    if not whole or any(each.shape != was.shape for each, was in zip(made, (images, labels), strict=True)):  # type: ignore[call-overload]
        got = ", ".join(str(tuple(each.shape)) for each in made) if whole else f"a {type(made).__name__}"  # type: ignore[attr-defined]
        raise SettingError(
            f"The defense makes {got} of a batch, expected images {tuple(images.shape)} and labels "
            f"{tuple(labels.shape)}; return both."
        )
    if not labels.is_floating_point() and labels.min() >= 0 > made[1].min():  # type: ignore[index]
        raise SettingError(f"The defense makes the label {int(made[1].min())} of a batch, expected classes from 0 on.")  # type: ignore[index]
    return made  # type: ignore[return-value]


def client_draws(target: Target, defense: Defends, rng: torch.Generator) -> Secrets:
    """What a client draws before its first step and keeps, such as FedKL's key."""
    return scoped_draws(target, defense, 1, rng, "client")


def scoped_draws(
    target: Target, defense: Defends, batch: int, rng: torch.Generator, scope: Literal["image", "client"]
) -> Secrets:
    """Draws of one scope for so many images: standard normal, or as the defense has its own way of drawing them."""
    wanted = {name: secret for name, secret in target.secrets.items() if secret.scope == scope}
    if not wanted:
        return {}
    normal = {name: _normal(secret, target, batch, rng) for name, secret in wanted.items()}
    return normal | {name: value for name, value in defense.draw(target, batch, rng).items() if name in wanted}


def draw_secrets(
    target: Target, batch: int, rng: torch.Generator, client: torch.Generator | None = None
) -> dict[str, Tensor]:
    """What a client without a way of its own draws inside its model for one pass of `batch` images.

    Args:
        rng: for what is drawn for every image, and for all where there is no other stream.
        client: for what stays the same in all steps of a client.
    """
    streams = {"image": rng, "client": client or rng}
    return {name: _normal(secret, target, batch, streams[secret.scope]) for name, secret in target.secrets.items()}


def _normal(secret: Secret, target: Target, batch: int, rng: torch.Generator) -> Tensor:
    like = target.mean
    return torch.randn(secret.full_shape(batch), generator=rng, dtype=like.dtype).to(like.device)
