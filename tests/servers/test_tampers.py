"""Dishonest servers: the models they send compute what they claim."""

import copy
from math import prod

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import models, servers
from dosimeter.errors import ModelError, SettingError
from dosimeter.servers.architectures import Concatenated, Reversible
from dosimeter.servers.base import Tamper, watch
from models.test_every_model import NARROW
from small import Halved

SHAPE, CLASSES, BATCH = (3, 32, 32), 5, 3
EVERY = list(servers.BY_NAME)


def make(name: str = "cnn", **more: object) -> nn.Module:
    chosen = {**NARROW.get(name, {}), **more}
    model = models.build(name, shape=SHAPE, classes=CLASSES, mean=(0.4,), std=(0.25,), seed=0, settings=chosen)
    return model.double().eval()


def noise(count: int = BATCH) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(3)
    images = torch.rand(count, *SHAPE, generator=draws, dtype=torch.float64)
    return images, torch.randint(CLASSES, (count,), generator=draws)


def send(tamper: Tamper, model: nn.Module, batch: int = BATCH) -> nn.Module:
    return tamper(model, shape=SHAPE, batch=batch).eval()


def gradients(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(images), labels)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return dict(zip((name for name, _ in model.named_parameters()), found, strict=True))


def inputs(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    return {call.name: call.inputs for call in watch(model, images)[0]}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("model", ["cnn", "lenet-bn", "vit", "resnet20"])
def test_the_agreed_model_stays_and_weights_keep_their_names_where_promised(name: str, model: str) -> None:
    agreed, tamper = make(model), servers.BY_NAME[name]()
    before, drawn = copy.deepcopy(agreed.state_dict()), torch.get_rng_state()
    sent = send(tamper, agreed)
    assert torch.equal(drawn, torch.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in agreed.state_dict().items())
    same = {k: v.shape for k, v in sent.state_dict().items()} == {k: v.shape for k, v in before.items()}
    assert same == tamper.weights_only
    assert any(p.requires_grad for p in sent.parameters())
    assert {p.dtype for p in sent.parameters()} == {torch.float64}
    if name != "honest":
        assert not any(p is q for p in sent.parameters() for q in agreed.parameters())


@pytest.mark.parametrize("name", ["honest", "first-layer", "concatenated-input", "separate-weights"])
@pytest.mark.parametrize("model", ["cnn", "lenet-bn", "mlp-no-bias", "vit"])
def test_these_compute_what_was_agreed(name: str, model: str) -> None:
    agreed, (images, _) = make(model), noise()
    sent = send(servers.BY_NAME[name](), agreed)
    for count in (1, 2, BATCH):
        assert torch.allclose(sent(images[:count]), agreed(images[:count]), rtol=0, atol=1e-12)
    assert torch.allclose(sent(images.repeat(2, 1, 1, 1)), agreed(images.repeat(2, 1, 1, 1)), rtol=0, atol=1e-12)


def test_permuted_rows_permute_the_classes() -> None:
    agreed, (images, _) = make(), noise()
    sent = send(servers.PermutedRows(shift=2), agreed)
    assert torch.equal(sent(images), agreed(images).roll(2, 1))


def test_permuted_rows_make_small_gradients_large() -> None:
    agreed, (images, labels) = make(), noise()
    optimiser = torch.optim.Adam(agreed.parameters(), lr=1e-2)
    for _ in range(60):
        optimiser.zero_grad()
        F.cross_entropy(agreed(images), labels).backward()
        optimiser.step()
    small, large = (
        sum(float(g.norm()) for g in gradients(model, images, labels).values())
        for model in (agreed, send(servers.PermutedRows(), agreed))
    )
    assert large > 20 * small


@settings(max_examples=25, deadline=None)
@given(
    size=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_an_identity_convolution_passes_the_picture_on(
    size: int, stride: int, padding: int, bias: bool, seed: int
) -> None:
    stride, padding = min(stride, size), min(padding, size - 1)
    padding = min(padding, size - stride)  # or no place of the kernel sees some of the pixels
    torch.manual_seed(seed)
    first = nn.Conv2d(3, 3 * stride**2 + 1, size, stride, padding, bias=bias)
    norm = nn.BatchNorm2d(3 * stride**2 + 1)
    norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr]
    norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
    last = nn.Conv2d(3 * stride**2 + 1, 2, 1)
    agreed = nn.Sequential(models.Normalise((0.5, 0.4, 0.3), (0.2, 0.25, 0.3)), first, norm, nn.ReLU(), last).double()
    images = torch.rand(2, 3, 9, 9, dtype=torch.float64)
    sent = servers.IdentityConvolutions()(agreed.eval(), shape=(3, 9, 9), batch=2)
    seen = inputs(sent, images)["4"]
    for cell in range(stride**2):
        phase = images[:, :, cell // stride :: stride, cell % stride :: stride]
        rows, columns = (min(a, b) for a, b in zip(phase.shape[2:], seen.shape[2:], strict=True))
        passed = seen[:, 3 * cell : 3 * cell + 3, :rows, :columns]
        assert torch.allclose(passed, phase[:, :, :rows, :columns], rtol=0, atol=1e-10)


def test_two_identity_convolutions_pass_it_through_two() -> None:
    agreed, (images, _) = make("cnn-bayes", width=4), noise()
    sent = send(servers.IdentityConvolutions(layers=2), agreed)
    seen = inputs(sent, images)["dense.0"].reshape(BATCH, 8, 8, 8)
    assert torch.allclose(seen[:, :3], F.avg_pool2d(images, 4), rtol=0, atol=1e-12)


def test_the_classifiers_gradient_holds_a_concatenated_image() -> None:
    for agreed in (make("mlp-no-bias"), Halved(make("mlp-no-bias"), in_place=True)):
        images, labels = noise(1)
        sent = send(servers.ConcatenatedInput(), agreed)
        found = gradients(sent, images, labels)
        slopes, weight = found["classifier.bias"], found["classifier.weight"]
        image = (weight.T @ slopes / slopes.square().sum())[-prod(SHAPE) :]
        assert torch.allclose(image, noise(1)[0].flatten(), rtol=0, atol=1e-10)


def test_the_first_layers_gradient_holds_the_image() -> None:
    for neurons in (1, 7, 5000):  # never more than pixels
        sent = send(servers.FirstLayer(neurons=neurons), make())
        images, labels = noise(1)
        found = gradients(sent, images, labels)
        assert torch.allclose(
            found["first.weight"], found["first.bias"][:, None] * images.flatten(), rtol=0, atol=1e-12
        )
        assert found["first.bias"].abs().max() > 1e-6


@settings(max_examples=25, deadline=None)
@given(
    channels=st.integers(1, 4),
    height=st.integers(1, 7),
    width=st.integers(1, 7),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_reversible_blocks_run_backwards(channels: int, height: int, width: int, blocks: int, seed: int) -> None:
    torch.manual_seed(seed)
    front = [Reversible(channels, 6).double() for _ in range(blocks)]
    images = torch.rand(2, channels, height, width, dtype=torch.float64)
    there = images
    for block in front:
        there = block(there)
    back = there
    for block in reversed(front):
        back = block.inverse(back)
    assert torch.allclose(back, images, rtol=0, atol=1e-12)
    assert not torch.allclose(there, images, rtol=0, atol=1e-6)


def test_the_classifier_sees_the_reversible_blocks_output() -> None:
    agreed, (images, _) = make(), noise()
    sent = send(servers.ReversibleBlocks(blocks=1), agreed)
    assert isinstance(sent, Concatenated)
    block = sent.front[0]  # type: ignore[index]
    seen = inputs(sent, images)["classifier"][:, -prod(SHAPE) :].reshape(images.shape)
    assert torch.allclose(block.inverse(seen), images, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", ["cnn", "lenet-bn", "vit"])
def test_separate_weights_have_each_images_own_gradient(model: str) -> None:
    agreed, (images, labels) = make(model), noise()
    found = gradients(send(servers.SeparateWeights(), agreed), images, labels)
    for place in range(BATCH):
        alone = gradients(agreed, images[place : place + 1], labels[place : place + 1])
        for name, g in alone.items():
            assert torch.allclose(found[f"copies.{place}.{name}"], g / BATCH, rtol=0, atol=1e-12)


def test_servers_join_from_left_to_right() -> None:
    joined = servers.FirstLayer(neurons=2) | servers.SeparateWeights() | servers.Honest()
    assert joined.name == "first-layer+separate-weights+honest"
    assert not joined.weights_only
    assert (servers.PermutedRows() | servers.IdentityConvolutions()).weights_only
    assert "copies.1.first.weight" in send(joined, make()).state_dict()


def test_what_cannot_be_tampered_with_is_refused() -> None:
    headless = nn.Sequential(nn.Flatten(), nn.Linear(prod(SHAPE), 4), nn.ReLU())
    for tamper in (servers.PermutedRows(), servers.ConcatenatedInput(), servers.ReversibleBlocks()):
        with pytest.raises(ModelError, match="does not end in a linear layer"):
            send(tamper, headless)
    with pytest.raises(ModelError, match="has none"):
        send(servers.IdentityConvolutions(), headless)
    with pytest.raises(ModelError, match="groups"):
        send(servers.IdentityConvolutions(), nn.Sequential(nn.Conv2d(3, 6, 3, groups=3)))
    for make_bad in (
        lambda: servers.IdentityConvolutions(layers=0),
        lambda: servers.FirstLayer(neurons=0),
        lambda: servers.ReversibleBlocks(blocks=0),
    ):
        with pytest.raises(SettingError, match="at least 1"):
            make_bad()
    with pytest.raises(SettingError, match=f"leaves the classifier's {CLASSES} rows in place"):
        send(servers.PermutedRows(shift=2 * CLASSES), make())


def test_a_model_that_is_only_a_classifier_can_be_concatenated() -> None:
    agreed = nn.Sequential(nn.Flatten(), nn.Linear(prod(SHAPE), CLASSES)).double()
    images, _ = noise()
    assert torch.allclose(send(servers.ConcatenatedInput(), agreed)(images), agreed(images), rtol=0, atol=1e-12)
