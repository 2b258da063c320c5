"""From words to the model and the private images that an audit is about."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from dosimeter import data, models, spec
from dosimeter.errors import ModelError
from dosimeter.rng import scoped
from dosimeter.types import Victims


class Task(NamedTuple):
    """A model and victims that fit together, and what records call them."""

    model: nn.Module
    dataset: data.Dataset
    victims: Victims
    names: dict[str, Any]


def load_task(
    model: str,
    data_: str,
    victims: int,
    *,
    seed: int,
    batch: int = 1,
    split: str = "train",
    size: int | None = None,
    channels: int | None = None,
) -> Task:
    """Load data and model and pick victims.

    Images are enlarged to 32x32 where a model of ours needs that and no size was asked for.
    """
    own = spec.is_own(model)
    if not own and model not in models.BY_NAME:
        models.build(model, shape=(1, 1, 1), classes=1, mean=(0,), std=(1,), seed=seed)  # raises with the nearest name
    dataset = data.load(data_, size=size, channels=channels)
    if not own and size is None and min(dataset.shape[1:]) < models.BY_NAME[model].least:
        dataset = dataset.prepared(32, channels)
    names = {
        "model": Path(model).name if own else model,
        "data": dataset.name,
        "split": split,
        "source": dataset.source,
        "fingerprint": dataset.fingerprint,
    }
    made = _own_model(model, seed) if own else _our_model(model, dataset, seed)
    return Task(made, dataset, data.pick(dataset, victims, batch=batch, seed=seed, split=split), names)


def _own_model(words: str, seed: int) -> nn.Module:
    make = spec.own("model", words)
    with scoped(seed, "weights"):
        made = make()
    if not isinstance(made, nn.Module):
        raise ModelError(f"{words} returns a {type(made).__name__}, expected a torch.nn.Module.")
    return made


def _our_model(name: str, dataset: data.Dataset, seed: int) -> nn.Module:
    if dataset.classes is None:
        raise ModelError(f"The model {name!r} classifies, but {dataset.name} has no class labels; give your own model.")
    mean, std = dataset.statistics()
    return models.build(name, shape=dataset.shape, classes=dataset.classes, mean=mean, std=std, seed=seed)
