"""A federation in words, as Flower's run_config carries them to every process."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import torch.nn.functional as F

from dosimeter import defenses, spec
from dosimeter.errors import SettingError, unknown
from dosimeter.federated.federation import Federation
from dosimeter.federated.protocol import BY_NAME
from dosimeter.task import load_task
from dosimeter.types import Loss


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What server and clients are told; empty words and zeros stand for what is left out."""

    model: str = "cnn"
    data: str = "mnist-5k"
    protocol: str = "ppp"
    defense: str = "none"
    seed: int = 0
    size: int = 0
    """Of images, in pixels; as the data has them by default."""
    channels: int = 0
    weights: str = ""
    """A file that training begins from."""
    loss: str = ""
    """path/to/file.py:function; cross-entropy by default."""
    out: str = ""
    """Folder of the server's for training.json and model.safetensors."""
    keep: str = ""
    """Folder of the server's for everything it sees, as `Keep` writes it."""
    tested: bool = True
    """Whether accuracy is measured after every round."""
    timeout: float = 3600.0
    """Seconds that the server waits for clients in a round; who is later is left out of it."""

    def told(self, config: Mapping[str, object]) -> "Setup":
        """With what a run_config says in other words."""
        kinds = {field.name: type(getattr(self, field.name)) for field in fields(self)}
        found: dict[str, object] = {}
        for key, value in config.items():
            if key not in kinds:
                raise SettingError(unknown("word in the run_config", key, kinds))
            whole = kinds[key] is float and type(value) is int
            if type(value) is not kinds[key] and not whole:
                raise SettingError(f"The run_config says {key} = {value!r}, expected a {kinds[key].__name__}.")
            found[key] = value
        return replace(self, **found)  # type: ignore[arg-type]

    def federation(self) -> Federation:
        """Built once, however often clients and server ask for it."""
        return _federation(replace(self, out="", keep="", tested=True, timeout=1.0))


DEFAULT = Setup()


@lru_cache(maxsize=2)  # a process that trains many, one after another, keeps the last ones' data alone
def _federation(setup: Setup) -> Federation:
    # Words that cannot work are refused before data is loaded.
    protocol = spec.make("protocol", setup.protocol, BY_NAME)
    defense = spec.joined("defense", setup.defense, defenses.BY_NAME, of=defenses.Defense)
    loss: Loss = spec.own("loss", setup.loss) if setup.loss else F.cross_entropy
    task = load_task(
        setup.model,
        setup.data,
        seed=setup.seed,
        size=setup.size or None,
        channels=setup.channels or None,
        weights=Path(setup.weights) if setup.weights else None,
    )
    parts = {"protocol": protocol, "defense": defense, "loss": loss}
    return Federation(model=task.model, dataset=task.dataset, seed=setup.seed, **parts)  # type: ignore[arg-type]
