"""Searches that fell short are begun anew; the truth says of whom, the match what is kept."""

from dataclasses import replace

import pytest
import torch

from dosimeter import defenses, models, presets, trees
from dosimeter.attacks import Search, Stop
from dosimeter.auditing import Resources, audit
from dosimeter.auditing.again import _lower, search_again
from dosimeter.auditing.evidence import Evidence
from dosimeter.auditing.job import Job
from dosimeter.auditing.setting import Audit
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.data import load, pick
from dosimeter.types import Curve, Ended, Outcome, Reconstruction, Victims

SHORT = replace(presets.inverting_gradients(), stop=Stop(steps=12, leg=12))


@pytest.fixture(scope="module")
def digits() -> Victims:
    return pick(load("mnist-5k", size=14), 3, seed=1)


def job(victims: Victims, attack: Search) -> Job:
    model = models.build("mlp-2", shape=victims.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    return Job(Audit(model=model, victims=victims, attack=attack, resources=Resources(dtype=torch.float64)))


def quiet(*_: object, **__: object) -> None:
    return


def found_of(match: list[float], outcome: Outcome = Outcome.SETTLED, **more: object) -> Reconstruction:
    n = len(match)
    values = torch.tensor(match)
    images = values[:, None, None, None, None].expand(n, 1, 1, 2, 2)
    zeros = torch.zeros(n, dtype=torch.long)
    curve = Curve((0,), values[:, None])
    return Reconstruction(images, None, values, zeros, zeros, (Ended(outcome),) * n, curve)._replace(**more)


def test_of_several_searches_the_best_match_is_kept_and_a_search_that_was_cut_counts_for_nothing() -> None:
    before = found_of([0.5, 0.5, 0.5, 0.5])
    kept = _lower(before, found_of([0.4, 0.6], restart=torch.ones(2, dtype=torch.long)), [1, 3])
    assert kept.match.tolist() == pytest.approx([0.5, 0.4, 0.5, 0.5])
    assert kept.images[:, 0, 0, 0, 0].tolist() == kept.match.tolist()
    assert kept.restart.tolist() == [0, 1, 0, 0]
    assert kept.again == (0, 1, 0, 1)
    cut = _lower(kept, found_of([0.1, 0.1], Outcome.OUT_OF_TIME), [1, 3])
    assert cut.match.tolist() == kept.match.tolist()
    assert cut.again == kept.again


def test_victims_that_fell_short_are_read_from_another_start_and_no_other_is_touched(digits: Victims) -> None:
    enough = replace(SHORT, stop=Stop(steps=30, leg=30))
    whole = job(digits, enough)
    ran = whole.run(quiet)
    short = ran._replace(found=ran.found._replace(images=torch.zeros_like(ran.found.images), match=ran.found.match + 1))
    found = search_again(whole, short, None, spare={1})
    assert found.again[0] >= 1 <= found.again[2]
    assert found.again[1] == 0
    assert (found.match < short.found.match).tolist() == [True, False, True]
    assert (found.restart > 0).tolist() == [True, False, True]
    one = short._replace(
        found=trees.chosen(short.found, [2]), blind=trees.chosen(short.blind, [2]), truth=short.truth[2:]
    )
    alone = search_again(job(digits.take([2]), enough), one, None)
    assert torch.allclose(alone.images[0], found.images[2], atol=1e-6)
    assert alone.again == (found.again[2],)


def test_a_search_is_begun_anew_once_more_only_where_that_helped(digits: Victims) -> None:
    whole = job(digits, replace(SHORT, stop=Stop(steps=6, leg=6)))
    ran = whole.run(quiet)
    best = ran._replace(truth=ran.truth - 3, found=ran.found._replace(match=ran.found.match - 2))  # as good as it gets
    found = search_again(whole, best, None)
    assert found.again == (1, 1, 1)
    assert torch.equal(found.match, best.found.match)
    assert torch.equal(found.images, best.found.images)
    assert search_again(whole, best, None, limit=0.0) is best.found


def test_the_default_search_reads_what_a_short_one_cannot(digits: Victims) -> None:
    model = models.build("mlp-2", shape=digits.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    noise = defenses.GaussianNoise(sigma=1e-4)
    few = audit(model, digits, attack="ig:steps=3", defense=noise)
    assert few.scores.evidence == {Evidence.FELL_SHORT: 3}
    assert all(record.again is None for record in few.records)  # as many steps as were asked for
    assert "--steps auto" in weigh(few).sentence
    by_itself = audit(model, digits, attack=replace(SHORT, stop=Stop(steps=300, leg=20)), defense=noise)
    assert by_itself.scores.evidence == {Evidence.READ: 3}
    assert (few.settings["steps"], by_itself.settings["steps"]) == (3, "auto")


def test_who_is_not_done_when_time_is_up_is_not_told_of(digits: Victims) -> None:
    model = models.build("mlp-2", shape=digits.shape, classes=10, seed=0, mean=(0.13,), std=(0.31,))
    noise = defenses.GaussianNoise(sigma=30)
    result = audit(model, digits, attack="ig:steps=1000000", defense=noise, resources=Resources(minutes=0.002))
    assert result.scores.unmeasured == {Outcome.OUT_OF_TIME: 3}
    assert {record.stopped for record in result.records} == {"out of time"}
    assert (result.status, result.settings["minutes"]) == ("complete", 0.002)
    verdict = weigh(result)
    assert verdict.kind is Kind.INCONCLUSIVE
    assert "up before it was done with 3 of 3 updates; give it more time (--minutes 0.004)" in verdict.sentence
