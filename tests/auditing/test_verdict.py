"""One verdict from all the evidence."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from dosimeter import models, presets
from dosimeter.auditing import Result, Scoring, audit, gate
from dosimeter.auditing.records import Identification, Labels
from dosimeter.auditing.verdict import Kind, _tail, weigh
from dosimeter.data import load, pick, pick_decoys
from dosimeter.errors import SettingError
from dosimeter.metrics import Rate


@given(n=st.integers(1, 3000), share=st.floats(0, 1), chance=st.floats(0.001, 0.999))
def test_tails_are_those_of_the_binomial_law(n: int, share: float, chance: float) -> None:
    hits = round(share * n)
    assert _tail(hits, n, chance) == pytest.approx(float(binom.sf(hits - 1, n, chance)), abs=1e-9)


@pytest.fixture(scope="module")
def short() -> Result:
    """A search that was stopped too early to read anything."""
    data = load("mnist-5k", size=32)
    victims = pick(data, 3, seed=1)
    model = models.build("cnn", shape=victims.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    decoys = pick_decoys(data, victims, 9, seed=0, split="train")
    return audit(model, victims, attack=presets.inverting_gradients(steps=2), scoring=Scoring(decoys=decoys))


def test_a_search_that_fell_short_is_no_pass(short: Result) -> None:
    found = weigh(short)
    assert found.kind is Kind.INCONCLUSIVE
    assert "3 of 3 images the client's own step explains the update better" in found.sentence
    assert short.document()["conclusion"]["kind"] == "inconclusive"
    assert found.sentence in short.summary()


def test_labels_and_identification_leak_though_no_image_is_read(short: Result) -> None:
    labels = Labels(300, 300, guess=0.1, updates=Rate(300, 300))
    told = Identification(26, 64, chance=0.01)
    for more, name in (({"labels": labels}, "labels"), ({"identification": told}, "identified")):
        found = weigh(replace(short, scores=replace(short.scores, **more)))  # type: ignore[arg-type]
        assert found.kind is Kind.LEAKS
        assert name in {claim.name for claim in found.claims if claim.leaks}
    chance = weigh(replace(short, scores=replace(short.scores, identification=Identification(1, 64, chance=0.01))))
    assert chance.kind is Kind.INCONCLUSIVE


def test_what_the_attack_reads_without_the_update_does_not_leak(short: Result) -> None:
    """At a threshold that any image reaches."""
    blind = [replace(r, baseline={"ssim": 0.9}, read=True) for r in short.records]
    assert weigh(replace(short, records=blind)).kind is not Kind.LEAKS
    own = [replace(r, baseline={"ssim": 0.1}, read=True) for r in short.records]
    assert weigh(replace(short, records=own)).kind is Kind.LEAKS


def test_only_images_that_are_hidden_let_a_gate_pass(short: Result) -> None:
    hidden = replace(short, scores=replace(short.scores, evidence={"hidden": 3}, identification=None))
    assert weigh(hidden).kind is Kind.NOT_SHOWN
    assert gate.judge(hidden, gate.limits("read=0.6")).code == gate.PASSES
    assert gate.judge(hidden, gate.limits("read=0.3")).code == gate.INCONCLUSIVE  # 0 of 3 shows less than 56 %
    assert gate.judge(short, gate.limits("read=0.6")).code == gate.INCONCLUSIVE


@given(limit=st.floats(0.001, 0.6))
def test_a_gate_asks_for_as_many_victims_as_it_needs(limit: float) -> None:
    with pytest.raises(SettingError, match="use at least") as refused:
        gate.check({"read": limit}, 1)
    needed = int(str(refused.value).split("use at least ")[1].split(" ")[0].replace(",", ""))
    gate.check({"read": limit}, needed + 1)
    with pytest.raises(SettingError):
        gate.check({"read": limit}, max(1, needed - 2))


def test_a_search_that_fell_short_lets_no_gate_pass_because_something_else_leaks(short: Result) -> None:
    labels = Labels(300, 300, guess=0.1, updates=Rate(300, 300))
    leaking = replace(short, scores=replace(short.scores, labels=labels))
    assert weigh(leaking).kind is Kind.LEAKS
    assert gate.judge(leaking, gate.limits("read=0.6")).code == gate.INCONCLUSIVE
    assert gate.judge(leaking, gate.limits("0.6")).code == gate.FAILS
    assert gate.judge(leaking, gate.limits("1")).code == gate.PASSES
