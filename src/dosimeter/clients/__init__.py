"""One client's step: from a private batch to the update that leaves the device."""

from dosimeter.clients.gradient import draw_secrets, gradient
from dosimeter.clients.local import ClippedGradient, LocalTraining
from dosimeter.clients.statistics import statistics

__all__ = ["ClippedGradient", "LocalTraining", "draw_secrets", "gradient", "statistics"]
