"""The benchmark: that it says what it measured, and that all ways it times do the same work."""

import json
import math
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from dosimeter.benchmarks import breaching, crew, judging, load, measuring, report, scale, sweeping
from dosimeter.benchmarks.cases import Case, choose
from dosimeter.benchmarks.rounds import interleave, repeat, spread
from dosimeter.benchmarks.ways import Ready, usual_slope
from dosimeter.cli import app
from dosimeter.engine import native
from dosimeter.sweeps import Trial
from dosimeter.sweeps.costs import Span

FAKE = """
import os
import types
import torch
import torch.nn.functional as F

def get_attack_config(attack):
    assert attack == "invertinggradients"
    space = types.SimpleNamespace
    return space(regularization=space(total_variation=space(scale=0.2)), optim=space(max_iterations=24_000))

class Attacker:
    def __init__(self, model, loss, cfg, setup):
        assert cfg.regularization.total_variation.scale == 0
        self.model, self.loss, self.cfg, self.objective = model, loss, cfg, torch.nn.Identity()

    def reconstruct(self, server, shared, secrets, initial_data):
        print("chatter that is no answer")
        assert server[0]["metadata"]["modality"] == "vision"
        labels, observed = shared[0]["metadata"]["labels"], shared[0]["gradients"]
        values = []
        for _ in range(min(self.cfg.optim.max_iterations, int(os.environ.get("FAKE_STEPS", 10**9)))):
            loss = self.loss(self.model(self.objective(initial_data)), labels)
            simulated = torch.autograd.grad(loss, list(self.model.parameters()))
            both = [torch.cat([g.flatten() for g in gradient]) for gradient in (simulated, observed)]
            values.append(1 - F.cosine_similarity(*both, dim=0).item() + float(os.environ.get("FAKE_MORE", 0)))
        return {}, {"Trial_0_Val": values}

attacks = types.SimpleNamespace(prepare_attack=Attacker)
"""


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", "engine", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_a_quick_run_prints_tables_and_writes_what_it_measured(tmp_path: Path) -> None:
    (tmp_path / "bench.json").write_text("of an older run")
    code, out, _ = call("--quick", "--only", "cnn", "--only", "mlp-noise", "--only", "victims", "--out", str(tmp_path))
    assert code == 0
    assert "breaching: not measured (not installed here" in " ".join(out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.svg"]
    found = json.loads((tmp_path / "bench.json").read_text())
    assert [case["name"] for case in found["cases"]] == ["mlp-noise", "cnn"]
    assert [series["name"] for series in found["series"]] == ["victims"]
    assert found["effort"] == {"seconds": 0.01, "rounds": 2, "quick": True}
    for case in found["cases"]:
        check_case(case, rounds=2)
        assert all(f" {each['ratio']:.1f} " in out for each in case["ratios"])
    assert "s; other processes had" in " ".join(out.split())
    (series,) = found["series"]
    assert [point["size"] for point in series["points"]] == [8, 32]
    assert all(point["median"] == statistics.median(point["rounds"]) > 0 for point in series["points"])
    assert "limit" not in series  # 512 victims were not measured


def check_case(case: dict, rounds: int) -> None:
    """The printed numbers follow from the raw rounds."""
    ways, cores = case["ways"], load.available()
    engine = measuring.named("engine", cores)
    assert {"usual, 1 thread", "vmap", "engine, 1 thread", engine} <= set(ways)
    for rate in [*ways.values(), *case["peak_gflops"].values()]:
        assert len(rate["rounds"]) == rounds
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
    assert all(len(rate["steps"]) == rounds and min(rate["steps"]) >= 1 for rate in ways.values())
    usual = {name: rate for name, rate in ways.items() if name.startswith("usual")}
    for each in case["ratios"]:
        if each["cores"] == 1:
            ours, theirs = (
                statistics.median(ways[f"{way}, 1 thread"]["of_core"]["rounds"]) for way in ("engine", "usual")
            )
        else:
            ours = statistics.median(ways[engine]["rounds"])
            theirs = max(statistics.median(rate["rounds"]) for rate in usual.values())
        assert each["ratio"] == pytest.approx(ours / theirs)
        assert each["verdict"] == "quick"
    assert [each["cores"] for each in case["ratios"]] == sorted({1, cores}, reverse=True)
    assert case["gflops"] == pytest.approx(1e-9 * case["flop_per_image_step"] * ways[engine]["median"])
    assert case["breaching"].startswith("not measured (")
    assert case["load"]["seconds"] > 0
    assert 0 < case["peak_bytes"] < 2**30
    assert 1 <= case["victims"] <= case["victims_asked"]


def test_large_cases_run_when_they_are_named() -> None:
    large = ("resnet18-imagenet", "resnet50", "vit-ti", "vit-s")
    usual, series = choose((), quick=False)
    assert not {case.name for case in usual} & {*large}
    assert len(series) == 3
    named, none = choose(("imagenet",), quick=False)
    assert tuple(case.name for case in named) == large
    assert none == ()
    assert {(case.shape, case.classes) for case in named} == {((3, 224, 224), 1000)}
    (one,), _ = choose(("resnet50",), quick=False)
    assert one.settings == {"stem": "imagenet"}
    assert one.victims <= 2


def test_one_core_alone_has_one_ratio(tmp_path: Path) -> None:
    words = ["--quick", "--only", "vit", "--cores", "1", "--rounds", "1", "--out", str(tmp_path)]
    code, _, _ = call(*words)
    assert code == 0
    (case,) = json.loads((tmp_path / "bench.json").read_text())["cases"]
    assert set(case["ways"]) == {"usual, 1 thread", "vmap", "engine, 1 thread"}
    (only,) = case["ratios"]
    assert only["cores"] == 1
    assert len(case["ways"]["vmap"]["rounds"]) == 1


@pytest.mark.parametrize(
    "case",
    [
        Case(name="cnn", model="cnn", victims=3),
        Case(name="lenet", model="lenet", victims=2, batch=2),
        Case(name="mlp", model="mlp", victims=2, settings={"width": 64}),
        Case(name="noise", model="mlp", victims=2, sigma=1e-2, settings={"width": 64}),
    ],
    ids=lambda case: case.name,
)
def test_all_ways_compute_the_same_slope(case: Case) -> None:
    ready = Ready(case)
    observed = [[g[v] for g in ready.observed.values()] for v in range(case.victims)]
    model, loss = ready.target.model, ready.target.loss
    images, labels = ready.images, ready.labels
    usual = torch.stack([usual_slope(model, loss, *row) for row in zip(observed, images, labels, strict=True)])
    engine = torch.cat([tile.slope() for tile in ready.tiles])
    vmap = ready.tile(0, case.victims, "vmap").slope()
    assert apart(engine, usual) < 1e-4
    assert apart(vmap, usual) < 1e-4


def apart(one: Tensor, other: Tensor) -> float:
    """The largest difference on the scale of the largest value."""
    return float((one - other).abs().max() / other.abs().max())


def test_noise_is_on_the_observed_gradients() -> None:
    plain, noisy = (
        Ready(Case(name="", model="mlp", victims=1, sigma=s, settings={"width": 64})).observed for s in (0.0, 1e-2)
    )
    spread = torch.cat([(noisy[name] - plain[name]).flatten() for name in plain]).std()
    assert float(spread) == pytest.approx(1e-2, rel=0.01)


def test_the_order_of_ways_turns() -> None:
    seen: list[str] = []

    def way(name: str) -> float:
        seen.append(name)
        return 1.0

    rates = interleave({name: lambda name=name: way(name) for name in "abc"}, 3, lambda: None)
    assert "".join(seen) == "abcbcacab"
    assert rates == {"a": [1.0] * 3, "b": [1.0] * 3, "c": [1.0] * 3}


def test_a_burst_takes_at_least_one_step() -> None:
    steps: list[int] = []
    taken = repeat(lambda: steps.append(1) or 5.0, 1e-9)
    assert taken.steps == len(steps) == 1
    assert taken.rate > 0


def test_a_crew_keeps_its_threads_and_is_warm_before_it_is_timed() -> None:
    seen: list[tuple[str, int, int]] = []

    def step(name: str) -> float:
        seen.append((name, threading.get_ident(), torch.get_num_threads()))
        time.sleep(0.001)
        return 2.0

    own = [[partial(step, "a"), partial(step, "b")], [partial(step, "c")]]
    with crew.crew(own) as made:
        assert {name: sum(n == name for n, *_ in seen) for name in "abc"} == dict.fromkeys("abc", crew.WARM)
        warm = {thread for _, thread, _ in seen}
        seen.clear()
        taken = [made.burst(0.02) for _ in range(2)]
    assert {thread for _, thread, _ in seen} == warm
    assert len(warm) == 2
    assert {threads for *_, threads in seen} == {1}
    first = [name for name, *_ in seen][: sum(name == "a" for name, *_ in seen)]
    assert "b" not in first  # it stays with one of its steps for a burst
    assert {name for name, *_ in seen} == set("abc")
    assert all(1 < each.steps <= 20 and 0 < each.rate <= 2 * 2.0 / 0.001 for each in taken)
    assert all(each.of_core > 4 * each.rate for each in taken)  # asleep it is on no core


def test_a_slow_step_is_not_taken_often_to_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "LONG", 0.0)
    steps: list[int] = []
    with crew.crew([[lambda: steps.append(sum(range(1000))) or 1.0]]):
        assert len(steps) == 2


def test_a_busy_neighbour_is_seen_and_our_own_work_is_not_one() -> None:
    busy = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    with subprocess.Popen(busy, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it runs
        as_other, as_ours = load.watch(), load.watch([child.pid])
        spent, begin = _spent(child.pid), time.perf_counter()
        while time.perf_counter() - begin < 1:
            sum(range(1000))
        seen, own, took = as_other(), as_ours(), _spent(child.pid) - spent
        child.kill()
    assert seen.others is not None
    assert own.others is not None
    assert seen.others == pytest.approx(own.others + took / seen.seconds, abs=0.15)
    assert seen.others <= load.available() + 0.1


def test_the_time_on_a_core_does_not_count_a_neighbour_on_it() -> None:
    """By which ratios on one core stay what they are: half of the core is half of the rate by the clock alone."""

    def step() -> float:
        sum(range(20_000))
        return 1.0

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # the neighbour inherits it
    try:
        with crew.crew([[step]]) as made:
            alone = [made.burst(0.05) for _ in range(6)]
            with subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=-1) as child:
                assert child.stdout is not None
                child.stdout.readline()
                beside = [made.burst(0.2) for _ in range(6)]
                child.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert statistics.median(each.share for each in beside) < 0.7
    assert max(each.of_core for each in beside) == pytest.approx(max(each.of_core for each in alone), rel=0.2)


def _spent(process: int) -> float:
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def rates(engine: float, usual: float, *, had: float = 1.0) -> dict:
    """Ways on one core, which had so much of it, and on two."""

    def way(rate: float) -> dict:
        return {**spread([had * rate]), "of_core": spread([rate])}

    ways = {"usual, 1 thread": way(usual), "usual, 2 threads": spread([1.1 * usual]), "engine, 1 thread": way(engine)}
    return {**ways, "engine, 2 threads": spread([2 * engine])}


def test_one_core_is_judged_by_the_time_on_it_and_several_by_the_clock() -> None:
    assert judging.compare(rates(30, 1, had=0.6), 1) == ("usual, 1 thread", 30)
    assert judging.compare(rates(33, 10), 2) == ("usual, 2 threads", 6)


def test_a_busy_machine_gets_no_verdict() -> None:
    doubt = judging.crowded(1.02, 80.0, 90.0, cores=2)
    assert doubt == "other processes had 1.02 of 2 cores and the peak on 2 cores is 1.12 times that on one"
    assert judging.crowded(0.1, 80.0, 150.0, cores=2) == judging.crowded(None, cores=2) == ""
    assert judging.stolen(rates(1, 1, had=0.4)["engine, 1 thread"]) == "the thread had 40% of a core"
    assert judging.stolen(rates(1, 1, had=0.9)["engine, 1 thread"]) == ""
    for ratio, floor, said, verdict in (
        (41, 40, "", "reached"),
        (39, 40, "", "not reached"),
        (41, 40, doubt, "busy"),
        (39, 40, doubt, "busy"),
        (39, None, "", ""),
    ):
        bound = judging.Bound(2, floor, said)
        assert judging.verdict(ratio, bound, quick=False) == verdict
        assert judging.verdict(ratio, bound, quick=True) == "quick"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ready:
    """A package of that name where the worker finds it, and victims."""
    (tmp_path / "breaching.py").write_text(FAKE)
    (tmp_path / "omegaconf.py").write_text("class OmegaConf:\n    create = staticmethod(dict)\n")
    (tmp_path / "breaching-0.9.dist-info").mkdir()
    (tmp_path / "breaching-0.9.dist-info" / "METADATA").write_text("Name: breaching\nVersion: 0.9\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return Ready(Case(name="noise", model="cnn", victims=2, batch=2, sigma=1e-2))


def test_breaching_is_timed_by_the_python_that_has_it(fake: Ready) -> None:
    with breaching.started(Path(sys.executable), fake) as process:
        assert process.why == ""
        assert process.version == f"0.9 on torch {torch.__version__}"
        taken = process.burst(1, 0.01)()
        assert taken.rate > 1
        assert taken.of_core > 0.9 * taken.rate
        assert taken.steps >= 1
        assert process.burst(2, 0.01)().rate > 1
        assert process.processes


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("FAKE_MORE", "1e-3", "its loss is 0."),
        ("FAKE_MORE", "nan", "its loss is nan where that of the other ways is 0."),
        ("FAKE_STEPS", "0", "ArithmeticError: its loss is not finite after 0 steps"),
    ],
)
def test_another_loss_is_not_measured(
    fake: Ready, monkeypatch: pytest.MonkeyPatch, name: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(name, value)
    with breaching.started(Path(sys.executable), fake) as process:
        assert process.why.startswith(reason)
        assert math.isnan(process.burst(1, 0.01)().rate)


def test_an_attack_that_breaks_off_is_not_measured(fake: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEPS", "1")
    with breaching.started(Path(sys.executable), fake) as process:
        assert process.why == ""
        assert math.isnan(process.burst(1, 0.01)().rate)
        assert process.why == "ArithmeticError: its loss is not finite after 1 steps"


def test_a_worker_that_is_killed_is_not_excused_by_a_warning(fake: Ready, tmp_path: Path) -> None:
    text = "import os, sys\nsys.stderr.write('a mere warning')\nsys.stderr.flush()\nos.kill(os.getpid(), 9)\n"
    (tmp_path / "breaching.py").write_text(text)
    with breaching.started(Path(sys.executable), fake) as process:
        assert process.why == "it ended with code -9"


def test_a_missing_breaching_is_said_and_never_raised(tmp_path: Path) -> None:
    ready = Ready(Case(name="cnn", model="cnn", victims=1))
    for python, reason in (
        (None, "not installed here"),
        (tmp_path / "nowhere", "cannot run the python that --breaching names: No such file"),
        (Path(sys.executable), "No module named 'breaching'"),
    ):
        with breaching.started(python, ready) as process:
            assert reason in process.why
            assert math.isnan(process.burst(1, 0.01)().rate)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "cnnn"), "Did you mean 'cnn'?"),
        (("--seconds", "0"), "more than 0 seconds"),
        (("--cores", "0"), "so --cores is from 1 to"),
        (("--out", __file__), "choose another --out"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    out = () if "--out" in words else ("--out", str(tmp_path))
    code, _, err = call("--quick", *words, *out)
    assert code == 2
    assert said in " ".join(err.split())


def test_cases_are_named_where_breaching_fared_differently() -> None:
    cases = [{"name": name, "breaching": said} for name, said in (("mlp", "0.1"), ("cnn", "not"), ("vit", "0.1"))]
    assert report._breaching(cases[::2]) == ["breaching: 0.1"]
    assert report._breaching(cases) == ["breaching (mlp, vit): 0.1", "breaching (cnn): not"]


def test_fewer_victims_than_asked_for_are_said() -> None:
    whole = {"name": "mlp", "victims_asked": 128, "victims": 128, "victims_vmap": 128}
    assert report._cut(whole) == ""
    cut = report._cut({**whole, "victims": 56, "victims_vmap": 14})
    assert cut == "mlp: 56 of 128 victims, vmap 14 at once, as many as the memory budget holds"


def test_attacks_end_where_the_usual_ways_do() -> None:
    result = CliRunner().invoke(app, ["bench", "agreement", "--victims", "2", "--steps", "40", "--model", "lenet"])
    assert result.exit_code == 0, result.output
    engine, usual = map(float, re.findall(r"(?:engine|way) (\d\.\d+)", result.stdout))
    assert engine == pytest.approx(usual, abs=0.02)
    assert "over 2 images" in " ".join(result.stdout.split())


def test_a_profile_lists_the_costliest_operations_first() -> None:
    found = CliRunner().invoke(app, ["bench", "profile", "--only", "cnn", "--quick", "--lines", "400"])
    assert found.exit_code == 0, found.output
    assert "cnn, a tile of 2 victims on one thread, by chain" in " ".join(found.output.split())
    times = [float(row.split()[-2].replace(",", "")) for row in found.output.splitlines() if "%" in row]
    assert len(times) > 20
    assert times == sorted(times, reverse=True)
    assert ("bmm" if native.kernels() is None else "dosimeter::conv_") in found.output


def test_training_is_timed_beside_a_plain_loop() -> None:
    words = ["--data", "mnist-5k", "--model", "mlp:width=8,depth=1", "--protocol", "fedsgd:clients=2", "--no-flower"]
    words += ["--workers", "1"]
    result = CliRunner().invoke(app, ["bench", "training", *words, "--rounds", "1", "--turns", "1"])
    assert result.exit_code == 0, result.output
    assert "plain loop" in result.stdout
    assert "in this process" in result.stdout
    result = CliRunner().invoke(app, ["bench", "training", "--rounds", "0"])
    assert result.exit_code == 2


def test_sweeps_are_timed_on_every_place_and_the_store_while_it_is_written_to() -> None:
    load = sweeping.Load(trials=1, steps=2, model="lenet", victims=1, ray=False, seconds=0.1)
    found = sweeping.measure(load, lambda _: None)
    assert [row["place"] for row in found["rows"]] == ["here", "local:1", "local:2"]
    for row in found["rows"]:
        assert row["begins_after"] > 0
        assert row["beside_a_trial"] > 0
        assert 0 < row["trial"] < row["whole"]
    assert found["speed_up"] > 0
    assert found["store"]["entries"] > found["store"]["one writer"] > 0
    assert sweeping.Swept(whole=10, begun=2, attacks=12, workers=2).beside(4) == 1


def test_very_many_updates_are_scaled_from_one(monkeypatch: pytest.MonkeyPatch) -> None:
    one = scale.Scaled(update=Span(1, 2, 4), held=100, sent=1000, victims=10, kept=0.5)
    assert one.days(86_400, 4) == Span(0.25, 0.5, 1)
    assert one.rate(4) == 2000  # of two updates a second
    assert one.writer(4) == 10  # nodes: each ends a trial of 20 core-seconds in 5 s, a writer takes in ten meanwhile
    assert one.lost(3_600_000, 2, 100) == pytest.approx(
        10 * 2 * 10 / 3600
    )  # ten failures, half a trial on two cores each
    monkeypatch.setattr(scale, "SETTINGS", {"small": Trial(model="lenet", attack="ig", victims=2)})
    (row,) = json.loads(CliRunner().invoke(app, ["bench", "scale", "--nodes", "7", "--json"]).stdout)["rows"]
    assert row["bytes_an_update"] > 0
    assert row["days"]["likely"] == pytest.approx(1e6 * row["core_seconds"]["likely"] / (7 * 32 * 86_400))
    shown = CliRunner().invoke(app, ["bench", "scale", "--updates", "12345"]).stdout
    assert "12,345 updates on 10 nodes" in " ".join(shown.split())


def test_lint_is_timed_in_a_process_of_its_own_beside_torch() -> None:
    ran = CliRunner().invoke(app, ["bench", "lint", "--only", "lenet", "--turns", "1"])
    assert ran.exit_code == 0, ran.output
    (row,) = (line.split() for line in ran.output.splitlines() if line.startswith("lenet"))
    whole, beside, _ = (float(each) for each in row[1::2])
    assert whole > beside > 0


def test_planned_memory_stands_beside_what_is_taken(tmp_path: Path) -> None:
    figure = tmp_path / "memory.svg"
    found = CliRunner().invoke(app, ["bench", "memory", "--only", "restarts", "--figure", str(figure), "--json"])
    assert found.exit_code == 0, found.output
    (row,) = json.loads(found.stdout)
    assert "restarts=8" in row["words"]
    assert row["planned"] > 2**20
    assert row["taken"] > 2**20
    assert "<svg" in figure.read_text()
    wrong = CliRunner().invoke(app, ["bench", "memory", "--only", "nothing"])
    assert wrong.exit_code == 2
