"""What trials would cost: counted work foretells that of whole audits, and plans run and write nothing."""

import json
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dosimeter.auditing import perform
from dosimeter.auditing.job import Job
from dosimeter.auditing.panel.panel import audits_of
from dosimeter.benchmarks import costs as fitted
from dosimeter.cli import app
from dosimeter.sweeps import Progress, Store, Trial, costs, sweep
from dosimeter.sweeps.costs import Counter, Prices, Span, Work, cost_of, prices
from dosimeter.sweeps.places import Here
from dosimeter.sweeps.planning import foreseen, last_end, plan

TASK = {"model": "lenet", "attack": "ig", "steps": 9, "victims": 3}
PRICES = Prices(
    machine="a machine of tests", calls=dict.fromkeys(("chain", "tape", "vmap", "one by one", "search"), 1.0),
    flop=0.0, byte=0.0, attack=0.0, image=0.0, start=0.0, trial=0.0, kept=0.0, resident=0, crowd=1.0,
)  # fmt: skip


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    ("more", "form"),
    [({"batch": 2}, "chain"), ({"defense": "cvb", "batch": 2}, "tape"), ({"step": "local:steps=2,lr=0.1"}, "vmap")],
)
def test_first_steps_foretell_the_work_of_a_whole_attack(more: dict[str, Any], form: str) -> None:
    audit = Trial(**TASK | more).prepare().audit
    audit = replace(audit, resources=replace(audit.resources, workers=1))
    said, job = cost_of(audit, PRICES), Job(audit)
    with Counter() as counter:
        found = job.attack_first_tile(lambda **_: None)
        job.attack_first_tile(lambda **_: None, blind=True)
    assert said.form == form
    assert said.images == Span(*[int(found.steps.sum()) * audit.victims.batch] * 3)  # type: ignore[union-attr]
    assert said.work.likely / counter.so_far().flops == pytest.approx(1, abs=0.15)
    assert said.seconds.likely / counter.so_far().calls == pytest.approx(1, abs=0.15)  # at a price of 1 a call


def test_a_plan_counts_the_steps_of_every_attack_of_a_panel() -> None:
    prepared = Trial(model="lenet", steps=4, victims=1, defense="noise:sigma=0.01").prepare()
    (row,) = plan([prepared.asked], "nothing").rows
    audits = audits_of(prepared.audit, steps=4)
    ran = [perform(each) for each in audits if each.attack.steps]
    done = sum(record.steps for result in ran for record in result.records)
    assert (row.attacks, row.refused, row.images) == (len(audits), 0, Span(done, done, done))


def test_searches_that_stop_by_themselves_have_a_least_and_a_most() -> None:
    said = cost_of(Trial(**TASK | {"steps": "auto"}).prepare().audit, PRICES)
    assert said.steps == pytest.approx((600, 1400, 18_600))  # two legs, three, all of them three times
    assert said.seconds.least < said.seconds.likely < said.seconds.most


def test_a_plan_says_what_is_kept_and_shared_and_writes_nothing(tmp_path: Path) -> None:
    store, axes = tmp_path / "kept", [Trial(**TASK | {"steps": 2, "victims": 1})]
    assert [each.status for each in plan(axes, store, on="local:2").rows] == ["to run"]
    assert not store.exists()
    sweep(axes, store=store)
    before = {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}
    more = [replace(axes[0], protocol="ppp:rounds=2,clients=2", attack=attack) for attack in ("ig", "ig-a")]
    found = plan([*axes, *more], store, on="local:2")
    assert [(each.kind, each.status, each.shared) for each in found.rows] == [
        ("training", "to run", 2), ("audit", "kept", 0), ("audit", "to run", 0), ("audit", "to run", 0)
    ]  # fmt: skip
    assert found.rows[1].seconds == Span()
    assert found.seconds == pytest.approx(Span.total([each.seconds for each in found.left]))
    assert {path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()} == before
    assert not multiprocessing.active_children()
    twice = plan([replace(each, protocol="ppp:rounds=4,clients=2") for each in more[:1]], store).rows[0]
    assert twice.seconds.most == pytest.approx(2 * found.rows[0].seconds.most)


def test_the_command_line_says_a_plan_as_a_table_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = (
        "sweep",
        "--model",
        "lenet",
        "--attack",
        "ig",
        "--steps",
        "5",
        "--victims",
        "2",
        "--seeds",
        "2",
        "--dry-run",
    )
    code, out, _ = call(*words, "--json", "--on", "local:2")
    found = json.loads(out)
    assert (code, len(found["trials"]), found["trials"][0]["images"]["most"]) == (0, 2, 10)
    code, out, _ = call(*words)
    assert (code, "2 to run" in out, "--on here" in out) == (0, True, True)
    assert not list(tmp_path.iterdir())


def test_prices_of_this_machine_come_before_those_that_are_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOSIMETER_CACHE", str(tmp_path))
    prices.cache_clear()
    try:
        shipped = prices()
        assert min(*shipped.calls.values(), shipped.flop, shipped.byte) > 0
        costs.keep(PRICES)
        prices.cache_clear()
        assert prices() == shipped  # those of another machine are not taken for this one's
        costs.keep(replace(PRICES, machine=costs.machine()))
        prices.cache_clear()
        assert prices().flop == 0
        (tmp_path / costs.FILE).write_text("{}")
        prices.cache_clear()
        with pytest.raises(costs.DataError, match="make it anew: dosimeter bench costs"):
            prices()
    finally:
        prices.cache_clear()


def test_the_fit_finds_the_prices_that_its_cases_were_made_with() -> None:
    drawn = torch.rand(24, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    true = replace(PRICES, calls={"chain": 2e-6, "tape": 6e-6, "vmap": 1e-5, "search": 8e-6}, flop=1e-11, byte=5e-11)
    points = []
    for at, (calls, flops, size) in enumerate((drawn * torch.tensor([1e3, 1e9, 1e8])).tolist()):
        point = fitted.Point("", fitted.FORMS[at % 4], 1, Work(calls, flops, size), 0.0)
        points.append(point._replace(seconds=point.said(true)))
    found = fitted._solve(points)
    assert found.flop == pytest.approx(true.flop)
    assert found.byte == pytest.approx(true.byte)
    assert {form: found.calls[form] for form in true.calls} == pytest.approx(true.calls)
    assert found.calls["one by one"] == found.calls["vmap"]


def test_the_last_worker_ends_when_the_sum_of_what_it_took_is_done() -> None:
    assert last_end([3, 1, 1, 1], 2) == 3
    assert last_end([1, 1, 1, 3], 2) == 4
    assert last_end([], 2) == 0


def test_time_left_is_told_by_what_unlike_trials_are_foreseen_to_take(tmp_path: Path) -> None:
    some = [Trial(**TASK | {"steps": steps, "victims": 1}).prepare() for steps in (2, 400)]
    said = foreseen(some, Here())
    assert said[some[1].digest] > 3 * said[some[0].digest]
    assert foreseen(some[:1], Here()) == {}
    digests = frozenset(each.digest for each in some)
    with Store(tmp_path / "store") as store:
        progress = Progress(digests, frozenset(), foreseen=said).look(store)
        assert progress.remaining == pytest.approx(sum(said.values()))
        store.claim(some[0].digest, "audit", {})
        store.trained(some[0].digest, {}, 2 * said[some[0].digest])  # it took twice as long
        assert progress.look(store).remaining == pytest.approx(2 * said[some[1].digest])
        plain = Progress(digests, frozenset()).look(store)
        assert plain.remaining == pytest.approx(plain.seconds)  # one of two was done
