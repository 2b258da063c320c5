"""One client's step: from a private batch to the update that leaves the device."""

from collections.abc import Callable

from dosimeter.clients import optimisers
from dosimeter.clients.local import ClippedGradient, LocalTraining, UntoldTraining, local
from dosimeter.clients.statistics import statistics
from dosimeter.clients.step import (
    Sent,
    Streams,
    client_draws,
    draw_secrets,
    gradient,
    one_gradient,
    scoped_draws,
    take_step,
)
from dosimeter.types import Step

BY_NAME: dict[str, Callable[..., Step | None]] = {"gradient": one_gradient, "local": local, "clipped": ClippedGradient}
"""The steps that the command line knows; None is one gradient."""

__all__ = [
    "BY_NAME",
    "ClippedGradient",
    "LocalTraining",
    "Sent",
    "Streams",
    "UntoldTraining",
    "client_draws",
    "draw_secrets",
    "gradient",
    "local",
    "one_gradient",
    "optimisers",
    "scoped_draws",
    "statistics",
    "take_step",
]
