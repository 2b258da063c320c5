"""What a network does, found by watching it run rather than from a list of networks.

hooks      which layers a run calls, with what, and what they give
look       blank images, the order of layers, and modules for another thread
shortcuts  places that a shortcut leads around
trace      a run as a list of calls, parts of which can be run again
remember   what was found of a model, inside a block in which it stays as it is
receptive  which pixels a feature sees
"""

from dosimeter.networks.hooks import Call, activations, hooked, is_leaf, watch
from dosimeter.networks.look import (
    blanks,
    clone_modules,
    evaluating,
    has_parameters,
    has_tokens,
    norms_by_batch,
    run_order,
)
from dosimeter.networks.receptive import Fields, find_fields, slope_norms
from dosimeter.networks.shortcuts import behind_first_block, bypassed

__all__ = [
    "Call",
    "Fields",
    "activations",
    "behind_first_block",
    "blanks",
    "bypassed",
    "clone_modules",
    "evaluating",
    "find_fields",
    "has_parameters",
    "has_tokens",
    "hooked",
    "is_leaf",
    "norms_by_batch",
    "run_order",
    "slope_norms",
    "watch",
]
