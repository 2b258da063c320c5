"""What `dosimeter list` shows of the parts themselves; `python -m dosimeter.cli.catalogues` writes it down."""

import inspect
import json
from collections.abc import Mapping
from typing import Any

from dosimeter import clients, defenses, federated, files, models, servers, studies
from dosimeter.attacks import presets
from dosimeter.cli.lists import LISTS, Catalogue


def catalogues() -> dict[str, Catalogue]:
    """Every table but that of the data, which depends on what is at hand."""
    weights = "Weights are random unless --weights names a file."
    return {
        "models": Catalogue(
            "Models: paper, parameters on 3x32x32 with 10 classes, images, whether at hand; settings",
            f"Settings: --model convnet:pooling=average,width=32. {weights} {models.OWN}",
            {name: _model(name, entry) for name, entry in models.BY_NAME.items()},
        ),
        "attacks": _parts("Attacks: what they are", presets.BY_NAME),
        "defenses": _parts("Defenses: what they do", defenses.BY_NAME),
        "steps": _parts("Steps: what clients send", clients.BY_NAME),
        "servers": Catalogue(
            "Servers: what they change; settings",
            "Several, one after another: --server first-layer+separate-weights",
            {name: [_changes(name), *_about(maker)] for name, maker in servers.BY_NAME.items()},
        ),
        "protocols": Catalogue(
            "Protocols: how federations train",
            "Each takes all settings: --protocol ppp:rounds=20,clients=5",
            {name: [_words(_settings(make))] for name, make in federated.BY_NAME.items()},
        ),
        "studies": Catalogue(
            "Studies: what they ask",
            "dosimeter study NAME",
            {name: [study.question, ""] for name, study in studies.BY_NAME.items()}
            | {"densities": ["Is the attack with the right prior and density the nearest (Bayes, Fig. 4)?", ""]}
            | {"dose": ["How near do attacks come to what the dose says, image by image?", ""]},
        ),
    }


def _model(name: str, entry: models.Entry) -> list[str]:
    count = models.count_parameters(name, shape=(3, 32, 32), classes=10)
    sides = f"from {entry.least}x{entry.least}" if entry.least > 1 else "any size"
    sides = f"sides in multiples of {entry.multiple}" if entry.multiple > 1 else sides
    return [f"{entry.paper} | {count:,} parameters | {sides} | at hand", entry.about, _words(entry.settings())]


def _changes(name: str) -> str:
    changes = "nothing" if name == "honest" else "weights" if servers.BY_NAME[name]().weights_only else "architecture"
    return f"changes {changes}"


def _parts(what: str, makers: Mapping[str, Any]) -> Catalogue:
    return Catalogue(f"{what}; settings", "", {name: _about(maker) for name, maker in makers.items()})


def _about(maker: Any) -> list[str]:
    """The first paragraph of its docstring, as one line that wraps as the terminal has room, and its settings."""
    said = " ".join(inspect.cleandoc(maker.__doc__ or "").partition("\n\n")[0].split())
    return [said, _words(_settings(maker))]


def _settings(maker: Any) -> dict[str, object]:
    return {p.name: p.default for p in inspect.signature(maker).parameters.values()}


def _words(settings: dict[str, object]) -> str:
    """Settings as they are written on the command line."""
    return ", ".join(f"{key}={_word(value)}" for key, value in settings.items()) or "-"


def _word(value: object) -> str:
    if value is inspect.Parameter.empty:
        return "..."
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def written() -> str:
    """The file's content."""
    return json.dumps({kind: each._asdict() for kind, each in catalogues().items()}, indent=1) + "\n"


if __name__ == "__main__":
    files.replace(LISTS, written())
