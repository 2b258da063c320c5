"""Whether audits say what is known for certain: no false pass, few false alarms, and how often they cannot tell."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from dosimeter.auditing.verdict import Kind
from dosimeter.studies.study import Outcome, Row, Study

SEEDS = range(5)

_TASK = {"data": "mnist-5k", "victims": 4, "steps": None, "until_read": True}
_KNOWN: tuple[dict[str, object], ...] = (
    {"model": "cnn", "attack": "auto", "leaks": True},
    {"model": "cnn", "attack": "ig:secrets=known", "defense": "cvb", "leaks": True},  # all revealed
    {"model": "cnn", "attack": "auto", "defense": "noise:sigma=0.0001", "leaks": True},
    {"model": "cnn", "attack": "auto", "defense": "noise:sigma=100", "leaks": False},
    {"model": "cnn", "attack": "auto", "defense": "precode", "leaks": True},
    {"model": "cnn", "attack": "auto", "defense": "cvb", "leaks": True},
    {"model": "cnn", "attack": "auto", "defense": "fedkl", "leaks": True},
    {"model": "mlp-bayes", "attack": "auto", "defense": "ats", "leaks": True},
    {"model": "cnn-bayes", "attack": "auto", "defense": "soteria", "leaks": True},
    {"model": "cnn", "attack": "ig:labels=counts,steps=1", "batch": 16, "leaks": True},  # labels alone
    {"model": "cnn", "attack": "ig:steps=2", "leaks": True},  # too short to read what leaks
    {"model": "cnn", "attack": "ig:lr=1e-09,steps=50", "leaks": True},  # a broken attack
)
"""Settings whose answer is known: each defense that leaks has an attack that reads images of it in the papers or here,
and noise of 100 on every entry leaves a millionth of what an update says."""


def summary(found: Sequence[tuple[Row, Outcome]]) -> str:
    """A line a setting, over its seeds, and how often all were wrong or could not tell."""
    settings: dict[str, list[tuple[Row, str]]] = {}
    for row, outcome in found:
        same = {key: value for key, value in asdict(row).items() if key != "seed"}
        settings.setdefault(repr(same), []).append((row, outcome.verdict or ""))
    lines = ["| model | defense | attack | images | known | verdicts |", "|---" * 6 + "|"]
    for each in settings.values():
        row, counts = each[0][0], Counter(verdict for _, verdict in each)
        said = ", ".join(f"{kind.value} {counts[kind]} of {len(each)}" for kind in Kind if counts[kind])
        known = "leaks" if row.leaks else "does not"
        lines.append(
            f"| `{row.model}` | {row.defense} | `{row.attack}` | {row.victims} of {row.batch} | {known} | {said} |"
        )
    rows = [(row, outcome.verdict) for row, outcome in found]
    passes = sum(verdict == Kind.NOT_SHOWN for row, verdict in rows if row.leaks)
    alarms = sum(verdict == Kind.LEAKS for row, verdict in rows if not row.leaks)
    unclear = sum(verdict == Kind.INCONCLUSIVE for _, verdict in rows)
    leaking = sum(bool(row.leaks) for row, _ in rows)
    total = (
        f"False passes: {passes} of {leaking}. False alarms: {alarms} of {len(rows) - leaking}. "
        f"Cannot tell: {unclear} of {len(rows)}."
    )
    return "\n".join([*lines, "", total])


STUDY = Study(
    name="verdicts",
    question="Do audits say what is known for certain?",
    rows=tuple(Row(**(_TASK | known), seed=seed) for seed in SEEDS for known in _KNOWN),  # type: ignore[arg-type]
    columns=("model", "defense", "attack", "SSIM", "images read", "labels right", "evidence", "verdict"),
    summary=summary,
)
