"""Small data for federations, as a file that any process can read."""

from pathlib import Path

import numpy as np
import pytest

from dosimeter.data import load


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """60 digits to train on and 40 to test on, in an npz file."""
    dataset = load("mnist-5k")
    arrays = {}
    for split, count in (("train", 60), ("test", 40)):
        places = np.linspace(0, dataset.count(split) - 1, count).astype(int)  # of all classes
        images = dataset.images(split, places).mul(255).round().byte().permute(0, 2, 3, 1).numpy()
        arrays |= {f"{split}_images": images, f"{split}_labels": dataset.labels(split)[places]}
    path: Path = tmp_path_factory.mktemp("digits") / "digits.npz"
    np.savez(path, **arrays)
    return str(path)
