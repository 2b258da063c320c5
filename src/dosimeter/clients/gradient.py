"""What a client sends: the gradient of its loss on one batch (FedSGD; Inverting Gradients, Eq. 2), or another step."""

from torch import Tensor
from torch.func import grad

from dosimeter.types import Target


def gradient(target: Target, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """g = d loss(theta; x, y) / d theta, the mean over the B images of one batch, or the target's own step.

    Args:
        target: model and loss; the model runs in the mode it is in, which an audit sets to evaluation.
        images: (B, C, H, W) in [0, 1].
        labels: (B,) classes or (B, ...) targets.
    """
    if target.step is not None:
        update = target.step(target, target.parameters, images, labels)
    else:
        update = grad(target.objective)(target.parameters, images, labels)
    return {name: g.detach() for name, g in update.items()}
