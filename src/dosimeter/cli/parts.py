"""What audits of all kinds make of their options."""

import re
from collections.abc import Mapping
from pathlib import Path

from dosimeter import checks, files, fingerprint, metrics, spec
from dosimeter.attacks import Attack, AverageOrders, GuessSteps, searching
from dosimeter.errors import SettingError


def guessing(attack: Attack, steps: str | None, rates: str | None, orders: int | None) -> Attack:
    """The attack, or the same by somebody who does not know all of how clients train locally."""
    guess = steps is not None or rates is not None
    if not guess and orders is None:
        return attack
    if guess and orders is not None:
        raise SettingError("Guessing local steps and averaging orders do not go together; choose one of them.")
    if orders is not None:
        return AverageOrders(attack=attack, draws=orders)
    return GuessSteps(
        attack=searching(attack),
        guesses=() if steps is None else spec.several("--guess-local-steps", steps, int),
        rates=() if rates is None else spec.several("--guess-local-lr", rates, float),
    )


def place(given: Path | None, command: str, **said: object) -> Path:
    """The folder that was given, or one under runs/ of those words alone; refused before any work if not writable."""
    folder = given or Path("runs") / "-".join(filter(None, (command, safe(said))))
    files.check_writable(folder)
    return folder


def safe(said: Mapping[str, object]) -> str:
    """A folder's name for what was said: its words, as far as they go, and letters that tell it from all others."""
    told = {key: value for key, value in said.items() if value is not None}
    words = "-".join(re.sub(r"[^|]*/", "", word) for word in told.values() if isinstance(word, str) and word != "none")
    letters = fingerprint.of(told)[:6] if told else ""
    return "-".join(filter(None, (re.sub(r"[^\w.=+-]", "_", words)[:60], letters)))


def gibibytes(budget: float) -> int:
    """Bytes of a --budget."""
    checks.positive("An audit", "a --budget in GiB", budget)
    return max(1, round(budget * 2**30))


def load_metrics(words: list[str] | None) -> tuple[metrics.Metric, ...]:
    """Metrics of the user's own, each given as path/to/file.py:NAME."""
    found = tuple(spec.own("metric", each) for each in words or ())
    for each, metric in zip(words or (), found, strict=True):
        if not isinstance(metric, metrics.Metric):
            raise SettingError(f"Expected a dosimeter.Metric at {each!r}, got a {type(metric).__name__}.")
    return found  # type: ignore[return-value]


def load_lpips(path: Path | None) -> metrics.Lpips | None:
    """LPIPS by the weights that were named or that are at hand."""
    found = path or metrics.find_weights(None)
    return None if found is None else metrics.Lpips.load(found)
