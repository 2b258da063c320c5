"""The verdict of an audit whose dose was measured."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dosimeter import models, presets, store
from dosimeter.auditing import Result, audit, gate
from dosimeter.auditing.dosed import Dosed, Pair, Standing
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.data import load, pick


def dosed(predicted: Sequence[float], reached: Sequence[float], share: float = 0.9) -> Dosed:
    both = enumerate(zip(predicted, reached, strict=True))
    pairs = (Pair(id=f"test:{at}", place=0, predicted=p, reached=r, attack="ig") for at, (p, r) in both)
    return Dosed(prior="images", share=share, pairs=tuple(pairs))


@pytest.fixture(scope="module")
def hidden() -> Result:
    """An audit in which what was found explains all updates and nothing is read."""
    victims = pick(load("mnist-5k", size=32), 3, seed=1)
    model = models.build("lenet", shape=victims.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    found = audit(model, victims, attack=presets.inverting_gradients(steps=2))
    scores = replace(found.scores, evidence={"hidden": 3}, labels=None, identification=None)
    return replace(found, scores=scores, records=[replace(r, read=False, baseline=None) for r in found.records])


def test_a_dose_and_attacks_that_agree_are_said_to(hidden: Result) -> None:
    assert weigh(hidden).kind is Kind.NOT_SHOWN
    found = weigh(replace(hidden, dosed=dosed((12, 13, 14), (11, 12, 13))))
    assert found.kind is Kind.NOT_SHOWN
    assert found.sentence.endswith("comes to 13.0 dB and the best attack on each image to 12.0 dB: the two agree.")
    some = weigh(replace(hidden, dosed=dosed((16, 17, 18), (11, 12, 13))))
    assert (some.kind, "some of what the updates tell unread" in some.sentence) == (Kind.NOT_SHOWN, True)


def test_nothing_that_was_read_is_no_pass_where_the_dose_says_that_far_more_could_be(hidden: Result) -> None:
    wide = replace(hidden, dosed=dosed((60, 61, 62), (4, 5, 6)))
    found = weigh(wide)
    assert found.kind is Kind.INCONCLUSIVE
    assert "determine 90% of an image, 61.0 dB, and attacks reach 5.0 dB, so that attacks or dose are weak" in (
        found.sentence
    )
    assert "wide gap" not in found.sentence  # which would say the same again
    limits = gate.limits("read=0.6")
    assert gate.judge(hidden, limits).code == gate.PASSES
    assert gate.judge(wide, limits).code == gate.INCONCLUSIVE


def test_a_wide_gap_of_an_update_that_determines_little_is_said_and_no_doubt(hidden: Result) -> None:
    """A linear reader comes to so many dB by its prior alone."""
    found = weigh(replace(hidden, dosed=dosed((20, 21, 22), (11, 12, 13), share=0.02)))
    assert found.kind is Kind.NOT_SHOWN
    assert "a wide gap, so the attacks are weak here, or the dose is" in found.sentence


def test_an_attack_beyond_the_dose_is_a_contradiction_once_it_is_beyond_the_spread() -> None:
    beyond = dosed((20, 21, 22), (23, 24.5, 25.2))
    assert beyond.standing is Standing.BEYOND
    assert "more than the 21.0 dB of the dose, which is a contradiction" in beyond.sentence
    assert dosed((20, 21, 22), (20.5, 21.5, 22.5)).standing is Standing.AGREES  # less than 1 dB
    scattered = dosed((20, 21, 22), (40, 15, 16))
    assert scattered.gap < -1
    assert scattered.standing is Standing.AGREES


def test_a_leak_is_said_with_its_dose(hidden: Result) -> None:
    leaking = replace(hidden, records=[replace(r, read=True) for r in hidden.records], dosed=dosed((61,), (5,)))
    found = weigh(leaking)
    assert found.kind is Kind.LEAKS
    assert found.sentence.endswith(leaking.dosed.sentence)  # type: ignore[union-attr]


def test_the_dose_of_an_audit_survives_its_file(hidden: Result, tmp_path: Path) -> None:
    told = replace(hidden, dosed=dosed((60, 61, 63), (4, 5, 5.5)))
    store.write_run(told, tmp_path / "run")
    read = store.read(tmp_path / "run")
    assert isinstance(read, Result)
    assert read.dosed == told.dosed
    kept = told.document()["dose"]
    assert (kept["standing"], len(kept["pairs"])) == ("wide gap", 3)
    assert kept["correlation"] == pytest.approx(0.9286, abs=1e-3)
    assert read.document() == told.document()
