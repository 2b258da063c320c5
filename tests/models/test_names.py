"""Weights by the names of torchvision and timm: state dicts built by hand, and what their networks give with them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from dosimeter import models
from dosimeter.errors import ModelError
from dosimeter.models import load_checkpoint, read_tensors

State = dict[str, Tensor]
Shapes = Iterator[tuple[str, tuple[int, ...]]]

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}
NAMES = {18: "resnet18-imagenet", 34: "resnet34", 50: "resnet50", 152: "resnet152"}


def batch_norm(name: str, channels: int) -> Shapes:
    yield from ((f"{name}.{part}", (channels,)) for part in ("weight", "bias", "running_mean", "running_var"))
    yield f"{name}.num_batches_tracked", ()


def resnet_shapes(depth: int, first: int, classes: int) -> Shapes:
    """torchvision's names and shapes, from `first` channels."""
    wide = 4 if depth >= 50 else 1
    yield "conv1.weight", (first, 3, 7, 7)
    yield from batch_norm("bn1", first)
    inputs = first
    for stage, count in enumerate(BLOCKS[depth]):
        channels = first * 2**stage
        outputs = wide * channels
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            sizes = [(inputs, channels, 1), (channels, channels, 3), (channels, outputs, 1)]
            sizes = sizes if wide == 4 else [(inputs, channels, 3), (channels, channels, 3)]
            for n, (before, after, side) in enumerate(sizes, 1):
                yield f"{name}.conv{n}.weight", (after, before, side, side)
                yield from batch_norm(f"{name}.bn{n}", after)
            if block == 0 and (stage > 0 or inputs != outputs):
                yield f"{name}.downsample.0.weight", (outputs, inputs, 1, 1)
                yield from batch_norm(f"{name}.downsample.1", outputs)
            inputs = outputs
    yield "fc.weight", (classes, inputs)
    yield "fc.bias", (classes,)


def drawn(shapes: Shapes) -> State:
    """Numbers for all of them; variances are positive and counters whole."""
    made: State = {}
    for name, shape in shapes:
        if name.endswith("num_batches_tracked"):
            made[name] = torch.tensor(7)
        else:
            spread = (torch.Size(shape[1:]).numel() ** -0.5) if len(shape) > 1 else 0.3
            made[name] = spread * torch.randn(shape)
            if name.endswith("running_var"):
                made[name] = made[name].abs() + 0.5
            elif "bn" in name and name.endswith("weight"):
                made[name] += 1
    return made


def normal(state: State, name: str, x: Tensor) -> Tensor:
    parts = (state[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
    return F.batch_norm(x, *parts)


def resnet(state: State, depth: int, x: Tensor) -> Tensor:
    """What torchvision computes: the stride is in the first 3x3 convolution of a block."""

    def conv(name: str, x: Tensor, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    x = F.max_pool2d(F.relu(normal(state, "bn1", conv("conv1", x, 2))), 3, 2, 1)
    for stage, count in enumerate(BLOCKS[depth]):
        for block in range(count):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            convs = 3 if depth >= 50 else 2
            out, strided = x, 2 if depth >= 50 else 1
            for n in range(1, convs + 1):
                out = conv(f"{name}.conv{n}", out, stride if n == strided else 1)
                out = normal(state, f"{name}.bn{n}", out)
                out = F.relu(out) if n < convs else out
            if f"{name}.downsample.0.weight" in state:
                x = normal(state, f"{name}.downsample.1", conv(f"{name}.downsample.0", x, stride))
            x = F.relu(out + x)
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


def build(name: str, classes: int = 5, side: int = 32, **settings: object) -> nn.Module:
    scale = {"mean": (0.0,), "std": (1.0,)}
    return models.build(name, shape=(3, side, side), classes=classes, seed=3, settings=settings, **scale).eval()


@pytest.mark.parametrize("depth", BLOCKS)
def test_the_names_are_torchvisions(depth: int) -> None:
    counts = {18: 11_689_512, 34: 21_797_672, 50: 25_557_032, 152: 60_192_808}  # as torchvision documents them
    learnt = [shape for name, shape in resnet_shapes(depth, 64, 1000) if name.endswith(("weight", "bias"))]
    assert sum(torch.Size(shape).numel() for shape in learnt) == counts[depth]


@pytest.mark.parametrize("depth", BLOCKS)
def test_torchvisions_residual_networks_load(depth: int, tmp_path: Path) -> None:
    torch.manual_seed(depth)
    state = drawn(resnet_shapes(depth, 8, 5))
    torch.save(state, tmp_path / "weights.pth")
    model = build(NAMES[depth], stem="imagenet", width=1 / 8)
    load_checkpoint(model, tmp_path / "weights.pth")
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model(images), resnet(state, depth, images), rtol=1e-4, atol=1e-4)
    assert model.state_dict()["stem.1.num_batches_tracked"] == 7


def test_files_that_count_no_batches_load(tmp_path: Path) -> None:
    state = drawn(resnet_shapes(18, 8, 5))
    state = {f"module.{name}": tensor for name, tensor in state.items() if "num_batches" not in name}
    save_file(state, tmp_path / "weights.safetensors")
    model = build("resnet18-imagenet", width=1 / 8)
    load_checkpoint(model, tmp_path / "weights.safetensors")
    assert torch.equal(model.classifier.weight, state["module.fc.weight"])


def test_a_missing_tensor_and_another_size_are_still_refused(tmp_path: Path) -> None:
    state = drawn(resnet_shapes(18, 8, 5))
    del state["layer2.0.downsample.0.weight"]
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=r"missing: stages\.1\.0\.shortcut\.0\.weight; give"):
        load_checkpoint(build("resnet18-imagenet", width=1 / 8), tmp_path / "weights.pth")
    torch.save(drawn(resnet_shapes(18, 8, 7)), tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=r"misshaped: classifier\.weight 7x64 instead of 5x64"):
        load_checkpoint(build("resnet18-imagenet", width=1 / 8), tmp_path / "weights.pth")
    with pytest.raises(ModelError, match=r"extra: layer1\.0|misshaped: stem\.0\.weight 8x3x7x7 instead of 8x3x3x3"):
        load_checkpoint(build("resnet18", width=1 / 8), tmp_path / "weights.pth")


def test_updates_come_by_those_names_too(tmp_path: Path) -> None:
    learnt = {n: t for n, t in drawn(resnet_shapes(18, 8, 5)).items() if n.endswith(("weight", "bias"))}
    torch.save(learnt, tmp_path / "update.pt")
    model = build("resnet18-imagenet", width=1 / 8)
    update = read_tensors(tmp_path / "update.pt", model, "update")
    assert update.keys() == dict(model.named_parameters()).keys()


WIDTH, DEPTH, HEADS = 24, 2, 3


def vit_shapes(library: str, classes: int = 5, patches: int = 4) -> Shapes:
    """timm's or torchvision's names and shapes for patches of 16x16."""
    timm = library == "timm"

    def layer(name: str, outputs: int, inputs: int) -> Shapes:
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)

    def norm(name: str) -> Shapes:
        yield from ((f"{name}.{part}", (WIDTH,)) for part in ("weight", "bias"))

    yield "cls_token" if timm else "class_token", (1, 1, WIDTH)
    yield "pos_embed" if timm else "encoder.pos_embedding", (1, patches + 1, WIDTH)
    embed = "patch_embed.proj" if timm else "conv_proj"
    yield f"{embed}.weight", (WIDTH, 3, 16, 16)
    yield f"{embed}.bias", (WIDTH,)
    for n in range(DEPTH):
        block = f"blocks.{n}" if timm else f"encoder.layers.encoder_layer_{n}"
        yield from norm(f"{block}.{'norm1' if timm else 'ln_1'}")
        if timm:
            yield from layer(f"{block}.attn.qkv", 3 * WIDTH, WIDTH)
            yield from layer(f"{block}.attn.proj", WIDTH, WIDTH)
        else:
            yield f"{block}.self_attention.in_proj_weight", (3 * WIDTH, WIDTH)
            yield f"{block}.self_attention.in_proj_bias", (3 * WIDTH,)
            yield from layer(f"{block}.self_attention.out_proj", WIDTH, WIDTH)
        yield from norm(f"{block}.{'norm2' if timm else 'ln_2'}")
        first, second = ("fc1", "fc2") if timm else ("0", "3") if library == "torchvision" else ("linear_1", "linear_2")
        yield from layer(f"{block}.mlp.{first}", 4 * WIDTH, WIDTH)
        yield from layer(f"{block}.mlp.{second}", WIDTH, 4 * WIDTH)
    yield from norm("norm" if timm else "encoder.ln")
    yield from layer("head" if timm else "heads.head", classes, WIDTH)


def vit(state: State, x: Tensor) -> Tensor:
    """What both compute, with torch's own attention."""
    values = list(state.values())
    token, positions, weight, bias = values[:4]
    x = F.conv2d(x, weight, bias, stride=16).flatten(2).transpose(1, 2)
    x = torch.cat([token.expand(len(x), -1, -1), x], 1) + positions
    rest = values[4:]
    for n in range(DEPTH):
        scale1, shift1, qkv, qkv_bias, out, out_bias, scale2, shift2, one, one_bias, two, two_bias = rest[12 * n :][:12]
        attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        attention.load_state_dict(
            {"in_proj_weight": qkv, "in_proj_bias": qkv_bias, "out_proj.weight": out, "out_proj.bias": out_bias}
        )
        before = F.layer_norm(x, (WIDTH,), scale1, shift1, eps=1e-6)
        x = x + attention(before, before, before, need_weights=False)[0]
        inside = F.gelu(F.linear(F.layer_norm(x, (WIDTH,), scale2, shift2, eps=1e-6), one, one_bias))
        x = x + F.linear(inside, two, two_bias)
    scale, shift, head, head_bias = rest[12 * DEPTH :]
    return F.linear(F.layer_norm(x, (WIDTH,), scale, shift, eps=1e-6)[:, 0], head, head_bias)


@pytest.mark.parametrize("name", ["vit", "vit-ti", "vit-s"])
@pytest.mark.parametrize("library", ["timm", "torchvision", "older torchvision"])
def test_vision_transformers_load(library: str, name: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    state = drawn(vit_shapes(library))
    torch.save({"model": state, "epoch": 3}, tmp_path / "weights.pth")  # as DeiT's files are
    model = build(name, patch=16, width=WIDTH, heads=HEADS, depth=DEPTH)
    load_checkpoint(model, tmp_path / "weights.pth")
    images = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(model(images), vit(state, images), rtol=1e-4, atol=1e-4)


def test_normalisation_is_the_models_unless_the_file_has_it(tmp_path: Path) -> None:
    state = drawn(vit_shapes("timm"))
    model = build("vit-ti", patch=16, width=WIDTH, heads=HEADS, depth=DEPTH)
    torch.save(state, tmp_path / "weights.pth")
    load_checkpoint(model, tmp_path / "weights.pth")
    assert model.normalise.mean.flatten().tolist() == [0.0]
    state |= {"normalise.mean": torch.full((1, 1, 1), 0.5), "normalise.std": torch.full((1, 1, 1), 0.25)}
    torch.save(state, tmp_path / "weights.pth")
    load_checkpoint(model, tmp_path / "weights.pth")
    assert model.normalise.mean.flatten().tolist() == [0.5]


def test_distilled_transformers_are_refused(tmp_path: Path) -> None:
    state = drawn(vit_shapes("timm")) | {"dist_token": torch.zeros(1, 1, WIDTH)}
    torch.save(state, tmp_path / "weights.pth")
    with pytest.raises(ModelError, match="extra: dist_token"):
        load_checkpoint(build("vit-ti", patch=16, width=WIDTH, heads=HEADS, depth=DEPTH), tmp_path / "weights.pth")
