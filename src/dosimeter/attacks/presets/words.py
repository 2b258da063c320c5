"""Words for parts, which several presets share."""

import inspect
from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, Literal, TypeVar, get_type_hints

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.search import masks, moves, priors, treatments, weights
from dosimeter.attacks.search.search import Search
from dosimeter.errors import SettingError, unknown

T = TypeVar("T")

LABELS: dict[str, labels_.Labels] = {
    "known": labels_.Known(),
    "idlg": labels_.FromLastLayer(),
    "counts": labels_.Counts(),
    "joint": labels_.Joint(),
}

Ignore = Literal["nothing", "noise", "bottleneck"]
"""Which tensors are left out of the match: none, those that noise drawn inside the model touches (CVB, Eq. 4), or the
whole bottleneck that draws it and all after it (PPP, Eq. 4)."""

IGNORED: dict[str, masks.Mask] = {
    "nothing": masks.Everything(),
    "noise": masks.BeforeNoise(encoder=True),
    "bottleneck": masks.BeforeNoise(encoder=False),
}

Secrets = Literal["resampled", "guessed", "mean", "joint", "known"]
"""What is supposed of numbers that clients draw inside the model; see `treatments`."""


TotalVariation = float | Literal["auto", "cvb"]
"""The weight of total variation: a number, the network's own (see `weights.Balanced`), or that of CVB's program."""


def smooth(tv: TotalVariation) -> priors.Prior:
    """Total variation of that weight."""
    if not isinstance(tv, str):
        return tv * priors.TotalVariation()
    rules: dict[str, weights.Rule] = {"auto": weights.Balanced(), "cvb": weights.ByTokens(tokens=1e-4, others=0.1)}
    return weights.Open(prior=priors.TotalVariation(), rule=pick("tv", tv, rules))


def treat(secrets: Secrets, draws: int = 1) -> treatments.Treatment:
    """The treatment of that name."""
    needless("draws", draws != 1 and secrets != "resampled", f"secrets={secrets}", "nothing is drawn anew")
    choices: dict[str, treatments.Treatment] = {
        "resampled": treatments.Resampled(draws=draws),
        "guessed": treatments.Guessed(),
        "mean": treatments.Mean(),
        "joint": treatments.Joint(),
        "known": treatments.Known(),
    }
    return pick("secrets", secrets, choices)


def moving(
    *, box: bool = True, median: int | None = None, langevin: float = 0.0, coarse: int | None = None
) -> tuple[moves.Move, ...]:
    """What follows every step, in the papers' order: noise, the box, the filter; coarse images before the box."""
    filters = () if median is None else (moves.Median(every=median),)
    noise = (moves.Langevin(size=langevin),) if langevin else ()
    waves = () if coarse is None else (moves.Coarse(steps=coarse),)
    return (*noise, *waves, *((moves.Box(),) if box else ()), *filters)


def given(**settings: Any) -> dict[str, Any]:
    """The settings that were given; others keep the part's own default."""
    return {key: value for key, value in settings.items() if value is not None}


def needless(setting: str, there: bool, beside: str, why: str) -> None:
    """Refuse a setting that was given and would do nothing."""
    if there:
        raise SettingError(f"{setting} does nothing beside {beside}, since {why}; leave one of them out.")


Variant = Literal["paper", "released"]
"""Settings as a paper prints them, or as its authors' program has them."""

Variants = Mapping[str, Mapping[str, Any]]
"""{name of a variant: the settings in which it differs from the preset as it is}"""


def varies(
    base: Callable[..., Search], takes: str, *, variants: Variants | None = None, **changed: object
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A preset that is another one with some defaults changed and settings of its own; it is given the other's search.

    `takes` names the settings of the other that it takes too; it decides the others itself. Where it has `variants`, as
    where a paper and its program differ, it takes a setting `variant` that says whose defaults count, and the preset
    itself says which is the usual one. What is given counts in any case.
    """

    def decorate(preset: Callable[..., T]) -> Callable[..., T]:
        _, *own = inspect.signature(preset).parameters.values()
        left = [inspect.signature(base).parameters[name] for name in takes.split()]
        signature = inspect.Signature([*(p.replace(default=changed.get(p.name, p.default)) for p in left), *own])
        known = signature.parameters

        def make(**settings: Any) -> T:
            signature.bind(**settings)
            if variants is not None:
                name = settings.get("variant", known["variant"].default)
                of = {known["variant"].default: dict[str, Any](), **{key: {**each} for key, each in variants.items()}}
                settings = pick("variant", name, of) | settings
            mine = {p.name: settings.pop(p.name) for p in own if p.name in settings}
            return preset(base(**{**changed, **settings}), **mine)

        made = update_wrapper(make, preset)
        made.__signature__ = signature  # type: ignore[attr-defined]
        made.__annotations__ = get_type_hints(base) | get_type_hints(preset)
        del made.__wrapped__
        return made

    return decorate


def pick(setting: str, value: str, choices: dict[str, T]) -> T:
    if value not in choices:
        raise SettingError(unknown(f"value of {setting}", value, choices))
    return choices[value]
