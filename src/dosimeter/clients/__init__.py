"""One client's step: from a private batch to the update that leaves the device."""

from dosimeter.clients.gradient import gradient
from dosimeter.clients.local import ClippedGradient, LocalTraining

__all__ = ["ClippedGradient", "LocalTraining", "gradient"]
