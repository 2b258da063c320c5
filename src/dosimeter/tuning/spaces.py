"""What is tuned: the settings of an attack, each with a range or with values, by name or in a user's own words.

    lr=0.01..1:log      any number between, on a logarithmic scale
    restarts=1..4       any whole number between
    decay=steps,cosine  one of these

The Bayes paper's search (App. A.3) first looks for the one number on which the most depends, and then tries a grid
around it. What its text leaves out is from its program, `tune_attacks_dp` and `tune_attacks_theory`.
"""

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dosimeter import spec
from dosimeter.attacks import AUTO, presets
from dosimeter.attacks.search.weights import Balanced
from dosimeter.errors import SettingError, unknown

Value = float | int | str
Values = Mapping[str, Value]


@dataclass(frozen=True)
class Span:
    """Numbers between two ends."""

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}{':log' if self.log else ''}"

    def points(self, many: int) -> list[Value]:
        """So many of them, evenly, both ends among them."""
        if self.whole:
            step = max(1, math.ceil((self.high - self.low) / max(1, many - 1)))
            return [*range(int(self.low), int(self.high) + 1, step)]
        ends = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        found = [ends[0] + (ends[1] - ends[0]) * at / max(1, many - 1) for at in range(many)]
        return [float(f"{math.exp(each) if self.log else each:.6g}") for each in found]


@dataclass(frozen=True)
class Choice:
    """One of these."""

    values: tuple[Value, ...]

    def __str__(self) -> str:
        return ",".join(map(str, self.values))

    def points(self, many: int) -> list[Value]:
        return list(self.values)


Axis = Span | Choice


def _as_they_are(values: Values, factor: float | None, attack: Mapping[str, Any]) -> dict[str, Value]:
    return dict(values)


@dataclass(frozen=True, kw_only=True)
class Space:
    """Settings to choose from."""

    name: str
    axes: Mapping[str, Axis]
    settings: Callable[[Values, float | None, Mapping[str, Any]], dict[str, Value]] = _as_they_are
    """From values on the axes, the factor that was found before, and the attack's own settings to settings of it."""
    before: Mapping[str, Value] = field(default_factory=dict)
    """Values while the factor is looked for."""
    factors: tuple[float, ...] = ()
    """Among which it is, coarsely."""

    def grid(self, points: int) -> list[dict[str, Value]]:
        """Every combination, with so many values of every range."""
        lists = [axis.points(points) for axis in self.axes.values()]
        return [dict(zip(self.axes, values, strict=True)) for values in itertools.product(*lists)]

    @property
    def restarts(self) -> int:
        """At most, where they are chosen too."""
        axis = self.axes.get("restarts")
        return 1 if axis is None else int(max(map(float, axis.points(2))))

    @staticmethod
    def around(factor: float) -> list[float]:
        """Finer, between half and twice the factor."""
        return [factor * (0.5 * (1 - at / 20) + 2 * at / 20) for at in range(20)]


def _by_match(values: Values, factor: float | None, attack: Mapping[str, Any]) -> dict[str, Value]:
    """The program weighs the match, from `start` to `total`, beside a prior of weight 1; we weigh the prior."""
    assert factor is not None
    total, start = float(values["total"]), float(values["start"])
    rest = {key: values[key] for key in ("lr", "decay", "weights")}
    return {"tv": 1 / (factor * total), "ramp": start / total, **rest}


def _by_density(values: Values, factor: float | None, attack: Mapping[str, Any]) -> dict[str, Value]:
    """The density counts whole at the end and from min(1, factor start sigma^2) at first."""
    assert factor is not None
    sigma = attack.get("scale") or 0.1
    ramp = min(1.0, factor * float(values["start"]) * float(sigma) ** 2)
    return {"ramp": ramp, **{key: values[key] for key in ("tv", "lr", "decay")}}


def _halves(first: float, last: float) -> tuple[float, ...]:
    return tuple(first / 2**k for k in range(math.ceil(math.log2(first / last))))


def _times(rate: float, *factors: float) -> Choice:
    return Choice(tuple(round(rate * each, 6) for each in factors))


NAMED: dict[str, Space] = {
    "bayes-480": Space(
        name="bayes-480",
        axes={
            "total": Choice((1.0, 0.5, 1.5, 2.0)),
            "start": Choice((1.0, 0.5, 1.5, 2.0)),
            "lr": _times(0.5, 1.0, 0.8, 1.2),
            "decay": Choice((0.97, 0.95, 0.96, 0.98, 0.94)),
            "weights": Choice(("equal", "by-layer")),
        },
        settings=_by_match,
        before={"total": 1.0, "start": 1.0, "lr": 0.5, "decay": 0.97, "weights": "equal"},
        factors=_halves(1e7, 5e-6),
    ),
    "bayes-540": Space(
        name="bayes-540",
        axes={
            "start": Choice((1.0, 0.25, 0.5, 1.5, 2.0, 3.0)),
            "tv": Choice((0.1, 1.0, 10.0)),
            "lr": _times(0.5, 1.0, 0.5, 0.8, 1.2, 1.5),
            "decay": Choice((0.98, 1.0, 0.95, 0.96, 0.97, 0.94)),
        },
        settings=_by_density,
        before={"start": 1.0, "tv": 0.1, "lr": 0.5, "decay": 0.98},
        factors=_halves(1e3, 1e-4),
    ),
}
"""The Bayes paper's: for l2, l1 and cosine, and for the defense's own density."""

DEFAULT = "default"


def space_of(name: str, words: Sequence[str], attack: str) -> Space:
    """The space of that name for an attack, or one in words; settings in words replace those of the default space."""
    kind, held = spec.parse("attack", attack, presets.BY_NAME)
    signature = inspect.signature(presets.BY_NAME[kind]).parameters
    if name in NAMED:
        if words:
            raise SettingError(f"The space {name} has its own settings, got --set {words[0]} beside it; leave one out.")
        found = NAMED[name]
        probe = found.settings(found.before, 1.0, held)
    elif name == DEFAULT:
        own = dict(map(_axis, words))
        axes = own or _default(kind, held)
        found, probe = (
            Space(name=DEFAULT if not own else "own", axes=axes),
            {k: a.points(2)[0] for k, a in axes.items()},
        )
    else:
        raise SettingError(unknown("space", name, (DEFAULT, *NAMED)))
    if not probe:
        raise SettingError(
            f"Expected an attack with settings to tune, got {attack!r}; name some (--set lr=0.01..1:log)."
        )
    for key in probe:
        if key not in signature:
            raise SettingError(unknown(f"setting of attack {kind!r}", key, signature))
        if key in held:
            raise SettingError(f"{key!r} is to be tuned and stands in the attack {attack!r} too; give it once.")
    return found


def _default(kind: str, held: Mapping[str, Any]) -> dict[str, Axis]:
    """Rate, decay, weights of prior and layers, ramp and restarts, where an attack has them and leaves them open."""
    maker = presets.BY_NAME[kind]
    parameters, hints = inspect.signature(maker).parameters, get_type_hints(maker)
    axes: dict[str, Axis] = {}
    for key in ("lr", "tv", "decay", "weights", "ramp", "restarts"):
        if key not in parameters or key in held:
            continue
        usual, hint = parameters[key].default, hints[key]
        usual = Balanced.most if usual == AUTO else usual
        if get_origin(hint) is Literal:
            axes[key] = Choice(get_args(hint))
        elif key == "restarts":
            axes[key] = Choice((1, 2))
        elif key == "decay":
            axes[key] = Span(0.92, 1.0)
        elif key == "ramp":
            axes[key] = Span(0.01, 1.0, log=True)
        elif usual:
            low, high = (0.1, 4.0) if key == "lr" else (1e-3, 1e2)
            axes[key] = Span(low * usual, high * usual, log=True)
    return axes


def _axis(words: str) -> tuple[str, Axis]:
    key, equals, rest = words.partition("=")
    low, dots, high = rest.partition("..")
    high, colon, scale = high.partition(":")
    try:
        if not (key and equals and rest) or (colon and scale != "log"):
            raise ValueError
        if not dots:
            return key, Choice(tuple(_number(each) for each in rest.split(",")))
        first, last = _number(low), _number(high)
        if isinstance(first, str) or isinstance(last, str):
            raise ValueError
        if not (first < last and math.isfinite(last - first) and (first > 0 or not colon)):
            raise ValueError
        return key, Span(first, last, log=bool(colon))
    except ValueError:
        raise SettingError(
            f"Expected a setting and where to look for it, lr=0.01..1:log (above 0), restarts=1..4 or "
            f"decay=steps,cosine, got --set {words}."
        ) from None


def _number(word: str) -> Value:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
