"""What several tests share: where real data is."""

import os
from pathlib import Path

import pytest
import torch

# Small tensors on shared cores: a second thread mostly waits, and waits by spinning.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets, by DOSIMETER_DATA or beside the checkout."""
    folder = Path(os.environ.get("DOSIMETER_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "cifar10.npz").is_file():
        pytest.skip("no real data sets here; set DOSIMETER_DATA to a folder with cifar10.npz")
    return folder
