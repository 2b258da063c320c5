"""What a network does, found by watching it run rather than from a list of networks."""

from dosimeter.networks.hooks import Call, activations, watch

__all__ = ["Call", "activations", "watch"]
