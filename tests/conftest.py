"""What several tests share: where real data is, and how the machine behaves."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Small tensors on shared cores: a second thread mostly waits, and waits by spinning.
torch.set_num_threads(1)

# Background jobs of a shell have Ctrl-C ignored and pass that on to all that they start, where tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real data sets, by DOSIMETER_DATA or beside the checkout."""
    folder = Path(os.environ.get("DOSIMETER_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "cifar10.npz").is_file():
        pytest.skip("no real data sets here; set DOSIMETER_DATA to a folder with cifar10.npz")
    return folder


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A Chromium of this machine, one for all tests of a process, since Playwright runs once in each."""
    api = pytest.importorskip("playwright.sync_api")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine; install it to try pages in a browser")
    with api.sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()
