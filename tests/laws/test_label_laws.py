"""What the recovery of labels obeys over random networks and batches, and where it is exact by mathematics."""

from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import clients, metrics
from dosimeter.attacks import counts, labels
from dosimeter.types import Observation, Target
from small import observe, target_of

SHAPE = (1, 3, 3)
ACTIVATIONS = (nn.ReLU(), nn.Tanh(), nn.GELU(), nn.Identity())


def network(seed: int, classes: int, features: int, activation: nn.Module, scale: float, bias: bool) -> Target:
    torch.manual_seed(seed)
    last = nn.Linear(features, classes, bias=bias)
    with torch.no_grad():
        last.weight.mul_(scale)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(9, features), activation, last)
    return target_of(layers, SHAPE, torch.float32 if seed % 2 else torch.float64)


def one_image(target: Target, label: int, seed: int) -> Observation:
    image = torch.rand(1, 1, *SHAPE, generator=torch.Generator().manual_seed(seed)).to(target.mean)
    return observe(target, image, torch.tensor([[label]]), granted=False)


def of_features(target: Target, seed: int) -> Tensor:
    image = torch.rand(1, *SHAPE, generator=torch.Generator().manual_seed(seed)).to(target.mean)
    found: Tensor = target.model[:-1](image).detach()  # type: ignore[index]
    return found[0]


single = {
    "seed": st.integers(0, 2**20),
    "classes": st.integers(2, 9),
    "features": st.integers(1, 6),
    "activation": st.sampled_from(ACTIVATIONS),
    "scale": st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    "data": st.data(),
}


@settings(max_examples=60, deadline=None)
@given(bias=st.booleans(), **single)
def test_one_label_is_read_exactly_whatever_the_features(
    seed: int, classes: int, features: int, activation: nn.Module, scale: float, bias: bool, data: st.DataObject
) -> None:
    """With a bias for any number of classes, without one from three classes on, unless all features are 0."""
    classes = classes if bias else max(3, classes)
    target = network(seed, classes, features, activation, scale, bias)
    assume(bias or of_features(target, seed).any())
    label = data.draw(st.integers(0, classes - 1))
    seen = one_image(target, label, seed)
    rules = ("auto", "bias") if bias else ("auto",)
    for rule in rules:
        assert labels.FromLastLayer(rule=rule).find(target, seen).tolist() == [[label]], rule  # type: ignore[arg-type]
    assert labels.Counts().find(target, seen).tolist() == [[label]]


@settings(max_examples=40, deadline=None)
@given(bias=st.booleans(), **single)
def test_sums_of_rows_are_right_exactly_where_features_sum_to_more_than_0(
    seed: int, classes: int, features: int, activation: nn.Module, scale: float, bias: bool, data: st.DataObject
) -> None:
    target = network(seed, classes, features, activation, scale, bias)
    total = float(of_features(target, seed).sum())
    assume(abs(total) > 1e-4)
    label = data.draw(st.integers(0, classes - 1))
    found = int(labels.FromLastLayer(rule="rows").find(target, one_image(target, label, seed)))
    assert (found == label) == (total > 0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    classes=st.integers(2, 7),
    truth=st.lists(st.integers(0, 6), min_size=1, max_size=30),
    bias=st.booleans(),
)
def test_counts_are_exact_where_outputs_do_not_depend_on_the_image(
    seed: int, classes: int, truth: list[int], bias: bool
) -> None:
    """Constant outputs with a bias; without one constant features, of both signs. Batches beyond the classes too."""
    target = network(seed, classes, 4, nn.Identity(), 1.0, bias)
    constant = target.model[-1 if bias else 1]  # type: ignore[index]
    nn.init.zeros_(constant.weight)  # type: ignore[arg-type]
    wanted = torch.tensor([[label % classes for label in truth]])
    images = torch.rand(1, len(truth), *SHAPE, generator=torch.Generator().manual_seed(seed))
    if not bias and len(truth) == 1:
        assume(classes > 2)
    found = labels.Counts().find(target, observe(target, images, wanted, granted=False))
    assert found.tolist() == wanted.sort(1).values.tolist()


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    classes=st.integers(1, 8),
    truth=st.lists(st.integers(0, 7), min_size=1, max_size=40),
    error=st.floats(0, 0.49),
)
def test_counts_survive_any_error_of_the_mean_output_below_half_a_label(
    seed: int, classes: int, truth: list[int], error: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch, exact = len(truth), torch.bincount(torch.tensor(truth) % classes, minlength=classes)
    weight, own = torch.randn(classes, 3, generator=generator).double(), torch.randn(5, 3, generator=generator).double()
    mean = (own @ weight.T).softmax(1).mean(0)
    off = (2 * torch.rand(classes, generator=generator).double() - 1) * error
    offsets = mean - (exact + off) / batch
    _, wanted = counts.fit_counts(counts.Gradients(weight, None, None, offsets, own), batch)
    assert torch.equal(counts.nearest_counts(wanted, batch), exact)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    truth=st.lists(st.integers(0, 4), min_size=2, max_size=8),
    steps=st.integers(1, 4),
    momentum=st.sampled_from([0.0, 0.9]),
)
def test_steps_at_a_small_rate_count_as_one_gradient_does_in_any_order(
    seed: int, truth: list[int], steps: int, momentum: float
) -> None:
    """Outputs do not move then, so the update is a number of gradients; which image came first does not matter."""
    one = network(2 * seed, 5, 4, nn.Tanh(), 0.1, True)
    rule = clients.optimisers.SGD(momentum=momentum)
    several = replace(one, step=clients.LocalTraining(steps=steps, lr=1e-9, optimiser=rule))
    generator = torch.Generator().manual_seed(seed)
    images, wanted = torch.rand(1, len(truth), *SHAPE, generator=generator), torch.tensor([truth])
    order = torch.randperm(len(truth), generator=generator)
    found = labels.Counts().find(one, observe(one, images, wanted, granted=False))
    for which in (torch.arange(len(truth)), order):
        seen = observe(several, images[:, which], wanted[:, which], granted=False)
        assert torch.equal(labels.Counts().find(several, seen), found)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    truth=st.lists(st.integers(0, 3), min_size=1, max_size=9),
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=9, max_size=9),
)
def test_labels_of_images_that_count_alike_are_sorted_and_fill_what_is_wanted(
    seed: int, truth: list[int], weights: list[float]
) -> None:
    """With equal weights they are the nearest counts; otherwise the sums are right to the heaviest image."""
    heavy = torch.tensor(weights[: len(truth)], dtype=torch.float64)
    wanted = torch.zeros(4, dtype=torch.float64).index_add_(0, torch.tensor(truth), heavy)
    found = counts.nearest_labels(wanted, heavy)
    got = torch.zeros(4, dtype=torch.float64).index_add_(0, found, heavy)
    assert float((got - wanted).abs().max()) <= float(heavy.max())
    for value in heavy.tolist():
        alike = found[heavy == value]
        assert torch.equal(alike, alike.sort().values)
    even = counts.nearest_labels(torch.bincount(torch.tensor(truth), minlength=4).double(), torch.ones(len(truth)))
    assert even.tolist() == sorted(truth)


@settings(max_examples=60, deadline=None)
@given(wanted=st.lists(st.floats(-5, 8), min_size=1, max_size=4), total=st.integers(0, 7))
def test_the_nearest_counts_are_nearer_than_all_others(wanted: list[float], total: int) -> None:
    found = counts.nearest_counts(torch.tensor(wanted, dtype=torch.float64), total)
    assert int(found.sum()) == total
    assert int(found.min()) >= 0

    def far(numbers: list[int]) -> float:
        return sum((a - b) ** 2 for a, b in zip(numbers, wanted, strict=True))

    every = combinations_with_replacement(range(len(wanted)), total)
    best = min(far([Counter(chosen)[c] for c in range(len(wanted))]) for chosen in every)
    assert far(found.tolist()) <= best + 1e-9


@settings(max_examples=40, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12), seed=st.integers(0, 99)
)
def test_labels_are_scored_in_any_order(pairs: list[tuple[int, int]], seed: int) -> None:
    found, truth = torch.tensor(pairs).T[:, None]  # (1, B) each
    right = int(metrics.label_overlap(found, truth))
    assert right == (Counter(found[0].tolist()) & Counter(truth[0].tolist())).total()
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))
    assert int(metrics.label_overlap(found[:, order], truth)) == right
    assert int(metrics.label_overlap(truth, truth[:, order])) == len(pairs)
    aligned = metrics.align_labels(found, truth)
    assert int((aligned == truth).sum()) == right
    assert sorted(aligned[0].tolist()) == sorted(found[0].tolist())


@settings(max_examples=40, deadline=None)
@given(truth=st.lists(st.integers(0, 3), min_size=1, max_size=12), more=st.integers(1, 3))
def test_an_even_guess_is_that_of_a_batch_spread_over_the_classes(truth: list[int], more: int) -> None:
    """Every image repeated as often as there are classes, so that the even guess is a batch of its own."""
    classes = 3 + more
    times = torch.tensor([truth]).repeat(1, classes)
    spread = torch.arange(classes).repeat(len(truth))[None]
    wanted = int(metrics.label_overlap(spread, times)) / times.numel()
    assert abs(float(metrics.even_guess(torch.tensor([truth]), classes)) - wanted) < 1e-12
