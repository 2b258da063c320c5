"""One client's step: from a private batch to the update that leaves the device."""

from dosimeter.clients.gradient import gradient

__all__ = ["gradient"]
