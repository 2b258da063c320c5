"""Models that are right for one candidate and could go wrong for several, or that a way could stumble over.

Each is legal and trains with plain autograd. Whichever way the engine takes, the products must be right.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from dosimeter import engine, models
from dosimeter.engine import threads
from dosimeter.engine.patches import Window, unfold
from dosimeter.errors import ModelError
from dosimeter.types import Target
from engine.test_engine_networks import Network
from engine.test_engine_oracle import (
    CLASSES,
    Case,
    assert_close,
    assert_products,
    check,
    make,
    mixture,
    plain_gradients,
    plain_products,
)
from small import target_of

ANY = ("chain", "tape", "vmap", "one by one")
SHAPE = (2, 6, 6)


def network(run: Callable[[Network, Tensor], Tensor], **parts: nn.Module | nn.Parameter) -> nn.Module:
    return Network(run, **{"last": nn.Linear(72, CLASSES), **parts})


def batch_norm_without_parameters() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(64, CLASSES))
    models.use_batch_statistics(model)
    return model


def centred_on_the_batch() -> nn.Module:
    return network(lambda m, x: m.last(torch.tanh(x - x.mean(0)).flatten(1)))


def branching() -> nn.Module:
    return network(lambda m, x: m.last((x if bool(x.sum() > 36 * len(x)) else -x).flatten(1)))


def positions_without_their_first_axis() -> nn.Module:
    return network(
        lambda m, x: m.last(torch.tanh(x + m.place[0]).flatten(1)), place=nn.Parameter(torch.randn(1, *SHAPE))
    )


def gate_with_a_row() -> nn.Module:
    """A weight of shape (1, inputs) outside known layers, which does not broadcast over images."""
    return network(
        lambda m, x: m.last(x.flatten(1)) * F.linear(x.flatten(1), m.gate), gate=nn.Parameter(torch.randn(1, 72))
    )


def convolution_of_two_sizes() -> nn.Module:
    """Called on many windows and on one."""
    return network(
        lambda m, x: m.last(torch.cat([m.conv(x).flatten(1), m.conv(F.adaptive_avg_pool2d(x, 3)).flatten(1)], 1)),
        conv=nn.Conv2d(2, 4, 3),
        last=nn.Linear(4 * 17, CLASSES),
    )


def rows_as_a_batch() -> nn.Module:
    return network(
        lambda m, x: m.last(torch.tanh(m.inner(x.reshape(-1, 6))).reshape(len(x), -1)),
        inner=nn.Linear(6, 6),
    )


def channels_as_a_batch() -> nn.Module:
    return network(
        lambda m, x: m.last(torch.tanh(m.conv(x.reshape(-1, 1, 6, 6))).reshape(len(x), -1)),
        conv=nn.Conv2d(1, 1, 3, padding=1),
    )


def tokens_first() -> nn.Module:
    return network(
        lambda m, x: m.last(torch.tanh(m.inner(x.flatten(1, 2).transpose(0, 1))).transpose(0, 1).flatten(1)),
        inner=nn.Linear(6, 6),
    )


def batch_on_the_second_axis() -> nn.Module:
    return network(
        lambda m, x: m.last(torch.tanh(m.inner(x.flatten(1).unsqueeze(0))).squeeze(0)), inner=nn.Linear(72, 72)
    )


def weight_that_is_a_buffer() -> nn.Module:
    last = nn.Linear(72, CLASSES)
    weight = last.weight.detach().clone()
    del last.weight
    last.register_buffer("weight", weight)
    return nn.Sequential(nn.Flatten(), last)


def fused_attention() -> nn.Module:
    """What torchvision's transformers call."""
    return network(
        lambda m, x: m.last(m.mix(*[x.flatten(1, 2)] * 3, need_weights=False)[0].flatten(1)),
        mix=nn.MultiheadAttention(6, 2, batch_first=True),
    )


def scaled_from_the_left() -> nn.Module:
    return network(lambda m, x: m.last((2 * x - 1).flatten(1)))


def upside_down() -> nn.Module:
    return network(lambda m, x: m.last((1 - x).flatten(1)))


def squared_images() -> nn.Module:
    return network(lambda m, x: m.last((x * x).flatten(1)))


def with_itself() -> nn.Module:
    def run(m: Network, x: Tensor) -> Tensor:
        z = m.inner(x.flatten(1))
        out: Tensor = m.last(z + z)
        return out

    return network(run, inner=nn.Linear(72, 72))


def layer_with_two_names() -> nn.Module:
    layer = nn.Linear(72, 72)
    return nn.Sequential(nn.Flatten(), layer, nn.Tanh(), layer, nn.Linear(72, CLASSES))


class Squashed(torch.autograd.Function):
    """x * sigmoid(x), written as many are: `torch.func` refuses a function without a `setup_context`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, back: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(x)
        return back * share * (1 + x * (1 - share))


def function_of_its_own() -> nn.Module:
    return network(
        lambda m, x: m.last(m.scale * Squashed.apply(x).flatten(1)),  # type: ignore[no-untyped-call]
        scale=nn.Parameter(torch.tensor(0.7)),
    )


def checkpointed() -> nn.Module:
    return network(lambda m, x: m.last(checkpoint(m.inner, x.flatten(1), use_reentrant=False)), inner=nn.Linear(72, 72))


def counter() -> nn.Module:
    def run(m: Network, x: Tensor) -> Tensor:
        m.seen += 1
        out: Tensor = m.last(x.flatten(1))
        return out

    model = network(run)
    model.register_buffer("seen", torch.zeros(()))
    return model


TRAPS: dict[str, Callable[[], nn.Module]] = {
    "batch norm without parameters": batch_norm_without_parameters,
    "centred on the batch": centred_on_the_batch,
    "branching": branching,
    "positions without their first axis": positions_without_their_first_axis,
    "gate with a row": gate_with_a_row,
    "convolution of two sizes": convolution_of_two_sizes,
    "rows as a batch": rows_as_a_batch,
    "channels as a batch": channels_as_a_batch,
    "tokens first": tokens_first,
    "batch on the second axis": batch_on_the_second_axis,
    "weight that is a buffer": weight_that_is_a_buffer,
    "fused attention": fused_attention,
    "scaled from the left": scaled_from_the_left,
    "upside down": upside_down,
    "squared images": squared_images,
    "with itself": with_itself,
    "layer with two names": layer_with_two_names,
    "function of its own": function_of_its_own,
    "checkpointed": checkpointed,
    "counter": counter,
}


@pytest.mark.parametrize("name", TRAPS)
def test_models_that_are_right_for_one_candidate_are_right_for_several(name: str) -> None:
    for batch in (1, 3):
        if batch == 1 and name == "centred on the batch":
            continue
        torch.manual_seed(0)
        check(make(TRAPS[name](), SHAPE, batch=batch), None, taken=ANY)


@pytest.mark.parametrize("kind", ["shares of classes", "a label a pixel"])
def test_other_labels_that_cross_entropy_takes(kind: str) -> None:
    torch.manual_seed(0)
    batch = 3
    pixels = kind == "a label a pixel"
    straight = (
        nn.Sequential(nn.Conv2d(2, CLASSES, 3)) if pixels else nn.Sequential(nn.Flatten(), nn.Linear(72, CLASSES))
    )
    target = target_of(straight, SHAPE)
    shares = torch.softmax(torch.randn(3, batch, CLASSES, dtype=torch.float64), 2)
    labels = torch.randint(0, CLASSES, (3, batch, 4, 4)) if pixels else shares
    truth, guesses = torch.rand(2, 3, batch, *SHAPE, dtype=torch.float64)
    seen = [plain_gradients(target, x, y) for x, y in zip(truth, labels, strict=True)]
    observed = {name: torch.stack([g[name] for g in seen]) for name in seen[0]}
    case = Case(target, observed, guesses, labels, torch.arange(3))
    found = engine.Matcher(target, observed)(guesses, labels, case.owner)
    assert_products(found, plain_products(case)[0])


@pytest.mark.parametrize("way", ["tape", "vmap", "one by one", None])
def test_results_stay_as_they_are_when_others_are_asked_for(way: str | None) -> None:
    """Neither products nor slopes lie in memory that the next call writes to."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES))
    case = make(model, (1, 6, 6))
    matcher = engine.Matcher(case.target, case.observed, way=way)  # type: ignore[arg-type]
    one, two = (x.clone().requires_grad_() for x in (case.images, 1 - case.images))
    first = matcher(one, case.labels, case.owner)
    (slope,) = torch.autograd.grad(mixture(first), one, retain_graph=True)
    kept = slope.clone(), *(value.detach().clone() for value in first)
    torch.autograd.grad(mixture(matcher(two, case.labels, case.owner)), two)
    assert all(torch.equal(now.detach(), then) for now, then in zip((slope, *first), kept, strict=True))
    (again,) = torch.autograd.grad(mixture(first), one)  # of the call before the last
    assert_close(again, kept[0])


def test_an_output_that_is_no_tensor_is_the_losss_affair() -> None:
    case = make(network(lambda m, x: m.last(x.flatten(1))), SHAPE)
    pairs = network(lambda m, x: (m.last(x.flatten(1)), x)).double()  # type: ignore[arg-type,return-value]
    pairs.load_state_dict(case.target.model.state_dict())
    loss: Callable[[tuple[Tensor, Tensor], Tensor], Tensor] = lambda out, y: F.cross_entropy(out[0], y)  # noqa: E731
    check(case._replace(target=replace(case.target, model=pairs, loss=loss)), None, taken=ANY)  # type: ignore[arg-type]


@pytest.mark.parametrize("layer", ["linear", "conv", "norm"])
def test_an_output_overwritten_in_place_that_the_first_candidate_leaves_as_it_is(layer: str) -> None:
    """relu_ changes nothing of the first candidate's outputs, so a trial on it alone sees no harm."""
    torch.manual_seed(1)
    layers: dict[str, list[nn.Module]] = {
        "linear": [nn.Flatten(), nn.Linear(72, 64)],
        "conv": [nn.Conv2d(2, 18, 3)],
        "norm": [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4)],
    }
    size = 18 * 16 if layer == "conv" else 64
    first = nn.Sequential(*layers[layer])
    for parameter in first.parameters():
        parameter.data.abs_()
    model = Network(lambda m, x: m.last(torch.relu_(m.first(x)).flatten(1)), first=first, last=nn.Linear(size, CLASSES))
    case = make(model, SHAPE)
    images = torch.cat([case.images[:1], case.images[1:] - 1.5])
    check(case._replace(images=images), None, taken=ANY)


def test_an_output_overwritten_in_place_only_where_it_is_large() -> None:
    """Neither the first candidate nor noise comes to 6, where relu6 in place begins to cut; bright images do."""
    torch.manual_seed(0)
    first = nn.Linear(72, 8)
    nn.init.uniform_(first.weight, 0.1, 0.11)
    nn.init.constant_(first.bias, 3.0)
    model = Network(
        lambda m, x: m.last(F.relu6(m.first(x.flatten(1)), inplace=True)), first=first, last=nn.Linear(8, CLASSES)
    )
    case = make(model, SHAPE)
    images = torch.cat([0.2 * case.images[:1], 0.8 + 0.2 * case.images[1:]])
    check(case._replace(images=images), None, taken=ANY)


def test_a_small_tensor_that_the_tape_gets_wrong_is_noticed_in_single_precision() -> None:
    """A bias that is used twice, beside a weight whose gradient is some hundred times as large."""
    torch.manual_seed(0)
    model = Network(lambda m, x: m.last(9 * x.flatten(1)) + 0.5 * m.last.bias, last=nn.Linear(72, CLASSES))
    case = make(model, SHAPE, dtype=torch.float32)
    found = engine.Matcher(case.target, case.observed)(case.images, case.labels, case.owner)
    assert_products(found, plain_products(case)[0], 1e-3)


def test_windows_of_a_part_of_a_tensor() -> None:
    base, window = torch.randn(3, 6, 5, 2, dtype=torch.float64), Window((2, 3), (1, 2), (0, 0), (1, 1))
    assert torch.equal(unfold(base[1:], window), unfold(base[1:].clone(), window))


def test_windows_of_a_part_of_a_tensor_are_put_back() -> None:
    images, window = (
        torch.randn(2, 6, 5, 2, dtype=torch.float64, requires_grad=True),
        Window((2, 3), (1, 2), (0, 0), (1, 1)),
    )
    rows = unfold(images, window)
    weights = torch.randn(3, *rows.shape[1:], dtype=torch.float64)[1:]
    one, other = (torch.autograd.grad(rows, images, w, retain_graph=True)[0] for w in (weights, weights.clone()))
    assert torch.equal(one, other)


def test_candidates_that_are_a_part_of_a_tensor() -> None:
    """The first layer sees the images as they lie in memory."""
    torch.manual_seed(0)
    case = make(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(64, CLASSES)), (1, 6, 6))
    matcher = engine.Matcher(case.target, case.observed, way="tape")
    matcher(case.images, case.labels, case.owner)
    last = Case(case.target, case.observed, case.images[2:], case.labels[2:], case.owner[2:])
    assert_products(matcher(last.images, last.labels, last.owner), plain_products(last)[0])


def test_labels_that_cross_entropy_ignores() -> None:
    """The mean is then over the other images of that candidate."""
    torch.manual_seed(0)
    case = make(network(lambda m, x: m.last(x.flatten(1))), SHAPE, batch=3)
    labels = case.labels.clone()
    labels[1, 2] = -100
    check(case._replace(labels=labels), None, taken=ANY)


def test_owners_that_change_in_place_are_noticed() -> None:
    torch.manual_seed(0)
    case = make(network(lambda m, x: m.last(x.flatten(1))), SHAPE)
    matcher = engine.Matcher(case.target, case.observed, way="tape")
    owner = torch.tensor([0, 1, 2, 0])
    matcher(case.images, case.labels, owner)
    owner.copy_(case.owner)
    assert_products(matcher(case.images, case.labels, owner), plain_products(case)[0])


def test_products_without_a_graph_around_them() -> None:
    torch.manual_seed(0)
    case = make(network(lambda m, x: m.last(x.flatten(1))), SHAPE)
    with torch.no_grad():
        found = engine.Matcher(case.target, case.observed)(case.images, case.labels, case.owner)
    assert_products(found, plain_products(case)[0])


def test_a_model_that_needs_two_images_can_be_planned() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.BatchNorm1d(8), nn.Linear(8, CLASSES))
    models.use_batch_statistics(model)
    assert engine.plan(target_of(model, SHAPE), victims=3, batch=4, restarts=1).victims >= 1


def test_a_model_that_cannot_be_planned_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, CLASSES)).double()
    target = Target(model, F.cross_entropy, SHAPE, torch.zeros(2, 1, 1).double(), torch.ones(2, 1, 1).double())
    with pytest.raises(RuntimeError):
        engine.plan(target, victims=3, batch=4, restarts=1)
    assert not any(layer._forward_hooks for layer in model.modules())


class Impatient(threading.Event):
    """Ends a test that would ask for ever."""

    asked = 0

    def set(self) -> None:
        self.asked += 1
        if self.asked > 3:
            raise RuntimeError("asked to stop over and over")
        super().set()


def test_an_interrupt_raised_by_a_tile_itself_ends_the_run() -> None:
    def work(tile: int) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        threads.run(work, range(3), workers=1, stop=Impatient())


def test_an_error_is_told_at_once_and_not_when_tiles_before_it_are_done() -> None:
    stop, heard = threading.Event(), []

    def work(tile: int) -> None:
        if tile == 1:
            raise ValueError("tile 1 is bad")
        heard.append(stop.wait(0.5))

    with pytest.raises(ValueError, match="tile 1 is bad"):
        threads.run(work, range(2), workers=2, stop=stop)
    assert heard == [True]


def test_a_model_that_cannot_be_differentiated_twice_is_refused() -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, back: Tensor) -> Tensor:
            return 2 * back

    case = make(network(lambda m, x: Once.apply(m.last(x.flatten(1)))), SHAPE)  # type: ignore[no-untyped-call]
    with pytest.raises(ModelError, match="differentiated twice"):
        engine.Matcher(case.target, case.observed)(case.images, case.labels, case.owner)
