"""Random numbers as named streams.

A stream is named by a seed and by what it is for, for instance `stream(0, "start", "train:17", "restart 2")`. Whoever
draws from it gets the same numbers whatever else runs, so a victim's result does not depend on who shares its batch.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed that depends on the seed and on every name, in order."""
    key = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: str | int) -> torch.Generator:
    """A generator of torch's, always on the CPU, so that every device sees the same numbers."""
    return torch.Generator().manual_seed(derive(seed, *names))


def numpy_stream(seed: int, *names: str | int) -> np.random.Generator:
    """The same for numpy."""
    return np.random.default_rng(derive(seed, *names))


@contextmanager
def scoped(seed: int, *names: str | int) -> Iterator[None]:
    """Torch's global generator set from a named stream inside the block and left as it was outside.

    For code that only knows the global generator, such as the initialisation of layers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, *names))
        yield
