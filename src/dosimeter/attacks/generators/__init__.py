"""Spaces of generators: images as a network makes them.

network    the network itself, from noise to an image
weights    GRNN: untrained, a network for every candidate, whose weights are searched
latent     GGL: trained, one network for all, whose latent is searched
training   how such a network is trained          files    how it is kept
"""

from dosimeter.attacks.generators.files import check_place, load_generator, save_generator
from dosimeter.attacks.generators.latent import Generator, Latent
from dosimeter.attacks.generators.network import Network
from dosimeter.attacks.generators.training import Trained, Training, train_generator
from dosimeter.attacks.generators.weights import Weights

__all__ = [
    "Generator",
    "Latent",
    "Network",
    "Trained",
    "Training",
    "Weights",
    "check_place",
    "load_generator",
    "save_generator",
    "train_generator",
]
