"""What a client sends: the gradient of its loss on one batch (FedSGD; Inverting Gradients, Eq. 2), or another step."""

import torch
from torch import Tensor

from dosimeter.clients.local import LocalTraining
from dosimeter.errors import ModelError, SettingError
from dosimeter.types import Target


def draw_secrets(
    target: Target, batch: int, rng: torch.Generator, client: torch.Generator | None = None
) -> dict[str, Tensor]:
    """What a client draws inside its model for one pass of `batch` images; see `types.Secret`.

    Args:
        rng: for what is drawn for every image, and for all where there is no other stream.
        client: for what stays the same in all steps of a client.
    """
    streams = {"image": rng, "client": client or rng}
    like = target.mean
    return {
        name: torch.randn(s.full_shape(batch), generator=streams[s.scope], dtype=like.dtype).to(like.device)
        for name, s in target.secrets.items()
    }


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
        if rng is None:
            raise SettingError("A client that shuffles its images draws their order; give a generator (rng).")
        step = step.shuffled(len(images), rng)
    try:
        update = target.gradient(images, labels) if step is None else step(target, target.parameters, images, labels)
    except (RuntimeError, ValueError) as reason:  # such as the statistics of a local batch with one value a channel
        raise ModelError(f"The client's step cannot be taken: {str(reason).splitlines()[0]}.") from reason
    return {name: g.detach() for name, g in update.items()}


def one_gradient() -> None:
    """One gradient of the loss on all images of the update (FedSGD)."""
