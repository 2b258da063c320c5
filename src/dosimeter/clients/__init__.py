"""One client's step: from a private batch to the update that leaves the device."""

from collections.abc import Callable

from dosimeter.clients import optimisers
from dosimeter.clients.gradient import draw_secrets, gradient, one_gradient, own_secrets
from dosimeter.clients.local import ClippedGradient, LocalTraining, UntoldTraining, local
from dosimeter.clients.statistics import statistics
from dosimeter.types import Step

BY_NAME: dict[str, Callable[..., Step | None]] = {"gradient": one_gradient, "local": local, "clipped": ClippedGradient}
"""The steps that the command line knows; None is one gradient."""

__all__ = [
    "BY_NAME",
    "ClippedGradient",
    "LocalTraining",
    "UntoldTraining",
    "draw_secrets",
    "gradient",
    "local",
    "one_gradient",
    "optimisers",
    "own_secrets",
    "statistics",
]
