"""A training on disk, from which it goes on.

    training.json        what was set, and one entry a round
    round.safetensors    the server's weights, clients' private ones and optimisers after the last round
    model.safetensors    the server's weights alone, for `dosimeter audit --weights`

Each file is replaced as a whole. The round is written last and says which it is: what the others have of a later one,
left by a program that was killed in between, is made again.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from dosimeter import files
from dosimeter.errors import DAMAGED, DataError
from dosimeter.federated.federation import Federation, State

HISTORY, ROUND, MODEL = "training.json", "round.safetensors", "model.safetensors"
ALWAYS, TESTED = ("clients", "steps", "train_loss", "fitting", "samples", "seconds"), ("accuracy", "loss")
"""Numbers of every round, and of those after which accuracy is measured."""


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
    files.replace(folder / MODEL, save(_copies(at.state)))
    files.replace(folder / ROUND, save(_copies(tensors), {"round": str(at.done)}))


def read_checkpoint(
    folder: Path, federation: Federation, *, tested: Collection[int] | None = None
) -> Checkpoint | None:
    """Where a training of the same settings stands; None where there is none; one of other settings is refused.

    Args:
        tested: rounds after which accuracy was measured; all by default.
    """
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
        found = _checkpoint(done, tensors, document["rounds"])
        _check(found, federation, tested)
        return found
    except (OSError, SafetensorError, *DAMAGED) as error:
        raise DataError(
            f"{folder / ROUND} is damaged ({files.reason(error)}); delete the folder and train again."
        ) from None


def _checkpoint(done: int, tensors: State, rounds: list[dict[str, Any]]) -> Checkpoint:
    groups: dict[str, State] = {}
    for name, tensor in tensors.items():
        group, _, rest = name.partition("/")
        groups.setdefault(group, {})[rest] = tensor

    def of(kind: str) -> dict[int, State]:
        return {int(group.split()[1]): state for group, state in groups.items() if group.startswith(f"{kind} ")}

    return Checkpoint(done, groups["server"], of("private"), of("optimiser"), rounds[: max(0, done)])


def _check(at: Checkpoint, federation: Federation, tested: Collection[int] | None) -> None:
    """ValueError where it is none that training could have come to."""
    if len(at.history) != at.done or at.done > federation.protocol.rounds:
        raise ValueError(f"it is of round {at.done} and has {len(at.history)} rounds")
    for number, entry in enumerate(at.history, 1):
        wanted = (*ALWAYS, *(TESTED if tested is None or number in tested else ()))
        if entry["round"] != number or not all(isinstance(entry[key], int | float) for key in wanted):
            raise ValueError(f"what it says of round {number} is not of this training")
    expected = federation.initial()
    _check_like(at.state, expected, "the server's")
    for client, state in at.private.items():
        if not 0 <= client < federation.protocol.clients:
            raise ValueError(f"there is no client {client}")
        _check_like(state, {name: expected[name] for name in state}, f"client {client}'s")


def _check_like(state: State, expected: State, whose: str) -> None:
    if strange := state.keys() ^ expected.keys():
        raise ValueError(f"{whose} weights lack or have {min(strange)!r}")
    for name, tensor in state.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise ValueError(f"{whose} {name!r} has another form")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{whose} {name!r} is not finite")


def read_history(folder: Path) -> dict[str, Any]:
    """What was set and one entry a round."""
    try:
        found = files.read_json(folder / HISTORY)
        if found.get("program") != "dosimeter":
            raise ValueError("it is no training of this program")
        if not isinstance(found.get("training"), dict) or not _entries(found.get("rounds")):
            raise ValueError("its settings or its rounds are missing")
    except OSError as error:
        raise DataError(
            f"{folder / HISTORY} cannot be read ({error.strerror}); name the folder of a training."
        ) from None
    except ValueError as error:
        raise DataError(
            f"{folder / HISTORY} is no training of this program ({files.reason(error)}); choose another --out."
        ) from None
    return found


def _entries(rounds: object) -> bool:
    return isinstance(rounds, list) and all(isinstance(entry, dict) for entry in rounds)


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory of its own, which the format wants."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
