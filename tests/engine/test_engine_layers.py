"""Every kind of layer, in random small networks: products and slopes are those of gradients written out."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import models
from engine.test_engine_oracle import CLASSES, LOSSES, SEEN, check, each_way, finite_difference, make, ways_of

few = settings(max_examples=10, deadline=None)
situation = st.fixed_dictionaries(
    {
        "batch": st.sampled_from([1, 3]),
        "loss": st.sampled_from(list(LOSSES)),
        "seen": st.sampled_from(SEEN),
        "seed": st.integers(0, 10_000),
    }
)
Situation = dict[str, object]
even = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


class Apply(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Head(nn.Module):
    """What is left, made flat, to the classes; its size is found on the way through a zero image."""

    def __init__(self, body: nn.Module, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.body = body
        with torch.no_grad():
            size = body.train()(torch.rand(2, *shape)).flatten(1).shape[1]
        self.last = nn.Linear(size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.body(x).flatten(1))
        return out


def headed(shape: tuple[int, int, int], *layers: nn.Module) -> nn.Module:
    return Head(nn.Sequential(*layers), shape)


@each_way
@few
@given(now=situation, bias=st.booleans(), tokens=st.booleans(), width=st.sampled_from([3, 40]))
def test_linear(way: str | None, now: Situation, bias: bool, tokens: bool, width: int) -> None:
    torch.manual_seed(int(now["seed"]))  # type: ignore[call-overload]
    shape = (2, 5, 4)
    flat = Apply(partial(torch.flatten, start_dim=1, end_dim=2)) if tokens else nn.Flatten()  # (n, 10, 4) or (n, 40)
    inside = nn.Linear(4 if tokens else 40, width, bias=bias)
    model = headed(shape, flat, inside, nn.Tanh(), nn.Linear(width, 5, bias=not bias), nn.Sigmoid())
    check(make(model, shape, **now), way)  # type: ignore[arg-type]


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[nn.Conv2d, tuple[int, int, int]]:
    groups = draw(st.sampled_from([1, 1, 2]))
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    mode = draw(st.sampled_from(["zeros", "zeros", "circular", "reflect", "replicate"]))
    same = draw(st.booleans())
    stride = 1 if same else (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    padding = "same" if same else (draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sides = [s + draw(st.integers(0, 3)) for s in span]
    if mode != "zeros":
        sides = [max(side, 5) for side in sides]  # reflecting needs more pixels than it adds
    conv = nn.Conv2d(
        2,
        draw(st.sampled_from([2, 4, 18])),
        kernel,
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
    )
    return conv, (2, sides[0], sides[1])


@even
@each_way
@settings(few, max_examples=25)
@given(now=situation, given_conv=convolutions(), below=st.booleans())
def test_convolution(
    way: str | None, now: Situation, given_conv: tuple[nn.Conv2d, tuple[int, int, int]], below: bool
) -> None:
    conv, shape = given_conv
    torch.manual_seed(int(now["seed"]))  # type: ignore[call-overload]
    for p in conv.parameters():
        nn.init.normal_(p.data, std=0.3)
    first = [nn.Conv2d(2, 2, 1), nn.Tanh()] if below else []  # what comes back through the convolution counts then
    check(make(headed(shape, *first, conv, nn.Sigmoid()), shape, **now), way)  # type: ignore[arg-type]


@even
@each_way
@pytest.mark.parametrize("outputs", [3, 20])
@pytest.mark.parametrize("how", ["windows", "native"])
def test_convolution_by_windows_and_by_native_kernels(
    way: str | None, outputs: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "native":
        monkeypatch.setattr("dosimeter.engine.layers.PATCHES_UP_TO", 0)
    torch.manual_seed(1)
    for layer in (
        nn.Conv2d(2, outputs, (4, 6)),  # one window, the whole image
        nn.Conv2d(2, outputs, (2, 3), stride=(2, 1), padding=(1, 2), padding_mode="circular"),
        nn.Conv2d(2, outputs, (2, 3), padding="same"),  # more zeros on one side
    ):
        model = headed((2, 4, 6), nn.Conv2d(2, 2, 3, padding=1), nn.Tanh(), layer, nn.Tanh())
        check(make(model, (2, 4, 6), batch=3, seen="noisy"), way)


def shaken(model: nn.Module) -> nn.Module:
    """Random parameters and statistics, so that no 0 and no 1 hides a missing factor."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm):
            for p in layer.parameters():
                nn.init.normal_(p.data, mean=0.7)
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.running_mean.normal_()  # type: ignore[union-attr]
            layer.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    return model


NORMS: dict[str, Callable[[], list[nn.Module]]] = {
    "batch": lambda: [nn.BatchNorm2d(4)],
    "batch of vectors": lambda: [nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6)],
    "batch of rows": lambda: [nn.Flatten(2), nn.BatchNorm1d(4)],
    "layer, one axis": lambda: [nn.LayerNorm(4)],
    "layer, two axes": lambda: [nn.LayerNorm((4, 4))],
    "layer, all axes": lambda: [nn.LayerNorm((4, 4, 4))],
    "layer, no bias": lambda: [nn.LayerNorm((4, 4), bias=False)],
    "layer, tokens": lambda: [nn.Flatten(2), Apply(lambda x: x.transpose(1, 2)), nn.LayerNorm(4), nn.Linear(4, 3)],
    "layer, no parameters": lambda: [nn.LayerNorm(4, elementwise_affine=False)],
    "group": lambda: [nn.GroupNorm(2, 4)],
    "group of one": lambda: [nn.GroupNorm(4, 4)],
}


@each_way
@pytest.mark.parametrize("norm", list(NORMS))
@settings(few, max_examples=3)
@given(now=situation)
def test_normalisation(way: str | None, norm: str, now: Situation) -> None:
    torch.manual_seed(int(now["seed"]))  # type: ignore[call-overload]
    layers = [nn.Conv2d(2, 4, 3), *NORMS[norm](), nn.Sigmoid()]
    check(make(shaken(headed((2, 6, 6), *layers)), (2, 6, 6), **now), way)  # type: ignore[arg-type]


@each_way
@pytest.mark.parametrize("norm", ["batch", "batch of vectors", "batch of rows"])
@settings(few, max_examples=3)
@given(now=situation)
def test_batch_statistics_are_each_candidates_own(way: str | None, norm: str, now: Situation) -> None:
    torch.manual_seed(int(now["seed"]))  # type: ignore[call-overload]
    model = shaken(headed((2, 6, 6), nn.Conv2d(2, 4, 3), *NORMS[norm](), nn.Sigmoid()))
    models.use_batch_statistics(model)
    if norm == "batch of vectors":
        now = {**now, "batch": 3}  # a vector alone has no variance
    check(make(model, (2, 6, 6), **now), way)  # type: ignore[arg-type]


BETWEEN: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "leaky": lambda: nn.LeakyReLU(0.1, inplace=True),
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "average": lambda: nn.AvgPool2d(2),
    "average, overlapping": lambda: nn.AvgPool2d(3, stride=2, padding=1),
    "max": lambda: nn.MaxPool2d(2),
    "max, overlapping": lambda: nn.MaxPool2d(3, stride=2, padding=1),
    "adaptive average": lambda: nn.AdaptiveAvgPool2d((2, 3)),
    "adaptive max": lambda: nn.AdaptiveMaxPool2d(2),
    "dropout": lambda: nn.Dropout(0.5),
    "identity": nn.Identity,
}


@each_way
@pytest.mark.parametrize("between", list(BETWEEN))
def test_layers_without_parameters(way: str | None, between: str) -> None:
    torch.manual_seed(2)
    model = headed((2, 7, 7), nn.Conv2d(2, 5, 2), BETWEEN[between](), nn.Conv2d(5, 3, 2), BETWEEN[between]())
    for batch, seen in ((1, "exact"), (3, "noisy")):
        check(make(model, (2, 7, 7), batch=batch, seen=seen), way)


SMOOTH: dict[str, Callable[[], list[nn.Module]]] = {
    **{name: BETWEEN[name] for name in ("sigmoid", "gelu", "average", "adaptive average")},  # type: ignore[dict-item]
    **{name: NORMS[name] for name in ("batch", "layer, one axis", "layer, two axes", "group")},
    "convolution": lambda: [nn.Conv2d(4, 18, 3, stride=2, padding=1, bias=False), nn.Tanh()],
    "groups": lambda: [nn.Conv2d(4, 4, 2, dilation=2, groups=2), nn.Tanh()],
    "same": lambda: [nn.Conv2d(4, 2, (2, 3), padding="same", padding_mode="reflect"), nn.Tanh()],
}


@even
@each_way
@pytest.mark.parametrize("name", list(SMOOTH))
def test_slopes_agree_with_finite_differences(way: str | None, name: str) -> None:
    torch.manual_seed(3)
    inside = SMOOTH[name]()
    model = shaken(headed((2, 6, 6), nn.Conv2d(2, 4, 3), *(inside if isinstance(inside, list) else [inside])))
    for batch, loss in ((1, "cross entropy"), (3, "own")):
        case = make(model, (2, 6, 6), batch=batch, loss=loss, seen="noisy")
        matcher = ways_of(case, way)
        if matcher is not None:
            finite_difference(case, matcher)
