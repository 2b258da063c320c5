"""What a dishonest server does to the model before clients get it, and how a client could notice.

weights        permuted classifier rows, identity convolutions: the architecture stays as agreed
architectures  a fully connected first layer, the input beside the features, reversible blocks, weights for every image
checks         what a client can check by itself

Inverting Gradients, Sec. 4.3 and 5.4.
"""

from dosimeter.servers.architectures import ConcatenatedInput, FirstLayer, ReversibleBlocks, SeparateWeights
from dosimeter.servers.base import Chain, Honest, Tamper
from dosimeter.servers.checks import Finding, check
from dosimeter.servers.weights import IdentityConvolutions, PermutedRows

BY_NAME: dict[str, type[Tamper]] = {
    kind().name: kind
    for kind in (
        Honest,
        PermutedRows,
        IdentityConvolutions,
        FirstLayer,
        ConcatenatedInput,
        ReversibleBlocks,
        SeparateWeights,
    )
}
"""The names that the command line knows."""

__all__ = [
    "BY_NAME",
    "Chain",
    "ConcatenatedInput",
    "Finding",
    "FirstLayer",
    "Honest",
    "IdentityConvolutions",
    "PermutedRows",
    "ReversibleBlocks",
    "SeparateWeights",
    "Tamper",
    "check",
]
