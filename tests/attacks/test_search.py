"""The loop: batch mates change nothing, every victim stops on its own, restarts are chosen by the match."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from dosimeter import data, models
from dosimeter.attacks import Search, Stop, presets
from dosimeter.attacks.search import likelihoods, masks, optimisers, priors, schedules, starts
from dosimeter.attacks.search.priors import Prior, View
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Target
from small import observe, target_of, tiny_target


def six(labels: int = 5) -> tuple[Target, Observation]:
    target = tiny_target()
    torch.manual_seed(3)
    return target, observe(target, torch.rand(6, 1, 1, 6, 6), torch.randint(0, labels, (6, 1)))


GOALS = ({"target": 8e-3}, {"match": 8e-3})


def only(seen: Observation, who: list[int]) -> Observation:
    """What the server sees of some of the victims."""
    assert seen.labels is not None
    return Observation(
        {name: g[who] for name, g in seen.gradient.items()},
        seen.batch,
        tuple(seen.ids[i] for i in who),
        seen.labels[who],
    )


def run(search: Search, target: Target, seen: Observation, seed: int = 0) -> Reconstruction:
    return search(target, [seen], seed=seed)


def test_victim_7_of_32_equals_victim_7_alone_after_200_steps() -> None:
    dataset = data.load("mnist-5k", size=32)
    model = models.build("cnn", shape=dataset.shape, classes=10, mean=(0.1307,), std=(0.3081,), seed=0)
    target = target_of(model, dataset.shape)
    victims = data.pick(dataset, 32, seed=0)
    seen = observe(target, victims.images, victims.labels)
    search = presets.inverting_gradients(steps=200)
    together, alone = run(search, target, seen), run(search, target, only(seen, [7]))
    assert together.images.dtype == torch.float64
    assert float((together.images[7] - alone.images[0]).abs().max()) < 1e-6
    assert float((together.match[7] - alone.match[0]).abs()) < 1e-6


@pytest.mark.parametrize("preset", [presets.dlg, presets.idlg, presets.cpl])
def test_searches_by_lbfgs_find_images_and_labels_whoever_else_is_in_the_batch(preset: Callable[..., Search]) -> None:
    target, seen = six()
    torch.manual_seed(3)
    truth, settings = torch.rand(6, 1, 1, 6, 6), {"steps": 60, "line": "wolfe", "target": 1e-12}
    if preset is presets.cpl:
        settings["alpha"] = 0.0
    together = run(preset(**settings), target, seen)
    alone = run(preset(**settings), target, only(seen, [4]))
    assert torch.allclose(together.images[4], alone.images[0], rtol=1e-6, atol=1e-6)
    assert torch.equal(together.labels, seen.labels)  # type: ignore[arg-type]
    assert ((together.images - truth).square().mean((1, 2, 3, 4)) < 1e-3).all()


def test_permuting_victims_permutes_results() -> None:
    target, seen = six()
    order = [4, 2, 0, 5, 1, 3]
    search = presets.inverting_gradients(steps=60, restarts=2)
    straight, permuted = run(search, target, seen), run(search, target, only(seen, order))
    assert torch.allclose(straight.images[order], permuted.images, atol=1e-9)
    assert torch.equal(straight.restart[order], permuted.restart)


def test_same_seed_same_bits_and_another_seed_another_start() -> None:
    target, seen = six()
    search = presets.inverting_gradients(steps=20)
    assert torch.equal(run(search, target, seen).images, run(search, target, seen).images)
    assert not torch.equal(run(search, target, seen).images, run(search, target, seen, seed=1).images)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"signed": False},
        {"box": False},
        {"distance": "l2", "signed": False, "lr": 0.03},
        {"decay": "plateau", "plateau": 50},
        {"decay": "none"},
        {"top": 2},
        {"labels": "idlg"},
        {"keep": "best"},
        {"restarts": 3},
    ],
    ids=str,
)
def test_every_option_lowers_the_match_and_finds_the_images(settings: dict[str, object]) -> None:
    target, seen = six()
    torch.manual_seed(3)
    truth = torch.rand(6, 1, 1, 6, 6)
    search = presets.inverting_gradients(**({"steps": 400, "tv": 0.0} | settings))  # type: ignore[arg-type]
    found = run(search, target, seen)
    assert (found.curve.match[:, -1] < 0.2 * found.curve.match[:, 0]).all()
    error = (found.images.clamp(0, 1) - truth).square().mean((1, 2, 3, 4))
    blind = (run(search.blind(), target, seen).images.clamp(0, 1) - truth).square().mean((1, 2, 3, 4))
    assert error.mean() < 0.3 * blind.mean()


def test_each_victim_stops_on_its_own_at_the_target() -> None:
    target, seen = six()
    found = run(presets.inverting_gradients(steps=400, tv=0.0, target=2e-2), target, seen)
    assert set(found.outcomes) == {"target"}
    assert len(set(found.steps.tolist())) > 1
    assert (found.match <= 2e-2).all()
    late = run(presets.inverting_gradients(steps=400, tv=0.0, target=2e-2), target, only(seen, [2]))
    assert late.steps.tolist() == [found.steps[2].item()]


def test_patience_stops_a_search_that_no_longer_falls() -> None:
    target, seen = six()
    search = replace(presets.inverting_gradients(steps=300, patience=7, box=False), optimiser=optimisers.Adam(lr=1e-99))
    found = run(search, target, seen)
    assert found.outcomes == ("patience",) * 6
    assert found.steps.tolist() == [7] * 6


def legs(steps: int, leg: int | None) -> list[int]:
    return [each.end for each in Stop(steps=steps, leg=leg).legs]


def test_a_search_without_an_end_goes_on_in_legs_that_grow() -> None:
    assert legs(6200, 200) == [200, 600, 1400, 3000, 6200]
    assert legs(1000, 200) == [200, 1000]  # no leg shorter than the one before
    assert legs(150, 200) == legs(150, None) == [150]
    assert presets.inverting_gradients().stop.asked == presets.joint().steps == "auto"
    assert presets.inverting_gradients_a().steps == 4000  # the paper's own
    assert presets.inverting_gradients_a(steps="auto").stop == presets.inverting_gradients().stop


def test_who_settles_leaves_early_with_what_a_longer_search_finds() -> None:
    target, seen = six()
    found = run(presets.inverting_gradients(), target, seen)
    long = run(presets.inverting_gradients(steps=1500), target, seen)
    assert found.outcomes == ("settled",) * 6
    assert found.steps.tolist() == [600] * 6
    assert torch.allclose(found.match, long.match, rtol=0.1)
    assert (found.images - long.images).abs().mean() < 0.01


def test_a_target_of_the_match_leaves_the_prior_out() -> None:
    """Total variation alone is above the target here, so that the loss never comes to it."""
    target, seen = six()
    search = presets.inverting_gradients(steps=400, tv=0.01)
    of_loss, of_match = (run(replace(search, stop=Stop(steps=400, **to)), target, seen) for to in GOALS)
    assert set(of_loss.outcomes) == {"steps"}
    assert "target" in of_match.outcomes
    reached = torch.tensor([outcome == "target" for outcome in of_match.outcomes])
    assert (of_match.match[reached] <= 8e-3).all()
    assert (of_match.steps[reached] < 400).all()


def test_a_victim_settles_whoever_else_is_in_the_batch() -> None:
    target, seen = six()
    search = replace(presets.inverting_gradients(tv=0.01), stop=Stop(steps=420, leg=60))
    together = run(search, target, seen)
    assert set(together.steps.tolist()) == {180, 420}
    for v in (0, 1, 4):
        alone = run(search, target, only(seen, [v]))
        assert alone.steps.tolist() == [together.steps[v]]
        assert alone.outcomes == (together.outcomes[v],)
        assert float((alone.images[0] - together.images[v]).abs().max()) < 1e-6


def test_the_end_of_the_best_leg_counts_and_what_is_cut_in_the_midst_of_one_does_not() -> None:
    target, seen = six()
    search = replace(presets.inverting_gradients(), stop=Stop(steps=280, leg=40))

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        if done == 55:
            raise KeyboardInterrupt

    cut = search(target, [seen], seed=0, watch=watch)
    assert set(cut.outcomes) == {"interrupted"}
    assert set(cut.steps.tolist()) == {55}
    first = run(presets.inverting_gradients(steps=40), target, seen)
    assert torch.equal(cut.images, first.images)  # a leg is a whole search with its own schedule
    assert torch.equal(cut.match, first.match)
    assert (run(search, target, seen).match <= first.match * 1.05 + 1e-9).all()


def test_restarts_that_a_prior_looks_at_together_go_on_together() -> None:
    target, seen = six()
    apart = replace(presets.inverting_gradients(tv=0.01, restarts=3), stop=Stop(steps=420, leg=60))
    together = replace(apart, prior=apart.prior + 1e-3 * priors.Group())
    heard: list[int] = []
    together(target, [seen], seed=0, watch=lambda *, done, total, match, active: heard.append(active))
    assert all(active % 3 == 0 for active in heard[1:])
    heard.clear()
    apart(target, [seen], seed=0, watch=lambda *, done, total, match, active: heard.append(active))
    assert any(active % 3 for active in heard[1:])


def test_a_search_begun_anew_has_other_starts_and_longer_legs() -> None:
    target, seen = six()
    search = replace(presets.inverting_gradients(restarts=2), stop=Stop(steps=30, leg=10))
    again = search.again(1)
    assert again is not None
    assert (again.stop.steps, again.stop.leg) == (30, 20)
    assert set(run(again, target, seen).restart.tolist()) <= {2, 3}
    assert presets.inverting_gradients(steps=30).again(1) is None  # as many as were asked for
    same = replace(search, stop=again.stop, restarts=1, first=2)
    in_turn = replace(again, side_by_side=1)
    assert torch.allclose(run(in_turn, target, seen).match, run(again, target, seen).match, rtol=1e-6)
    assert not torch.equal(run(same, target, seen).images, run(replace(same, first=0), target, seen).images)


def test_the_reported_match_is_that_of_the_returned_image() -> None:
    target, seen = six()
    search = presets.inverting_gradients(steps=30, tv=0.1)
    found = run(search, target, seen)
    assert found.steps.tolist() == [30] * 6
    assert found.labels is not None
    again = observe(target, found.images, found.labels)
    for v in range(6):
        a, b = (torch.cat([g[v].flatten() for g in o.gradient.values()]) for o in (again, seen))
        assert float(found.match[v]) == pytest.approx(1 - float(a @ b / a.norm() / b.norm()), abs=1e-10)


def test_the_best_iterate_is_the_lowest_on_the_way() -> None:
    target, seen = six()
    wild = replace(presets.inverting_gradients(steps=40, tv=0.0, lr=2.0, decay="none"), keep="best")
    calm = replace(wild, keep="last")
    best, last = run(wild, target, seen), run(calm, target, seen)
    assert not torch.equal(best.images, last.images)
    again = observe(target, best.images, seen.labels)  # type: ignore[arg-type]
    for v in range(6):
        a, b = (torch.cat([g[v].flatten() for g in o.gradient.values()]) for o in (again, seen))
        at_best = 1 - float(a @ b / a.norm() / b.norm())
        assert float(best.match[v]) == pytest.approx(at_best, abs=1e-10)
        assert at_best <= float(best.curve.match[v].min()) + 1e-12


def test_restarts_are_compared_by_the_match_without_the_prior() -> None:
    target, seen = six()
    alone = [run(presets.inverting_gradients(steps=25, tv=0.3), target, seen)]
    many = run(presets.inverting_gradients(steps=25, tv=0.3, restarts=6), target, seen)
    assert (many.match <= alone[0].match + 1e-12).all()
    assert len(set(many.restart.tolist())) > 1
    same = many.restart == 0
    assert torch.allclose(many.images[same], alone[0].images[same], atol=1e-9)


def test_the_box_keeps_pixels_in_range() -> None:
    target, seen = six()
    inside = run(presets.inverting_gradients(steps=3, lr=2.0), target, seen).images
    outside = run(presets.inverting_gradients(steps=3, lr=2.0, box=False), target, seen).images
    assert inside.min() >= -1e-9
    assert inside.max() <= 1 + 1e-9
    assert outside.max() > 1.1


def test_tensors_left_out_do_not_count() -> None:
    target, seen = six()
    norms = torch.stack([g.flatten(1).square().sum(1) for g in seen.gradient.values()], 1)
    first = masks.Largest(n=1).weights(target, norms)
    broken = Observation(
        {
            n: torch.where(first[:, p].reshape(-1, *[1] * (g.ndim - 1)) > 0, g, 0.5 * g)
            for p, (n, g) in enumerate(seen.gradient.items())
        },
        seen.batch,
        seen.ids,
        seen.labels,
    )
    search = presets.inverting_gradients(steps=20, top=1)
    assert torch.allclose(run(search, target, seen).images, run(search, target, broken).images)
    assert not torch.allclose(
        run(presets.inverting_gradients(steps=20), target, seen).images,
        run(presets.inverting_gradients(steps=20), target, broken).images,
    )


@dataclass(frozen=True, kw_only=True)
class Poison(Prior):
    """Not finite wherever the first pixel is bright."""

    def loss(self, view: View) -> Tensor:
        return torch.where(view.images[:, 0, 0, 0, 0] > 0.5, torch.nan, 0.0)


def test_a_restart_that_diverges_never_wins() -> None:
    target, seen = six()
    search = replace(presets.inverting_gradients(steps=5, restarts=12), prior=Poison(), start=starts.Normal())
    found = run(search, target, seen)
    assert found.match.isfinite().all()
    assert "diverged" not in found.outcomes
    lost = run(replace(search, restarts=1, start=starts.Uniform(low=1.0, high=1.5)), target, seen)
    assert set(lost.outcomes) == {"diverged"}
    assert lost.images.isfinite().all()


def test_an_interrupted_search_returns_what_it_has() -> None:
    target, seen = six()

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        if done == 9:
            raise KeyboardInterrupt

    found = presets.inverting_gradients(steps=50)(target, [seen], seed=0, watch=watch)
    assert set(found.outcomes) == {"interrupted"}
    assert set(found.steps.tolist()) == {9}
    assert torch.equal(found.images, run(presets.inverting_gradients(steps=50), target, seen).images) is False
    assert found.match.isfinite().all()


def test_the_watch_hears_of_every_step() -> None:
    target, seen = six()
    heard: list[tuple[int, int, int]] = []
    presets.inverting_gradients(steps=4)(
        target, [seen], seed=0, watch=lambda *, done, total, match, active: heard.append((done, total, active))
    )
    assert heard == [(step, 4, 6) for step in (0, 0, 1, 2, 3)]  # first of all before it looks for labels


def test_batches_of_several_images() -> None:
    target = tiny_target()
    torch.manual_seed(1)
    truth = torch.rand(2, 2, 1, 6, 6)
    seen = observe(target, truth, torch.tensor([[0, 1], [2, 3]]))
    found = run(presets.inverting_gradients(steps=400, tv=0.0), target, seen)
    assert found.images.shape == truth.shape
    assert (found.match < 0.02).all()


def test_blind_search_never_looks_at_the_update() -> None:
    target, seen = six()
    other = Observation({n: -3 * g for n, g in seen.gradient.items()}, seen.batch, seen.ids, seen.labels)
    search = presets.inverting_gradients(steps=30).blind()
    assert torch.equal(run(search, target, seen).images, run(search, target, other).images)


def test_neither_the_truth_nor_a_score_can_be_passed_in() -> None:
    assert set(inspect.signature(Search.__call__).parameters) == {"self", "target", "observations", "seed", "watch"}
    assert set(Observation._fields) == {"gradient", "batch", "ids", "labels", "statistics", "secrets", "clients"}
    assert {"images", "victims"}.isdisjoint(Target.__annotations__)


def test_settings_print_and_compare() -> None:
    search = Search(stop=Stop(steps=3), prior=0.1 * priors.TotalVariation(), schedule=schedules.StepDecay())
    assert search == replace(search, stop=Stop(steps=3))
    assert "TotalVariation" in repr(search)
    assert hash(search) == hash(replace(search))
    assert search.likelihood == likelihoods.Cosine()


@pytest.mark.parametrize("make", [lambda: Stop(steps=0), lambda: Search(stop=Stop(steps=1), restarts=0)])
def test_empty_searches_are_refused(make: object) -> None:
    with pytest.raises(SettingError, match="at least 1"):
        make()  # type: ignore[operator]
