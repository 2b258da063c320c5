"""The parts of a search, each against an outside reference."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.fft import dctn, idctn
from torch import nn

from dosimeter import models
from dosimeter.attacks import labels, presets
from dosimeter.attacks.search import likelihoods, masks, moves, optimisers, priors, schedules, starts
from dosimeter.attacks.search.priors import View
from dosimeter.errors import SettingError
from small import ALONG, observe, target_of, tiny_target


@pytest.mark.parametrize("signed", [False, True])
def test_adam_is_torchs(signed: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    reference = x.clone().requires_grad_()
    theirs = torch.optim.Adam([reference], lr=0.07)
    ours, state = optimisers.Adam(lr=0.07, signed=signed), optimisers.Adam().init(x)
    for _ in range(20):
        slope = torch.randn_like(x)
        x, state = ours.step(x, slope, torch.ones(3, dtype=x.dtype), state, **ALONG)
        reference.grad = slope.sign() if signed else slope
        theirs.step()
    assert torch.allclose(x, reference, atol=1e-12)


def test_descent_is_torchs() -> None:
    x, slope = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)
    reference = x.clone().requires_grad_()
    reference.grad = slope
    torch.optim.SGD([reference], lr=0.07).step()
    moved, _ = optimisers.Descent(lr=0.7).step(x, slope, torch.full((3,), 0.1), optimisers.Descent().init(x), **ALONG)
    assert torch.allclose(moved, reference, atol=1e-8)


def test_adam_scales_each_candidate_by_its_own_factor() -> None:
    x, slope = torch.zeros(2, 3), torch.ones(2, 3)
    moved, _ = optimisers.Adam(lr=1.0).step(x, slope, torch.tensor([1.0, 0.1]), optimisers.Adam().init(x), **ALONG)
    assert torch.allclose(moved[0], 10 * moved[1])


def test_step_decay_is_torchs_multi_step() -> None:
    steps = 80
    weight = nn.Parameter(torch.zeros(1))
    theirs = torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD([weight], lr=1.0), [30, 50, 70], gamma=0.1)
    state = schedules.init(1, torch.zeros(1, dtype=torch.float64))
    for step in range(steps):
        state = schedules.StepDecay().update(step, steps, torch.zeros(1), state)
        assert float(state.scale) == pytest.approx(theirs.get_last_lr()[0])
        theirs.optimizer.step()
        theirs.step()


def test_plateau_is_torchs_for_every_candidate_on_its_own() -> None:
    rng = np.random.default_rng(0)
    losses = np.minimum.accumulate(rng.uniform(0.5, 1, (60, 2)), axis=0) + rng.uniform(0, 0.1, (60, 2))
    theirs = [
        torch.optim.lr_scheduler.ReduceLROnPlateau(
            torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0), patience=4, factor=0.1, eps=0
        )
        for _ in range(2)
    ]
    state = schedules.init(2, torch.zeros(1, dtype=torch.float64))
    for row in losses:
        state = schedules.Plateau(patience=4).update(0, 60, torch.tensor(row), state)
        for one, loss in zip(theirs, row, strict=True):
            one.step(loss)
        assert state.scale.tolist() == pytest.approx([one.get_last_lr()[0] for one in theirs])
    assert state.scale[0] < 1


def test_total_variation_by_hand() -> None:
    x = torch.rand(2, 3, 1, 4, 5)
    found = priors.TotalVariation().loss(View(images=x, normalised=x))
    for n in range(2):
        a = x[n].numpy()
        assert float(found[n]) == pytest.approx(
            np.abs(np.diff(a, axis=-1)).mean() + np.abs(np.diff(a, axis=-2)).mean(), rel=1e-5
        )


def test_priors_add_and_scale() -> None:
    view = View(images=torch.rand(2, 1, 1, 4, 4), normalised=torch.rand(2, 1, 1, 4, 4))
    tv = priors.TotalVariation()
    both = 2.0 * tv + 0.5 * tv + priors.Prior()
    assert torch.allclose(both.loss(view), 2.5 * tv.loss(view))


def test_largest_keeps_the_tensors_with_the_largest_norm_of_each_victim() -> None:
    norms = torch.tensor([[1.0, 5.0, 3.0], [9.0, 2.0, 4.0]])
    target = tiny_target()
    assert masks.Largest(n=2).weights(target, norms).tolist() == [[0, 1, 1], [1, 0, 1]]
    assert masks.Largest(n=7).weights(target, norms).sum() == 6
    with pytest.raises(SettingError):
        masks.Largest(n=0)


def test_starts_have_their_distribution() -> None:
    generator = torch.Generator().manual_seed(0)
    normal = starts.Normal().draw((4, 50, 50), generator, torch.float64)
    assert abs(float(normal.mean())) < 0.05
    assert abs(float(normal.std()) - 1) < 0.05
    uniform = starts.Uniform(low=-1, high=3).draw((4, 50, 50), generator, torch.float64)
    assert -1 <= uniform.min() < -0.9
    assert 2.9 < uniform.max() <= 3


@pytest.mark.parametrize("name", ["cnn", "lenet", "mlp"])
def test_idlg_reads_every_label_of_the_models_of_the_papers(name: str) -> None:
    shape = (1, 32, 32)
    model = models.build(name, shape=shape, classes=10, mean=(0.3,), std=(0.3,), seed=3)
    target = target_of(model, shape, torch.float32)
    torch.manual_seed(0)
    count = 100 if name != "mlp" else 20
    truth = torch.randint(0, 10, (count, 1))
    seen = observe(target, torch.rand(count, 1, *shape), truth, granted=False)
    assert torch.equal(labels.FromLastLayer().find(target, seen), truth)


def test_idlg_says_where_it_cannot_work() -> None:
    target = tiny_target()
    pair = observe(target, torch.rand(1, 2, 1, 6, 6), torch.tensor([[0, 1]]))
    with pytest.raises(SettingError, match="this one holds 2 images"):
        labels.FromLastLayer().find(target, pair)
    odd = target_of(nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Sigmoid()), (1, 6, 6))
    seen = observe(odd, torch.rand(1, 1, 1, 6, 6), torch.tensor([[0]]))
    with pytest.raises(SettingError, match="does not end in a linear layer"):
        labels.FromLastLayer().find(odd, seen)


def test_known_labels_must_be_granted() -> None:
    target = tiny_target()
    seen = observe(target, torch.rand(1, 1, 1, 6, 6), torch.tensor([[0]]), granted=False)
    with pytest.raises(SettingError, match="not granted; give them"):
        labels.Known().find(target, seen)


def test_presets_equal_the_printed_settings_and_cite_their_paper() -> None:
    a = presets.inverting_gradients_a()
    assert (a.stop.steps, a.restarts, a.optimiser) == (4000, 32, optimisers.Adam(lr=0.1, signed=True))
    assert a.prior == 1e-8 * priors.TotalVariation()
    assert a.schedule == schedules.StepDecay(at=(3 / 8, 5 / 8, 7 / 8), factor=0.1)
    assert a.only == masks.Everything()
    assert a.start == starts.Normal()
    assert (a.moves, a.keep, a.likelihood) == ((moves.Box(),), "last", likelihoods.Cosine())
    cvb = presets.inverting_gradients_cvb()
    assert (cvb.stop.steps, cvb.stop.patience, cvb.stop.target) == (20_000, 4000, 1e-5)
    assert cvb.optimiser == optimisers.Adam(lr=1.0)
    released = presets.inverting_gradients_cvb(tv=0.1, signed=True, keep="best")
    assert (released.optimiser, released.keep) == (optimisers.Adam(lr=1.0, signed=True), "best")
    assert cvb.schedule == schedules.Plateau(patience=400, factor=0.1)
    assert cvb.prior == 0.01 * priors.TotalVariation()
    papers = {
        "analytic": "Inverting Gradients",
        "features": "Inverting Gradients",
        "deep": "our own",
        "ig": "Inverting Gradients",
        "dlg": "Deep Leakage",
        "idlg": "iDLG",
        "cpl": "Client Privacy Leakage",
        "ignore": "CVB, Eq. 4",
        "bayes": "Balunovic",
        "grad": "Yin",
        "joint": "Ours",
        "eliminate": "our own",
        "leave": "Bayes, Sec. 5",
        "labels": "LLG (Wainakh et al. 2021)",
        "unlock": "FedKL, Eq. 29",
        "recover": "Inverting Gradients, Prop. 1",
        "grnn": "Ren et al. 2021",
        "ggl": "Li et al. 2022",
    }
    for name, preset in presets.BY_NAME.items():
        assert papers[name.partition("-")[0]] in (preset.__doc__ or "")


def test_a_preset_that_varies_another_takes_those_of_its_settings_that_it_does_not_decide() -> None:
    assert presets.inverting_gradients_b(top=3).only == masks.Largest(n=3)
    assert presets.idlg(inner=3, rule="rows") == replace(
        presets.dlg(inner=3), name="idlg", labels=labels.FromLastLayer(rule="rows")
    )
    assert presets.ignoring(tv=0.5, penalty=False).prior == 0.5 * priors.TotalVariation()
    for preset, needless in ((presets.joint, "secrets"), (presets.ignoring, "top"), (presets.recover_key, "draws")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{needless}'"):
            preset(**{needless: 1})


def test_dlg_idlg_and_cpl_equal_their_printed_settings() -> None:
    dlg, idlg, cpl = presets.dlg(), presets.idlg(), presets.cpl()
    for search in (dlg, idlg):
        assert search.optimiser == optimisers.LBFGS(lr=1.0, inner=20, history=100, line="none")
        assert (search.stop.steps, search.stop.target) == (300, 1e-6)
        assert (search.likelihood, search.prior) == (likelihoods.SquaredL2(), priors.Prior())
        assert (search.start, search.moves, search.restarts) == (starts.Normal(), (), 1)
    assert (dlg.labels, idlg.labels, cpl.labels) == (labels.Joint(), labels.FromLastLayer(), labels.FromLastLayer())
    assert (cpl.optimiser, cpl.stop.steps) == (optimisers.LBFGS(lr=1.0, inner=1, line="none"), 300)
    assert (cpl.start, cpl.likelihood, cpl.moves) == (starts.Tiled(across=2), likelihoods.SquaredL2(), ())
    assert presets.cpl(alpha=0.5).prior == 0.5 * priors.Prediction()


def test_a_tiled_start_repeats_one_patch() -> None:
    image = starts.Tiled().draw((2, 3, 32, 32), torch.Generator().manual_seed(0), torch.float64)
    patch = image[..., :16, :16]
    assert torch.equal(image, patch.repeat(1, 1, 2, 2))
    assert 0 <= float(patch.min()) < 0.01 < 0.99 < float(patch.max()) <= 1
    assert starts.Tiled().draw((1, 1, 7, 5), torch.Generator(), torch.float32).shape == (1, 1, 7, 5)


def test_the_prediction_term_by_hand() -> None:
    target = tiny_target()
    images, truth = torch.rand(3, 2, 1, 6, 6, dtype=torch.float64), torch.tensor([[0, 1], [2, 3], [4, 0]])
    found = priors.Prediction().loss(View(images=images, normalised=images, labels=truth, target=target))
    for n in range(3):
        predicted = target.model(images[n]).softmax(1).detach().numpy()
        assert float(found[n].detach()) == pytest.approx(((predicted - np.eye(5)[truth[n]]) ** 2).sum())


def test_a_word_that_is_no_choice_is_refused_with_the_nearest() -> None:
    with pytest.raises(SettingError, match="Did you mean 'cosine'"):
        presets.inverting_gradients(distance="cosin")  # type: ignore[arg-type]


@pytest.mark.parametrize(("shape", "times"), [((3, 32, 32), 4), ((1, 12, 20), 2), ((2, 7, 5), 4)])
def test_coarse_images_are_those_of_the_lowest_cosine_waves(shape: tuple[int, int, int], times: int) -> None:
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    waves = dctn(images.numpy(), axes=(-2, -1), norm="ortho")
    kept = np.zeros_like(waves)
    down, across = (max(1, size // times) for size in shape[1:])
    kept[..., :down, :across] = waves[..., :down, :across]
    found = moves.low_waves(images, times)
    np.testing.assert_allclose(found.numpy(), idctn(kept, axes=(-2, -1), norm="ortho"), atol=1e-12)
    assert torch.allclose(moves.low_waves(found, times), found)


def test_a_search_from_coarse_to_fine_has_the_steps_of_each_size_that_were_asked_for() -> None:
    def coarse(**settings: Any) -> list[moves.Move]:
        return [each for each in presets.inverting_gradients(**settings).moves if isinstance(each, moves.Coarse)]

    assert coarse() == []
    assert coarse(coarse=7, steps=40) == [moves.Coarse(steps=7)]
    assert coarse(coarse="auto", steps=40) == [moves.Coarse(steps=10)]
    assert coarse(coarse="auto", steps=1) == [moves.Coarse(steps=1)]
    with pytest.raises(SettingError, match="a number of steps"):
        presets.inverting_gradients(coarse=0)
