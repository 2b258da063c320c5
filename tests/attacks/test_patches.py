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
from dosimeter.attacks.around.rounds import AverageRounds
from dosimeter.attacks.solve.embedding import find_embedding
from dosimeter.attacks.solve.first_layer import in_double
from dosimeter.attacks.solve.patches import solve_patches
from dosimeter.auditing.verdict import weigh
from dosimeter.clients import optimisers
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Target
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


class Torchvision(nn.Module):
    """A ViT as torchvision lays it out: positions of an encoder are added after the class token, then dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv_proj = nn.Conv2d(3, WIDTH, 2, 2)
        self.class_token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.encoder = nn.Module()
        self.encoder.pos_embedding = nn.Parameter(torch.randn(1, PATCHES + 1, WIDTH) * 0.02)
        self.encoder.dropout = nn.Dropout(dropout)
        self.encoder.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(WIDTH, 4, 48, dropout, "gelu", batch_first=True, norm_first=True)
                for _ in range(2)
            )
        )
        self.encoder.ln = nn.LayerNorm(WIDTH, eps=1e-6)
        self.heads = nn.Sequential(nn.Linear(WIDTH, 5))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.conv_proj(images).reshape(len(images), WIDTH, PATCHES).permute(0, 2, 1)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), tokens], dim=1)
        encoder = self.encoder
        tokens = encoder.ln(encoder.layers(encoder.dropout(tokens + encoder.pos_embedding)))
        out: Tensor = self.heads(tokens[:, 0])
        return out


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


@pytest.mark.parametrize(("dropout", "training"), [(0.0, False), (0.1, False), (0.1, True)])
def test_torchvisions_layout_falls_too_whether_dropout_is_on_or_off(dropout: float, training: bool) -> None:
    target = target_of(Torchvision(dropout), SHAPE, torch.float32)
    target.model.train(training)
    images, classes = private(torch.float32)
    found = attacked(target, images, classes)
    assert found.outcomes == ("recovered", "recovered")
    assert (found.images - images).abs().max() < 1e-3


def test_a_transformer_that_was_trained_falls_too() -> None:
    draws = torch.Generator().manual_seed(5)
    model = Timm()
    steps = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(20):
        steps.zero_grad()
        images, classes = torch.rand(8, *SHAPE, generator=draws), torch.randint(0, 5, (8,), generator=draws)
        torch.nn.functional.cross_entropy(model(images), classes).backward()
        steps.step()
    target = target_of(model, SHAPE, torch.float32)
    private_images, labels_ = private(torch.float32)
    found = attacked(target, private_images, labels_)
    assert found.outcomes == ("recovered", "recovered")
    assert (found.images - private_images).square().mean() < 1e-10  # 100 dB


def test_equations_count_by_their_rounding() -> None:
    """Rows of D of other sizes, and cancelling sums, as in a float32 gradient: weighing comes nearer to the patches."""
    draws = torch.Generator().manual_seed(2)
    sizes = torch.logspace(0, -3, 96)
    came = torch.randn(32, 96, generator=draws) * sizes
    came[1:] += 0.999 * came[0]
    cut = torch.rand(32, 12, generator=draws)
    slopes = torch.zeros(96, 12)
    for back, patch in zip(came, cut, strict=True):  # one after another, each rounded
        slopes = slopes + back[:, None] * patch
    came, cut, slopes = came.double(), cut.double(), slopes.double()
    least = torch.linalg.lstsq(came.T, slopes).solution
    found = solve_patches(came, slopes, torch.full_like(cut, 0.5), eps=1.2e-7, spread=0.3)[0]
    assert (found - cut).norm() < 0.5 * (least - cut).norm()


def test_pixels_of_bytes_come_out_to_the_last_digit_and_others_as_they_are() -> None:
    target = target_of(Timm(), SHAPE, torch.float32)
    images, classes = private(torch.float32)
    bytes_ = (images * 255).round() / 255
    assert torch.equal(attacked(target, bytes_, classes).images, bytes_)
    seen = observe(target, bytes_, classes)
    plain = Analytic(labels=labels.Known(), levels=None)(target, [seen], seed=0)
    assert 0 < (plain.images - bytes_).abs().max() < 1e-3
    assert not torch.equal(attacked(target, images, classes).images, (images * 255).round() / 255)


def test_noise_of_many_rounds_is_averaged() -> None:
    target = target_of(Timm(), SHAPE, torch.float64)
    images, classes = private(torch.float64, 1)
    draws = torch.Generator().manual_seed(0)

    def noisy() -> Observation:
        seen = observe(target, images, classes)
        noise = {n: 1e-3 * torch.randn(g.shape, generator=draws, dtype=g.dtype) for n, g in seen.gradient.items()}
        return seen._replace(gradient={n: g + noise[n] for n, g in seen.gradient.items()})

    rounds = [noisy() for _ in range(100)]
    attack = Analytic(labels=labels.Known())
    one = attack(target, rounds[:1], seed=0).images
    many = AverageRounds(attack=attack)(target, rounds, seed=0).images
    assert (many - images).norm() < 0.5 * (one - images).norm()


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
    heavy = optimisers.SGD(momentum=0.9, weight_decay=0.1)
    kept = replace(plain, step=clients.LocalTraining(steps=3, lr=0.05, optimiser=heavy))
    found = attacked(kept, images, classes)
    assert found.outcomes == ("recovered",)
    assert (found.images.double() - images).abs().max() < 1e-5
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


@pytest.mark.parametrize(("defense", "ran"), [(None, 1), ("noise:sigma=0.0003", 2)])
def test_a_panel_solves_for_patches_first_and_says_that_they_leak(defense: str | None, ran: int) -> None:
    torch.manual_seed(0)
    model = dm.models.ViT(shape=(3, 16, 16), classes=10, depth=2, width=36, heads=4)
    victims = dm.pick(dm.load("mnist-5k").prepared(size=16, channels=3), 4, seed=0)
    result = dm.panel(model, victims, steps=1, defense=defense, resources=dm.Resources(until_read=True))
    solved = [trial for trial in result.panel if trial.attack.startswith("analytic")]
    assert [trial.attack for trial in result.panel[: len(solved)]] == [trial.attack for trial in solved]
    assert max(trial.result.scores.success.hits for trial in solved if trial.result) == 4
    assert len(solved) <= ran
    assert weigh(result).kind == "leaks"
