"""What a client notices: every tamper, and no honest model."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter import models, servers
from dosimeter.servers import checks
from models.test_every_model import NARROW
from small import Halved

CLASSES = 5


def shape_of(name: str) -> tuple[int, int, int]:
    size = max(16 if name == "resnet152" else 8, models.BY_NAME[name].least)  # on 8x8 its training explodes
    return (3, size, size)


def build(name: str, seed: int = 0) -> nn.Module:
    given = {"shape": shape_of(name), "classes": CLASSES, "mean": (0.4,), "std": (0.25,)}
    return models.build(name, **given, seed=seed, settings=NARROW.get(name))  # type: ignore[arg-type]


def rounds(model: nn.Module, count: int, shape: tuple[int, int, int]) -> list[dict[str, Tensor]]:
    """The weights that an honest server would send, round by round, and the model at the last of them."""
    draws = torch.Generator().manual_seed(1)
    optimiser = torch.optim.SGD(model.train().parameters(), lr=0.05)
    sent = [copy.deepcopy(model.state_dict())]
    for _ in range(count):
        images, labels = torch.rand(4, *shape, generator=draws), torch.randint(CLASSES, (4,), generator=draws)
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()
        sent.append(copy.deepcopy(model.state_dict()))
    model.eval()
    return sent


@pytest.mark.parametrize("name", models.BY_NAME)
def test_honest_models_are_let_through(name: str) -> None:
    shape, model, own = shape_of(name), build(name), build(name, seed=1)
    assert servers.check(model, shape=shape, agreed=own, batch=2) == []
    *history, last = rounds(model, 3, shape)
    assert any(not torch.equal(last[key], history[0][key]) for key in last)
    assert servers.check(model, shape=shape, agreed=own, history=history, batch=2) == []


def test_a_program_that_works_in_place_on_its_images_is_let_through() -> None:
    shape = shape_of("cnn")
    model, own = (Halved(build("cnn", seed), in_place=True).eval() for seed in (0, 1))
    assert servers.check(model, shape=shape, agreed=own, batch=2) == []


def noticed(name: str, *, agreed: bool = False, history: int = 0) -> set[str]:
    model, shape = build("cnn"), shape_of("cnn")
    sent = rounds(model, 3, shape)
    tampered = servers.BY_NAME[name]()(model, shape=shape, batch=4)
    own = build("cnn", seed=1) if agreed else None
    found = servers.check(tampered, shape=shape, agreed=own, history=sent[len(sent) - history :])
    return {finding.check for finding in found}


NOTICED = {
    # what the model alone shows, what the agreed program adds, what one earlier round adds, what four add
    "honest": (set(), set(), set(), set()),
    "permuted-rows": (set(), set(), {"permuted rows"}, {"jump"}),
    "identity-convolutions": ({"identity kernels", "carried image"}, set(), set(), {"jump"}),
    "first-layer": ({"carried image"}, {"architecture"}, set(), set()),
    "concatenated-input": ({"carried image"}, {"architecture"}, set(), set()),
    "reversible-blocks": ({"carried image"}, {"architecture"}, set(), set()),
    "separate-weights": ({"separate examples"}, {"architecture"}, set(), set()),
}


@pytest.mark.parametrize("name", servers.BY_NAME)
def test_every_tamper_is_noticed_by_what_it_leaves(name: str) -> None:
    alone, program, one, four = NOTICED[name]
    assert noticed(name) == alone
    assert noticed(name, agreed=True) == alone | program
    assert noticed(name, history=1) == alone | one
    assert noticed(name, agreed=True, history=4) == alone | program | one | four


class Swapped(nn.Module):
    """The names and shapes of two layers, used the other way round."""

    def __init__(self, *, swap: bool) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.swap = swap

    def forward(self, images: Tensor) -> Tensor:
        first, second = (self.two, self.one) if self.swap else (self.one, self.two)
        out: Tensor = second(torch.relu(first(images.flatten(1))))
        return out


def test_another_program_under_the_same_names_is_noticed() -> None:
    torch.manual_seed(0)
    (finding,) = servers.check(Swapped(swap=True), shape=(1, 2, 2), agreed=Swapped(swap=False))
    assert finding.check == "architecture"
    assert "something else" in finding.what
    assert servers.check(Swapped(swap=False), shape=(1, 2, 2), agreed=Swapped(swap=False)) == []


def test_architecture_names_what_differs() -> None:
    sent = nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 2))
    agreed = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2, bias=False))
    found = {finding.where: finding.what for finding in checks.architecture(sent, agreed, shape=(3, 2, 2))}
    assert set(found) == {"1.weight", "1.bias", "3.weight", "3.bias"}
    assert "(3, 12)" in found["1.weight"]
    assert "(4, 12)" in found["1.weight"]
    assert "not agreed" in found["3.bias"]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_random_kernels_are_no_identities(size: int) -> None:
    torch.manual_seed(0)
    for start in (nn.init.normal_, nn.init.uniform_, lambda w: nn.init.uniform_(w, -1, 1)):
        conv = nn.Conv2d(2, 20_000, size, bias=False)
        start(conv.weight)
        assert checks.identity_kernels(conv) == []


def test_one_scaled_identity_among_random_kernels_is_found() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 64, 3)
    with torch.no_grad():
        conv.weight[17] = 1e-3 * torch.randn(3, 3, 3)
        conv.weight[17, 1, 1, 1] = -0.3
    (finding,) = checks.identity_kernels(nn.Sequential(conv))
    assert finding.where == "0"
    assert finding.what.startswith("1 of 64")


def test_a_filter_with_a_favourite_entry_is_no_identity() -> None:
    """As training on ImageNet made one of AlexNet's, however unlikely that is for random ones."""
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 8, 5)
    with torch.no_grad():
        conv.weight[3] = torch.randn(16, 5, 5)
        conv.weight[3, 7, 2, 2] = 0
        conv.weight[3, 7, 2, 2] = 1.06 * conv.weight[3].norm()
    assert checks.identity_kernels(conv) == []


def test_batch_norm_by_the_batch_is_no_separation() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5))
    models.use_batch_statistics(model)
    assert servers.check(model, shape=(3, 8, 8), agreed=model) == []


def test_rows_that_were_trained_far_are_still_their_own() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        model[1].weight += 0.7 * model[1].weight.std() * torch.randn(5, 48)
    assert checks.permuted_rows(model, before, shape=(3, 4, 4)) == []
    with torch.no_grad():
        model[1].weight[[1, 3]] = model[1].weight[[3, 1]]
    (finding,) = checks.permuted_rows(model, before, shape=(3, 4, 4))
    assert "1 was 3, 3 was 1" in finding.what


def test_a_jump_is_measured_against_the_past() -> None:
    past = [{"w": torch.full((2, 2), 1 + 0.01 * step)} for step in range(4)]
    assert checks.jump({"w": torch.full((2, 2), 1.05)}, past) == []
    assert checks.jump({"w": torch.full((2, 2), 1.5)}, past[:2]) == []  # too few rounds to know
    (finding,) = checks.jump({"w": torch.full((2, 2), 1.5)}, past)
    assert finding.where == "w"


class Shortcut(nn.Module):
    """An honest model that hands its input to the classifier by design."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.classifier = nn.Linear(48, 8), nn.Linear(56, 5)

    def forward(self, images: Tensor) -> Tensor:
        flat = images.flatten(1)
        out: Tensor = self.classifier(torch.cat([torch.relu(self.inner(flat)), flat], 1))
        return out


def test_what_was_agreed_is_excused() -> None:
    torch.manual_seed(0)
    assert {f.check for f in servers.check(Shortcut(), shape=(3, 4, 4))} == {"carried image"}
    assert servers.check(Shortcut(), shape=(3, 4, 4), agreed=Shortcut()) == []
