"""Vision transformers whose attention can be differentiated twice, unlike torch's fused kernels."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from dosimeter.errors import ModelError, SettingError
from dosimeter.models.layers import Activation, nonlinear
from dosimeter.models.normalise import Normalise
from dosimeter.types import Shape


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's function of that name in plain operations; whoever overrides that one overrides this one as well."""
    given = {"query": query, "key": key, "value": value}
    if has_torch_function(tuple(given.values())):
        overridden: Tensor = handle_torch_function(scaled_dot_product_attention, tuple(given.values()), **given)
        return overridden
    weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)  # (B, heads, T, T)
    mixed: Tensor = weights @ value
    return mixed


class Attention(nn.Module):
    """softmax(Q K^T / sqrt(d)) V in several heads, then a projection (Vaswani et al., Eq. 1)."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.project = nn.Linear(width, width, bias=bias)

    def forward(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        qkv = self.qkv(tokens).reshape(batch, count, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, heads, T, d) each
        mixed: Tensor = self.project(
            scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(batch, count, width)
        )
        return mixed


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)) (Dosovitskiy et al., Eq. 2 and 3)."""

    def __init__(self, width: int, heads: int, hidden: int, act: Activation, *, twice: bool, bias: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads, bias)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        last = [nonlinear(act)] if twice else []
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden, bias=bias), nonlinear(act), nn.Linear(hidden, width, bias=bias), *last
        )

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attention(self.norm1(tokens))
        out: Tensor = tokens + self.mlp(self.norm2(tokens))
        return out


class ViT(nn.Module):
    """Patches as tokens, a class token, learned positions, `depth` blocks, a linear classifier (arXiv:2010.11929).

    The defaults are the CVB paper's (Sec. VI-D): patch 4, 4 blocks, hidden size 256, 16 heads, GELU; 3,191,562
    parameters on 3x32x32 with 10 classes. ViT-Ti/16 is patch 16, depth 12, width 192, heads 3 and ViT-S/16 is width
    384, heads 6 (Touvron et al., arXiv:2012.12877, Table 1): 5,717,416 and 22,050,664 on 224x224 with 1,000 classes.

    Args:
        hidden: width of the MLP in every block; None for the usual four times `width`.
        twice: an activation after the MLP's second layer too.
        spread: standard deviation of the class token and positions at the start.
        bias: of all linear layers; the embedding of patches is one of them.

    Deviations: no dropout. The CVB paper leaves `hidden`, `bias` and `spread` out; its program has hidden 256, no
    biases, `twice` and spread 1, which is 1,609,216 parameters and is called `vit-released` here.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        patch: int = 4,
        depth: int = 4,
        width: int = 256,
        heads: int = 16,
        hidden: int | None = None,
        activation: Activation = "gelu",
        twice: bool = False,
        spread: float = 0.02,
        bias: bool = True,
    ) -> None:
        super().__init__()
        channels, height, across = shape
        if height % patch or across % patch:
            raise ModelError(
                f"The ViT cuts images into {patch}x{patch} patches, so sides must be multiples of {patch}, got "
                f"{height}x{across}; resize them, e.g. --size {max(patch, height // patch * patch)}."
            )
        if width % heads:
            raise SettingError(f"The ViT's width must be a multiple of its heads, got width {width} and {heads} heads.")
        patches = (height // patch) * (across // patch)
        hidden = 4 * width if hidden is None else hidden
        self.normalise = Normalise(mean, std)
        self.embed = nn.Conv2d(channels, width, patch, stride=patch, bias=bias)
        self.token = nn.Parameter(spread * torch.randn(1, 1, width))
        self.positions = nn.Parameter(spread * torch.randn(1, patches + 1, width))
        self.blocks = nn.Sequential(
            *(Block(width, heads, hidden, activation, twice=twice, bias=bias) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.classifier = nn.Linear(width, classes, bias=bias)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.embed(self.normalise(images)).flatten(2).transpose(1, 2)  # (B, T, width)
        tokens = torch.cat([self.token.expand(len(images), -1, -1), patches], 1) + self.positions
        logits: Tensor = self.classifier(self.norm(self.blocks(tokens))[:, 0])
        return logits
