"""Weights of priors that are picked for a task: against formulas, and that they look at nothing but the task."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import models, presets
from dosimeter.attacks import LeaveOut, Search
from dosimeter.attacks.search import likelihoods, priors, weights
from dosimeter.auditing import Audit, Resources, estimate
from dosimeter.auditing.job import Job
from dosimeter.data import load, pick
from dosimeter.networks import has_tokens
from dosimeter.types import Secrets, Target, Victims
from small import network, target_of, tiny_target

TV = priors.TotalVariation()


def auto(**more: object) -> Search:
    return presets.inverting_gradients(tv="auto", steps=3, **more)  # type: ignore[arg-type]


def weight_of(search: Search, target: Target, batch: int = 1) -> float:
    prior = search.fitted(target, batch).prior
    assert isinstance(prior, priors.Scaled)
    return prior.weight


@pytest.fixture(scope="module")
def digits() -> Victims:
    found = pick(load("mnist-5k", size=16), 2, seed=1)
    return found._replace(labels=found.labels % 5)


def test_at_the_ratio_a_blurred_image_is_as_good_as_the_true_one() -> None:
    """By autograd on its own: D(blurred) + w R(blurred) = w R(true), the match of the true image being 0."""
    target, search = target_of(network(), (1, 16, 16)), auto()
    found = weights.ratios(search, TV, target, batch=2)
    assert len(found) == weights.UPDATES
    assert weights.ratios(search, TV, target, batch=10**9) == weights.ratios(search, TV, target, batch=weights.IMAGES)
    draws = dm.rng.stream(0, "weights", 0)
    images = torch.stack([weights.leaves((1, 16, 16), draws) for _ in range(2)]).double()
    labels = torch.randint(5, (2,), generator=draws)

    def gradient(x: Tensor) -> Tensor:
        slopes = torch.autograd.grad(F.cross_entropy(target.model(x), labels), list(target.model.parameters()))
        return torch.cat([g.flatten() for g in slopes])

    def rough(x: Tensor) -> Tensor:
        x = (x - 0.4) / 0.3
        return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()

    soft = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), torch.full((1, 1, 3, 3), 1 / 9).double())
    gap = 1 - torch.cosine_similarity(gradient(images), gradient(soft), dim=0)
    assert float(gap / (rough(images) - rough(soft))) == pytest.approx(found[0], rel=1e-6)


def test_a_weight_is_a_share_of_the_ratio_to_its_order_and_never_more_than_the_most() -> None:
    target = target_of(network(), (1, 16, 16))
    search = auto()
    ratio = sorted(weights.ratios(search, TV, target, 1))[(weights.UPDATES - 1) // 2]
    for share in (1e-3, 0.1):
        open_ = replace(search, prior=weights.Open(prior=TV, rule=weights.Balanced(share=share, most=1e9)))
        found = weight_of(open_, target)
        assert found in {float(f"{digit}e{power}") for digit in (1, 3) for power in range(-12, 3)}
        assert abs(math.log10(found / (share * ratio))) <= 0.28  # half of a step from 1 to 3, or from 3 to 10
    low = replace(search, prior=weights.Open(prior=TV, rule=weights.Balanced(share=1.0, most=ratio / 2)))
    assert weight_of(low, target) == ratio / 2


def test_a_network_that_hardly_tells_detail_gets_a_small_weight() -> None:
    """The same network behind a blur, whose update says less of what a blur takes away."""

    class Blurred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(4):
                x = weights.blur(x)
            out: Tensor = self.inner(x)
            return out

    search = auto()
    plain, soft = (
        sorted(weights.ratios(search, TV, target_of(model, (1, 16, 16)), 1)) for model in (network(), Blurred())
    )
    assert soft[-1] < plain[0] / 10


def test_what_is_open_is_picked_once_and_said() -> None:
    search, target = auto(), tiny_target()
    fitted = search.fitted(target, 1)
    assert fitted.picked.startswith(f"total variation {weight_of(search, target):g}, ")
    assert fitted.fitted(target, 1) is fitted
    fixed = presets.inverting_gradients(tv=0.5)
    assert fixed.fitted(target, 1) is fixed
    assert fixed.picked == ""
    both = replace(search, prior=search.prior + priors.L2Norm()).fitted(target, 1)
    assert both.prior == fitted.prior + priors.L2Norm()
    assert both.picked == fitted.picked
    around = LeaveOut(attack=search)
    assert around.picked == ""
    assert around.fitted(target, 1).picked == fitted.picked


def test_the_search_is_that_with_the_weight_that_was_picked(digits: Victims) -> None:
    job = Job(asked(digits))
    target, seen = job.attacker.target, job.observe(digits)
    weight = weight_of(auto(), target)
    alone, given = auto(), presets.inverting_gradients(tv=weight, steps=3)
    found, other = (each(target, seen, seed=0) for each in (alone, given))
    assert torch.equal(found.images, other.images)
    assert torch.equal(alone.blind()(target, seen, seed=0).images, given.blind()(target, seen, seed=0).images)


def asked(victims: Victims, **more: object) -> Audit:
    resources = Resources(dtype=torch.float64, progress=False)
    return Audit(model=network(), victims=victims, attack=auto(), resources=resources, **more)  # type: ignore[arg-type]


def test_a_weight_knows_nothing_of_victims_or_seeds(digits: Victims) -> None:
    other = digits._replace(images=1 - digits.images, labels=4 - digits.labels)
    jobs = [Job(asked(digits)), Job(asked(other)), Job(asked(digits, seed=7))]
    assert len({job.attacker.attack.picked for job in jobs}) == 1


def test_records_and_plans_say_what_was_picked(digits: Victims) -> None:
    picked = Job(asked(digits)).attacker.attack.picked
    assert picked
    assert dm.auditing.perform(asked(digits)).settings["picked"] == picked
    assert estimate(asked(digits))["picked"] == picked
    plain = replace(asked(digits), attack=presets.inverting_gradients(tv=0.01, steps=3))
    assert "picked" not in dm.auditing.perform(plain).settings


@pytest.mark.parametrize("why", ["loss", "match", "form"])
def test_where_nothing_can_be_weighed_the_usual_weight_counts(why: str) -> None:
    target, search = tiny_target(), auto()
    if why == "loss":
        target = replace(target, classification=False)
    elif why == "match":
        search = replace(search, likelihood=likelihoods.Nothing())
    else:
        target = replace(target, loss=lambda output, labels: F.cross_entropy(output, labels[:, None]))
    fitted = search.fitted(target, 1)
    assert weight_of(search, target) == 1e-2
    assert "the usual one" in fitted.picked


def test_networks_of_tokens_are_known_by_how_they_run() -> None:
    def built(name: str) -> nn.Module:
        return models.build(name, shape=(3, 32, 32), classes=10, mean=(0.5,) * 3, std=(0.2,) * 3, seed=0)

    for name, tokens in (("vit-released", True), ("vit", True), ("cnn", False), ("resnet20", False), ("mlp", False)):
        model = built(name)
        assert has_tokens(model, (3, 32, 32)) is tokens, name
        search = presets.inverting_gradients_cvb(variant="released")
        target = target_of(model, (3, 32, 32), torch.float32)
        assert weight_of(search, target) == (1e-4 if tokens else 0.1)


def test_draws_inside_the_model_are_the_same_for_both_images() -> None:
    """Else their noise would look like detail that is told."""
    torch.manual_seed(0)
    model = dm.defenses.Precode(k=4).on_model(network(), (1, 16, 16))
    target = target_of(model, (1, 16, 16))
    seen, real = list[Secrets](), Target.gradient

    def noted(self: Target, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        seen.append(self.drawn)
        return real(self, images, labels)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Target, "gradient", noted)
        weights.ratios(auto(), TV, target, 1)
    assert len(seen) == 2 * weights.UPDATES
    assert all(drawn and drawn is other for drawn, other in zip(seen[::2], seen[1::2], strict=True))
