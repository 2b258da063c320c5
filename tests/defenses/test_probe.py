"""What a defense does to updates is found by trying it."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from dosimeter.channel import Clip, Hides, Mask, Noise, Rounding
from dosimeter.defenses import Defense, Moment
from dosimeter.defenses.probe import probe

Change = Callable[[dict[str, Tensor], torch.Generator], dict[str, Tensor]]
SHAPES = {"a.w": (16, 3, 5, 5), "a.b": (16,), "b.w": (32, 16, 3, 3), "l.w": (10, 128), "l.b": (10,)}


def gradient() -> dict[str, Tensor]:
    """Tensors of very different sizes with heavy tails, as those of networks are."""
    rng = torch.Generator().manual_seed(0)
    sizes = (10 ** (-at / 2 - 1) for at in range(len(SHAPES)))
    normal = {name: torch.randn(2, *shape, generator=rng) for name, shape in SHAPES.items()}
    return {name: size * pair[0] * pair[1].abs() for (name, pair), size in zip(normal.items(), sizes, strict=True)}


def found(change: Change) -> tuple[object, ...]:
    class Own(Defense):
        def on_gradient(self, gradient, moment, rng):  # type: ignore[no-untyped-def]
            return change(gradient, rng)

    return probe(Own(), gradient(), Moment(), seed=0)


def noise(g: Tensor, rng: torch.Generator) -> Tensor:
    return torch.randn(g.shape, generator=rng)


def norm(update: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.square().sum()) for g in update.values()))


def test_what_changes_nothing_but_the_scale_has_no_facts() -> None:
    assert found(lambda update, _: update) == ()
    assert found(lambda update, _: {name: g / 2 for name, g in update.items()}) == ()


@pytest.mark.parametrize("sigma", [1e-5, 0.01, 3.0])
def test_noise_of_any_size_and_place(sigma: float) -> None:
    (fact,) = found(lambda update, rng: {name: g + sigma * noise(g, rng) for name, g in update.items()})
    assert fact == Noise("gaussian", pytest.approx(sigma, rel=0.03), None)  # type: ignore[arg-type]
    (fact,) = found(
        lambda update, rng: {n: g + sigma * noise(g, rng) if n.startswith("a") else g for n, g in update.items()}
    )
    assert fact == Noise("gaussian", pytest.approx(sigma, rel=0.03), frozenset({"a.w", "a.b"}))  # type: ignore[arg-type]


def test_noise_that_follows_each_tensors_size_has_a_fact_of_each() -> None:
    facts = found(lambda update, rng: {name: g + g.std() / 10 * noise(g, rng) for name, g in update.items()})
    given = gradient()
    assert {frozenset({name}) for name in given} == {fact.on for fact in facts}  # type: ignore[attr-defined]
    for fact in facts:
        assert isinstance(fact, Noise)
        (name,) = fact.on or ()
        assert fact.scale == pytest.approx(float(given[name].std()) / 10, rel=0.2)


def test_a_grid_is_found_whether_it_is_fixed_or_follows_the_largest_entry() -> None:
    (fact,) = found(lambda update, _: {name: g.round(decimals=4) for name, g in update.items()})
    assert fact == Rounding(pytest.approx(1e-4, rel=1e-3), False, None)  # type: ignore[arg-type]


def test_clipping_of_all_or_of_each_and_noise_behind_it() -> None:
    def whole(update: dict[str, Tensor], rng: torch.Generator, sigma: float = 0.0) -> dict[str, Tensor]:
        factor = min(1.0, 0.5 / norm(update))
        return {name: factor * g + sigma * noise(g, rng) for name, g in update.items()}

    near = pytest.approx(0.5, rel=0.02)
    assert found(whole) == (Clip(near, "update"),)  # type: ignore[arg-type]
    clip, added = found(lambda update, rng: whole(update, rng, sigma=1e-3))
    assert clip == Clip(near, "update")  # type: ignore[arg-type]
    assert added == Noise("gaussian", pytest.approx(1e-3, rel=0.03), None)  # type: ignore[arg-type]
    (each,) = found(lambda update, _: {name: g * min(1.0, 0.1 / float(g.norm())) for name, g in update.items()})
    assert each == Clip(pytest.approx(0.1, rel=0.02), "tensor")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        lambda update, rng: {name: g * (1 + 0.3 * noise(g, rng)) for name, g in update.items()},
        lambda update, rng: {name: g * (1 - 2 * torch.randint(2, (), generator=rng)) for name, g in update.items()},
        lambda update, _: {name: g.sign() for name, g in update.items()},
        lambda update, rng: {
            n: g.flatten()[torch.randperm(g.numel(), generator=rng)].view_as(g) for n, g in update.items()
        },
    ],
    ids=["multiplied", "flipped", "signs", "shuffled"],
)
def test_what_fits_nothing_is_hidden_and_not_taken_for_noise(change: Change) -> None:
    assert found(change) == (Hides(None),)


def test_columns_that_neither_size_nor_chance_chose_hide_their_tensor() -> None:
    def columns(update: dict[str, Tensor], _: torch.Generator) -> dict[str, Tensor]:
        return {**update, "l.w": torch.cat([update["l.w"][:, :64], 0 * update["l.w"][:, 64:]], 1)}

    assert found(columns) == (Hides(frozenset({"l.w"})),)


def test_the_smallest_entries_of_some_tensors() -> None:
    def largest(update: dict[str, Tensor], _: torch.Generator) -> dict[str, Tensor]:
        return {n: torch.where(g.abs() > g.abs().median(), g, 0) if n == "b.w" else g for n, g in update.items()}

    assert found(largest) == (Mask(pytest.approx(0.5, abs=0.01), "size", frozenset({"b.w"})),)  # type: ignore[arg-type]
