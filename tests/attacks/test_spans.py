"""Images read off the span of the tokens, where positions are fixed and send nothing."""

import pytest
import torch
from torch import Tensor, nn

from dosimeter.attacks import Analytic, labels
from dosimeter.attacks.solve.first_layer import in_double
from dosimeter.attacks.solve.levels import whole_levels
from dosimeter.attacks.solve.spans import find_tokens
from dosimeter.errors import SettingError
from dosimeter.models.vit import Block
from small import observe, target_of

SHAPE, SIDE, WIDTH = (3, 8, 8), 4, 48


class Fixed(nn.Module):
    """A ViT whose positions are a buffer: drawn, of sines and cosines of rows and columns, or none."""

    def __init__(self, kind: str, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Conv2d(3, width, 2, 2)
        angles = torch.outer(torch.arange(SIDE).float(), 100.0 ** -(torch.arange(width // 4) / (width // 4)))
        waves = torch.cat([angles.sin(), angles.cos()], 1)  # (SIDE, width / 2)
        rows, columns = waves[:, None].expand(-1, SIDE, -1), waves[None].expand(SIDE, -1, -1)
        places = {
            "drawn": torch.randn(SIDE**2, width),
            "waves": torch.cat([rows, columns], 2).reshape(SIDE**2, width),
            "none": torch.zeros(SIDE**2, width),
        }[kind]
        self.register_buffer("places", places)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.blocks = nn.Sequential(*(Block(width, 4, 64, "gelu", twice=False, bias=True) for _ in range(2)))
        nn.init.normal_(self.blocks[0].norm1.bias)  # a norm with weights of its own
        nn.init.uniform_(self.blocks[0].norm1.weight, 0.5, 1.5)
        self.head = nn.Linear(width, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.embed((images - 0.4) / 0.3).flatten(2).transpose(1, 2) + self.places
        tokens = torch.cat([self.token.expand(len(images), -1, -1), tokens], 1)
        out: Tensor = self.head(self.blocks(tokens)[:, 0])
        return out


def private(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(1)
    return torch.rand(2, 1, *SHAPE, generator=draws, dtype=dtype), torch.tensor([[1], [3]])


@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-8), (torch.float32, 1e-3)])
def test_fixed_positions_in_general_place_tell_patches_apart(dtype: torch.dtype, error: float) -> None:
    target = target_of(Fixed("drawn"), SHAPE, dtype)
    images, classes = private(dtype)
    attack = Analytic(labels=labels.Known())
    attack.check(target, 1)
    found = attack(target, [observe(target, images, classes)], seed=0)
    assert found.outcomes == ("recovered", "recovered")
    assert (found.images - images).abs().max() < error
    tokens = find_tokens(in_double(target), dtype)
    assert tokens is not None
    assert tokens.weights == ("blocks.0.attention.qkv.weight",)


@pytest.mark.parametrize(("kind", "width"), [("waves", WIDTH), ("none", WIDTH), ("drawn", 24)])
def test_where_other_patches_have_the_same_span_it_is_refused(kind: str, width: int) -> None:
    target = target_of(Fixed(kind, width), SHAPE, torch.float32)
    assert find_tokens(in_double(target), torch.float32) is None
    with pytest.raises(SettingError, match="analytic attack"):
        Analytic().check(target, 1)


def test_noise_on_the_span_is_not_taken_for_an_image() -> None:
    target = target_of(Fixed("drawn"), SHAPE, torch.float64)
    seen = observe(target, *private(torch.float64))
    draws = torch.Generator().manual_seed(0)
    noisy = {n: g + 0.1 * torch.randn(g.shape, generator=draws, dtype=g.dtype) for n, g in seen.gradient.items()}
    found = Analytic(labels=labels.Known())(target, [seen._replace(gradient=noisy)], seed=0)
    assert found.outcomes == ("not determined", "not determined")


def test_whole_levels_are_found_and_not_supposed() -> None:
    draws = torch.Generator().manual_seed(0)
    bytes_ = torch.randint(0, 256, SHAPE, generator=draws).double() / 255
    off = bytes_ + 1e-4 * torch.randn(SHAPE, generator=draws)
    found = whole_levels(off.double(), 256)
    assert found is not None
    assert torch.equal(found, bytes_)
    assert whole_levels(off.double(), None) is None
    assert whole_levels(torch.rand(SHAPE, generator=draws).double(), 256) is None
    assert whole_levels(bytes_[:, :2, :2], 256) is None  # too few to tell
    assert whole_levels(bytes_ + 128 / 255, 256) is None  # brighter than white
