"""The architectures of the papers. They take images in [0, 1]: normalisation is their first layer.

No layer works in place and, in evaluation, none draws random numbers, so that a client's step is a pure function of
parameters and batch that can be differentiated twice and run for many victims at once.
"""

from dosimeter.models.catalogue import BY_NAME, GIVEN, OWN, Entry, build, count_parameters
from dosimeter.models.checkpoint import load_checkpoint, read_state, read_tensors
from dosimeter.models.convnet import ConvNet
from dosimeter.models.mlp import MLP
from dosimeter.models.normalise import Normalise, normalisation, use_batch_statistics, use_given_statistics
from dosimeter.models.resnet import ResNet
from dosimeter.models.small import CNN, BigLinear, LeNet, TwoConv
from dosimeter.models.vgg import VGG16
from dosimeter.models.vit import ViT

__all__ = [
    "BY_NAME",
    "CNN",
    "GIVEN",
    "MLP",
    "OWN",
    "VGG16",
    "BigLinear",
    "ConvNet",
    "Entry",
    "LeNet",
    "Normalise",
    "ResNet",
    "TwoConv",
    "ViT",
    "build",
    "count_parameters",
    "load_checkpoint",
    "normalisation",
    "read_state",
    "read_tensors",
    "use_batch_statistics",
    "use_given_statistics",
]
