"""Images that a defense changes before training count as read where what the client trained on is read."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import dosimeter as dm
from dosimeter import auditing, store
from dosimeter.auditing import gate
from dosimeter.auditing.verdict import Kind, weigh
from dosimeter.cli import app
from dosimeter.data.files import read_batch
from dosimeter.reports import page, words
from dosimeter.studies import Row, Study
from dosimeter.studies import run as run_study
from dosimeter.sweeps.leakage import point_of

QUIET = dm.Resources(progress=False)


@dataclass(frozen=True, kw_only=True)
class Turned(dm.Defense):
    """A user's own: train on images upside down and inverted."""

    def on_batch(self, images: Tensor, labels: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return 1 - images.flip(-2), labels


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def result() -> dm.Result:
    data = dm.load("mnist-5k")
    victims = dm.pick(data, 6, seed=0)
    scoring = dm.Scoring(decoys=dm.data.pick_decoys(data, victims, 30, seed=0, split="train"))
    return dm.audit(model(), victims, attack=dm.presets.analytic(), defense=Turned(), scoring=scoring, resources=QUIET)


def test_what_clients_trained_on_counts_as_read(result: dm.Result) -> None:
    scores = result.scores
    assert torch.equal(result.transformed, 1 - result.originals.flip(-2))
    assert (scores.success.hits, scores.success.originals) == (6, 0)
    assert scores.transformed["ssim"].mean > 0.99 > 0.4 > scores["ssim"].mean
    assert scores.transformed.scores.keys() == scores.scores.keys()
    assert scores.nearest is scores.transformed
    assert scores.worst.ssim > 0.99
    for record in result.records:
        assert record.read
        assert record.evidence == "read"
        assert record.ssim == record.transformed.scores["ssim"] > record.scores["ssim"]
    assert scores.evidence == {"read": 6}


def test_they_are_told_from_decoys_that_were_changed_likewise(result: dm.Result) -> None:
    told = result.scores.transformed.identification
    assert (told.hits, told.blind) == (6, 0)
    assert told.chance == pytest.approx(1 / 31)
    assert result.scores.identification.hits < 3
    assert all(record.transformed.identified for record in result.records)


def test_the_verdict_and_the_gate_count_them(result: dm.Result) -> None:
    found = replace(result, scores=replace(result.scores, recovered=None))  # not because of its certainty
    verdict = weigh(found)
    assert verdict.kind is Kind.LEAKS
    assert {"read", "transformed"} <= {claim.name for claim in verdict.claims if claim.leaks}
    assert gate.judge(found, gate.limits("read=0.5")).code == gate.FAILS
    blind = [replace(r, transformed=replace(r.transformed, baseline={"ssim": 0.9})) for r in found.records]
    named = {claim.name: claim for claim in weigh(replace(found, records=blind)).claims}
    assert not named["transformed"].leaks  # without the update as well
    assert not named["read"].leaks


def test_pages_tables_and_files_have_both(result: dm.Result, tmp_path: Path) -> None:
    store.write_run(result, tmp_path / "run")
    assert len(list((tmp_path / "run" / "images").glob("*-transformed.png"))) == 6
    again = store.read(tmp_path / "run")
    assert again.document() == result.document()
    text = page.render(again)
    assert text.count("What the client trained on: ") == 6 + 1
    for said in ("Originals read", "With originals", "as trained on: SSIM 1.00"):
        assert said in text
    row = words.rows(result)[0]
    assert (row.mean, row.originals) == ("1.00", words.number(result.scores["ssim"].mean))
    assert "with what clients trained on" in result.summary()


def test_scoring_again_counts_them_too(result: dm.Result) -> None:
    l1 = dm.Metric(name="l1", function=lambda a, b: (a - b).abs().flatten(1).mean(1), higher=False)
    again = dm.rescore(result, dm.Scoring(threshold=0.9, metrics=[l1]))
    assert again.scores.success.hits == 6
    assert again.scores.transformed["l1"].mean < 1e-3 < again.scores["l1"].mean
    assert again.scores.transformed.identification == result.scores.transformed.identification


def test_figures_of_a_training_and_of_panels_are_the_nearer_ones(result: dm.Result) -> None:
    point = point_of(result, [1.0] * 6)
    assert point["ssim"] > 0.99
    assert point["originals"]["ssim"] == result.scores["ssim"].mean
    assert all(image["ssim"] > 0.99 for image in point["images"])
    poor = replace(result, scores=replace(result.scores, success=replace(result.scores.success, hits=5)))
    trials = [
        auditing.Trial(attack=name, role="adaptive", about="", result=replace(each, settings={"channel": ""}))
        for name, each in (("poor", poor), ("good", result))
    ]
    whole = auditing.conclude(trials)
    assert "The best, good" in whole.verdict
    assert "6 are read as clients trained on them, 0 as they were" in whole.verdict
    assert "originals)" in words.panel(whole)[0].ssim
    assert trials[1].row()["transformed"]["hits"] == 6


def test_a_batch_is_in_one_order_for_both() -> None:
    """The nearer of both decides which reconstruction is whose."""
    rng = torch.Generator().manual_seed(0)
    originals = torch.rand(1, 5, 1, 12, 12, generator=rng)
    made = 1 - originals
    found = made[:, [3, 1, 4, 0, 2]].clone()
    found[0, 0] = originals[0, 3]  # one of them undone
    order = dm.metrics.match_batches(found, originals, made)
    assert order[0].tolist() == [3, 1, 4, 0, 2]


def test_studies_show_both(tmp_path: Path) -> None:
    row = Row(model="mlp-2", data="mnist-5k", attack="analytic", victims=2, steps=None, defense="ats:policy=0")
    study = Study(name="one", question="", rows=(row,))
    ((_, outcome, _),) = run_study(study, tmp_path)
    assert outcome.ssim > 0.99 > outcome.originals["ssim"]
    assert outcome.read.startswith("2 of 2")
    assert "originals)" in study.cells(row, outcome)[study.columns.index("SSIM")]


def test_the_truth_of_a_captured_update_may_have_what_the_client_trained_on(tmp_path: Path) -> None:
    victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
    own, _ = Turned().on_batch(victims.images[0], victims.labels[0], torch.Generator())
    arrays = {"images": victims.images[0], "transformed": own}
    pixels = {key: value.permute(0, 2, 3, 1).numpy() for key, value in arrays.items()}
    np.savez(tmp_path / "truth.npz", labels=victims.labels[0].numpy(), **pixels)
    truth = read_batch(tmp_path / "truth.npz")
    net = model()
    loss = nn.functional.cross_entropy(net(own), victims.labels[0])
    update = dict(zip(dict(net.named_parameters()), torch.autograd.grad(loss, list(net.parameters())), strict=True))
    capture = dm.Capture(update, shape=(1, 28, 28), batch=1)
    found = dm.captured(net, capture, attack=dm.presets.analytic(), defense=Turned(), truth=truth, resources=QUIET)
    assert found.judged.scores.success.hits == 1
    assert found.judged.scores.success.originals == 0
    assert "The image was read" in page.render(found)
    np.savez(
        tmp_path / "bad.npz", labels=victims.labels[0].numpy(), **pixels | {"transformed": pixels["images"][:, 1:]}
    )
    with pytest.raises(dm.errors.DataError, match="transformed images of the form of the images"):
        read_batch(tmp_path / "bad.npz")


def test_the_gate_fails_on_images_that_were_transformed_and_read_exactly(tmp_path: Path) -> None:
    words_ = "audit --model mlp-bayes --defense ats:policy=7-4-15 --attack analytic --victims 8 --fail-above 0.4"
    found = CliRunner().invoke(app, [*words_.split(), "--out", str(tmp_path / "run")])
    assert found.exit_code == 1, found.output
    assert "Transformed images read" in found.output
    assert "What the client trained on: " in (tmp_path / "run" / "report.html").read_text()
