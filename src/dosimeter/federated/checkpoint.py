"""A training on disk, from which it goes on.

    training.json        what was set, and one entry a round
    round.safetensors    the server's weights, clients' private ones and optimisers after the last round
    model.safetensors    the server's weights alone, for `dosimeter audit --weights`

Each file is replaced as a whole. The tensors are written last and say which round they are of: entries of later rounds,
left by a program that was killed in between, are dropped.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dosimeter import files
from dosimeter.errors import DataError
from dosimeter.federated.federation import Federation, State

HISTORY, ROUND, MODEL = "training.json", "round.safetensors", "model.safetensors"


class Checkpoint(NamedTuple):
    """A training after so many rounds."""

    done: int
    state: State
    private: dict[int, State]
    optimisers: dict[int, State]
    history: list[dict[str, Any]]


def write_checkpoint(folder: Path, federation: Federation, at: Checkpoint) -> None:
    """Replace what the folder held of an earlier round."""
    tensors = {f"server/{name}": tensor for name, tensor in at.state.items()}
    for kind, clients in (("private", at.private), ("optimiser", at.optimisers)):
        for client, state in clients.items():
            tensors |= {f"{kind} {client}/{name}": tensor for name, tensor in state.items()}
    document = {"program": "dosimeter", "training": federation.made, "rounds": at.history}
    files.replace_json(folder / HISTORY, document)
    files.replace(folder / ROUND, save(_copies(tensors), {"round": str(at.done)}))
    files.replace(folder / MODEL, save(_copies(at.state)))


def read_checkpoint(folder: Path, federation: Federation) -> Checkpoint | None:
    """Where a training of the same settings stands; None where there is none; one of other settings is refused."""
    if not (folder / HISTORY).is_file():
        return None
    document = read_history(folder)
    files.check_same(folder, document["training"], federation.made)
    if not (folder / ROUND).is_file():
        return None
    try:
        with safe_open(folder / ROUND, "pt") as file:
            done = int((file.metadata() or {})["round"])
            tensors: State = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{folder / ROUND} is damaged ({error}); delete the folder and train again.") from None
    groups: dict[str, State] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor

    def of(kind: str) -> dict[int, State]:
        return {int(group.split()[1]): state for group, state in groups.items() if group.startswith(f"{kind} ")}

    return Checkpoint(done, groups["server"], of("private"), of("optimiser"), document["rounds"][:done])


def read_history(folder: Path) -> dict[str, Any]:
    """What was set and one entry a round."""
    try:
        document = json.loads((folder / HISTORY).read_text())
        if document["program"] != "dosimeter" or not isinstance(document["rounds"], list):
            raise KeyError("program")
    except OSError as error:
        raise DataError(
            f"{folder / HISTORY} cannot be read ({error.strerror}); name the folder of a training."
        ) from None
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{folder / HISTORY} is no training of this program; choose another --out.") from None
    found: dict[str, Any] = document
    return found


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory of its own, which the format wants."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
