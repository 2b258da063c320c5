"""What is known for certain, beside what audits say of it."""

from dataclasses import replace
from pathlib import Path

from dosimeter import studies
from dosimeter.studies import Outcome, Row
from dosimeter.studies.verdicts import STUDY, summary


def test_every_kind_of_known_answer_is_asked_about_with_every_seed() -> None:
    settings = {(row.model, row.defense, row.attack, row.batch, row.leaks) for row in STUDY.rows}
    assert len(settings) >= 12
    assert len(STUDY.rows) == 5 * len(settings)
    assert {row.leaks for row in STUDY.rows} == {True, False}


def test_false_passes_and_false_alarms_are_counted() -> None:
    leaks, quiet = Row(model="cnn", leaks=True), Row(model="cnn", defense="noise:sigma=100", leaks=False)
    zeros = (0.0,) * 4
    said = {
        verdict: Outcome(*zeros, "0 of 8", 1.0, verdict=verdict) for verdict in ("leaks", "not shown", "inconclusive")
    }
    text = summary(
        [(leaks, said["not shown"]), (leaks, said["leaks"]), (quiet, said["leaks"]), (quiet, said["inconclusive"])]
    )
    assert "False passes: 1 of 2. False alarms: 1 of 2. Cannot tell: 1 of 4." in text
    assert "| leaks | leaks 1 of 2, not shown 1 of 2 |" in text


def test_a_search_of_two_steps_and_a_broken_one_are_no_pass(tmp_path: Path) -> None:
    rows = [
        replace(row, victims=2)
        for row in STUDY.rows
        if row.seed == 0 and ("steps=2" in row.attack or "lr=1e" in row.attack)
    ]
    assert len(rows) == 2
    found = [(row, outcome) for row, outcome, _ in studies.run(replace(STUDY, rows=tuple(rows)), tmp_path) if outcome]
    assert {outcome.verdict for _, outcome in found} == {"inconclusive"}
    assert {outcome.evidence for _, outcome in found} == {"2 fell short"}
    assert "False passes: 0 of 2" in summary(found)
