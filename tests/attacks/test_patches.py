"""Images read off an embedding of patches, whose positions send what came back to it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import clients
from dosimeter.attacks import Analytic, labels
from dosimeter.attacks.solve.first_layer import in_double
from dosimeter.attacks.solve.patches import find_embedding, solve_patches
from dosimeter.clients import optimisers
from dosimeter.errors import SettingError
from dosimeter.types import Reconstruction, Target
from small import observe, target_of

SHAPE, PATCHES, WIDTH = (3, 8, 8), 16, 24


class Timm(nn.Module):
    """A ViT as timm lays it out, with parts of it done in other ways that are seen in the wild."""

    def __init__(self, way: str = "conv", width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.proj: nn.Module = (
            nn.Linear(12, width) if way == "linear" else nn.Conv2d(3, width, 2, 2, bias=way == "conv")
        )
        self.cls_token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        places = PATCHES if way in ("before", "fixed", "rows") else PATCHES + 1
        fixed = torch.randn(1, places, width) * 0.5
        if way == "fixed":
            self.register_buffer("pos_embed", fixed)
        else:
            self.pos_embed = nn.Parameter(fixed[:, :4] if way == "rows" else fixed)
        self.kind = nn.Parameter(torch.randn(1, 1, width)) if way == "two" else None
        self.more = nn.Parameter(torch.randn(PATCHES + 1, width)) if way == "two" else None
        self.layer = nn.TransformerEncoderLayer(width, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 5)

    def tokens(self, images: Tensor) -> Tensor:
        images = (images - 0.4) / 0.3
        if self.way == "linear":
            cut = images.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(len(images), PATCHES, 12)
            return self.proj(cut)
        return self.proj(images).flatten(2).transpose(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.tokens(images)
        if self.way in ("before", "fixed"):
            tokens = tokens + self.pos_embed
        if self.way == "rows":
            tokens = tokens + self.pos_embed.repeat_interleave(4, 1)
        tokens = torch.cat([self.cls_token.expand(len(images), -1, -1), tokens], 1)
        if self.way in ("conv", "linear", "around"):
            summed = tokens + self.pos_embed
            tokens = torch.cat([summed, tokens], 1) if self.way == "around" else summed
        if self.way == "in place":
            tokens += self.pos_embed
        if self.way == "two":
            tokens = self.pos_embed + tokens + self.kind + self.more
        return self.head(self.layer(tokens).mean(1))


def private(dtype: torch.dtype, victims: int = 2) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.rand(victims, 1, *SHAPE, generator=draws, dtype=dtype), torch.tensor([[1], [3]])[:victims]


def attacked(
    target: Target, images: Tensor, classes: Tensor, change: Callable[..., Any] | None = None
) -> Reconstruction:
    seen = observe(target, images, classes)
    if change is not None:
        seen = seen._replace(gradient={name: change(g) for name, g in seen.gradient.items()})
    return Analytic(labels=labels.Known())(target, [seen], seed=0)


@pytest.mark.parametrize("way", ["conv", "linear", "before", "in place", "two"])
def test_an_own_transformer_falls_to_the_closed_form(way: str) -> None:
    target = target_of(Timm(way), SHAPE, torch.float32)
    images, classes = private(torch.float32)
    found = attacked(target, images, classes)
    assert found.outcomes == ("recovered", "recovered")
    assert (found.images - images).abs().max() < 1e-3
    assert [each["image"] for each in found.determined] == [1.0, 1.0]
    layer = find_embedding(in_double(target))
    assert layer is not None
    assert set(layer.positions) == ({"pos_embed", "more"} if way == "two" else {"pos_embed"})


@pytest.mark.parametrize("way", ["fixed", "rows", "around"])
def test_positions_that_do_not_say_what_came_back_to_every_token_are_not_taken_for_it(way: str) -> None:
    target = target_of(Timm(way), SHAPE, torch.float64)
    assert find_embedding(in_double(target)) is None
    with pytest.raises(SettingError, match="analytic attack"):
        Analytic().check(target, 1)


def test_more_patches_than_numbers_of_a_token_are_determined_in_part() -> None:
    target = target_of(Timm("conv", width=8), SHAPE, torch.float64)
    images, classes = private(torch.float64, 1)
    found = attacked(target, images, classes)
    assert found.determined[0]["image"] == 8 / PATCHES
    grey = (torch.full_like(images, 0.5) - images).square().mean()
    assert (found.images.double() - images).square().mean() < grey


def test_local_steps_on_one_image_and_clipping_leave_it_exact() -> None:
    plain = target_of(Timm(), SHAPE, torch.float64)
    images, classes = private(torch.float64, 1)
    trained = replace(plain, step=clients.LocalTraining(steps=3, lr=0.05))
    assert (attacked(trained, images, classes).images.double() - images).abs().max() < 1e-5
    assert (attacked(plain, images, classes, lambda g: g * 0.01).images.double() - images).abs().max() < 1e-5
    adam = replace(plain, step=clients.LocalTraining(steps=3, lr=0.05, optimiser=optimisers.Adam()))
    with pytest.raises(SettingError, match="does not send"):
        Analytic().check(adam, 1)


def test_what_noise_leaves_open_stays_grey() -> None:
    draws = torch.Generator().manual_seed(0)
    came, cut = torch.randn(16, 64, generator=draws).double(), torch.rand(16, 12, generator=draws).double()
    grey = torch.full_like(cut, 0.5)

    def error(scale: float) -> tuple[float, float]:
        slopes = came.T @ cut + scale * torch.randn(64, 12, generator=draws).double()
        least = torch.linalg.lstsq(came.T, slopes).solution
        ours = solve_patches(came, slopes, grey, eps=1e-16, spread=0.3)[0]
        return float((ours - cut).norm()), float((least - cut).norm())

    few, many = error(1e-3), error(10.0)
    assert few[0] == pytest.approx(few[1], rel=0.1)
    assert many[0] < 0.5 * many[1]
    assert many[0] < 1.5 * (grey - cut).norm()


def test_entries_that_are_missing_at_random_have_no_equation() -> None:
    draws = torch.Generator().manual_seed(0)
    came, cut = torch.randn(16, 64, generator=draws).double(), torch.rand(16, 12, generator=draws).double()
    kept = torch.rand(64, 12, generator=draws) > 0.3
    found, rank = solve_patches(came, (came.T @ cut) * kept, torch.full_like(cut, 0.5), eps=1e-16, spread=0.3)
    assert torch.allclose(found, cut, atol=1e-6)
    assert rank == 16


@pytest.mark.parametrize("defense", ["cvb", "precode"])
def test_what_is_drawn_behind_the_embedding_hides_nothing(defense: str) -> None:
    torch.manual_seed(0)
    model = dm.models.ViT(shape=(3, 16, 16), classes=10, depth=2, width=36, heads=4)
    draws = torch.Generator().manual_seed(0)
    victims = dm.Victims(
        torch.rand(1, 1, 3, 16, 16, generator=draws), torch.tensor([[4]]), torch.tensor([[0]]), ("one",)
    )
    result = dm.audit(model, victims, attack="analytic", defense=defense)
    assert [record.stopped for record in result.records] == ["recovered"]
    assert result.scores["psnr"].mean > 80
