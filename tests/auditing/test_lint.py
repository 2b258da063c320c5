"""What lint finds is what the attacks that it names find, and is gone where its cause is."""

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import clients, models, rng, servers
from dosimeter.attacks import Attack, presets
from dosimeter.attacks.around.key import recover
from dosimeter.attacks.solve.certificate import IMAGE
from dosimeter.attacks.solve.count import count_ranks
from dosimeter.attacks.solve.deep import DeepSolver
from dosimeter.attacks.solve.features import inputs_of
from dosimeter.attacks.solve.layers import descend, from_loss
from dosimeter.attacks.solve.straight import read_straight
from dosimeter.attacks.stages import blank
from dosimeter.auditing import part
from dosimeter.auditing.linting.findings import Leak, Level, Linted
from dosimeter.errors import ModelError
from dosimeter.networks.trace import Trace
from dosimeter.types import Observation, Reconstruction, Target
from small import NARROW, observe, target_of

SHAPE = (3, 32, 32)
SMALLER = {
    "cnn": (1, 29, 29),
    "biglinear": (1, 12, 12),
    **dict.fromkeys(("lenet", "lenet-bn"), (3, 16, 16)),
    **{name: (3, 16, 16) for name in models.BY_NAME if name.startswith("resnet")},
    **dict.fromkeys(("resnet34", "resnet50"), SHAPE),
}
"""Images of models that would take long to solve or to run; the structure is the same. Statistics of one small image
make the slopes of some overflow."""
LABEL = torch.tensor([[3]])


def make(name: str, shape: tuple[int, int, int] = SHAPE, **settings: object) -> nn.Module:
    """A model of the list, narrow: it leaks by the same structure as the wide one and takes no minutes to solve."""
    given = {**NARROW.get(name, {}), **settings}
    return models.build(name, shape=shape, classes=5, mean=(0.4,), std=(0.25,), seed=0, settings=given)


def found(linted: Linted) -> dict[str, Leak]:
    return {leak.rule: leak for leak in linted.leaks}


def private(shape: tuple[int, int, int] = SHAPE) -> Tensor:
    """(1, 1, C, H, W)"""
    return torch.rand(1, 1, *shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def seen_of(target: Target) -> Observation:
    return observe(target, private(target.shape), LABEL, granted=False)


def attacked(target: Target, words: str) -> Reconstruction:
    attack: Attack = part("attack", words)
    return attack(replace(target, drawn={}), [seen_of(target)], seed=0)  # it does not know what was drawn


def confirm_image(target: Target, leak: Leak) -> None:
    """The attack determines as much of the image as was said, or at most that where it was counted."""
    result = attacked(target, leak.attack)
    (determined,), (outcome,) = result.determined, result.outcomes
    assert leak.share is not None
    if leak.where and leak.rule == "layer-by-layer":
        assert 0 < determined[leak.where] <= leak.share + 1e-9
        assert IMAGE not in determined
        return
    assert 0 < determined[IMAGE] <= leak.share + 1e-9
    assert leak.rule == "layer-by-layer" or determined[IMAGE] == pytest.approx(leak.share)
    if leak.level == Level.ERROR:
        assert outcome.explains, outcome
    if determined[IMAGE] == 1:
        assert (result.images - private(target.shape)).abs().max() < 1e-3


def confirm_features(target: Target, leak: Leak) -> None:
    """The layer's input is in its gradient, and one step of the attack comes nearer to it than a blank image is."""
    attack = replace(presets.features(), steps=1, inner=8)
    assert leak.attack == attack.name
    seen = seen_of(target)
    weight, bias = (seen.gradient[f"{leak.where}.{part}"][0] for part in ("weight", "bias"))
    ratio = weight.T @ bias / bias.square().sum()

    def inputs(image: Tensor) -> Tensor:
        return inputs_of(target.model, image, [leak.where])[leak.where].detach().flatten()

    assert torch.allclose(ratio, inputs(private(target.shape)[0]), rtol=1e-6, atol=1e-9)
    result = attack(target, [seen], seed=0)
    before = inputs(blank(target)[None])
    assert (inputs(result.images[0].double()) - ratio).norm() < (before - ratio).norm()


def confirm_wide(target: Target, leak: Leak) -> None:
    """What went into the layer, or into one below it, is solved for."""
    assert leak.attack == "analytic"
    solver = DeepSolver(presets.deep(), target, seen_of(target), LABEL, 0)
    observed, labels = solver.update(0)
    goal = solver.goal(observed, labels, lambda: None)
    assert goal is not None
    (truth,) = Trace(target.model, private(target.shape)[0]).calls[goal.at].inputs[0].detach()
    assert (goal.value - truth).norm() < 1e-3 * truth.norm()


def confirm_statistics(model: nn.Module, shape: tuple[int, int, int], leak: Leak) -> None:
    """An audit by the attack that is named, cut to one step, takes what is sent of batch norms."""
    assert dict(leak.options)["--batch-norm"] == "sent"
    victims = dm.Victims(private(shape).float(), LABEL, torch.zeros(1, 1, dtype=torch.long), ("test:0",))
    attack = part("attack", leak.attack, steps=1)
    assert attack.needs().statistics == "sent"
    result = dm.audit(model, victims, attack=attack, updates=dm.Updates(batch_norm="sent"))
    assert result.threat.statistics == "sent"


@pytest.mark.parametrize("name", models.BY_NAME)
def test_what_is_found_of_a_model_is_what_the_attack_finds(name: str) -> None:
    shape = SMALLER.get(name, SHAPE)
    model = make(name, shape)
    linted = dm.lint(model, shape)
    target = target_of(make(name, shape), shape)
    assert {"labels"} <= found(linted).keys()
    for leak in linted.leaks:
        if leak.rule in ("first-layer", "patches", "layer-by-layer"):
            confirm_image(target, leak)
        elif leak.rule == "labels":
            assert attacked(target, leak.attack).labels.tolist() == LABEL.tolist()  # type: ignore[union-attr]
        elif leak.rule == "features":
            confirm_features(target, leak)
        elif leak.rule == "wide-layer":
            confirm_wide(target, leak)
        else:
            assert leak.rule == "batch-norm"
            confirm_statistics(model, shape, leak)
    closed = {"first-layer", "patches", "layer-by-layer", "wide-layer"} & found(linted).keys()
    assert len(closed) + ("analytic" in linted.refused) == 1
    if "analytic" in linted.refused:
        with pytest.raises(dm.DosimeterError, match="analytic attack"):
            presets.analytic().check(target, 1)


def test_what_is_counted_of_layers_is_what_solving_them_gives() -> None:
    """Of smooth networks, all whose equations hold, exactly; whatever stands between the layers."""
    torch.manual_seed(0)
    wide = [nn.Conv2d(2, 9, 3, stride=2), nn.Sigmoid(), nn.Conv2d(9, 12, 3, padding=1), nn.Sigmoid()]
    few = [nn.Conv2d(2, 3, 5, stride=2), nn.Sigmoid(), nn.Conv2d(3, 2, 3), nn.Sigmoid()]
    pooled = [nn.Conv2d(2, 5, 3), nn.Sigmoid(), nn.AvgPool2d(2)]
    for layers, numbers in ((wide, 12 * 16), (few, 2 * 1), (pooled, 5 * 9)):
        side = 10 if layers is wide else 9 if layers is few else 8
        target = target_of(nn.Sequential(*layers, nn.Flatten(), nn.Linear(numbers, 4)), (2, side, side))
        blocks = read_straight(target)
        image, label = torch.rand(1, 2, side, side, dtype=torch.float64), torch.tensor([1])
        gradient = target.gradient(image, label)
        way = descend(blocks, from_loss(target, blocks[-1], gradient, label), gradient, torch.float64, lambda: None)
        counted = count_ranks(blocks)
        assert counted.keys() == way.ranks.keys()
        for layer, (rank, unknowns) in way.ranks.items():
            assert counted[layer].unknowns == unknowns
            assert rank <= counted[layer].rank
        if layers is not few:
            assert {layer: tuple(count) for layer, count in counted.items()} == way.ranks


def test_weights_that_start_at_0_hide_no_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(8 * 36, 4))
    nn.init.zeros_(model[3].weight)
    assert found(dm.lint(model, (1, 8, 8)))["layer-by-layer"].share == 1


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def test_a_leak_is_gone_where_its_cause_is() -> None:
    vit = make("vit")
    assert found(dm.lint(vit, SHAPE))["patches"].where == "embed"
    assert "patches" not in found(dm.lint(frozen(vit, "positions"), SHAPE))
    mlp = make("mlp")
    assert found(dm.lint(mlp, SHAPE))["first-layer"].level == Level.ERROR
    without = found(dm.lint(mlp, SHAPE, defense="no-bias"))["first-layer"]
    assert (without.level, "singular vector" in without.what) == (Level.ERROR, True)
    assert "first-layer" not in found(dm.lint(frozen(mlp, "features.1.weight", "features.1.bias"), SHAPE))
    assert "labels" not in found(dm.lint(frozen(mlp, "classifier.weight", "classifier.bias"), SHAPE))
    assert "labels" not in found(dm.lint(nn.Sequential(mlp, nn.Softmax(1)), SHAPE))
    assert "layer-by-layer" in found(dm.lint(make("convnet", pooling="average"), SHAPE))
    assert "layer-by-layer" not in found(dm.lint(make("convnet"), SHAPE))
    assert "batch-norm" in found(dm.lint(make("resnet18-imagenet"), SHAPE, batch=2))
    assert "batch-norm" not in found(dm.lint(make("resnet18-gn"), SHAPE, batch=2))


def test_batches_and_noise_lower_a_leak_and_say_why() -> None:
    model = make("mlp-2")
    several = found(dm.lint(model, SHAPE, batch=4))
    assert several["first-layer"].level == Level.WARNING
    assert several["first-layer"].options == (("--batch", "1"),)
    assert "4 labels" in several["labels"].what
    noisy = found(dm.lint(model, SHAPE, defense="noise:sigma=0.01"))
    assert noisy["first-layer"].level == Level.WARNING
    assert "Gaussian noise of 0.01" in noisy["first-layer"].what
    assert noisy["labels"].level == Level.NOTE
    assert found(dm.lint(model, SHAPE, defense="ats"))["first-layer"].what.endswith("before training")
    adam = found(dm.lint(model, SHAPE, step="local:steps=2,lr=0.1,optimiser=adam"))
    assert adam["first-layer"].level == Level.WARNING


def test_noise_on_other_tensors_lowers_nothing() -> None:
    first = found(dm.lint(make("mlp-2"), SHAPE, defense="soteria:layer=classifier"))
    assert first["first-layer"].level == Level.ERROR


def defended(model: nn.Module, words: str, shape: tuple[int, int, int]) -> Target:
    """As in an audit: with the layers that the defense puts in, and what one client drew for them."""
    defense = part("defense", words)
    with rng.scoped(0, "defense", "model"):
        target = target_of(defense.on_model(model, shape), shape)
    drawn = clients.draw_secrets(target, 1, rng.stream(0, "draws")) | defense.draw(target, 1, rng.stream(0, "key"))
    return replace(target, drawn={name: value.to(target.mean) for name, value in drawn.items()})


@pytest.mark.parametrize(
    ("words", "rule"), [("precode:k=8", "draws"), ("fedkl:key=64", "lock"), ("fedkl:key=64,share=lock", "key-lock")]
)
def test_what_a_defense_draws_is_found_as_the_attack_finds_it(words: str, rule: str) -> None:
    shape = (1, 8, 8)
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 6, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(216, 16), nn.Sigmoid(), nn.Linear(16, 5)]
    model = nn.Sequential(*layers)
    leak = found(dm.lint(model, shape, defense=words))[rule]
    assert leak.level == Level.ERROR
    assert rule not in found(dm.lint(model, shape))
    target = defended(model, words, shape)
    if rule == "key-lock":
        key = recover(target, seen_of(target).gradient)
        for name, value in key.items():
            assert torch.allclose(value[0], target.drawn[name].to(value), atol=1e-4)
        assert rule not in found(dm.lint(model, shape, defense="fedkl:key=64"))
        return
    assert attacked(target, leak.attack).outcomes[0].explains


def test_a_key_that_is_sent_is_found() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 5))
    assert "key-sent" in found(dm.lint(model, (1, 8, 8), defense="fedkl:key=64,share=both"))
    assert "key-sent" not in found(dm.lint(model, (1, 8, 8), defense="fedkl:key=64"))


def test_a_shortcut_around_noise_is_found_and_one_behind_the_block_is_not_taken_for_it() -> None:
    model = make("resnet20", (3, 8, 8))
    inside = found(dm.lint(model, (3, 8, 8), defense="cvb:before=stages.0.0.body.3"))
    assert inside["shortcut"].where == "stages.0.0.body.3.bottleneck"
    assert "shortcut" not in found(dm.lint(model, (3, 8, 8), defense="cvb"))
    target = defended(model, "cvb:before=stages.0.0.body.3", (3, 8, 8))
    attack = part("attack", inside["shortcut"].attack, steps=30)
    seen = observe(target, private((3, 8, 8)), LABEL)
    result = attack(target, [seen], seed=0)
    assert result.curve.match[0, -1] < result.curve.match[0, 0]


def test_an_image_that_is_carried_on_is_found() -> None:
    model = make("cnn")
    sent = servers.BY_NAME["concatenated-input"]()(model, shape=SHAPE, batch=1)
    leaks = found(dm.lint(sent, SHAPE))
    assert leaks["carried-image"].attack == "features"
    assert "carried-image" not in found(dm.lint(model, SHAPE))
    apart = servers.BY_NAME["separate-weights"]()(model, shape=SHAPE, batch=2)
    assert "separate-examples" in found(dm.lint(apart, SHAPE, batch=2))
    assert "separate-examples" not in found(dm.lint(model, SHAPE, batch=2))


def test_statistics_that_are_sent_are_worse_than_those_that_may_be() -> None:
    model = make("lenet-bn")
    assert found(dm.lint(model, SHAPE))["batch-norm"].level == Level.NOTE
    assert found(dm.lint(model, SHAPE, batch_norm="sent"))["batch-norm"].level == Level.WARNING


def test_a_layer_fixes_no_more_than_its_places_and_width_allow() -> None:
    layers = {layer.name: layer for layer in dm.lint(make("cnn", width=16), SHAPE).layers}
    first = layers["features.0.weight"]
    assert (first.places, first.numbers, first.rank) == (14 * 14, 3072, 16 * 75)
    assert layers["classifier.weight"].share == 1
    grouped = nn.Sequential(nn.Conv2d(4, 8, 3, groups=4), nn.Flatten(), nn.Linear(8 * 36, 5))
    (layer, _) = dm.lint(grouped, (4, 8, 8)).layers
    assert layer.rank == 4 * 2 * 9
    came, seen = torch.rand(36, 8), nn.functional.unfold(torch.rand(1, 4, 8, 8), 3)[0].T  # (T, m), (T, k)
    assert torch.linalg.matrix_rank(came.T @ seen) <= layer.rank


def test_a_model_that_cannot_be_traced_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = nn.Sequential(nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 5))
        script = torch.jit.script(plain)
        for model in (script, nn.Sequential(nn.Flatten(), script)):
            with pytest.raises(ModelError, match=r"cannot be (traced|looked into)"):
                dm.lint(model, (3, 4, 4))
    assert dm.lint(nn.Sequential(nn.Flatten(), plain), (3, 4, 4)).leaks
    with pytest.raises(ModelError, match="cannot take images"):
        dm.lint(nn.Sequential(nn.Flatten(), plain), (3, 5, 5))


def test_the_model_is_left_as_it_was() -> None:
    model = make("lenet-bn").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dm.lint(model, SHAPE, batch_norm="sent", defense="fedkl")
    assert model.training
    assert not model._forward_pre_hooks
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
