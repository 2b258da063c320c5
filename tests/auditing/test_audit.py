"""The audit as a whole, on small networks."""

import inspect
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dosimeter as dm
from dosimeter.auditing import Audit, estimate, explain
from dosimeter.defenses import Moment
from dosimeter.errors import DataError, ModelError, SettingError, UpdateError
from dosimeter.reports.page import render
from dosimeter.types import Gradient
from small import Halved


def small_model(outputs: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Sigmoid(), nn.Linear(32, outputs))


def some_victims(n: int = 3, batch: int = 1) -> dm.Victims:
    return dm.pick(dm.load("mnist-5k"), n, batch=batch, seed=0)


QUICK = dm.presets.inverting_gradients(steps=150, tv=1e-3)


def test_an_audit_reads_digits_out_of_a_small_network_and_says_so() -> None:
    data = dm.load("mnist-5k")
    victims = dm.pick(data, 3, seed=0)
    decoys = dm.pick_decoys(data, victims, 20, seed=0, split="train")
    result = dm.audit(small_model(), victims, attack=QUICK, scoring=dm.Scoring(decoys=decoys))
    assert result.scores["ssim"].mean > 0.6
    assert result.scores.baseline["ssim"].mean < 0.2
    assert result.scores.success.hits == 3
    assert result.scores.identification.rate == 1
    assert result.scores.identification.chance == pytest.approx(1 / 21)
    assert result.scores.worst.ssim == max(r.scores["ssim"] for r in result.records)
    assert len(result.records) == 3
    assert result.records[1].index == int(victims.indices[1, 0])
    assert result.threat == dm.ThreatModel(labels=True)
    assert result.images.shape == victims.images.shape
    assert "3 of 3" in result.summary()
    assert result.status == "complete"


def test_a_model_that_works_in_place_on_its_images_is_audited_as_one_that_does_not() -> None:
    victims = some_victims(2)
    before = victims.images.clone()
    models = [Halved(small_model(), in_place=in_place) for in_place in (True, False)]
    one, other = (dm.audit(model, victims, attack=replace(QUICK, stop=dm.Stop(steps=5))) for model in models)
    assert torch.equal(one.images, other.images)
    assert torch.equal(victims.images, before)
    assert not any(model._forward_pre_hooks for model in models)


def test_everything_in_an_audit_can_be_asked_of_the_verb() -> None:
    known = inspect.signature(dm.audit).parameters
    assert {field.name for field in fields(dm.Audit)} == {*known, "names"}
    for field in fields(dm.Audit):
        if field.name not in ("attack", "defense", "model", "names", "server", "victims", "scoring"):
            assert field.default == known[field.name].default, field.name
    assert known["attack"].default is inspect.Parameter.empty


def test_parts_may_be_words_as_on_the_command_line() -> None:
    model, victims = small_model(), some_victims(1)
    step, noise = dm.clients.LocalTraining(steps=2, lr=0.1), dm.defenses.GaussianNoise(sigma=0.1)
    made = dm.audit(model, victims, attack=dm.presets.inverting_gradients(steps=3, tv=0.1), defense=noise, step=step)
    said = dm.audit(model, victims, attack="ig:steps=3,tv=0.1", defense="noise:sigma=0.1", step="local:steps=2,lr=0.1")
    assert said.document() == made.document()
    for parts, says in (
        ({"attack": "igg"}, "Unknown attack 'igg'.*Did you mean 'ig'"),
        ({"attack": "ig:tvv=1"}, "Unknown setting of attack 'ig' 'tvv'"),
        ({"attack": "ig", "defense": "noise:sigma=much"}, "'sigma' of defense 'noise' expects a number, got 'much'"),
        ({"attack": "ig", "step": "locl"}, "Unknown step 'locl'"),
        ({"attack": "auto:step=3"}, "Unknown setting of attack 'auto' 'step'"),
        ({"attack": "ig", "server": "honest+rows"}, "Unknown server 'rows'"),
        ({"attack": "ig", "loss": "mse"}, "path/to/file.py:function"),
    ):
        with pytest.raises(SettingError, match=says):
            dm.audit(model, victims, **parts)  # type: ignore[arg-type]


def test_a_panel_in_python_is_the_attack_auto() -> None:
    model, victims = small_model(), some_victims(1)
    whole = dm.panel(model, victims, steps=2, defense="noise:sigma=0.1")
    assert [row.attack for row in whole.panel][:4] == [
        "analytic",
        "analytic, rounds averaged",
        "coarse to fine",
        "density",
    ]
    assert "attacks were tried" in whole.verdict
    named = dm.audit(model, victims, attack="auto:steps=2", defense="noise:sigma=0.1")
    assert named.document() == whole.document()


def test_same_seed_same_bytes() -> None:
    first, again = (
        json.dumps(dm.audit(small_model(), some_victims(), attack=QUICK, seed=4).document(), allow_nan=False)
        for _ in range(2)
    )
    assert first == again
    other = dm.audit(small_model(), some_victims(), attack=QUICK, seed=5).document()
    assert json.dumps(other) != first


def test_chunks_do_not_change_the_result() -> None:
    whole = dm.audit(
        small_model(), some_victims(5), attack=QUICK, resources=dm.Resources(dtype=torch.float64, workers=1)
    )
    cut = dm.audit(
        small_model(),
        some_victims(5),
        attack=QUICK,
        resources=dm.Resources(dtype=torch.float64, budget=1_600_000, workers=1),
    )
    side = dm.audit(
        small_model(), some_victims(5), attack=QUICK, resources=dm.Resources(dtype=torch.float64, workers=3)
    )
    assert (whole.settings["tile"], whole.settings["workers"]) == (5, 1)
    assert 1 <= cut.settings["tile"] < 5
    assert (side.settings["tile"], side.settings["workers"]) == (2, 3)
    assert torch.allclose(whole.images, side.images, atol=1e-6)
    assert torch.allclose(whole.images, cut.images, atol=1e-6)
    assert torch.allclose(whole.curve.match, cut.curve.match, atol=1e-6)


def test_steady_tiles_do_not_depend_on_who_else_is_there_or_on_threads() -> None:
    model, victims, attack = small_model(), some_victims(7), dm.presets.inverting_gradients(steps=20)
    steady = dm.Resources(steady=True, budget=900_000)
    whole, side = (
        dm.audit(model, victims, attack=attack, resources=replace(steady, workers=workers)) for workers in (1, 3)
    )
    tile = whole.settings["tile"]
    assert 1 < tile < 7
    assert json.dumps(whole.document()) == json.dumps(side.document())  # to the byte, in float32
    last = dm.audit(model, victims.take(slice(tile, None)), attack=attack, resources=steady)
    assert whole.raw[tile:].equal(last.raw)
    assert whole.raw_baseline[tile:].equal(last.raw_baseline)


def test_batches_are_matched_image_by_image() -> None:
    victims = some_victims(2, batch=2)
    result = dm.audit(small_model(), victims, attack=dm.presets.inverting_gradients(steps=300, tv=1e-4))
    assert [(r.victim, r.image) for r in result.records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    straight = F.mse_loss(result.images, victims.images)
    swapped = F.mse_loss(result.images.flip(1), victims.images)
    assert straight < swapped
    assert result.settings["batch"] == 2


def test_records_grow_with_the_images_and_not_with_their_square() -> None:
    def audited(batch: int) -> dm.Result:
        victims = dm.pick(dm.load("mnist-5k"), 1, batch=batch, seed=1)
        return dm.audit(small_model(), victims, attack=dm.presets.labels_only(), resources=dm.Resources(progress=False))

    few = audited(8)
    eight, more, most = (len(json.dumps(result.document())) for result in (few, audited(32), audited(64)))
    assert (most - more) / 32 == pytest.approx((more - eight) / 24, rel=0.05)  # characters that an image adds
    assert few.document()["ids"] == list(few.victims.ids)
    assert render(few).count(few.victims.ids[0]) <= 1


def test_labels_can_be_recovered_instead_of_granted() -> None:
    result = dm.audit(small_model(), some_victims(4), attack=dm.presets.inverting_gradients(steps=5, labels="idlg"))
    assert result.threat.labels is False
    assert result.scores.labels.rate == 1
    assert [r.label_used for r in result.records] == [r.label for r in result.records]


def test_a_task_need_not_be_classification() -> None:
    victims = some_victims(2)
    numbers = victims._replace(labels=torch.tensor([[[0.3]], [[0.9]]]))
    result = dm.audit(small_model(1), numbers, attack=QUICK, loss=F.mse_loss)
    assert result.settings["loss"] == "mse_loss"
    assert result.scores["ssim"].mean > result.scores.baseline["ssim"].mean
    assert result.scores.labels is None
    with pytest.raises(SettingError, match="cross-entropy"):
        dm.audit(small_model(1), numbers, attack=dm.presets.inverting_gradients(labels="idlg"), loss=F.mse_loss)


def test_the_callers_model_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 10)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dm.audit(
        model,
        some_victims(1),
        attack=dm.presets.inverting_gradients(steps=2),
        resources=dm.Resources(dtype=torch.float64),
    )
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


@dataclass(frozen=True, kw_only=True)
class Broken(dm.Defense):
    how: str

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        sent = dict(gradient)
        if self.how == "missing":
            del sent["1.bias"]
        if self.how == "nan":
            sent["3.weight"] = sent["3.weight"] * torch.nan
        if self.how == "shape":
            sent["1.bias"] = sent["1.bias"][:-1]
        return sent


@pytest.mark.parametrize(
    ("how", "says"),
    [("missing", "missing '1.bias'"), ("nan", "'3.weight' contains NaN"), ("shape", r"has shape \(31,\)")],
)
def test_an_update_that_does_not_fit_is_named(how: str, says: str) -> None:
    with pytest.raises(UpdateError, match=says):
        dm.audit(small_model(), some_victims(), attack=QUICK, defense=Broken(how=how))


def test_noise_protects_and_is_reported() -> None:
    noisy = dm.audit(small_model(), some_victims(), attack=QUICK, defense=dm.defenses.GaussianNoise(sigma=1.0))
    assert noisy.scores["ssim"].mean < 0.3
    assert "GaussianNoise(sigma=1.0)" in noisy.settings["defense"]


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x.flatten(1)), x


@pytest.mark.parametrize(
    ("model", "loss", "says"),
    [
        (nn.Flatten(), None, "no trainable parameters"),
        (nn.Conv2d(3, 4, 3), None, "cannot take images of shape"),
        (small_model(4), None, "does not fit cross-entropy"),
        (nn.Conv2d(1, 10, 3), None, "does not fit cross-entropy"),
        (TwoOutputs(), None, "returns a tuple"),
        (small_model(3), lambda output, labels: F.mse_loss(output, labels[:, :7]), "loss cannot take output"),
        (small_model(), lambda output, labels: output, "must return a scalar"),
        (small_model(), lambda output, labels: 0.5, "must return a scalar, .* got a float"),
    ],
    ids=["none", "channels", "classes", "map", "tuple", "loss", "vector", "float"],
)
def test_a_model_that_cannot_be_audited_is_refused(model: nn.Module, loss: dm.types.Loss | None, says: str) -> None:
    victims = some_victims(12)
    with pytest.raises(ModelError, match=says) as refused:
        dm.audit(model, victims.take(slice(0, 12)), attack=QUICK, loss=loss)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_loss_of_every_image_is_refused(batch: int) -> None:
    victims = dm.pick(dm.load("mnist-5k"), 1, batch=batch, seed=1)
    with pytest.raises(ModelError, match=rf"must return a scalar, .* got shape \({batch},\)"):
        dm.audit(small_model(), victims, attack=QUICK, loss=nn.CrossEntropyLoss(reduction="none"))


@pytest.mark.parametrize("factor", [255.0, -1.0])
def test_images_outside_the_range_are_refused(factor: float) -> None:
    victims = some_victims()
    with pytest.raises(DataError, match=r"in \[0, 1\], got values from"):
        dm.audit(small_model(), victims._replace(images=victims.images * factor), attack=QUICK)


def test_an_attack_is_refused_before_work_when_the_threat_model_grants_too_little() -> None:
    with pytest.raises(SettingError, match="needs the labels"):
        dm.audit(small_model(), some_victims(), attack=QUICK, threat=dm.ThreatModel(labels=False))


def test_a_captured_update_is_attacked_with_nothing_known_of_the_truth() -> None:
    model, victims = small_model(), some_victims(1)
    F.cross_entropy(model(victims.images[0]), victims.labels[0]).backward()
    update = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    found = dm.reconstruct(
        model, dm.Capture(update, (1, 28, 28)), attack=dm.presets.inverting_gradients(steps=150, tv=1e-3, labels="idlg")
    )
    assert found.labels is not None
    assert torch.equal(found.labels[0], victims.labels[0])
    assert float(dm.metrics.ssim(found.images[0].clamp(0, 1), victims.images[0])) > 0.6
    with pytest.raises(UpdateError, match="not in the model 'more'"):
        dm.reconstruct(model, dm.Capture(update | {"more": torch.ones(1)}, (1, 28, 28)), attack=QUICK)


def test_ctrl_c_hands_over_what_is_there() -> None:
    calls = 0

    @dataclass(frozen=True, kw_only=True)
    class Impatient(dm.priors.Prior):
        def loss(self, view: dm.priors.View) -> Tensor:
            nonlocal calls
            calls += 1
            if calls == 20:
                raise KeyboardInterrupt
            return super().loss(view)

    from dataclasses import replace

    with pytest.raises(dm.Interrupted) as stopped:
        dm.audit(small_model(), some_victims(), attack=replace(QUICK, prior=Impatient()))
    result = stopped.value.result
    assert result.status == "interrupted"
    assert len(result.records) == 3
    assert {r.stopped for r in result.records} == {"interrupted"}, [r.steps for r in result.records]
    assert json.dumps(result.document(), allow_nan=False)


def test_the_estimate_counts_chunks_and_takes_no_more_than_a_few_steps() -> None:
    setting = Audit(
        model=small_model(),
        victims=some_victims(5),
        attack=dm.presets.inverting_gradients(steps=10**6),
        resources=dm.Resources(workers=2),
    )
    guess = estimate(setting)
    assert guess["tiles"] == 2
    assert guess["seconds"] > 10
    assert guess["bytes"] > 5 * 4 * sum(p.numel() for p in small_model().parameters())


@pytest.mark.parametrize("preset", [dm.presets.dlg, dm.presets.idlg, dm.presets.cpl])
def test_a_search_by_lbfgs_does_not_depend_on_who_shares_the_tile(preset: Callable[..., dm.Search]) -> None:
    """To the last bit: without a line search every step multiplies what rounding leaves."""
    data = dm.load("mnist-5k", size=12)
    victims = dm.pick(data, 3, seed=0)
    model = dm.models.build("lenet", shape=data.shape, classes=10, mean=(0.13,), std=(0.31,), seed=0)

    def run(who: slice, workers: int) -> list[dict[str, object]]:
        result = dm.audit(
            model,
            victims.take(who),
            attack=preset(steps=3),
            resources=dm.Resources(dtype=torch.float64, workers=workers),
        )
        tiles.append(result.settings["tile"])
        kept = ("index", "match", "label_used", "steps", "stopped")
        return [{key: getattr(record, key) for key in kept} for record in result.records]

    tiles: list[int] = []
    assert run(slice(3), 1) == run(slice(3), 2) == run(slice(1), 1) + run(slice(1, 3), 1)
    assert tiles == [3, 2, 1, 2]


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(SettingError, match="Unknown device 'gpu7'"):
        dm.audit(small_model(), some_victims(), attack=QUICK, resources=dm.Resources(device="gpu7"))
    if not torch.cuda.is_available():
        with pytest.raises(SettingError, match="sees no GPU"):
            dm.audit(small_model(), some_victims(), attack=QUICK, resources=dm.Resources(device="cuda"))


def test_the_engines_choices_are_explained_where_asked() -> None:
    found = explain(dm.Audit(model=small_model(), victims=some_victims(1), attack=dm.presets.inverting_gradients()))
    assert [row.tensor for row in found] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert all(row.form and row.why for row in found)


def test_a_way_of_comparing_can_be_asked_for() -> None:
    attack = dm.presets.inverting_gradients(steps=1)
    for way in ("chain", "tape", "vmap", "one by one"):
        asked = dm.Resources(way=way)
        found = explain(dm.Audit(model=small_model(), victims=some_victims(1), attack=attack, resources=asked))
        plain = way in ("vmap", "one by one")
        assert {row.form for row in found} == ({way} if plain else {"factored", "vector"})


def test_local_training_is_attacked_through_its_steps() -> None:
    victims = some_victims(2)
    attack = dm.presets.inverting_gradients(steps=150, tv=1e-3)
    step = dm.clients.LocalTraining(steps=3, lr=0.05)
    result = dm.audit(small_model(), victims, attack=attack, step=step)
    assert result.scores["ssim"].mean > 0.5
    assert "LocalTraining(steps=3" in result.settings["step"]
    clipped = dm.audit(small_model(), victims, attack=attack, step=dm.clients.ClippedGradient(bound=0.1))
    assert clipped.scores["ssim"].mean > 0.5


@pytest.mark.filterwarnings("ignore")  # torch.compile warns of its own doings
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_torch_compile_gives_the_same_images() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    attack = dm.presets.inverting_gradients(steps=3)
    plain, compiled = (
        dm.audit(model, some_victims(1), attack=attack, resources=dm.Resources(dtype=torch.float64, compiled=c)).images
        for c in (False, True)
    )
    assert torch.allclose(plain, compiled, atol=1e-9)


def test_the_server_stands_in_the_threat_model() -> None:
    attack, tamper = dm.presets.inverting_gradients(steps=2), dm.servers.PermutedRows()
    model, victims = small_model(), some_victims(1)
    before = [p.clone() for p in model.parameters()]
    honest, tampered = (dm.audit(model, victims, attack=attack, server=server) for server in (None, tamper))
    assert (honest.threat.server, honest.settings["server"]) == ("honest", "honest")
    assert (tampered.threat.server, tampered.settings["server"]) == ("permuted-rows", "PermutedRows(shift=1)")
    assert "server permuted-rows" in tampered.summary()
    assert "server" not in honest.summary()
    assert not torch.equal(honest.images, tampered.images)
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    threat = dm.ThreatModel(server="first-layer", labels=True)
    with pytest.raises(SettingError, match="say one of them"):
        dm.audit(model, victims, attack=attack, threat=threat)


def test_a_metric_of_ones_own_stands_wherever_scores_do(tmp_path: Path) -> None:
    victims = dm.pick(dm.load("mnist-5k", size=8), 2, seed=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    far = dm.Metric(name="far", function=lambda a, b: (a - b).abs().flatten(1).amax(1), higher=False, label="Farthest")
    attack = dm.presets.inverting_gradients(steps=3)
    result = dm.audit(model, victims, attack=attack, scoring=dm.Scoring(metrics=[far]))
    expected = (result.images - result.originals).abs().amax((1, 2, 3, 4))
    assert [record.scores["far"] for record in result.records] == pytest.approx(expected.tolist())
    assert result.scores["far"].mean == pytest.approx(float(expected.mean()))
    assert "far" in result.scores.baseline
    assert "FAR" in result.summary()
    assert "Farthest" in dm.report(result, tmp_path / "run").read_text()
    assert result.scores["mse_standardised"].mean == pytest.approx(result.scores["mse"].mean)
    for taken in ("ssim", "stopped"):  # a score of ours and a word of our records
        with pytest.raises(SettingError, match=f"name of its own for every score, got '{taken}'"):
            dm.Scoring(metrics=[replace(far, name=taken)])
