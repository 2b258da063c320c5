"""What a client does to its update before it leaves the device. One file a defense."""

from dosimeter.defenses.base import Chain, Defense, Moment, NoDefense
from dosimeter.defenses.bottleneck import Cvb, Precode
from dosimeter.defenses.fedkl import KeyLock
from dosimeter.defenses.noise import GaussianNoise

BY_NAME: dict[str, type[Defense]] = {
    "none": NoDefense,
    "noise": GaussianNoise,
    "precode": Precode,
    "cvb": Cvb,
    "fedkl": KeyLock,
}
"""The names that the command line knows."""

__all__ = ["BY_NAME", "Chain", "Cvb", "Defense", "GaussianNoise", "KeyLock", "Moment", "NoDefense", "Precode"]
