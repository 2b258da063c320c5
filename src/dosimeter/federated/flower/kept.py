"""Reading what `Keep` kept, and attacking it."""

import copy
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dosimeter import engine
from dosimeter.auditing import reconstruct
from dosimeter.errors import DataError, UpdateError
from dosimeter.federated.flower.keep import BEFORE, ROUND
from dosimeter.types import Attack, Gradient, Reconstruction, Shape


class Kept(NamedTuple):
    """One client's round as the server saw it."""

    round: int  # counted from 1, as Flower does
    node: int
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    examples: int | None
    metrics: dict[str, Any]

    def model(self, model: nn.Module) -> nn.Module:
        """A copy with the weights that the client began from."""
        made = copy.deepcopy(model)
        made.load_state_dict(_named(self.before, model))
        return made

    def update(self, model: nn.Module, lr: float = 1.0) -> Gradient:
        """(before - after) / lr of every trainable weight: the gradient, after one plain step at that rate."""
        before, after = _named(self.before, model), _named(self.after, model)
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        return {name: (before[name] - after[name]) / lr for name in names}


def read_kept(folder: str | Path) -> Iterator[Kept]:
    """Every reply in a folder of `Keep`, round by round; who failed in a round is left out."""
    rounds = sorted(Path(folder).glob(f"round-*/{ROUND}"), key=lambda path: int(path.parent.name.split("-")[1]))
    if not rounds:
        raise DataError(f"Expected rounds that Keep wrote in {str(folder)!r}, found none; name the folder given to it.")
    for path in rounds:
        try:
            document = json.loads(path.read_text())
            before = load_file(path.parent / BEFORE)
            for entry in document["replies"]:
                for file in entry["files"][:1]:
                    after = load_file(path.parent / file)
                    yield Kept(document["round"], entry["node"], before, after, entry["examples"], entry["metrics"])
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as reason:
            raise DataError(f"{path.parent} is not whole ({reason}); run the app again with Keep.") from None


class Attacked(NamedTuple):
    """What an attack made of one kept reply."""

    kept: Kept
    found: Reconstruction


def audit_kept(
    folder: str | Path,
    model: nn.Module,
    *,
    attack: Attack,
    shape: Shape,
    lr: float = 1.0,
    rounds: tuple[int, ...] = (),
    most: int = 16,
    **more: Any,
) -> list[Attacked]:
    """Attack every update that a server kept, with nothing known of the truth.

    Args:
        folder: what was given to `Keep`.
        model: the app's own; its weights are those of each round.
        attack: a preset or a `Search` of your own.
        shape: (C, H, W) of the images.
        lr: the clients' learning rate, by which the change of weights is divided.
        rounds: only these, counted from 1; all by default.
        most: clients with more images than this are left out.
        more: further arguments of `reconstruct`, such as `step` for clients that trained for more than one step.
    """
    batch, rest = more.get("batch"), {key: value for key, value in more.items() if key != "batch"}

    def work(kept: Kept) -> Attacked:
        size = int(batch or kept.examples or 1)
        update = kept.update(model, lr)
        return Attacked(kept, reconstruct(kept.model(model), update, attack=attack, shape=shape, batch=size, **rest))

    wanted = [
        kept for kept in read_kept(folder) if (not rounds or kept.round in rounds) and (kept.examples or 1) <= most
    ]
    # Side by side on one thread each: a second thread in one small search mostly waits.
    return engine.threads.run(work, wanted, workers=os.cpu_count() or 1, stop=threading.Event())


def _named(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """By the model's names; arrays that were sent as a list have their places as names."""
    expected = list(model.state_dict())
    if set(state) == {str(place) for place in range(len(expected))}:
        state = {name: state[str(place)] for place, name in enumerate(expected)}
    if state.keys() != set(expected):
        raise UpdateError(
            f"Expected the tensors of {type(model).__name__}, got others: {sorted(state.keys() ^ set(expected))[:3]}; "
            "give the model that the app trains."
        )
    return state
