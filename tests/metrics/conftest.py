"""Every test here starts from the same random numbers."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers() -> Iterator[None]:
    """Also one thread: the tensors are small, and on a busy machine threads would wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
