"""What a client does to its model, its batch or its update. One file an idea."""

from dosimeter.defenses.ats import Ats, search_policies
from dosimeter.defenses.base import Around, Chain, Defense, Installed, NoDefense, changes_gradient, parts
from dosimeter.defenses.bottleneck import Cvb, Precode
from dosimeter.defenses.dp import DpSgd
from dosimeter.defenses.entries import GaussianNoise, LaplaceNoise, Pruning, Quantisation, RandomPruning
from dosimeter.defenses.fedkl import KeyLock
from dosimeter.defenses.layers import Dropout, NoBias, for_use
from dosimeter.defenses.places import shortcuts
from dosimeter.defenses.ppp import Ppp
from dosimeter.defenses.soteria import Soteria
from dosimeter.types import Moment

BY_NAME: dict[str, type[Defense]] = {
    "none": NoDefense,
    "noise": GaussianNoise,
    "laplace": LaplaceNoise,
    "prune": Pruning,
    "random-prune": RandomPruning,
    "quantise": Quantisation,
    "dp-sgd": DpSgd,
    "precode": Precode,
    "ppp": Ppp,
    "cvb": Cvb,
    "fedkl": KeyLock,
    "dropout": Dropout,
    "soteria": Soteria,
    "ats": Ats,
    "no-bias": NoBias,
}
"""The names that the command line knows."""

__all__ = [
    "Around",
    "Ats",
    "BY_NAME",
    "Chain",
    "Cvb",
    "Defense",
    "DpSgd",
    "Dropout",
    "GaussianNoise",
    "Installed",
    "KeyLock",
    "LaplaceNoise",
    "Moment",
    "NoBias",
    "NoDefense",
    "Ppp",
    "Precode",
    "Pruning",
    "Quantisation",
    "RandomPruning",
    "Soteria",
    "changes_gradient",
    "for_use",
    "parts",
    "search_policies",
    "shortcuts",
]
