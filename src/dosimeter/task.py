"""From words to the model and the data that an audit is about."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from dosimeter import data, fingerprint, models, spec
from dosimeter.errors import ModelError
from dosimeter.models.form import check_form
from dosimeter.rng import scoped
from dosimeter.types import Shape


class Task(NamedTuple):
    """A model, the data that it was made for, and what records call them."""

    model: nn.Module
    dataset: data.Dataset
    names: dict[str, Any]


def load_task(
    model: str,
    data_: str,
    *,
    seed: int,
    size: int | None = None,
    channels: int | None = None,
    weights: Path | None = None,
) -> Task:
    """Load data and a model for it; images are enlarged to 32x32 where a model of ours needs that and nobody said."""
    make = _own(model) if spec.is_own(model) else _ours(model)
    dataset = data.load(data_, size=size, channels=channels)
    if size is None and min(dataset.shape[1:]) < make.least:
        dataset = dataset.prepared(32, channels)
    made, names = make.build(dataset, seed), {"model": make.name}
    if weights is not None:
        models.load_checkpoint(made, weights)
        names |= {"weights": weights.name, "weights_fingerprint": fingerprint.of_file(weights)}
    names |= {"data": dataset.name, "source": dataset.source, "fingerprint": dataset.fingerprint}
    return Task(made, dataset, names)


def load_own_model(model: str, *, seed: int) -> tuple[nn.Module, str]:
    """A model of the user's, for which no data is there, and what records call it."""
    if not spec.is_own(model):
        raise ModelError(
            f"The model {model!r} takes its classes from data; name some with --data instead of a --shape, or give a "
            "model of your own as path/to/file.py:function."
        )
    make = _own(model)
    return make.build(None, seed), make.name


def load_shaped(model: str, shape: Shape, *, classes: int, seed: int, weights: Path | None = None) -> nn.Module:
    """A model for images of a shape in so many classes, of which no data is there; a model of the user's takes none."""
    if spec.is_own(model):
        made = _own(model).build(None, seed)
    else:
        name, settings = _parsed(model)
        least = models.BY_NAME[name].least
        if min(shape[1:]) < least:
            raise ModelError(
                f"The model {name!r} needs images of {least}x{least} or more, got {shape}; give a --shape."
            )
        scale: dict[str, Any] = {"mean": (0.5,), "std": (0.25,)}  # of no data in particular
        made = models.build(name, shape=shape, classes=classes, **scale, seed=seed, settings=settings)
    if weights is not None:
        models.load_checkpoint(made, weights)
    return made


class _Maker(NamedTuple):
    """A model that was asked for and can be built once its data is there."""

    name: str  # in records
    least: int  # pixels a side that it needs
    build: Callable[[data.Dataset | None, int], nn.Module]  # with a seed; None where a model needs no data


def _own(words: str) -> _Maker:
    """path/to/file.py:function:key=value"""
    make: Callable[[], object] = spec.maker("model", words, {})

    def build(_dataset: data.Dataset | None, seed: int) -> nn.Module:
        with scoped(seed, "weights"):
            made = make()
        if not isinstance(made, nn.Module):
            raise ModelError(f"{words} returns a {type(made).__name__}, expected a torch.nn.Module.")
        check_form(made)  # before anybody takes its fingerprint
        return made

    return _Maker(Path(words).name, 1, build)


def _ours(words: str) -> _Maker:
    """name:key=value,key=value"""
    name, settings = _parsed(words)

    def build(dataset: data.Dataset | None, seed: int) -> nn.Module:
        assert dataset is not None
        if dataset.classes is None:
            raise ModelError(
                f"The model {name!r} classifies, but {dataset.name} has no class labels; give your own model."
            )
        mean, std = dataset.statistics()
        scale: dict[str, Any] = {"shape": dataset.shape, "classes": dataset.classes, "mean": mean, "std": std}
        return models.build(name, **scale, seed=seed, settings=settings)

    return _Maker(words if settings else name, models.BY_NAME[name].least, build)


def _parsed(words: str) -> tuple[str, dict[str, object]]:
    makers = {name: entry.make for name, entry in models.BY_NAME.items()}
    return spec.parse("model", words, makers, own=models.GIVEN, hint=models.OWN)
