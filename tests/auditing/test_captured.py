"""A captured update is audited without the truth, and the truth changes nothing but the scores."""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import auditing, store
from dosimeter.attacks.counts import least_counts
from dosimeter.attacks.solve.ratio import RatioSolver
from dosimeter.auditing.captured import shadows as shadows_
from dosimeter.auditing.captured.seeing import with_labels
from dosimeter.auditing.captured.weighing import weigh_captured
from dosimeter.auditing.job import Job
from dosimeter.auditing.verdict import Kind
from dosimeter.errors import DataError, SettingError, UpdateError
from dosimeter.reports import page, standing
from dosimeter.types import Curve, Ended, Outcome, Reconstruction, Victims

SHAPE = (1, 6, 6)
SEARCH = dm.presets.inverting_gradients(steps=8)
QUIET = dm.Resources(progress=False)


@dataclass(frozen=True, kw_only=True)
class Clipping(dm.Defense):
    """Clips every example's gradient."""

    def clips(self) -> float:
        return 1.0


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 5))


def some_victims(n: int, batch: int = 1, seed: int = 1) -> Victims:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(5, (n, batch), generator=rng)
    places = torch.arange(n * batch).reshape(n, batch)
    return Victims(torch.rand(n, batch, *SHAPE, generator=rng), labels, places, tuple(f"s{seed}:{i}" for i in range(n)))


def gradient(model: nn.Module, victims: Victims) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(victims.images[0]), victims.labels[0])
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def audited(private: Victims, **more: object) -> dm.Captured:
    model = small_model()
    known = {key: more.pop(key) for key in ("labels", "lr", "batch", "shape", "statistics") if key in more}
    capture = dm.Capture(gradient(model, private), **{"shape": SHAPE, "batch": private.batch} | known)  # type: ignore[arg-type]
    given_: dict[str, object] = {"attack": dm.presets.analytic(), "resources": QUIET}
    return dm.captured(model, capture, **given_ | more)  # type: ignore[arg-type]


def test_an_exact_attack_is_certain_of_the_image_without_the_truth() -> None:
    truth = some_victims(1)
    result = audited(truth)
    assert result.judged is None
    assert result.originals is None
    assert result.scores.certificate.verdict == "recovered"
    assert result.scores.certificate.share == 1.0
    assert torch.allclose(result.images, truth.images, atol=1e-4)
    assert result.scores.labels.found == truth.labels[0].tolist()
    assert result.scores.shadows.left_out
    assert not result.records[0].scores
    assert not result.threat.labels


def test_a_search_has_the_certificate_of_the_analytic_attack_beside_it() -> None:
    truth = some_victims(1)
    result = audited(truth, attack=SEARCH)
    assert result.scores.certificate.attack == "analytic"
    assert result.scores.certificate.verdict == "recovered"
    assert "by the analytic attack, which ran beside ig" in standing.said(result)
    assert result.certified is not None
    assert torch.allclose(result.certified, truth.images, atol=1e-4)
    assert not torch.allclose(result.images, truth.images, atol=1e-4)
    assert "The certain image" in page.render(result)


def test_noise_leaves_nothing_certain() -> None:
    model, truth = small_model(), some_victims(1)
    rng = torch.Generator().manual_seed(0)
    update = {n: g + 0.01 * torch.randn(g.shape, generator=rng) for n, g in gradient(model, truth).items()}
    result = dm.captured(
        model, dm.Capture(update, SHAPE), attack=dm.presets.analytic(), resources=dm.Resources(progress=False)
    )
    assert result.scores.certificate.share == 0.0
    assert result.certified is None
    assert standing.certainty(result).startswith("No image is certain")


@pytest.mark.parametrize(
    ("scale", "shift", "doubted"),
    [(1.0, 0.0, False), (1.0, 1e-6, False), (1.0, 1e-4, True), (4.0, 0.0, True)],
    ids=["plain", "rounding", "little noise", "a sum"],
)
def test_an_update_that_cannot_be_a_mean_is_doubted(scale: float, shift: float, doubted: bool) -> None:
    model, truth = small_model(), some_victims(1, batch=3)
    update = {name: scale * g + shift for name, g in gradient(model, truth).items()}
    result = dm.captured(model, dm.Capture(update, SHAPE, 3), attack=dm.presets.labels_only(), resources=QUIET)
    assert (result.scores.labels.doubt is not None) is doubted
    assert (result.scores.labels.least is None) is doubted
    assert ("Beware" in page.render(result)) is doubted


def test_the_truth_adds_scores_and_changes_nothing_else() -> None:
    truth = some_victims(1, batch=2)
    shadows = some_victims(2, batch=2, seed=5)
    without, beside = (audited(truth, attack=SEARCH, shadows=shadows, truth=t) for t in (None, truth))
    assert beside.judged is not None
    assert replace(beside.scores, judged=None, apart=None) == without.scores
    order = [int((image - without.images[0]).flatten(1).abs().sum(1).argmin()) for image in beside.images[0]]
    assert sorted(order) == [0, 1]
    assert torch.equal(without.images[0, order], beside.images[0])
    assert [record.label for record in beside.records] == truth.labels[0].tolist()
    assert beside.scores.judged.success.of == 2


def noisy(sigma: float, steps: int, **more: object) -> dm.Captured:
    """A capture of two images under noise, which no equations solve, with its labels granted."""
    truth, noise = some_victims(1, batch=2), dm.defenses.GaussianNoise(sigma=sigma)
    search = dm.presets.inverting_gradients(steps=steps, tv=0.0)
    rng = torch.Generator().manual_seed(0)
    update = {n: g + sigma * torch.randn(g.shape, generator=rng) for n, g in gradient(small_model(), truth).items()}
    capture = dm.Capture(update, SHAPE, 2, truth.labels[0])
    given_: dict[str, object] = {"attack": search, "defense": noise, "resources": QUIET}
    if more.pop("beside_truth", False):
        given_["truth"] = truth
    return dm.captured(small_model(), capture, **given_ | more)  # type: ignore[arg-type]


def test_what_is_certain_leaks_whoever_looks() -> None:
    whole = audited(some_victims(1))
    assert weigh_captured(whole).sentence == "The update leaks: its image is certain."
    assert "verdict loud" in page.render(whole)
    assert whole.document()["conclusion"]["kind"] == "leaks"
    labels = audited(some_victims(1, batch=3), attack=SEARCH)
    assert weigh_captured(labels).sentence.startswith("The update leaks: for certain it holds class ")


def test_without_truth_and_shadows_nothing_can_be_told() -> None:
    found = weigh_captured(noisy(0.1, 2))
    assert found.kind is Kind.INCONCLUSIVE
    assert "its truth is not known, and there are no shadows" in found.sentence


@pytest.mark.parametrize(
    ("sigma", "steps", "kind", "says"),
    [
        (1e-4, 120, Kind.LEAKS, "as updates of other images like it do: "),
        (1e-4, 2, Kind.INCONCLUSIVE, "of the shadows, of 8 of 8 images the client's own step explains"),
        (30.0, 60, Kind.NOT_SHOWN, "none of 4 updates of other images leaks, and its match is one like theirs"),
    ],
    ids=["read", "too short", "hidden"],
)
def test_shadows_speak_for_an_update_that_matches_like_them(sigma: float, steps: int, kind: Kind, says: str) -> None:
    result = noisy(sigma, steps, shadows=some_victims(4, batch=2, seed=5))
    if not (found := weigh_captured(result)).doubt.startswith("it was matched less well"):
        assert (found.kind, says in found.sentence) == (kind, True), found
    shadows = result.scores.shadows
    assert sum(shadows.evidence.values()) == 8
    assert shadows.truths is not None
    assert len(shadows.truths) == 4
    assert "verdict calm" not in page.render(result)  # nobody saw that a picture is wrong
    best = replace(result, scores=replace(result.scores, shadows=replace(shadows, rank=1)))
    assert weigh_captured(best).kind is kind
    worst = replace(result, scores=replace(result.scores, shadows=replace(shadows, rank=5)))
    assert weigh_captured(worst).kind is Kind.INCONCLUSIVE
    assert "less well than each of the shadows" in weigh_captured(worst).sentence


def test_a_picture_that_resembles_the_truth_is_never_calm() -> None:
    """It is not read by the threshold, and one image is too few for a test."""
    result = noisy(0.01, 100, beside_truth=True, scoring=dm.Scoring(threshold=0.9999))
    assert result.judged is not None
    assert result.judged.scores.success.hits == 0
    assert result.judged.scores["ssim"].mean > result.judged.scores.baseline["ssim"].mean + 0.1
    assert weigh_captured(result).kind is not Kind.NOT_SHOWN
    hidden = replace(result.judged, scores=replace(result.judged.scores, evidence={"hidden": 2}))
    found = weigh_captured(replace(result, judged=hidden))
    assert found.kind is Kind.INCONCLUSIVE
    assert "nearer to the truth (SSIM" in found.sentence
    assert "verdict calm" not in page.render(replace(result, judged=hidden))


def test_shadows_are_an_ordinary_audit_with_the_same_attack() -> None:
    truth, shadows = some_victims(1), some_victims(3, seed=9)
    result = audited(truth, attack=SEARCH, shadows=shadows)
    attack = with_labels(SEARCH, None)
    plain = dm.audit(small_model(), shadows, attack=attack, resources=dm.Resources(progress=False))
    said = result.scores.shadows
    assert said.matches == pytest.approx([record.match for record in plain.records])
    assert said.success == plain.scores.success
    assert sum(rate.of for rate in (said.as_well, said.less_well) if rate) == 3
    assert said.rank == 1 + sum(m < result.scores.match for m in said.matches)


def test_an_update_that_is_a_shadow_stands_where_its_shadow_stands() -> None:
    shadows = some_victims(4, seed=3)
    one = shadows.take(slice(2, 3))
    result = audited(one, attack=dm.presets.analytic(), shadows=shadows)
    assert result.scores.match == pytest.approx(result.scores.shadows.matches[2])
    assert result.scores.shadows.rank == 1  # all explain their updates to rounding
    assert result.scores.shadows.as_well.of == 4


def test_labels_are_recovered_unless_they_are_granted() -> None:
    truth = some_victims(1, batch=4)
    assert SEARCH.needs().labels
    recovered, granted = audited(truth, attack=SEARCH), audited(truth, attack=SEARCH, labels=truth.labels[0])
    assert recovered.scores.labels.source == "recovered"
    assert sorted(recovered.scores.labels.found) == sorted(truth.labels[0].tolist())
    assert (granted.scores.labels.source, granted.scores.labels.found) == ("granted", truth.labels[0].tolist())
    assert (recovered.threat.labels, granted.threat.labels) == (False, True)
    wrapped = dm.presets.leaving_out(steps=5)
    assert not with_labels(wrapped, None).needs().labels
    with pytest.raises(SettingError, match="finds the labels"):
        audited(truth, attack=dm.presets.labels_only(), labels=truth.labels[0])


def test_labels_alone_show_no_match_and_no_image_rate() -> None:
    result = audited(some_victims(1, batch=3), attack=dm.presets.labels_only(), shadows=some_victims(2, 3, seed=4))
    assert result.scores.match is None
    assert result.scores.shadows.success is None
    assert result.scores.shadows.labels.of == 6


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 50), st.floats(0.1, 30))
@settings(max_examples=60, deadline=None)
def test_the_least_counts_are_never_more_than_there_are(labels: list[int], seed: int, scale: float) -> None:
    logits = scale * torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(seed)).double()
    true = F.one_hot(torch.tensor(labels), 5)
    bias = (logits.softmax(1) - true).mean(0)
    least = least_counts(bias, len(labels), rounding=1e-12)
    assert (least <= true.sum(0)).all()
    assert (least >= 0).all()


@cache
def plain_audit(victims: int) -> auditing.Result:
    return dm.audit(
        small_model(),
        some_victims(victims, seed=2),
        attack=dm.presets.analytic(),
        resources=dm.Resources(progress=False),
    )


@cache
def plain_capture() -> dm.Captured:
    return audited(some_victims(1))


def shadow_result(matches: list[float | None], read: list[bool]) -> auditing.Result:
    plain = plain_audit(len(matches))
    records = [
        replace(record, match=m, read=r, scores={"ssim": 0.9 if r else 0.1})
        for record, m, r in zip(plain.records, matches, read, strict=True)
    ]
    success = replace(plain.scores.success, hits=sum(read), of=len(read))
    return replace(plain, records=records, scores=replace(plain.scores, success=success))


def found_with(match: float) -> Reconstruction:
    none = torch.zeros(1)
    images = torch.zeros(1, 1, *SHAPE)
    curve, ended = Curve((0,), none[None]), (Ended(Outcome.STEPS),)
    return Reconstruction(images, None, torch.tensor([match]), none, none, ended, curve)


@pytest.mark.parametrize(
    ("match", "rank", "as_well", "less_well", "sentence"),
    [
        (0.15, 2, (1, 1), (1, 3), "matched as well as this one (loss 0.150) were read in 1 of 1 case, those"),
        (0.3, 3, (2, 3), (0, 1), "were read in 2 of 3 cases, those that matched less well in 0 of 1."),
        (0.01, 1, (0, 0), (2, 4), "matched better (loss 0.010) than each"),
        (7.0, 4, (2, 3), (0, 1), "were read in 2 of 3 cases"),
        (None, None, None, None, "it diverged"),
    ],
)
def test_a_match_is_placed_among_the_shadows(
    match: float | None,
    rank: int | None,
    as_well: tuple[int, int] | None,
    less_well: tuple[int, int] | None,
    sentence: str,
) -> None:
    beside = shadow_result([0.1, 0.2, 0.3, None], [True, True, False, False])
    said = shadows_.compare(match, found_with(0.0), beside, torch.float32)
    assert said.rank == rank
    for found, expected in ((said.as_well, as_well), (said.less_well, less_well)):
        assert (found and (found.hits, found.of)) == (expected if expected != (0, 0) else None)
    result = plain_capture()
    told = replace(result, scores=replace(result.scores, match=match, shadows=said))
    assert sentence in standing.comparison(told)


def test_the_worst_match_of_all_is_told_from_a_good_one() -> None:
    beside = shadow_result([0.1, 0.2], [True, True])
    said = shadows_.compare(0.5, found_with(0.5), beside, torch.float32)
    result = plain_capture()
    text = standing.comparison(replace(result, scores=replace(result.scores, match=0.5, shadows=said)))
    assert "less well" in text
    assert "do not tell" in text


def test_a_delta_of_local_steps_is_audited_as_such() -> None:
    model, truth = small_model(), some_victims(1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(3):
        optimiser.zero_grad()
        F.cross_entropy(model(truth.images[0]), truth.labels[0]).backward()
        optimiser.step()
    update = {name: (before[name] - p.detach()) / 0.2 for name, p in model.named_parameters()}
    step = dm.clients.LocalTraining(steps=3, lr=0.2)
    start = small_model()
    right, wrong = (
        dm.captured(start, dm.Capture(update, SHAPE), attack="analytic", step=made, resources=QUIET)
        for made in (step, None)
    )
    assert right.scores.certificate.verdict == "recovered"
    assert right.scores.labels.least is None
    assert wrong.scores.certificate.verdict == "not determined"


def test_a_defense_that_changes_the_model_is_in_the_model_and_clipping_is_simulated() -> None:
    truth, shadows = some_victims(1), some_victims(2, seed=8)
    defense = dm.defenses.BY_NAME["precode"]()
    torch.manual_seed(1)
    model = defense.on_model(small_model(), SHAPE)
    update = {name: torch.full_like(p, 0.01) for name, p in model.named_parameters()}
    result = dm.captured(
        model,
        dm.Capture(update, SHAPE),
        attack=SEARCH,
        defense=defense,
        shadows=shadows,
        resources=dm.Resources(progress=False),
    )
    assert result.scores.shadows.updates == 2
    assert result.scores.labels.least is None
    clipped = audited(truth, attack=SEARCH, defense=Clipping(), shadows=shadows)
    assert "ClippedGradient" in clipped.settings["step"]


def noise_of_shadows(monkeypatch: pytest.MonkeyPatch, sigma: float, **more: object) -> float:
    """The deviation of what the defense adds to the shadows' updates."""
    asked: list[dm.Audit] = []
    perform = auditing.captured.captured.perform

    def noted(audit: dm.Audit, *, once: bool) -> dm.Result:
        asked.append(audit)
        return perform(audit, once=once)

    monkeypatch.setattr(auditing.captured.captured, "perform", noted)
    shadows = some_victims(2, seed=8)
    audited(some_victims(1), attack=SEARCH, shadows=shadows, defense=dm.defenses.GaussianNoise(sigma=sigma), **more)
    jobs = [Job(audit) for audit in (asked[0], replace(asked[0], defense=dm.defenses.NoDefense()))]
    noisy, clean = (job.observe(shadows)[0].gradient for job in jobs)
    return float(torch.cat([(noisy[name] - clean[name]).flatten() for name in clean]).std())


@pytest.mark.parametrize(
    ("more", "factor"),
    [
        ({}, 1.0),
        ({"lr": 0.1}, 10.0),
        ({"step": dm.clients.LocalTraining(steps=2, lr=0.1)}, 10.0),
        ({"step": dm.clients.LocalTraining(steps=2, lr=0.1), "lr": 1.0}, 1.0),
    ],
    ids=["gradient", "one step", "local steps", "gradients of local steps"],
)
def test_shadows_are_perturbed_where_the_client_perturbs(
    monkeypatch: pytest.MonkeyPatch, more: dict[str, object], factor: float
) -> None:
    """Noise on the change of weights, before minus after, is 1 / lr times larger on the change divided by lr."""
    assert noise_of_shadows(monkeypatch, 0.01, **more) == pytest.approx(0.01 * factor, rel=0.1)


def test_what_clips_acts_on_gradients_whatever_the_learning_rate() -> None:
    private = shadows_.InPlace(inner=Clipping() | dm.defenses.GaussianNoise(sigma=0.0), lr=0.1)
    rounded = shadows_.InPlace(inner=dm.defenses.NoDefense(), lr=0.1)
    update = {"weight": torch.rand(5)}
    for defense in (private, rounded):
        assert torch.equal(
            defense.on_gradient(update, dm.defenses.Moment(), torch.Generator())["weight"], update["weight"]
        )


def test_a_run_without_the_truth_survives_its_folder_and_has_no_scores_on_its_page(tmp_path: Path) -> None:
    result = audited(some_victims(1, batch=2), attack=SEARCH, shadows=some_victims(2, 2, seed=6))
    dm.report(result, tmp_path / "run")
    run = store.read_run(tmp_path / "run")
    assert run.document == json.loads(json.dumps(result.document()))
    assert sorted(run.tensors) == ["baseline", "curve", "curve_steps", "images"]
    assert sorted(p.name for p in (tmp_path / "run" / "images").iterdir()) == [
        "victim-000-0-reconstruction.png",
        "victim-000-1-reconstruction.png",
    ]
    text = (tmp_path / "run" / "report.html").read_text()
    for words in ("Scores beside the truth", "PSNR", "most exposed", "original", "private images of the victims"):
        assert words not in text
    for words in ("What is certain", "Beside updates of other images", standing.UNSEEN):
        assert words in text


def test_a_run_with_the_truth_has_originals_and_scores(tmp_path: Path) -> None:
    truth = some_victims(1)
    result = audited(truth, truth=truth)
    dm.report(result, tmp_path / "run")
    tensors = store.read_run(tmp_path / "run").tensors
    assert tensors["originals"].equal(truth.images)
    assert torch.allclose(tensors["certified"], truth.images, atol=1e-4)
    text = page.render(result)
    assert "Scores beside the truth" in text
    assert "The image was read" in text


def test_only_a_captured_run_may_lack_originals(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    dm.report(audited(some_victims(1)), folder)
    document = json.loads((folder / "records.json").read_text())
    (folder / "records.json").write_text(json.dumps(document | {"captured": False}))
    with pytest.raises(DataError, match="has no originals"):
        store.read_run(folder)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"truth": some_victims(1, batch=2)}, r"Expected truth of .* \(1, 1, 6, 6\).* got \(2, 1, 6, 6\)"),
        ({"truth": some_victims(2)}, "one batch behind the update"),
        ({"shadows": some_victims(2, batch=3)}, "Expected shadows of"),
        ({"labels": torch.tensor([1, 2])}, r"a label for each of the 1 image\(s\).* got 2"),
        ({"labels": torch.tensor([-100])}, "classes from 0 on, got -100"),
        ({"batch": 0}, "images behind it of at least 1, got 0"),
        ({"attack": dm.presets.inverting_gradients(secrets="known")}, "nobody knows of a captured update"),
    ],
)
def test_what_does_not_fit_is_refused_before_work(more: dict[str, object], match: str) -> None:
    with pytest.raises((SettingError, DataError), match=match):
        audited(some_victims(1), **more)


def test_an_update_that_is_no_gradient_of_the_model_is_refused() -> None:
    model, truth = small_model(), some_victims(1)
    update = gradient(model, truth)
    first = next(iter(update))
    for bad, match in (
        ({first: update[first].long()}, "is of int64, strided, expected plain floats"),
        ({first: update[first] * torch.nan}, "contains NaN"),
        ({first: update[first][:1]}, "has shape"),
    ):
        with pytest.raises(UpdateError, match=match):
            dm.captured(model, dm.Capture(update | bad, SHAPE), attack=dm.presets.analytic())


def test_ctrl_c_while_the_certificate_is_made_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RatioSolver, "solve", interrupted)
    truth = some_victims(1)
    update, search = gradient(small_model(), truth), dm.presets.inverting_gradients(steps=2, labels="idlg")
    with pytest.raises(auditing.InterruptedCapture) as caught:
        dm.captured(small_model(), dm.Capture(update, SHAPE), attack=search)
    assert caught.value.result.scores.certificate.verdict == "interrupted"


def test_ctrl_c_keeps_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from dosimeter.auditing.captured import captured

    def interrupted(*_: object, **__: object) -> auditing.Result:
        raise KeyboardInterrupt

    monkeypatch.setattr(captured, "perform", interrupted)
    with pytest.raises(auditing.InterruptedCapture) as caught:
        audited(some_victims(1), shadows=some_victims(2, seed=7))
    result = caught.value.result
    assert result.status == "interrupted"
    assert result.scores.certificate.verdict == "recovered"
    assert result.scores.shadows.left_out
    assert "Interrupted." in page.render(result)
