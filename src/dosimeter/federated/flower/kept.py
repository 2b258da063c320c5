"""Reading what `Keep` kept, and attacking it."""

import copy
import json
import math
import os
import threading
from collections.abc import Iterator
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

from flwr.common.logger import log
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dosimeter import engine
from dosimeter.attacks import Attack
from dosimeter.auditing import Capture, reconstruct
from dosimeter.errors import DataError, ModelError, UpdateError
from dosimeter.federated.flower.keep import BEFORE, ROUND
from dosimeter.types import BatchNorm, Gradient, Reconstruction, Shape


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

    def batch_norm(self, model: nn.Module) -> BatchNorm:
        """Whose statistics the client's batch norms used: where they were its batch's, running ones have moved."""
        before, after = _named(self.before, model), _named(self.after, model)
        moved = [name for name in before if name.endswith("running_mean") and not before[name].equal(after[name])]
        return "batch" if moved else "running"


def read_kept(folder: str | Path) -> Iterator[Kept]:
    """Every reply in a folder of `Keep`, round by round; who failed in a round is left out."""
    rounds = sorted(Path(folder).glob(f"round-*/{ROUND}"), key=lambda path: int(path.parent.name.split("-")[1]))
    if not rounds:
        raise DataError(f"Expected rounds that Keep wrote in {str(folder)!r}, found none; name the folder given to it.")
    for path in rounds:
        try:
            document = json.loads(path.read_text())
            there = {each.name: each for each in path.parent.iterdir()}  # names are looked up here and are never paths
            shared = load_file(there[BEFORE])
            for entry in document["replies"]:
                for file in entry["files"][:1]:
                    own = f"node-{entry['node']}.{BEFORE}"
                    before, after = load_file(there[own]) if own in there else shared, load_file(there[file])
                    count = _count(entry["examples"])
                    yield Kept(document["round"], entry["node"], before, after, count, entry["metrics"])
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
    attack: Attack | str,
    shape: Shape,
    lr: float = 1.0,
    rounds: tuple[int, ...] = (),
    most: int = 16,
    batch: int | None = None,
    batch_norm: BatchNorm | None = None,
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
        batch: images behind every update; by default as many as its client says.
        batch_norm: how clients ran batch norm, as in `reconstruct`; by default what their running statistics show.
        more: further arguments of `reconstruct`, such as `step` for clients that trained for more than one step.
    """

    def work(kept: Kept) -> Attacked | UpdateError:
        try:
            capture = Capture(kept.update(model, lr), shape, batch or kept.examples or 1)
            norm = batch_norm or kept.batch_norm(model)
            try:
                found = reconstruct(kept.model(model), capture, attack=attack, batch_norm=norm, **more)
            except ModelError:
                if batch_norm or norm == "running":
                    raise  # else no client can have trained so, whatever became of its statistics
                found = reconstruct(kept.model(model), capture, attack=attack, **more)
        except UpdateError as reason:
            return reason
        return Attacked(kept, found)

    asked = [kept for kept in read_kept(folder) if not rounds or kept.round in rounds]
    wanted = [kept for kept in asked if (batch or kept.examples or 1) <= most]
    if len(wanted) < len(asked):
        said = "%s of %s updates hold more than %s images and are left out, which says nothing of them; raise `most`"
        log(WARNING, said, len(asked) - len(wanted), len(asked), most)
    # Side by side on one thread each: a second thread in one small search mostly waits.
    tried = engine.threads.run(work, wanted, workers=os.cpu_count() or 1, stop=threading.Event())
    found = [each for each in tried if isinstance(each, Attacked)]
    for kept, each in zip(wanted, tried, strict=False):
        if isinstance(each, UpdateError):
            if not found:
                raise each
            log(WARNING, "The update of node %s in round %s is left out: %s", kept.node, kept.round, each)
    return found


def _count(examples: object) -> int | None:
    """A number that a client sent, if it is one."""
    return int(examples) if isinstance(examples, int | float) and 1 <= examples < math.inf else None


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
    for name, tensor in model.state_dict().items():
        if state[name].shape != tensor.shape:
            raise UpdateError(
                f"Expected {name!r} of shape {tuple(tensor.shape)}, got {tuple(state[name].shape)}; "
                "give the model that the app trains."
            )
    return state
