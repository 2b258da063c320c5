"""How a client trained: read off what was kept of it, or said by the auditor, and never assumed."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from torch import nn

from dosimeter.clients import LocalTraining, optimisers
from dosimeter.errors import SettingError
from dosimeter.federated.kept import Kept
from dosimeter.types import BatchNorm, Gradient, Step

KEYS = {
    "lr": ("lr", "learning-rate", "local-lr"),
    "steps": ("local-steps", "steps"),
    "epochs": ("local-epochs", "epochs"),
    "batch_size": ("batch-size", "local-batch-size"),
    "momentum": ("momentum",),
    "nesterov": ("nesterov",),
    "weight_decay": ("weight-decay",),
    "optimiser": ("optimizer", "optimiser"),
    "mu": ("proximal-mu", "mu"),
}
"""By which names apps tell their clients how to train, or clients say it; `_` stands for `-` as well."""

EXAMPLE = "--step local:steps=1,lr=0.1"


class Trained(NamedTuple):
    """One client's training as an audit takes it."""

    images: int
    lr: float  # by which its change of weights is divided
    step: Step | None  # None where the change is the gradient of one plain step
    batch_norm: BatchNorm
    words: str
    doubts: tuple[str, ...] = ()  # where what was kept and what was said contradict each other

    def update(self, kept: Kept, model: nn.Module) -> Gradient:
        """What the client sent, in units of its learning rate."""
        return kept.update(model, self.lr)


def trained(
    kept: Kept,
    model: nn.Module,
    *,
    said: LocalTraining | None = None,
    batch: int | None = None,
    batch_norm: BatchNorm | None = None,
) -> Trained:
    """How the client of this update trained.

    Args:
        model: the app's own.
        said: by the auditor. It stands for all that clients keep to themselves, and wins over messages; the number of
            steps that batch norms have counted wins over both.
        batch: images behind the update, where clients do not say how many.
        batch_norm: how clients ran it; by default what their running statistics show.
    """
    found, counted = read(kept), kept.batches(model)
    images = batch or _behind(kept.examples, found)
    if images is None:
        raise SettingError(
            f"Expected the number of images behind the update of node {kept.node} in round {kept.round}, got none "
            "(num-examples); say it with --batch."
        )
    step, doubts = (_read(kept, found, images, counted), []) if said is None else _heard(said, found, images)
    if counted is not None and counted != step.count(images):
        doubts.append(
            f"its batch norms counted {counted} local step(s), where {'--step' if said else 'its messages'} "
            f"say(s) {step.count(images)}; {counted} are simulated"
        )
        step = replace(step, steps=counted, epochs=None)
    if found.get("mu") and step.count(images) > 1:  # the first step begins where the proximal term is 0
        doubts.append(f"its proximal term (mu {found['mu']:g}) is not simulated")
    whole = step.batch_size is None or step.batch_size >= images
    rule = step.optimiser
    plain = whole and step.count(images) == 1 and isinstance(rule, optimisers.SGD) and not rule.weight_decay
    norm = batch_norm or kept.batch_norm(model)
    if plain and _like_adam(kept.update(model, step.lr)):
        doubts.append(f"nearly every weight moved by the learning rate, as Adam's do; say {EXAMPLE},optimiser=adam")
    return Trained(images, step.lr, None if plain else step, norm, _words(step, images, norm), tuple(doubts))


def _read(kept: Kept, found: dict[str, Any], images: int, counted: int | None) -> LocalTraining:
    """The training that messages and batch norms tell of, refused where they leave open what an audit needs."""
    batch = int(found["batch_size"]) if "batch_size" in found else None
    steps = counted or (int(found["steps"]) if "steps" in found else None)
    epochs = int(found["epochs"]) if "epochs" in found and steps is None else None
    missing = [] if "lr" in found else ["the learning rate (lr)"]
    if steps is None and epochs is None:
        missing.append("the number of local steps (local-steps, local-epochs)")
    several = (steps or 0) > 1 or (epochs is not None and (epochs > 1 or images > (batch or images)))
    if batch is None and images > 1 and (several or epochs is not None):
        missing.append("the images of a step (batch-size)")
    adam = found.get("optimiser") == "adam"
    if several and not adam and "momentum" not in found:
        missing.append("the momentum (momentum)")
    if missing:
        raise SettingError(
            f"Expected how the client of node {kept.node} trained in round {kept.round}, but neither its messages nor "
            f"its weights tell {', '.join(missing)}; say it, as in {EXAMPLE}, or give Keep the run_config."
        )
    decay, momentum = found.get("weight_decay", 0.0), found.get("momentum", 0.0)
    ahead = bool(momentum) and found.get("nesterov", False)
    plain = optimisers.SGD(momentum=momentum, nesterov=ahead, weight_decay=decay)
    rule = optimisers.Adam(weight_decay=decay) if adam else plain
    return LocalTraining(steps=steps, epochs=epochs, lr=found["lr"], batch_size=batch, optimiser=rule)


def _heard(said: LocalTraining, found: dict[str, Any], images: int) -> tuple[LocalTraining, list[str]]:
    """What the auditor says, and where messages say something else."""
    rule = said.optimiser
    beside = {"lr": said.lr, "steps": said.count(images)}
    if isinstance(rule, optimisers.SGD):
        beside |= {"momentum": rule.momentum, "nesterov": rule.nesterov, "weight_decay": rule.weight_decay}
    other = [name for name in beside if name in found and found[name] != beside[name]]
    return said, [f"--step says {name} {beside[name]:g}, its messages {found[name]:g}" for name in other]


def telling(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a record says of how clients train, by the names of `KEYS`, as far as it can be true."""
    plain = {key.lower().replace("_", "-"): value for key, value in record.items()}
    first = {name: next((plain[key] for key in keys if key in plain), None) for name, keys in KEYS.items()}
    return {name: value for name, value in first.items() if _possible(name, value)}


def read(kept: Kept) -> dict[str, Any]:
    """What messages tell; what the server told the client counts before what the client says."""
    return telling(kept.metrics) | telling(kept.config)


def _behind(examples: int | None, found: dict[str, Any]) -> int | None:
    """Images that a client trained on: all that it has, or as many as its steps take."""
    if examples is None or "epochs" in found or not {"steps", "batch_size"} <= found.keys():
        return examples
    return min(examples, int(found["steps"]) * int(found["batch_size"]))


def _possible(name: str, value: Any) -> bool:
    if name == "optimiser":
        return value in ("sgd", "adam")
    if name == "nesterov":
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name in ("steps", "epochs", "batch_size"):
        return 1 <= value < math.inf and value == int(value)
    return 0 < value < math.inf if name == "lr" else 0 <= value < (1 if name == "momentum" else math.inf)


def _like_adam(update: Gradient) -> bool:
    """Whether nine in ten entries that moved did so by about the learning rate."""
    sizes = [entries[entries > 0] for g in update.values() for entries in (g.abs().flatten(),)]
    near = sum(int(((each > 0.9) & (each < 1.1)).sum()) for each in sizes)
    return near > 0.9 * max(1, sum(map(len, sizes)))


def _words(step: LocalTraining, images: int, norm: BatchNorm) -> str:
    """As a table says it."""
    count, rule = step.count(images), step.optimiser
    told = [f"{count} step{'s' if count > 1 else ''} at lr {step.lr:g}"]
    if count > 1 and step.batch_size and step.batch_size < images:
        told.append(f"{step.batch_size} images each")
    if not isinstance(rule, optimisers.SGD):
        told.append(type(rule).__name__)
    elif count > 1 and rule.momentum:
        told.append(f"{'Nesterov ' if rule.nesterov else ''}momentum {rule.momentum:g}")
    return ", ".join([*told, *(["batch norm by its batch"] if norm == "batch" else [])])
