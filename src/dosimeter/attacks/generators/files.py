"""A trained generator as one safetensors file, with what made it in the file's metadata."""

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dosimeter import files, fingerprint
from dosimeter.attacks.generators.latent import Generator
from dosimeter.attacks.generators.network import Network
from dosimeter.errors import ModelError, OutputError, SettingError
from dosimeter.types import Shape

FORMAT = "dosimeter generator 1"
"""The first entry of the metadata; raised when an older reader would misread a file."""
MOST = 4096
"""The largest latent and width, so that a damaged number does not ask for all memory."""
HOW = "train one (dosimeter train-generator --out generator.safetensors) and name it (ggl:generator=FILE)"


def check_place(path: Path, *, overwrite: bool) -> None:
    """Refuse a place where a generator cannot be written, before the work of training one."""
    if path.suffix != ".safetensors":
        raise OutputError(f"A generator's file ends in .safetensors, got {str(path)!r}; choose another --out.")
    if path.is_dir() or (path.exists() and not overwrite):
        raise OutputError(f"{str(path)!r} is there already; replace it with --overwrite or choose another --out.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise OutputError(f"The folder of {str(path)!r} is not there or cannot be written; choose another --out.")


def save_generator(network: Network, path: str | Path, *, shape: Shape, latent: int, width: int, about: str) -> None:
    """Write a generator, whole or not at all; `about` says in a few words what it was trained on and how."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in network.state_dict().items()}
    channels, height, across = shape
    numbers = {"latent": latent, "width": width, "channels": channels, "height": height, "across": across}
    content = save(tensors, {"format": FORMAT, "about": about} | {key: str(n) for key, n in numbers.items()})
    files.replace(path, content)


def load_generator(place: str | Path) -> Generator:
    """Read a generator of `save_generator` back; a file that is none, is damaged or does not fit itself is refused."""
    path = Path(place)
    if not path.is_file():
        raise ModelError(f"There is no generator {str(path)!r}; {HOW}.")
    try:
        digest = fingerprint.of_file(path)
        with safe_open(path, "pt") as file:
            about: dict[str, str] = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no dict
    except OSError as reason:
        raise ModelError(f"{path} cannot be read: {reason.strerror or reason}; {HOW}.") from None
    except SafetensorError as reason:
        line = str(reason).strip().splitlines()[0].rstrip(".")
        raise ModelError(f"{path} is not a whole safetensors file: {line}; {HOW}.") from None
    if about.get("format") != FORMAT:
        raise ModelError(f"{path} holds no generator, expected the format {FORMAT!r} in its metadata; {HOW}.")
    network, latent, shape = _rebuilt(path, about, tensors)
    return Generator(
        network=network.eval().requires_grad_(False), latent=latent, shape=shape, name=f"{path.name} {digest}"
    )


def _rebuilt(path: Path, about: dict[str, str], tensors: dict[str, Tensor]) -> tuple[Network, int, Shape]:
    """The network that the metadata describes, with the file's tensors in it."""
    try:
        latent, width, channels, height, across = (
            int(about.get(key, "")) for key in ("latent", "width", "channels", "height", "across")
        )
        if max(latent, width, channels, height, across) > MOST or channels < 1:
            raise ValueError
        shape = (channels, height, across)
        with torch.device("meta"):  # a few words may ask for more than all memory
            network = Network(shape=shape, latent=latent, width=width, trained=True)
    except (ValueError, SettingError):
        raise ModelError(f"{path} has settings in its metadata that make no generator: {about}; {HOW}.") from None
    expected = network.state_dict()
    wrong = [
        name
        for name in {**expected, **tensors}
        if name not in tensors or name not in expected or tensors[name].shape != expected[name].shape
    ]
    wrong += [name for name, t in tensors.items() if name not in wrong and not t.isfinite().all()]
    if wrong:
        raise ModelError(f"{path} does not fit the generator of its metadata, first at {wrong[0]!r}; {HOW}.")
    network.load_state_dict(tensors, assign=True)
    return network, latent, shape
