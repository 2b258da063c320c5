"""Secure aggregation against a plain computation: Jacobians written out, one posterior of all images."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev
from typer.testing import CliRunner

from dosimeter.auditing import Resources, Updates
from dosimeter.cli import app
from dosimeter.doses import Aggregation, Show, White, dose, plan_of
from dosimeter.errors import SettingError
from dosimeter.types import Victims

SHAPE = (1, 6, 6)
STD = 0.25


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, 5)]
    return nn.Sequential(*layers)


def normed() -> nn.Sequential:
    """Images of a client are normalised together."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 5))


def public(many: int) -> tuple[Tensor, Tensor]:
    seed = torch.Generator().manual_seed(5)
    return torch.rand(many, *SHAPE, generator=seed), torch.arange(many) % 5


def victims_of(images: Tensor) -> Victims:
    """Of (V, B, ...)."""
    places = torch.arange(images.shape[0] * images.shape[1]).reshape(images.shape[:2])
    return Victims(images, places % 5, places, tuple(f"test:{at}" for at in range(len(images))))


def own(batch: int = 1) -> Victims:
    return victims_of(torch.rand(1, batch, *SHAPE, generator=torch.Generator().manual_seed(2)))


def gradient(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """(D,) of one client."""

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return nn.functional.cross_entropy(functional_call(net, parameters, (images,)), labels)

    return torch.cat([g.flatten() for g in grad(loss)(dict(net.named_parameters())).values()])


def jacobian(net: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """(D, B n)"""
    found = jacrev(lambda x: gradient(net, x, labels))(images)
    assert isinstance(found, Tensor)
    return found.flatten(1).detach()


def figures(covariance: Tensor, size: int) -> tuple[float, float]:
    """Bits and PSNR of the first image, by its block of the posterior covariance."""
    block = covariance[:size, :size]
    bits = (size * math.log(STD**2) - float(torch.logdet(block))) / (2 * math.log(2))
    return bits, -10 * math.log10(float(block.diagonal().mean()))


@pytest.mark.parametrize(("batch", "many"), [(1, 3), (2, 2)])
@pytest.mark.parametrize("kind", ["plain", "batch norm"])
def test_other_clients_images_are_unknowns_of_one_jacobian(batch: int, many: int, kind: str) -> None:
    net, sigma = model() if kind == "plain" else normed(), 0.01
    images, labels = public(8)
    victims = own(batch)
    how: dict[str, Any] = {"defense": f"noise:sigma={sigma}", "prior": White(std=STD), "show": Show("none", 0)}
    if kind == "batch norm":
        how["updates"] = Updates(batch_norm="batch")
    found = dose(net, victims, aggregation=Aggregation(clients=many, images=images, labels=labels), **how).images
    assert len(found) == batch
    if kind == "batch norm":
        net[1] = nn.BatchNorm2d(3, track_running_stats=False)  # the same, always by the batch
    net = net.double()
    pools = [victims.images[0], *images.split(batch)][:many]
    told = [victims.labels[0], *labels.split(batch)][:many]
    whole = torch.cat([jacobian(net, x.double(), y) for x, y in zip(pools, told, strict=True)], 1) / many
    # Each client adds sigma, so the mean has sigma / sqrt(n).
    precision = whole.T @ whole * many / sigma**2 + torch.eye(whole.shape[1], dtype=torch.float64) / STD**2
    bits, psnr = figures(torch.linalg.inv(precision), 36)
    assert found[0].bits == pytest.approx(bits, rel=1e-6)
    assert found[0].psnr == pytest.approx(psnr, rel=1e-6)


@pytest.mark.parametrize(
    "defense", ["noise:sigma=0.01", "dp-sgd:clip=0.05,sigma=0.2", "prune:ratio=0.5|noise:sigma=0.01"]
)
def test_other_clients_updates_are_noise_of_the_covariance_of_public_ones(defense: str) -> None:
    net, many, updates = model(), 4, 30
    images, labels = public(updates)
    victims = own()
    told = Aggregation(clients=many, images=images, labels=labels, others="noise")
    found = dose(net, victims, defense=defense, aggregation=told, prior=White(std=STD), show=Show(pictures=0)).images[0]
    net = net.double()
    clip, kept = (0.05 if "dp" in defense else None), "prune" in defense

    def sent(g: Tensor) -> Tensor:
        g = g if clip is None else g * (clip / g.norm()).clamp_max(1)
        if not kept:
            return g
        parts = g.split([p.numel() for p in net.parameters()])
        return torch.cat([p * (p.abs() >= p.abs().sort().values[round(0.5 * len(p))]) for p in parts])

    def update(x: Tensor) -> Tensor:
        return sent(gradient(net, x, victims.labels[0]))

    slope = jacrev(update)(victims.images[0].double())
    assert isinstance(slope, Tensor)
    slope = slope.flatten(1).detach()
    rows = torch.stack(
        [sent(gradient(net, x[None].double(), y[None])).detach() for x, y in zip(images, labels, strict=True)]
    )
    noise = 0.2 * 0.05 if clip else 0.01
    covariance = many * noise**2 * torch.eye(len(slope), dtype=torch.float64) + (many - 1) * torch.cov(rows.T)
    inside = slope.T @ torch.linalg.solve(covariance, slope)
    bits, psnr = figures(torch.linalg.inv(inside + torch.eye(36, dtype=torch.float64) / STD**2), 36)
    assert found.bits == pytest.approx(bits, rel=1e-5)  # public updates are kept in single precision
    assert found.psnr == pytest.approx(psnr, rel=1e-5)
    # A tensor alone, of the mean's own tensor, with the others' covariance on it.
    first = slice(0, net[0].weight.numel())
    alone = slope[first].T @ torch.linalg.solve(covariance[first, first], slope[first])
    assert found.tensors["0.weight"].alone == int((torch.linalg.eigvalsh(alone) > 1 / STD**2).sum())


def test_more_clients_tell_less_by_either_picture() -> None:
    images, labels = public(80)
    victims = own()
    for others in ("images", "noise"):
        bits = []
        for many in (1, 2, 4, 8):
            told = Aggregation(clients=many, images=images, labels=labels, others=others)  # type: ignore[arg-type]
            found = dose(model(), victims, defense="noise:sigma=0.003", aggregation=told, show=Show("none", 0))
            bits.append(found.images[0].bits or 0.0)
            assert (many > 1) == any("mean of" in note for note in found.notes)
        assert bits == sorted(bits, reverse=True)
        assert bits[-1] < 0.8 * bits[0]


def test_draws_inside_the_model_and_local_steps_are_aggregated_too() -> None:
    images, labels = public(20)
    victims = own()
    for others in ("images", "noise"):
        for more in (
            {"defense": "precode:k=3|noise:sigma=0.003"},
            {"step": "local:steps=2,lr=0.5", "defense": "noise:sigma=0.003"},
        ):
            told = Aggregation(clients=3, images=images, labels=labels, others=others)  # type: ignore[arg-type]
            how: dict[str, Any] = {"show": Show("none", 0), **more}
            net = nn.Sequential(*model(), nn.Tanh(), nn.Linear(5, 5))
            one, several = dose(net, victims, **how).images[0], dose(net, victims, aggregation=told, **how).images[0]
            assert 0 < (several.bits or 0) < (one.bits or 0)


def test_what_a_mean_over_clients_makes_not_linear_is_refused() -> None:
    images, labels = public(20)
    for others, defense, why in (
        ("images", "random-prune:rate=0.5|noise:sigma=0.1", "masks that each client draws"),
        ("noise", "random-prune:rate=0.5|noise:sigma=0.1", "masks that each client draws"),
        ("images", "prune:ratio=0.5|noise:sigma=0.1", "use --others noise"),
    ):
        told = Aggregation(clients=3, images=images, labels=labels, others=others)  # type: ignore[arg-type]
        with pytest.raises(SettingError, match=why):
            dose(model(), own(), defense=defense, aggregation=told)
    with pytest.raises(SettingError, match="needs 29 public images"):
        dose(model(), own(), aggregation=Aggregation(clients=30, images=images, labels=labels))
    noise = Aggregation(clients=3, images=images, labels=labels, others="noise")
    with pytest.raises(SettingError, match="20 public updates of"):
        dose(model(), own(), aggregation=noise, resources=Resources(dtype=torch.float64, budget=1000))


def test_dp_sgd_over_clients_is_one_large_batch_of_clipped_gradients() -> None:
    """The mean of clients of one clipped image each is the clipped mean of their images."""
    images, labels = public(2)
    victims = own()
    told = Aggregation(clients=3, images=images, labels=labels)
    how: dict[str, Any] = {"show": Show("none", 0)}
    found = dose(model(), victims, defense="dp-sgd:clip=0.05,sigma=0.2", aggregation=told, **how)
    three = victims_of(torch.cat([victims.images[0], images])[None])
    three = three._replace(labels=torch.cat([victims.labels[0], labels])[None])
    # Of one batch of three the noise is sigma clip / 3, of three clients sigma clip / sqrt(3).
    same = dose(model(), three, defense=f"dp-sgd:clip=0.05,sigma={0.2 * math.sqrt(3)}", **how)
    assert found.images[0].bits == pytest.approx(same.images[0].bits)
    assert [each.value for each in found.bounds] == pytest.approx([each.value for each in same.bounds])


@pytest.mark.parametrize("others", ["images", "noise"])
def test_a_plan_is_the_smallest_number_of_clients_that_is_enough(others: Any) -> None:
    images, labels = public(120)
    victims, share = own(), 0.3
    told = Aggregation(clients=1, images=images, labels=labels, others=others)
    how: dict[str, Any] = {"defense": "noise:sigma=0.003", "prior": White(std=STD)}
    found = plan_of(model(), victims, share=share, by="clients", aggregation=told, **how).plan
    assert found is not None
    many = found["clients"]
    assert many > 2
    assert f"the mean of {many} clients" in found["sentence"]
    shares = [
        dose(model(), victims, aggregation=replace(told, clients=n), show=Show("none"), **how).worst.share
        for n in (many - 1, many)
    ]
    assert shares[1] < share <= shares[0]


def test_a_plan_by_clients_says_what_it_cannot_reach() -> None:
    images, labels = public(120)
    few = Aggregation(clients=1, images=images, labels=labels, others="noise", updates=3)
    with pytest.raises(SettingError, match="so few public updates"):
        plan_of(model(), own(), share=0.1, by="clients", aggregation=few, prior=White(std=STD))
    joint = replace(few, others="images")
    tight = {"resources": Resources(dtype=torch.float64, budget=400_000), "prior": White(std=STD)}
    with pytest.raises(SettingError, match="do not fit"):
        plan_of(model(), own(), share=0.01, by="clients", aggregation=joint, **tight)


@pytest.mark.parametrize("others", ["images", "noise"])
def test_a_plan_of_noise_among_clients_is_that_of_the_dose(others: Any) -> None:
    images, labels = public(40)
    victims, share = own(), 0.3
    told = Aggregation(clients=3, images=images, labels=labels, others=others)
    found = plan_of(model(), victims, share=share, aggregation=told, prior=White(std=STD)).plan
    assert found is not None
    how: dict[str, Any] = {"aggregation": told, "show": Show("none"), "prior": White(std=STD)}
    sigmas = (found["sigma"], found["sigma"] / 1.05)
    shares = [dose(model(), victims, defense=f"noise:sigma={sigma}", **how).worst.share for sigma in sigmas]
    assert shares[0] < share <= shares[1]


def test_the_command_aggregates(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef make():\n"
        "    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49, 4), nn.Sigmoid(), nn.Linear(4, 10))\n"
    )
    words = ["dose", "--model", f"{tmp_path / 'mine.py'}:make", "--victims", "1", "--prior", "white", "--split", "test"]
    words += ["--defense", "noise:sigma=0.01", "--tensors", "none", "--out", str(tmp_path / "run")]
    shares = []
    for more in ([], ["--clients", "3"], ["--clients", "3", "--others", "noise:updates=20"]):
        ran = CliRunner().invoke(app, [*words, *more])
        assert ran.exit_code == 0, ran.output
        kept = json.loads((tmp_path / "run" / "dose.json").read_text())
        assert kept["settings"]["clients"] == (3 if more else 1)
        assert bool(more) == any("mean of 3 clients" in note for note in kept["notes"])
        shares.append(kept["mean"]["bits"])
    assert max(shares[1:]) < shares[0]
    ran = CliRunner().invoke(app, [*words, "--plan", "share=0.002,by=clients", "--others", "noise:updates=30"])
    assert ran.exit_code == 0, ran.output
    assert json.loads((tmp_path / "run" / "dose.json").read_text())["plan"]["clients"] > 1
    for wrong in (["--others", "none", "--clients", "2"], ["--plan", "share=0.1,by=luck"]):
        assert CliRunner().invoke(app, [*words, *wrong]).exit_code == 2
