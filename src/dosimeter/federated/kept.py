"""Reading what `flower.Keep` kept, for which nothing of Flower is needed."""

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dosimeter import files, networks
from dosimeter.errors import DAMAGED, DataError, UpdateError
from dosimeter.types import BatchNorm, Gradient, Shape

BEFORE, ROUND = "before.safetensors", "round.json"


class Kept(NamedTuple):
    """One client's round as the server saw it."""

    round: int  # counted from 1, as Flower does
    node: int
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    examples: int | None
    metrics: dict[str, Any]
    config: dict[str, Any]  # what the server told the node; beside it the run_config that `Keep` was given

    def model(self, model: nn.Module) -> nn.Module:
        """A copy with the weights that the client began from."""
        made = copy.deepcopy(model)
        made.load_state_dict(_named(self.before, model))
        return made

    def update(self, model: nn.Module, lr: float = 1.0) -> Gradient:
        """(before - after) / lr of every trainable weight: the gradient, after one plain step at that rate."""
        before, after = _named(self.before, model), _named(self.after, model)
        names = [name for name, p in model.named_parameters() if p.requires_grad]
        # In double: what is left of two near numbers is small.
        return {name: (before[name].double() - after[name].double()) / lr for name in names}

    def batch_norm(self, model: nn.Module) -> BatchNorm:
        """Whose statistics the client's batch norms used: where they were its batch's, running ones have moved."""
        before, after = _named(self.before, model), _named(self.after, model)
        moved = [name for name in before if name.endswith("running_mean") and not before[name].equal(after[name])]
        return "batch" if moved else "running"

    def batches(self, model: nn.Module) -> int | None:
        """Local steps as batch norms count them, whose numbers every pass in training mode raises by one."""
        before, after = _named(self.before, model), _named(self.after, model)
        names = [name for name in before if name.endswith("num_batches_tracked")]
        counts = {int(after[name].long() - before[name].long()) for name in names}
        return counts.pop() if len(counts) == 1 and min(counts) > 0 else None

    def as_trained(self, model: nn.Module, shape: Shape, images: int) -> nn.Module:
        """The model as it was in the client's passes on so many images: batch norms have the statistics of its batches.

        Every pass moves running statistics by a share m towards those of its batch, r' = (1 - m) r + m s, with the
        variance over n - 1; of one pass they are exact, of several they are about their mean.
        """
        made, after, passes = self.model(model), _named(self.after, model), self.batches(model) or 1
        blank = torch.zeros(1, *shape)
        with torch.no_grad():
            seen = networks.watch(made.eval(), lambda: made(blank), lambda _, layer: isinstance(layer, _BatchNorm))
        for name, layer, x, _ in seen:
            assert isinstance(layer, _BatchNorm)
            if layer.running_mean is None or layer.running_var is None or f"{name}.running_mean" not in after:
                continue
            last = after.get(f"{name}.num_batches_tracked")
            told = 1 - (1 - layer.momentum) ** passes if layer.momentum else passes / max(passes, int(last or 1))
            n = images * max(1, x[0, 0].numel())
            for old, key, factor in ((layer.running_mean, "mean", 1.0), (layer.running_var, "var", (n - 1) / n)):
                old.add_((after[f"{name}.running_{key}"] - old) / told).mul_(factor)
            layer.running_var.clamp_(min=0)
        return made


def read_kept(folder: str | Path) -> Iterator[Kept]:
    """Every reply in a folder of `Keep`, round by round; who failed in a round is left out."""
    rounds = sorted(Path(folder).glob(f"round-*/{ROUND}"), key=_number)
    if not rounds:
        raise DataError(f"Expected rounds that Keep wrote in {str(folder)!r}, found none; name the folder given to it.")
    for path in rounds:
        try:
            yield from _round(path)
        except (OSError, SafetensorError, *DAMAGED) as reason:
            said = " ".join(str(reason).split())
            raise DataError(f"{path.parent} is not whole ({said}); run the app again with Keep.") from None


def _round(path: Path) -> list[Kept]:
    """The replies of one round; SafetensorError and the like where it is damaged."""
    document = files.read_json(path)
    there = {each.name: each for each in path.parent.iterdir()}  # names are looked up here and are never paths
    if not isinstance(document["round"], int) or document["round"] != _number(path):
        raise ValueError(f"it is of round {document['round']!r:.20}")
    shared, found = load_file(there[BEFORE]), []
    for entry in document["replies"]:
        for file in entry["files"][:1]:
            own = f"node-{entry['node']}.{BEFORE}"
            before, after = load_file(there[own]) if own in there else shared, load_file(there[file])
            told = {**document.get("run_config", {}), **entry.get("config", {})}
            if not isinstance(entry["node"], int) or not isinstance(entry["metrics"], dict):
                raise ValueError("a reply is of no node, or without metrics")
            count = _count(entry["examples"])
            found.append(Kept(document["round"], entry["node"], before, after, count, entry["metrics"], told))
    return found


def _number(path: Path) -> int:
    name = path.parent.name.removeprefix("round-")
    if not name.isdecimal():
        raise DataError(f"Expected rounds by their numbers, got {path.parent.name!r}; move it out of the folder.")
    return int(name)


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
