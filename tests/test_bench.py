"""The benchmark: that it says what it measured, and that all ways it times do the same work."""

import json
import math
import re
import statistics
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from dosimeter.benchmarks import breaching, report, scale, sweeping
from dosimeter.benchmarks.cases import Case
from dosimeter.benchmarks.rounds import interleave, repeat
from dosimeter.benchmarks.ways import Ready, usual_slope
from dosimeter.cli import app
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
        assert f" {case['ratio']:.1f} " in out
    (series,) = found["series"]
    assert [point["size"] for point in series["points"]] == [8, 32]
    assert all(point["median"] == statistics.median(point["rounds"]) > 0 for point in series["points"])
    assert "limit" not in series  # 512 victims were not measured


def check_case(case: dict, rounds: int) -> None:
    """The printed numbers follow from the raw rounds."""
    ways = case["ways"]
    assert {"usual, 1 thread", "vmap", "engine"} <= set(ways)
    for rate in [*ways.values(), *case["peak_gflops"].values()]:
        assert len(rate["rounds"]) == rounds
        assert 0 < rate["min"] <= rate["median"] <= rate["max"]
    others = [statistics.median(rate["rounds"]) for name, rate in ways.items() if name.startswith("usual")]
    assert case["ratio"] == pytest.approx(statistics.median(ways["engine"]["rounds"]) / max(others))
    assert case["gflops"] == pytest.approx(1e-9 * case["flop_per_image_step"] * ways["engine"]["median"])
    assert case["breaching"].startswith("not measured (")
    assert case["verdict"] == "quick"
    assert 0 < case["peak_bytes"] < 2**30
    assert 1 <= case["victims"] <= case["victims_asked"]


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
    assert repeat(lambda: steps.append(1) or 5.0, 1e-9) > 0
    assert steps == [1]


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
        assert process.burst(1, 0.01)() > 1
        assert process.burst(2, 0.01)() > 1


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
        assert math.isnan(process.burst(1, 0.01)())


def test_an_attack_that_breaks_off_is_not_measured(fake: Ready, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEPS", "1")
    with breaching.started(Path(sys.executable), fake) as process:
        assert process.why == ""
        assert math.isnan(process.burst(1, 0.01)())
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
            assert math.isnan(process.burst(1, 0.01)())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "cnnn"), "Did you mean 'cnn'?"),
        (("--seconds", "0"), "more than 0 seconds"),
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
    times = [float(row.split("│")[-3].replace(",", "")) for row in found.output.splitlines() if "%" in row]
    assert len(times) > 20
    assert times == sorted(times, reverse=True)
    assert "bmm" in found.output


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
