"""`dosimeter captured`: audit one captured update with nothing else known."""

from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch
import typer
from rich.markup import escape
from torch import Tensor, nn

from dosimeter import checks, clients, data, fingerprint, models, rng, task, trees
from dosimeter.auditing import Audit, Capture, Scoring, Updates, examine, part
from dosimeter.auditing.gate import judge_captured
from dosimeter.cli import options
from dosimeter.cli.config import given, write_config
from dosimeter.cli.console import err
from dosimeter.cli.parts import attack_of, resources_of, scoring_of, told, written
from dosimeter.defenses import Defense
from dosimeter.drafts import reserve
from dosimeter.errors import ModelError, SettingError, unknown
from dosimeter.federated.protocol import Perturbed
from dosimeter.types import Gradient, Shape, Step, Victims

BESIDE_TRUTH = ("decoys", "delta", "lpips", "metric")
"""Options that say how reconstructions are scored beside the truth."""
LARGEST = 2**26
"""Numbers of an image by its --shape, which is made before anything else could tell that it is too large."""


class Material(NamedTuple):
    """All that an audit of a captured update takes besides its setting."""

    model: nn.Module  # before the update, with the layers that the defense adds
    capture: Capture
    shadows: Victims | None
    truth: Victims | None
    names: dict[str, Any]
    dataset: data.Dataset | None
    step: Step | None  # how the client made the update


def run(asked: options.Captured) -> None:
    """Audit one captured update, write its run folder and print what is to be said of it."""
    _check_options(asked)
    material, audit = _audit(asked)
    name = f"captured-{Path(asked.model.partition(':')[0]).stem}-{audit.attack.name}"
    chosen = asked.out or Path("runs") / name
    with reserve(chosen, overwrite=asked.overwrite, numbered=asked.out is None) as (place, folder):
        write_config(place)
        result = written(place, lambda: examine(audit, material.capture, material.truth))
    found = told(result, folder, as_json=asked.json, explain=asked.explain)
    if found.status == "interrupted":
        raise typer.Exit(130)
    if asked.gate:
        said = judge_captured(found)
        err.print(escape(said.sentence), soft_wrap=True, highlight=False)
        raise typer.Exit(said.code)


def _check_options(asked: options.Captured) -> None:
    """Refuse options that miss another or exclude each other."""
    said = given()
    if (asked.update is None) == (asked.after is None):
        got = "neither" if asked.update is None else "both"
        raise SettingError(f"A captured update is given as --update or as --after, one of them; got {got}.")
    if asked.weights is None:
        raise SettingError("An update says little without the weights before it; give them with --weights.")
    if asked.attack.partition(":")[0] == "auto":
        raise SettingError("--attack auto ranks attacks by the images they read, which are not known; name one attack.")
    if asked.batch_norm == "sent":
        raise SettingError("Statistics sent along are not read from files; call dosimeter.captured with them.")
    needless = [said[name] for name in BESIDE_TRUTH if name in said and asked.truth is None]
    if needless:
        raise SettingError(f"Without the truth there are no scores and no use for {', '.join(needless)}; give --truth.")
    clash = [said[name] for name in ("data", "size", "channels", "split", "shadows") if name in said]
    if asked.shape is not None and clash:
        raise SettingError(f"A --shape stands for data that is not there and excludes {', '.join(clash)}; choose one.")
    if asked.perturbed not in get_args(Perturbed):
        raise SettingError(unknown("--perturbed", asked.perturbed, get_args(Perturbed)))
    if asked.shadows < 0:
        raise SettingError(f"The number of shadows must be at least 0, got {asked.shadows}.")
    unnamed = [said[name] for name in ("shadows", "decoys") if name in said and getattr(asked, name)]
    if unnamed and "data" not in said:
        raise SettingError(f"{', '.join(unnamed)} are images of --data, and none was given; name some.")
    if (asked.guess_local_steps or asked.guess_local_lr) and "data" in said and asked.shadows:
        raise SettingError(
            "Shadows train as --step says, which is to be guessed here; compare with none (--shadows 0)."
        )


def _audit(asked: options.Captured) -> tuple[Material, Audit]:
    """What was captured, and how it is audited."""
    attack = attack_of(asked)
    defense, step, loss = (part(kind, getattr(asked, kind)) for kind in ("defense", "step", "loss"))
    material = load(asked, defense, step)
    audit = Audit(
        model=material.model,
        victims=material.shadows,
        attack=attack,
        defense=defense,
        step=material.step,
        loss=loss,
        seed=asked.seed,
        updates=Updates(batch_norm=asked.batch_norm.value),
        resources=resources_of(asked),
        scoring=_scoring(asked, material),
        names=material.names,
    )
    return material, audit


def _scoring(asked: options.Captured, material: Material) -> Scoring:
    """How reconstructions are judged; without the truth only by which SSIM shadows count as read."""
    if material.truth is None:
        return Scoring(threshold=asked.threshold)
    return scoring_of(asked, material.dataset, material.shadows or material.truth)


def load(asked: options.Captured, defense: Defense, step: Step | None) -> Material:
    """Read model, weights, update and truth, and pick shadows."""
    assert asked.weights is not None
    dataset: data.Dataset | None = None
    form = {}
    if asked.shape is not None:
        (model, name), shape = task.load_own_model(asked.model, seed=asked.seed), shape_of(asked.shape)
    else:
        model, found, said = task.load_task(
            asked.model, asked.data, seed=asked.seed, size=asked.size, channels=asked.channels
        )
        name, shape, named = said["model"], found.shape, "data" in given()
        dataset = found if named else None
        form = {} if named else {"form": f"of {found.name}, for want of --data or --shape"}
    with rng.scoped(asked.seed, "defense", "model"):
        model = defense.on_model(model, shape)
    weights = asked.weights
    models.load_checkpoint(model, weights)
    _check_finite(model.state_dict(), weights)
    step = _step(asked, step)
    update, said = _update(asked, model, step)
    plain = _plain(step, asked)
    names = form | {"model": name, "weights": weights.name, "weights_fingerprint": fingerprint.of_file(weights)} | said
    shadows = None
    if dataset is not None and asked.shadows:
        shadows = data.pick(dataset, asked.shadows, batch=asked.batch, seed=asked.seed, split=asked.split)
        names |= {"shadows": dataset.name, "split": asked.split, "fingerprint": dataset.fingerprint}
    truth = None if asked.truth is None else data.read_batch(asked.truth)
    capture = Capture(update, shape, asked.batch, _labels(asked.labels), lr=_unit(asked, step, plain))
    return Material(model, capture, shadows, truth, names, dataset, plain)


def _update(asked: options.Captured, model: nn.Module, step: Step | None) -> tuple[Gradient, dict[str, Any]]:
    """The update as a client sends it, and what records say of where it is from."""
    learned = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if asked.update is not None:
        path = asked.update
        update = models.read_tensors(path, model, "update")
        text = path.name
    else:
        assert asked.after is not None
        path = asked.after
        after = models.read_state(model, path)
        _check_finite(after, path)
        # In double: what is left of two near numbers is small.
        update = {name: before.double() - after[name].double() for name, before in learned.items()}
        text = f"before minus {path.name}"
    trees.check_update(update, learned)
    if isinstance(step, clients.LocalTraining) and asked.guess_local_lr is None:
        update = {name: change / step.lr for name, change in update.items()}
        text += f", divided by {step.lr:g}"
    return update, {"update": text, "update_fingerprint": fingerprint.of_file(path)}


def _step(asked: options.Captured, step: Step | None) -> Step | None:
    """How the client made the update. Weights that changed without a learning rate are taken as one step at rate 1."""
    local = isinstance(step, clients.LocalTraining)
    if local and "lr=" not in asked.step and asked.guess_local_lr is None:
        raise SettingError(
            f"Expected the client's learning rate, by which its change of weights is divided, got --step {asked.step}; "
            "write --step local:steps=5,lr=0.01, or let the attack guess it (--guess-local-lr)."
        )
    if asked.after is None or local:
        return step
    if step is not None:
        raise SettingError(f"Weights after training go with --step local:..., got --step {asked.step}; give --update.")
    return clients.LocalTraining(steps=1, lr=1.0)


def _unit(asked: options.Captured, step: Step | None, plain: Step | None) -> float:
    """What the client perturbed in units of the update: the change of weights, or the gradient of its one step."""
    if not isinstance(step, clients.LocalTraining):
        return 1.0
    if asked.perturbed == "update":
        return step.lr
    if plain is not None:
        raise SettingError(
            f"Expected one plain step of a known rate for --perturbed steps, got --step {asked.step}; say the noise on "
            "the whole change of weights instead (--perturbed update)."
        )
    return 1.0


def _plain(step: Step | None, asked: options.Captured) -> Step | None:
    """None where the step is one gradient in other words: one plain step on all images, at a rate that was said."""
    guessed = asked.guess_local_steps or asked.guess_local_lr
    plain = isinstance(step, clients.LocalTraining) and "lr=" in asked.step and not guessed
    if not plain or not isinstance(step, clients.LocalTraining):
        return step
    whole = step.batch_size is None or step.batch_size >= asked.batch
    return None if whole and step.count(asked.batch) == 1 and step.optimiser == clients.optimisers.SGD() else step


def shape_of(text: str) -> Shape:
    try:
        channels, height, width = (int(part) for part in text.split(","))
    except ValueError:
        raise SettingError(f"A shape is channels, height, width, as in 3,32,32; got {text!r}.") from None
    if min(channels, height, width) < 1:
        raise SettingError(f"A shape has at least 1 channel and 1 pixel a side, got {text!r}.")
    for name, side in zip(("channels", "height", "width"), (channels, height, width), strict=True):
        checks.reasonable(f"The {name} of --shape", side)
    if channels * height * width > LARGEST:
        raise SettingError(
            f"An image of shape {text!r} has {channels * height * width:,} numbers, more than {LARGEST:,}."
        )
    return channels, height, width


def _labels(text: str | None) -> Tensor | None:
    """Classes, or numbers with a point as targets of the user's own loss."""
    if text is None:
        return None
    for kind in (int, float):
        try:
            found = [kind(part) for part in text.split(",")]
        except ValueError:
            continue
        checks.reasonable("--labels", found)
        return torch.tensor(found)
    raise SettingError(f"Labels are numbers joined by commas, as in 3,5; got {text[:40]!r}.")


def _check_finite(state: Gradient, path: Path) -> None:
    for name, tensor in state.items():
        short = tensor.is_floating_point() and tensor.element_size() < 2
        if tensor.is_meta or tensor.layout != torch.strided or short:
            kind = "on the device meta" if tensor.is_meta else f"{tensor.dtype}, {tensor.layout}".replace("torch.", "")
            raise ModelError(f"{path.name}: expected plain weights, but {name!r} is {kind}; save them as numbers.")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            kind = "NaN" if tensor.isnan().any() else "infinity"
            raise ModelError(f"{path.name}: expected finite weights, but {name!r} contains {kind}; save them again.")
