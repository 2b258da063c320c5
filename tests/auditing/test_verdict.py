"""One verdict from all the evidence."""

from dataclasses import replace

import numpy as np
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


def test_a_verdict_says_for_whom_what_would_have_been_caught_and_what_would_settle_it(short: Result) -> None:
    labels = Labels(300, 300, guess=0.1, updates=Rate(300, 300))
    read = [replace(r, baseline={"ssim": 0.1}, read=True) for r in short.records]
    both = weigh(replace(short, records=read, scores=replace(short.scores, labels=labels)))
    assert "3 of 3 images are read" in both.sentence
    assert both.details[0].startswith("Also, 300 of 300 labels")
    assert f"number {short.scores.worst.index} of the data" in both.details[-1]
    hidden = replace(short, scores=replace(short.scores, evidence={"hidden": 3}, identification=None))
    assert "read 63.2% of such images" in weigh(hidden).details[0]  # 1 - 0.05^(1/3)
    words = "dosimeter audit --attack ig:tv=0.1,steps=2 --out 'my runs/a'"
    assert weigh(replace(short, command=words)).settles == "dosimeter audit --attack ig:tv=0.1,steps=8"
    assert weigh(replace(short, command="dosimeter audit --steps 2")).settles == "dosimeter audit --steps 8"
    assert weigh(replace(short, command="dosimeter audit")).settles == "dosimeter audit --steps 8"
    assert not weigh(short).settles


def test_the_interval_of_the_best_of_several_attacks_is_wider() -> None:
    """Of attacks of equal strength the luckiest is picked, so an interval of its own would miss too often."""
    draws = np.random.default_rng(0).binomial(32, 0.5, size=(2000, 6)).max(1)
    alone = np.mean([Rate(int(hits), 32).low > 0.5 for hits in draws])
    allowed = np.mean([Rate(int(hits), 32, 6).low > 0.5 for hits in draws])
    assert alone > 0.05 > allowed
