"""What a machine does to a program."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def full_disk(largest: int = 0) -> Iterator[None]:
    """No file can grow beyond so many bytes inside the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
