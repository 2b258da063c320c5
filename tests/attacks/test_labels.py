"""Labels from the last layer: on the models of the papers, under noise, and where they cannot be told."""

import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import clients, models
from dosimeter.attacks import LabelsOnly, counts, labels, presets, searching
from dosimeter.attacks.last_layer import find_last_layer
from dosimeter.auditing.captured.seeing import see, with_labels
from dosimeter.auditing.job import Job
from dosimeter.auditing.setting import part
from dosimeter.auditing.target import make_target
from dosimeter.errors import SettingError
from dosimeter.types import UNTOLD, Observation, Target
from small import observe, target_of, tiny_target

GREY = (1, 32, 32)


def built(name: str, classes: int = 10, **more: object) -> Target:
    model = models.build(name, shape=GREY, classes=classes, mean=(0.3,), std=(0.3,), seed=3, settings=more)
    return target_of(model, GREY, torch.float32)


def batches(n: int, batch: int, classes: int = 10) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.rand(n, batch, *GREY, generator=rng), torch.randint(0, classes, (n, batch), generator=rng)


SMALL_VIT = {"width": 32, "depth": 1, "heads": 4, "patch": 8}


@pytest.mark.parametrize("bias", [True, False])
def test_a_transformers_label_is_read_where_sums_of_rows_fail(bias: bool) -> None:
    target = built("vit", **SMALL_VIT, bias=bias)
    images, truth = batches(24, 1)
    seen = observe(target, images, truth, granted=False)
    assert torch.equal(labels.FromLastLayer().find(target, seen), truth)
    rows = labels.FromLastLayer(rule="rows").find(target, seen)
    assert (rows == truth).float().mean() < 0.9


@pytest.mark.parametrize(("name", "batch"), [("cnn", 16), ("cnn", 100), ("lenet", 16), ("mlp-bayes", 100)])
def test_counts_of_untrained_networks_are_exact_in_batches_beyond_the_classes(name: str, batch: int) -> None:
    target = built(name)
    images, truth = batches(6, batch)
    found = labels.Counts().find(target, observe(target, images, truth, granted=False))
    assert torch.equal(found, truth.sort(1).values)


def test_counts_of_real_digits_are_exact() -> None:
    victims = dm.pick(dm.load("mnist-5k", size=32), 8, batch=16, seed=1)
    model = models.build("cnn", shape=GREY, classes=10, mean=(0.3,), std=(0.3,), seed=0)
    result = dm.audit(model, victims, attack=presets.labels_only())
    assert result.scores.labels.updates.hits == 8
    assert result.scores.labels.rate == 1
    assert [r.label_used for r in result.records] == [r.label for r in result.records]
    assert {r.labels_right for r in result.records} == {16}
    assert "128 of 128" in result.summary()


def test_counts_after_training_beat_the_rule_of_thumb_and_an_even_guess() -> None:
    data = dm.load("mnist-5k")
    model = models.build("lenet", shape=data.shape, classes=10, mean=(0,), std=(1,), seed=0, settings={"spread": None})
    optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    numbers = torch.from_numpy(data.labels("train"))
    for step in range(60):
        places = torch.arange(32) + 32 * step
        optimiser.zero_grad()
        F.cross_entropy(model(data.images("train", places.numpy())), numbers[places]).backward()
        optimiser.step()
    victims = dm.pick(data, 12, batch=16, seed=2, split="test")
    fit, llg = (
        dm.audit(model, victims, attack=presets.labels_only(rule=rule)).scores.labels  # type: ignore[arg-type]
        for rule in ("fit", "llg")
    )
    assert fit.rate > fit.guess + 0.1
    assert fit.rate > llg.rate + 0.1


def test_the_fit_finds_class_features_that_the_mean_output_misses() -> None:
    """Classes whose features lie apart: their outputs differ, so the mean output depends on the counts themselves."""
    rng = torch.Generator().manual_seed(0)
    weight, centres = torch.randn(6, 8, generator=rng).double(), torch.randn(6, 8, generator=rng).double()
    truth = torch.randint(0, 6, (8,), generator=rng)
    residual = ((centres[truth] @ weight.T).softmax(1) - F.one_hot(truth, 6)) / 8
    slope, offsets, own = residual.T @ centres[truth], residual.sum(0), torch.zeros(4, 8).double()
    seen, alike = counts.Gradients(weight, None, slope, offsets, own), torch.ones(8).double()
    assert counts.fit_labels(seen, alike, counts.Course()).tolist() == sorted(truth.tolist())
    assert counts.fit_labels(seen._replace(slope=None), alike, counts.Course()).tolist() != sorted(truth.tolist())


def test_the_rule_of_thumb_by_hand() -> None:
    """Classes 3 and 0 are negative, each is there once; m = (1 + 1/4) (-0.5) / 4; class 0 stays the most negative."""
    slopes = torch.tensor([-0.4, 0.2, 0.3, -0.1])
    assert counts.llg_counts(slopes, 4).tolist() == [3, 0, 0, 1]
    assert counts.llg_counts(slopes, 1).tolist() == [1, 0, 0, 0]


def test_noise_averages_out_over_the_layer_but_not_on_the_bias() -> None:
    target = built("lenet")
    images, truth = batches(60, 1)
    seen = observe(target, images, truth, granted=False)
    rng = torch.Generator().manual_seed(0)
    noisy = {name: g + 0.7 * torch.randn(g.shape, generator=rng) for name, g in seen.gradient.items()}
    whole, bias = (
        (labels.FromLastLayer(rule=rule).find(target, seen._replace(gradient=noisy)) == truth).float().mean()  # type: ignore[arg-type]
        for rule in ("auto", "bias")
    )
    assert whole > 0.9
    assert whole > bias + 0.2


def test_noise_on_an_update_shows_in_its_last_layer() -> None:
    target = built("lenet")
    seen = observe(target, *batches(1, 16), granted=False).gradient["classifier.weight"][0].double()
    assert float(counts.noise_variance(seen)) < 1e-14
    noisy = seen + 0.02 * torch.randn(seen.shape, generator=torch.Generator().manual_seed(0)).double()
    assert float(counts.noise_variance(noisy)) == pytest.approx(0.02**2, rel=0.15)


def test_victims_do_not_change_one_another() -> None:
    target = built("lenet")
    images, truth = batches(4, 5)
    seen = observe(target, images, truth, granted=False)
    together = labels.Counts().find(target, seen)
    for v in range(4):
        alone = Observation({n: g[v : v + 1] for n, g in seen.gradient.items()}, 5, seen.ids[v : v + 1])
        assert torch.equal(labels.Counts().find(target, alone), together[v : v + 1])


def frozen(*names: str) -> Target:
    target = tiny_target()
    for name, parameter in target.model.named_parameters():
        parameter.requires_grad_(name not in names)
    return target


@pytest.mark.parametrize("names", [("1.3.bias",), ("1.3.weight",)])
def test_half_a_last_layer_is_enough(names: tuple[str, ...]) -> None:
    target = frozen(*names)
    rng = torch.Generator().manual_seed(0)
    images, truth = torch.rand(6, 1, 1, 6, 6, generator=rng), torch.randint(0, 5, (6, 1), generator=rng)
    seen = observe(target, images, truth, granted=False)
    assert names[0] not in seen.gradient
    assert torch.equal(labels.FromLastLayer().find(target, seen), truth)
    images, truth = torch.rand(6, 7, 1, 6, 6, generator=rng), torch.randint(0, 5, (6, 7), generator=rng)
    found = labels.Counts().find(target, observe(target, images, truth, granted=False))
    assert dm.metrics.label_overlap(found, truth).sum() >= 38


class Twice(nn.Module):
    """Ends in a layer that was used before."""

    def __init__(self) -> None:
        super().__init__()
        self.square = nn.Linear(36, 36)

    def forward(self, x: Tensor) -> Tensor:
        once: Tensor = self.square(self.square(x.flatten(1)).relu())
        return once


ENDS = {
    "sigmoid": (nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Sigmoid()), "end in a linear layer"),
    "twice": (Twice(), "used more than once"),
    "frozen": (nn.Sequential(nn.Flatten(), nn.Linear(36, 6), nn.Linear(6, 5).requires_grad_(False)), "is not trained"),
}


@pytest.mark.parametrize("finder", [labels.FromLastLayer(), labels.Counts()], ids=["idlg", "counts"])
@pytest.mark.parametrize("end", ENDS)
def test_a_model_whose_last_layer_does_not_tell_is_refused_before_any_work(end: str, finder: labels.Labels) -> None:
    model, says = ENDS[end]
    target = target_of(model, (1, 6, 6))
    for attack in (presets.idlg(), presets.inverting_gradients(), LabelsOnly()):
        with pytest.raises(SettingError, match=says) as refused:
            replace(attack, labels=finder).check(target, 1)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("finder", [labels.FromLastLayer(), labels.Counts(), labels.Joint()])
def test_another_loss_is_refused_before_any_work(finder: labels.Labels) -> None:
    target = replace(tiny_target(), loss=F.mse_loss, classification=False)
    with pytest.raises(SettingError, match="only under cross-entropy"):
        replace(presets.dlg(), labels=finder).check(target, 1)


def test_what_a_rule_needs_is_asked_for() -> None:
    with pytest.raises(SettingError, match="'rows' reads the gradient of the last layer's weight"):
        labels.FromLastLayer(rule="rows").check(frozen("1.3.weight"), 1)
    with pytest.raises(SettingError, match="'bias' reads the gradient of the last layer's bias"):
        labels.FromLastLayer(rule="bias").check(frozen("1.3.bias"), 1)
    with pytest.raises(SettingError, match="Unknown rule to read a label 'row'"):
        labels.FromLastLayer(rule="row")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="Unknown rule to count labels 'least'"):
        labels.Counts(rule="least")  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="count labels"):
        labels.FromLastLayer().check(tiny_target(), 2)


def test_one_label_is_read_through_local_steps() -> None:
    target = replace(tiny_target(), step=clients.LocalTraining(steps=3, lr=0.1))
    rng = torch.Generator().manual_seed(0)
    images, truth = torch.rand(8, 1, 1, 6, 6, generator=rng), torch.randint(0, 5, (8, 1), generator=rng)
    assert torch.equal(labels.Counts().find(target, observe(target, images, truth, granted=False)), truth)


TRAINED = {
    "five steps": {"steps": 5, "lr": 0.01},
    "learning fast": {"steps": 5, "lr": 0.1},
    "several batches": {"epochs": 2, "batch_size": 2, "lr": 0.01},
    "momentum and decay": {"steps": 4, "lr": 0.01, "optimiser": "momentum", "weight_decay": 0.1},
}


@pytest.mark.parametrize("how", TRAINED)
def test_counts_through_local_training_are_exact_on_an_untrained_network(how: str) -> None:
    step = clients.local(**TRAINED[how])  # type: ignore[arg-type]
    victims = dm.pick(dm.load("mnist-5k", size=32), 5, batch=6, seed=1)
    target = replace(built("cnn"), step=step)
    seen = observe(target, victims.images, victims.labels, granted=False)
    assert torch.equal(labels.Counts().find(target, seen), victims.labels.sort(1).values)


def test_a_last_layer_that_learns_is_simulated() -> None:
    """LeNet's features are long, so that outputs are far from the first ones after a step or two."""
    target = replace(built("lenet"), step=clients.LocalTraining(steps=10, lr=2e-3))
    victims = dm.pick(dm.load("mnist-5k", size=32), 6, batch=8, seed=1)
    seen = observe(target, victims.images, victims.labels, granted=False)
    right = dm.metrics.label_overlap(labels.Counts().find(target, seen), victims.labels).sum()
    tenth = seen._replace(gradient={name: g / 10 for name, g in seen.gradient.items()})
    as_if_one = dm.metrics.label_overlap(labels.Counts().find(replace(target, step=None), tenth), victims.labels).sum()
    assert right >= 46
    assert right > as_if_one


def test_images_that_count_more_have_their_labels_in_their_places() -> None:
    """Of 4 images in batches of 2, three steps see the first two twice; the last of 3 in batches of 2 counts double."""
    step = clients.LocalTraining(steps=3, lr=0.01, batch_size=2)
    assert step.weights(4).tolist() == pytest.approx([1, 1, 0.5, 0.5])
    assert replace(step, steps=2).weights(3).tolist() == pytest.approx([0.5, 0.5, 1])
    mixed = clients.LocalTraining(epochs=2, lr=0.01, batch_size=2, shuffle=True)
    assert mixed.weights(3).tolist() == pytest.approx([4 / 3] * 3)
    target = replace(built("cnn"), step=step)
    truth = torch.tensor([[7, 2, 5, 5], [9, 9, 0, 3]])
    found = labels.Counts().find(target, observe(target, batches(2, 4)[0], truth, granted=False))
    assert found.tolist() == [[2, 7, 5, 5], [9, 9, 0, 3]]
    once = replace(target, step=replace(step, steps=1))
    seen = observe(once, batches(2, 4)[0], truth, granted=False)
    assert labels.Counts().find(once, seen).tolist() == [[2, 7, UNTOLD, UNTOLD], [9, 9, UNTOLD, UNTOLD]]


def test_counts_are_averaged_with_orders() -> None:
    """The step of an average over orders is no local training any more, but the labels are known before."""
    target = replace(tiny_target(), step=clients.LocalTraining(epochs=2, lr=0.01, batch_size=2, shuffle=True))
    images, truth = torch.rand(1, 4, 1, 6, 6), torch.tensor([[0, 1, 1, 4]])
    plain = replace(target, step=clients.LocalTraining(epochs=2, lr=0.01, batch_size=2))
    attack = dm.AverageOrders(attack=presets.inverting_gradients(steps=1, labels="counts"), draws=2)
    found = attack(target, [observe(plain, images, truth, granted=False)], seed=0)
    assert found.labels is not None
    assert sorted(found.labels[0].tolist()) == [0, 1, 1, 4]


def test_labels_are_searched_with_several_images_through_several_steps() -> None:
    target = replace(tiny_target(), step=clients.LocalTraining(steps=3, lr=0.1))
    rng = torch.Generator().manual_seed(0)
    images, truth = torch.rand(3, 2, 1, 6, 6, generator=rng), torch.tensor([[0, 4], [2, 2], [3, 1]])
    search = presets.inverting_gradients(steps=150, tv=0.0, labels="joint")
    found = search(target, [observe(target, images, truth, granted=False)], seed=0)
    assert found.labels is not None
    assert int(dm.metrics.label_overlap(found.labels, truth).sum()) == 6


WAYS = {
    "one gradient": None,
    "five steps": clients.LocalTraining(steps=5, lr=0.1),
    "adam": clients.LocalTraining(steps=5, lr=0.1, optimiser=clients.optimisers.Adam()),
    "untold": clients.LocalTraining(steps=5, lr=0.1),
}
ASKED = ("ig:labels=known", "ig:labels=idlg", "ig:labels=counts", "ig:labels=joint", "idlg", "dlg", "labels")


def accepted(words: str, way: str, batch: int, *, captured: bool, granted: bool = False) -> str:
    """What is said against an audit, or that of a captured update, before any work; nothing where it would run."""
    step, target = WAYS[way], tiny_target()
    images, truth = torch.rand(1, batch, 1, 6, 6), torch.arange(batch)[None]
    victims = None if captured else dm.Victims(images, truth, truth, ("one",))
    capture = dm.Capture(target.gradient(images[0].double(), truth[0]), (1, 6, 6), batch, truth[0] if granted else None)
    try:
        attack: dm.Attack = part("attack", words)
        if way == "untold":
            attack = dm.GuessSteps(attack=searching(attack), guesses=(5, 2))
        audit = dm.Audit(model=target.model, victims=victims, attack=attack, step=step)
        if victims is not None:
            Job(audit)
        else:
            see(replace(audit, attack=with_labels(attack, capture.labels)), capture)
    except SettingError as reason:
        return str(reason)
    return ""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("captured", [False, True], ids=["audit", "captured"])
def test_every_refusal_of_labels_names_options_that_are_accepted(captured: bool, batch: int, way: str) -> None:
    refused = [said for words in ASKED if (said := accepted(words, way, batch, captured=captured))]
    assert bool(refused) == (batch > 1 or way == "untold")
    assert len(refused) < len(ASKED)
    for said in refused:
        advice = re.findall(r"--attack (\w+(?::\w+=\w+)?)", said)
        assert advice, said
        if captured and "--labels" in said:
            advice.remove("ig:labels=known")
            assert not accepted("ig", way, batch, captured=True, granted=True)
        for words in advice:
            assert not accepted(words, way, batch, captured=captured), (said, words)


def test_finding_the_last_layer_leaves_no_hooks_behind() -> None:
    target = tiny_target()

    def hooks() -> list[list[object]]:
        return [[*m._forward_hooks.values(), *m._forward_pre_hooks.values()] for m in target.model.modules()]

    before = hooks()
    layer = find_last_layer(target)
    assert layer == ("1.3", "1.3.weight", "1.3.bias")
    assert hooks() == before


@pytest.mark.parametrize("mode", ["running", "batch", "sent"])
def test_counts_work_with_every_kind_of_batch_norm(mode: str) -> None:
    victims = dm.pick(dm.load("mnist-5k"), 4, batch=6, seed=3)
    model = models.build("lenet-bn", shape=(1, 28, 28), classes=10, mean=(0.1,), std=(0.3,), seed=0)
    found = dm.audit(model, victims, attack=presets.labels_only(), updates=dm.Updates(batch_norm=mode))  # type: ignore[arg-type]
    assert found.scores.labels.updates.hits == 4


def test_a_search_goes_on_with_counted_labels() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, batch=3, seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Sigmoid(), nn.Linear(32, 10))
    attack = presets.inverting_gradients(steps=80, tv=1e-3, labels="counts")
    result = dm.audit(model, victims, attack=attack)
    assert result.threat.labels is False
    assert result.scores.labels.rate == 1
    assert result.scores["ssim"].mean > result.scores.baseline["ssim"].mean + 0.1


def test_labels_alone_need_no_memory_for_a_search() -> None:
    """A batch that a search could not hold in the budget, with the victims still in tiles that fit it."""
    victims = dm.pick(dm.load("mnist-5k"), 3, batch=100, seed=0)
    model = models.build("lenet", shape=(1, 28, 28), classes=10, mean=(0,), std=(1,), seed=0)
    result = dm.audit(model, victims, attack=LabelsOnly(), resources=dm.Resources(budget=2**23))
    assert result.scores.labels.rate > 0.97
    search = presets.inverting_gradients(labels="counts", steps=1)  # which takes the batch in parts
    assert (
        dm.audit(model, victims.take(slice(1)), attack=search, resources=dm.Resources(budget=2**23))
        .images.isfinite()
        .all()
    )


def test_granted_labels_are_not_scored() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 2, batch=4, seed=0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.Sigmoid(), nn.Linear(8, 10))
    result = dm.audit(model, victims, attack=presets.inverting_gradients(steps=2))
    assert result.scores.labels is None
    assert not any("label_used" in record or "labels_right" in record for record in result.document()["records"])
    assert "labels right" not in result.summary()


def test_a_captured_updates_labels_are_counted() -> None:
    victims = dm.pick(dm.load("mnist-5k"), 1, batch=9, seed=0)
    model = models.build("lenet", shape=(1, 28, 28), classes=10, mean=(0,), std=(1,), seed=0)
    target = make_target(model, (1, 28, 28), dm.Audit(model=model, attack=LabelsOnly()), batch=9)
    update = clients.gradient(target, victims.images[0], victims.labels[0])
    found = dm.reconstruct(model, dm.Capture(update, (1, 28, 28), batch=9), attack=LabelsOnly())
    assert found.labels is not None
    assert found.labels[0].tolist() == sorted(victims.labels[0].tolist())
    assert found.images.shape == victims.images.shape
