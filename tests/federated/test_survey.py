"""A whole federation from what its server kept, which needs nothing of Flower."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from dosimeter import store
from dosimeter.attacks.pool import least_squares_from_zero
from dosimeter.auditing import Survey, gate
from dosimeter.cli import app
from dosimeter.clients import LocalTraining, optimisers
from dosimeter.data import load, pick
from dosimeter.errors import SettingError
from dosimeter.federated import plan, survey, update
from dosimeter.federated.facts import trained
from dosimeter.federated.kept import Kept, read_kept
from dosimeter.types import Victims

RATE = 0.01
MODEL = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Sigmoid(), nn.Flatten(), nn.Linear(1152, 10)
    return nn.Sequential(*layers)
"""
held: dict[str, Any] = {}
exec(MODEL, held)
make: Callable[[], nn.Module] = held["make"]


DIGITS = load("mnist-5k", size=12)


def batch(round_: int, node: int, n: int) -> Victims:
    """The digits that a client has in a round."""
    first = 1000 * round_ + 100 * node
    places = [7 * place % 4000 for place in range(first, first + n)]  # they come by classes
    return pick(DIGITS, 1, indices=[places], batch=n)


def federation(
    folder: Path,
    *,
    rounds: int = 2,
    nodes: int = 3,
    n: int = 1,
    steps: int = 1,
    train: bool = True,
    noise: float = 0.0,
    **config: Any,
) -> plan.Batches:
    """What Keep would have written of clients that take plain steps; the truth of every update."""
    truth, model = {}, make().train(train)
    for round_ in range(1, rounds + 1):
        place, replies = folder / f"round-{round_}", []
        place.mkdir(parents=True)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        save_file(before, place / "before.safetensors")
        for node in range(nodes):
            model.load_state_dict(before)
            truth[round_, node] = private = batch(round_, node, n)
            rule = torch.optim.SGD(model.parameters(), lr=RATE)
            for _ in range(steps):
                rule.zero_grad()
                F.cross_entropy(model(private.images[0]), private.labels[0]).backward()
                rule.step()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(noise * torch.randn_like(weight))
            save_file(dict(model.state_dict()), place / f"node-{node}.safetensors")
            entry = {"node": node, "files": [f"node-{node}.safetensors"], "examples": n, "metrics": {}}
            replies.append(entry | {"config": {"lr": RATE, **config}})
        (place / "round.json").write_text(json.dumps({"round": round_, "replies": replies}))
    return truth


def kept(examples: int | None = 4, config: dict[str, Any] | None = None, *, counted: int = 0, **metrics: Any) -> Kept:
    """An update whose batch norm has counted so many passes."""
    before = {name: tensor.clone() for name, tensor in make().state_dict().items()}
    after = {name: tensor + 0.01 if tensor.is_floating_point() else tensor + counted for name, tensor in before.items()}
    return Kept(1, 5, before, after, examples, metrics, config or {})


def test_training_is_read_from_messages_and_batch_norms() -> None:
    one = trained(kept(1, {"learning_rate": 0.5}, counted=1), make())
    assert (one.images, one.lr, one.step, one.batch_norm, one.doubts) == (1, 0.5, None, "batch", ())
    told = {"lr": 0.1, "local-epochs": 2, "batch-size": 2, "momentum": 0.9, "weight-decay": 1e-3, "proximal-mu": 0.1}
    several = trained(kept(4, told), make())
    rule = optimisers.SGD(momentum=0.9, weight_decay=1e-3)
    assert several.step == LocalTraining(epochs=2, lr=0.1, batch_size=2, optimiser=rule)
    assert several.doubts == ("its proximal term (mu 0.1) is not simulated",)
    ahead = trained(kept(4, told | {"nesterov": True}), make())
    assert ahead.step == LocalTraining(epochs=2, lr=0.1, batch_size=2, optimiser=replace(rule, nesterov=True))
    assert "Nesterov momentum 0.9" in ahead.words
    said = trained(kept(1000, lr=0.1, steps=2, batch_size=8, momentum=0.0), make())  # by the client alone
    assert said.images == 16  # what its steps take, not all that it has
    assert said.step == LocalTraining(steps=2, lr=0.1, batch_size=8)
    adam = trained(kept(1, {"lr": 0.1, "steps": 1, "optimizer": "adam"}), make())
    assert adam.step == LocalTraining(steps=1, lr=0.1, optimiser=optimisers.Adam())


@pytest.mark.parametrize(
    ("seen", "missing"),
    [
        (kept(1), r"the learning rate \(lr\), the number of local steps"),
        (kept(1, {"lr": True, "steps": 1}), "the learning rate"),
        (kept(4, {"lr": 0.1, "local-epochs": 1}), "batch-size"),
        (kept(4, {"lr": 0.1, "local-epochs": 1, "batch-size": 2}), "the momentum"),
        (kept(4, {"lr": 0.1}, counted=3), r"the images of a step \(batch-size\), the momentum"),
        (kept(None, {"lr": 0.1, "steps": 1}), "--batch"),
    ],
)
def test_what_cannot_be_read_is_asked_for_and_never_assumed(seen: Kept, missing: str) -> None:
    with pytest.raises(SettingError, match=missing):
        trained(seen, make())
    assert trained(seen, make(), said=LocalTraining(steps=1, lr=0.1), batch=4).lr == 0.1


def test_what_contradicts_itself_is_said() -> None:
    said = LocalTraining(steps=1, lr=0.5)
    found = trained(kept(4, {"lr": 0.1}, counted=3), make(), said=said)
    assert found.step == LocalTraining(steps=3, lr=0.5)  # which its batch norms have counted
    assert found.doubts[0] == "--step says lr 0.5, its messages 0.1"
    assert "counted 3 local step(s), where --step say(s) 1" in found.doubts[1]
    like_adam = trained(kept(1, {"lr": 0.01, "steps": 1}), make())
    assert "as Adam's do" in like_adam.doubts[0]


def test_shadows_speak_for_updates_whose_truth_is_not_known(tmp_path: Path) -> None:
    federation(tmp_path, rounds=1, nodes=1, train=False, **{"local-steps": 1})
    held = plan.Beside(dataset=DIGITS, shadows=6)
    found = survey.audit(tmp_path, make(), shape=(1, 12, 12), attack="ig:steps=60,tv=0.001,lr=0.1", beside=held)
    claims = {claim.name: claim for claim in found.verdict.claims}
    assert found.entries[0].finding is not None
    assert found.entries[0].finding.shadows.updates == 6
    assert claims["read"].leaks
    assert "as those of other images like them do" in claims["read"].words
    assert gate.judge(found.pooled, gate.limits("read=0.5")).code == gate.FAILS


def test_an_update_of_another_scale_than_was_said_is_doubted(tmp_path: Path) -> None:
    truth = federation(tmp_path, rounds=1, nodes=1, n=4, train=False)
    found = survey.audit(tmp_path, make(), shape=(1, 12, 12), attack="labels", step=f"local:steps=1,lr={RATE / 10}")
    (one,) = found.entries
    assert any("--step says lr" in each for each in one.beware)
    assert any("no mean over 4 image(s) has such a gradient" in each for each in one.beware)
    assert one.labels is None
    assert found.verdict.kind == "inconclusive"
    assert truth


def test_clients_that_train_with_the_statistics_of_their_batch_are_read_without_a_word_on_them(tmp_path: Path) -> None:
    truth = federation(tmp_path, rounds=1)
    found = survey.audit(
        tmp_path, make(), shape=(1, 12, 12), attack="ig:steps=60,tv=0.001,lr=0.1", beside=plan.Beside(truth=truth)
    )
    assert [each.trained for each in found.entries] == ["1 step at lr 0.01, batch norm by its batch"] * 3
    assert min(each.ssim or 0.0 for each in found.entries) > 0.97, [each.ssim for each in found.entries]
    assert "3 of 3 images are read" in found.verdict.sentence
    assert not found.verdict.doubt
    which = plan.Which(batch_norm="running")
    how: dict[str, Any] = {"attack": "labels", "which": which, "beside": plan.Beside(truth=truth)}
    wrong = survey.audit(tmp_path, make(), shape=(1, 12, 12), **how)
    assert "not what the truth gives by this training" in wrong.verdict.doubt


def test_reading_and_auditing_what_was_kept_does_not_need_flower() -> None:
    program = "import sys, dosimeter.federated.survey, dosimeter.cli.kept; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=100).returncode == 0


@pytest.mark.parametrize("train", [True, False])
def test_large_batches_are_told_by_their_labels_and_from_a_pool(train: bool, tmp_path: Path) -> None:
    truth = federation(tmp_path, rounds=1, nodes=1, n=40, train=train, **{"local-steps": 1})
    others = batch(2, 0, 160)
    pool = plan.Pool(others.images[0], others.labels[0])
    (one,) = survey.audit(tmp_path, make(), shape=(1, 12, 12), beside=plan.Beside(truth=truth, pool=pool)).entries
    assert one.left_out == {"images": "40 images, more than 16 (--most)"}
    assert one.labels is not None
    assert one.labels.rate > 0.9
    assert one.pool is not None
    assert (one.pool.chance, one.pool.of) == (0.2, 40)
    assert one.pool.rate > 0.95
    # Without the truth, images of the pool are named where it explains the whole update, and only then.
    private = truth[1, 0]
    whole = plan.Pool(torch.cat([pool.images, private.images[0]]), torch.cat([pool.labels, private.labels[0]]))
    with_all, with_none = (
        survey.audit(tmp_path, make(), shape=(1, 12, 12), beside=plan.Beside(pool=each)).entries[0]
        for each in (whole, pool)
    )
    assert set(with_all.named) == set(range(160, 200))
    assert with_all.exposed == 1.0
    assert with_none.named == ()
    assert len(with_none.nearest) == 5


def test_weights_from_zero_on_are_those_of_least_squares() -> None:
    rng = torch.Generator().manual_seed(0)
    rows = torch.randn(30, 12, generator=rng, dtype=torch.float64)
    truth = torch.randn(12, generator=rng, dtype=torch.float64).clamp_min(0)
    aim = rows @ truth + 0.5 * torch.randn(30, generator=rng, dtype=torch.float64)
    found = least_squares_from_zero(rows.T @ rows, rows.T @ aim)
    slope = rows.T @ (rows @ found - aim)
    assert (found >= 0).all()
    assert (slope > -1e-9).all()  # the conditions of Karush, Kuhn and Tucker
    assert float((slope * found).abs().max()) < 1e-9


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["audit", "--model", "mine.py:make", "--shape", "1,12,12", *words])


def write_truth(folder: Path, truth: plan.Batches) -> None:
    for (round_, node), private in truth.items():
        place = folder / f"round-{round_}"
        place.mkdir(parents=True, exist_ok=True)
        images = private.images[0].permute(0, 2, 3, 1).numpy()
        np.savez(place / f"node-{node}.npz", images=images, labels=private.labels[0].numpy())


def test_a_federation_is_audited_from_its_folder(here: Path) -> None:
    write_truth(here / "truth", federation(here / "kept", nodes=2, train=False, **{"local-steps": 1}))
    words = ["--kept", "kept", "--attack", "ig:labels=idlg", "--steps", "3", "--truth", "truth", "--out", "run"]
    done = run(*words, "--fail-above", "0.9")
    assert done.exit_code == gate.FAILS, done.output
    assert "Most exposed: node" in done.output
    assert "round 2" in done.output
    assert "all, mean exposure" in done.output
    found = store.read("run")
    assert isinstance(found, Survey)
    assert [(each.round, each.node) for each in found.entries] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert found.document() == json.loads((here / "run" / "records.json").read_text())
    page = (here / "run" / "report.html").read_text()
    assert page.count("<img") == 8  # the originals and what became of them
    assert 'href="updates/round-2-node-1/report.html"' in page
    assert (here / "run" / "updates" / "round-2-node-1" / "report.html").is_file()
    (here / "run" / "report.html").unlink()
    assert CliRunner().invoke(app, ["report", "run"]).exit_code == 0
    assert (here / "run" / "report.html").read_text().partition("<footer")[0] == page.partition("<footer")[0]
    assert CliRunner().invoke(app, ["report", "run", "--redact"]).exit_code == 0
    redacted = (here / "run" / "report-redacted.html").read_text()
    assert "<img" not in redacted
    assert "left out of this page" in redacted


def test_all_updates_share_the_time_that_there_is(here: Path) -> None:
    federation(here / "kept", rounds=1, train=False, **{"local-steps": 1})
    done = run("--kept", "kept", "--attack", "ig:labels=idlg", "--steps", "100000", "--minutes", "0.02", "--out", "run")
    assert done.exit_code == 0, done.output
    found = store.read("run")
    assert isinstance(found, Survey)
    assert found.seconds < 15
    assert len(found.results) == 3


def test_a_killed_audit_goes_on(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    federation(here / "kept", rounds=1, train=False, **{"local-steps": 1})
    words = ["--kept", "kept", "--attack", "ig:labels=idlg", "--steps", "2", "--out"]
    whole = run(*words, "whole", "--json")
    real, seen = update.examine, list[int]()

    def stopped(*given: Any, **more: Any) -> Any:
        seen.append(1)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return real(*given, **more)

    monkeypatch.setattr(update, "examine", stopped)
    cut = run(*words, "cut")
    assert cut.exit_code == 130, cut.output
    assert len(store.read("cut").entries) == 1  # type: ignore[union-attr]
    on = run(*words, "cut", "--json")
    assert on.exit_code == 0, on.output
    assert len(seen) == 4  # one before, the one that was stopped, and the two that were left
    assert json.loads(on.stdout)["entries"] == json.loads(whole.stdout)["entries"]


def test_a_gate_on_a_federation_has_three_ends(here: Path) -> None:
    write_truth(here / "truth", federation(here / "kept", rounds=1, noise=10.0, train=False, **{"local-steps": 1}))
    words = ["--kept", "kept", "--steps", "60", "--attack", "ig:labels=idlg,tv=0", "--overwrite", "--out", "run"]
    hidden = run(*words, "--truth", "truth", "--defense", "noise:sigma=10", "--fail-above", "read=0.6")
    assert hidden.exit_code == gate.PASSES, hidden.output
    untold = run(*words, "--defense", "noise:sigma=10", "--fail-above", "read=0.6")
    assert untold.exit_code == gate.INCONCLUSIVE, untold.output
    assert "its truth is not known" in " ".join(untold.output.split())
    few = run(*words, "--truth", "truth", "--fail-above", "read=0.05")
    assert few.exit_code == 2
    assert json.loads((here / "run" / "gate.json").read_text())["code"] == gate.INCONCLUSIVE


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--kept", "kept"], "say it, as in --step local:steps=1,lr=0.1"),
        (["--kept", "kept", "--step", "local:steps=1,lr=0.1", "--victims", "3"], "no use for --victims"),
        (["--kept", "kept", "--step", "local:steps=1"], "train locally at a rate"),
        (["--kept", "kept", "--step", "gradient", "--data", "mnist-5k"], "excludes --data"),
        (["--kept", "kept", "--attack", "auto"], "name one attack"),
        (["--kept", "nowhere"], "found none"),
        (["--kept", "kept", "--at", "7", "--step", "local:steps=1,lr=0.1"], "found none"),
        (["--kept", "kept", "--decoys", "3"], "give --truth"),
        (["--most", "3"], "name their folder with --kept"),
    ],
)
def test_bad_input_is_one_line(here: Path, words: list[str], said: str) -> None:
    federation(here / "kept", rounds=1, nodes=1, train=False)
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert said in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_a_plan_says_how_every_client_trained(here: Path) -> None:
    federation(here / "kept", rounds=1, n=20)
    assert "by labels" in run("--kept", "kept", "--dry-run").output
    assert [each.round for each in read_kept("kept")] == [1, 1, 1]
