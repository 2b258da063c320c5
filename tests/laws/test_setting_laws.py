"""No part that goes by a name takes a number that makes no sense: not a number, infinity or one below 0."""

import inspect
import math
import types
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from torch import nn

from dosimeter import clients, defenses, models, servers
from dosimeter.attacks import generators, presets
from dosimeter.errors import SettingError
from dosimeter.federated import protocol

GENERATOR = generators.Generator(network=nn.Identity(), latent=4, shape=(1, 2, 2))
NEEDED: dict[str, dict[str, object]] = {"ggl": {"generator": GENERATOR}}
"""What a part cannot be made without, where that is no number of its own."""
BESIDE: dict[str, dict[str, object]] = {
    "ggl lr": {"by": "adam"},
    "ig plateau": {"decay": "plateau"},
    "grad-inversion group": {"restarts": 2},
    "bayes rate": {"density": "prune-gaussian"},
    "cvb patience": {"validation": 0.1},
    "local beta1": {"optimiser": "adam"},
    "local beta2": {"optimiser": "adam"},
    "local eps": {"optimiser": "adam"},
    "bayes k": {"delta": 0.1},
}
"""Settings without which others have no use."""
SIGNED = ("seed",)
"""Numbers that may be below 0."""


def model(name: str) -> Callable[..., nn.Module]:
    def make(**settings: object) -> nn.Module:
        given = {"shape": (1, 32, 32), "classes": 10, "mean": (0.0,), "std": (1.0,), "seed": 0}
        return models.build(name, settings=settings, **given)  # type: ignore[arg-type]

    return make


KINDS: dict[str, dict[str, Callable[..., object]]] = {
    "attack": dict(presets.BY_NAME),
    "defense": dict(defenses.BY_NAME),
    "server": dict(servers.BY_NAME),
    "step": dict(clients.BY_NAME),
    "protocol": dict(protocol.BY_NAME),
    "model": {name: entry.make for name, entry in models.BY_NAME.items()},
}


def numbers(maker: Callable[..., object]) -> Iterator[tuple[str, bool]]:
    """The numeric settings of a maker, and whether each may be several."""
    inner = maker
    while isinstance(inner, partial):
        inner = inner.func
    hints: dict[str, Any] = get_type_hints(inner.__init__ if inspect.isclass(inner) else inner)  # type: ignore[misc]
    for key in inspect.signature(maker).parameters:
        hint = hints.get(key)
        choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
        several = any(get_origin(choice) is Sequence and {*get_args(choice)} & {int, float} for choice in choices)
        if several or {*choices} & {int, float}:
            yield key, several


CASES = [
    pytest.param(kind, name, key, several, id=f"{kind} {name} {key}")
    for kind, makers in KINDS.items()
    for name, maker in makers.items()
    for key, several in numbers(maker)
    if key not in SIGNED and key not in models.GIVEN
]


@pytest.mark.parametrize(("kind", "name", "key", "several"), CASES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -1])
def test_a_number_that_makes_no_sense_is_refused(kind: str, name: str, key: str, several: bool, value: float) -> None:
    maker = model(name) if kind == "model" else KINDS[kind][name]
    more = NEEDED.get(name, {}) | BESIDE.get(f"{name} {key}", {})
    with pytest.raises(SettingError) as refused:
        maker(**{**more, key: (value,) if several else value})
    assert "\n" not in str(refused.value)
    assert str(value) in str(refused.value)


def test_the_law_meets_every_kind() -> None:
    met = {param.values[0] for param in CASES}
    assert met == KINDS.keys()
    assert len(CASES) > 150


USELESS: list[tuple[str, str, dict[str, object], tuple[str, str]]] = [
    ("attack", "ig", {"top": 10, "ignore": "noise"}, ("ignore", "top")),
    ("attack", "ig", {"by": "descent", "signed": True}, ("signed", "by=descent")),
    ("attack", "ig", {"by": "lbfgs", "signed": False}, ("signed", "by=lbfgs")),
    ("attack", "ig", {"plateau": 100}, ("plateau", "decay=steps")),
    ("attack", "ig", {"secrets": "joint", "draws": 4}, ("draws", "secrets=joint")),
    ("attack", "ig-cvb", {"secrets": "mean", "draws": 4}, ("draws", "secrets=mean")),
    ("attack", "bayes", {"density": "cosine", "scale": 0.1}, ("scale", "density=cosine")),
    ("attack", "bayes", {"density": "gaussian", "rate": 0.5}, ("rate", "density=gaussian")),
    ("attack", "bayes", {"k": 4}, ("k", "delta=0")),
    ("attack", "grad-inversion", {"sent": True}, ("sent", "bn=0")),
    ("attack", "grad-inversion", {"group": 0.1}, ("group", "restarts=1")),
    ("attack", "ggl", {"lr": 0.1}, ("lr", "by=cma")),
    ("attack", "ggl", {"by": "adam", "population": 50}, ("population", "by=adam")),
    ("attack", "ggl", {"by": "adam", "sigma": 1.0}, ("sigma", "by=adam")),
    ("defense", "ppp", {"sigma": 0.01, "prune": 0.9}, ("sigma", "prune")),
    ("defense", "precode", {"position": 1, "before": "3"}, ("position", "before")),
    ("defense", "cvb", {"position": 1, "before": ("3",)}, ("position", "before")),
    ("defense", "dropout", {"position": 1, "before": "3"}, ("position", "before")),
    ("server", "permuted-rows", {"shift": 0}, ("shift", "at least 1")),
    ("protocol", "ppp", {"factor": 0.5}, ("factor", "drops")),
]


@pytest.mark.parametrize(("kind", "name", "settings", "says"), USELESS, ids=lambda value: str(value))
def test_a_setting_that_does_nothing_is_refused(
    kind: str, name: str, settings: dict[str, object], says: tuple[str, str]
) -> None:
    with pytest.raises(SettingError) as refused:
        KINDS[kind][name](**NEEDED.get(name, {}), **settings)
    assert all(word in str(refused.value) for word in says)
    assert "\n" not in str(refused.value)
