"""Rounds in this process: against plain loops of torch, against each other, and stopped in the middle."""

import _thread
import copy
import math
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dosimeter import clients, defenses, federated
from dosimeter.defenses import Defense
from dosimeter.errors import DataError, ModelError, OutputError, SettingError
from dosimeter.federated import Federation, Protocol, State, average, chosen, evaluate, fit, train
from dosimeter.federated.client import augmented
from dosimeter.federated.training import Training
from small import Halved
from small_federation import federation, model, same

RULES: dict[str, tuple[dict[str, object], Callable[..., torch.optim.Optimizer]]] = {
    "adam": ({}, partial(torch.optim.Adam, lr=1e-3)),
    "nesterov": (
        {"optimiser": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_one_round_is_a_plain_loop_of_torch(name: str) -> None:
    words, make = RULES[name]
    task = federation(clients=1, rounds=2, central=True, **words)
    found = train(task)
    plain = model()
    rule = make(plain.parameters())
    held = task.holdings[0].train
    images = task.dataset.images("train", np.arange(48))
    labels = torch.from_numpy(task.dataset.labels("train"))
    for epoch in range(2):
        order = torch.from_numpy(held[federated.client.numpy_stream(0, "order", 0, epoch).permutation(48)])
        for part in order.split(8):
            rule.zero_grad()
            F.cross_entropy(plain(images[part]), labels[part]).backward()
            rule.step()
    assert same(found.state, dict(plain.state_dict()))


def test_products_in_half_precision_are_autocast_and_weights_stay_whole() -> None:
    task = federation(clients=1, rounds=1, central=True, precision="bfloat16")
    found = train(task).state
    plain = model()
    rule = torch.optim.Adam(plain.parameters(), lr=1e-3)
    images = task.dataset.images("train", np.arange(48))
    labels = torch.from_numpy(task.dataset.labels("train"))
    order = torch.from_numpy(task.holdings[0].train[federated.client.numpy_stream(0, "order", 0, 0).permutation(48)])
    for part in order.split(8):
        rule.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            output = plain(images[part])
        F.cross_entropy(output.float(), labels[part]).backward()
        rule.step()
    assert same(found, dict(plain.state_dict()))
    assert {tensor.dtype for tensor in found.values()} == {torch.float32}
    assert not same(found, train(federation(clients=1, rounds=1, central=True)).state)


def test_one_local_step_of_all_is_one_step_on_all_images() -> None:
    task = federation(epochs=None, steps=1, batch_size=16, optimiser="sgd", lr=0.5, rounds=1)
    found = train(task).state
    plain = model()
    images = task.dataset.images("train", np.arange(48))
    F.cross_entropy(plain(images), torch.from_numpy(task.dataset.labels("train"))).backward()
    for name, p in plain.named_parameters():
        assert p.grad is not None
        assert torch.allclose(found[name], p.detach() - 0.5 * p.grad, atol=1e-6)


def test_training_learns_and_says_how_well() -> None:
    found = train(federation(rounds=25, lr=0.01))
    assert found.history[-1]["accuracy"] > 0.9
    assert found.history[-1]["train_loss"] < found.history[0]["train_loss"]
    assert [entry["round"] for entry in found.history] == list(range(1, 26))
    assert found.history[0]["samples"] == 48


@pytest.mark.parametrize("defense", [defenses.Precode(k=4), defenses.KeyLock(key=8), defenses.GaussianNoise(sigma=0.1)])
def test_the_number_of_workers_changes_nothing(defense: Defense) -> None:
    task = federation(defense)
    alone, threads = train(task, workers=1), train(task, workers=3)
    processes = train(task, workers=2, processes=True)
    for other in (threads, processes):
        assert same(alone.state, other.state)
        assert all(same(alone.private[client], other.private[client]) for client in alone.private)
        assert [e["accuracy"] for e in alone.history] == [e["accuracy"] for e in other.history]


def test_what_a_process_raises_is_raised_here() -> None:
    def broken(output: Tensor, labels: Tensor) -> Tensor:
        raise ModelError("no loss today")

    task = replace(federation(), loss=broken)
    with pytest.raises(ModelError, match="no loss today"):
        train(task, workers=2, processes=True)
    assert not multiprocessing.active_children()


class KilledError(Exception):
    pass


@pytest.mark.parametrize("central", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_stopped_training_ends_as_an_unbroken_one(tmp_path: Path, central: bool, momentum: float) -> None:
    task = federation(
        defenses.KeyLock(key=8), rounds=4, clients=1 if central else 3, central=central, optimiser="sgd", lr=0.05,
        momentum=momentum, share=1.0 if central else 0.7,
    )  # fmt: skip
    whole = train(task)

    def stop(done: int, state: State, private: dict[int, State]) -> None:
        if done == 2:
            raise KilledError

    with pytest.raises(KilledError):
        train(task, folder=tmp_path / "run", watch=stop)
    seen: list[int] = []
    resumed = train(task, folder=tmp_path / "run", watch=lambda done, *_: seen.append(done))
    assert seen == [2, 3, 4]
    assert same(whole.state, resumed.state)
    assert all(same(whole.private[client], resumed.private[client]) for client in whole.private)
    assert [entry["accuracy"] for entry in whole.history] == [entry["accuracy"] for entry in resumed.history]


def test_a_folder_may_be_a_word(tmp_path: Path) -> None:
    first = train(federation(rounds=1), folder=str(tmp_path / "run"))
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert train(federation(rounds=1), folder=str(tmp_path / "run")).history == first.history
    with pytest.raises(OutputError, match="Not a directory"):
        train(federation(rounds=1), folder=str(tmp_path / "run" / "training.json"))


def test_a_round_that_was_told_but_not_kept_is_done_again(tmp_path: Path) -> None:
    """Killed between the two files: the history knows a round that the tensors do not."""
    whole = train(federation(rounds=2), folder=tmp_path)
    early = (tmp_path / "round.safetensors").read_bytes()
    assert len(train(federation(rounds=2), folder=tmp_path).history) == 2  # nothing is left to do
    again = tmp_path / "again"
    train(federation(rounds=2), folder=again, watch=lambda done, *_: done == 1 and keep(again))
    (again / "round.safetensors").write_bytes((again / "early").read_bytes())
    assert same(train(federation(rounds=2), folder=again).state, whole.state)
    assert (again / "round.safetensors").read_bytes() == early


def keep(folder: Path) -> None:
    (folder / "early").write_bytes((folder / "round.safetensors").read_bytes())


def test_another_training_in_the_folder_is_refused(tmp_path: Path) -> None:
    train(federation(rounds=1), folder=tmp_path)
    with pytest.raises(OutputError, match="another protocol"):
        train(federation(rounds=2), folder=tmp_path)
    with pytest.raises(OutputError, match="another defense"):
        train(federation(defenses.GaussianNoise(sigma=0.1), rounds=1), folder=tmp_path)
    smooth = model()
    smooth[-2] = nn.Tanh()  # of the same weights
    with pytest.raises(OutputError, match=r"another model \(Sequential \w{16}, now Sequential \w{16}\); choose"):
        train(federation(net=smooth, rounds=1), folder=tmp_path)
    with pytest.raises(OutputError, match="another loss"):
        train(replace(federation(rounds=1), loss=lambda a, b: F.cross_entropy(a, b) * 2), folder=tmp_path)
    (tmp_path / "round.safetensors").write_bytes(b"broken")
    with pytest.raises(DataError, match="damaged"):
        train(federation(rounds=1), folder=tmp_path)
    (tmp_path / "training.json").write_text("{}")
    with pytest.raises(DataError, match="no training"):
        train(federation(rounds=1), folder=tmp_path)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_averages_are_numpys_and_know_no_order(examples: list[int], rnd: object) -> None:
    rng = np.random.default_rng(sum(examples))
    values = rng.normal(size=(len(examples), 3)).astype(np.float32)
    sent = [{"w": torch.from_numpy(v), "count": torch.tensor(7)} for v in values]
    found = average(sent, examples)
    assert np.allclose(found["w"], np.average(values, axis=0, weights=examples), atol=1e-6)
    assert found["count"] == 7
    order = list(range(len(examples)))
    rnd.shuffle(order)  # type: ignore[attr-defined]
    again = average([sent[i] for i in order], [examples[i] for i in order])
    assert torch.allclose(again["w"], found["w"], atol=1e-7)


def one_step(defense: Defense, **more: object) -> tuple[Federation, State]:
    """What client 0 sends after one step of SGD with rate 1, and of what federation."""
    task = federation(defense, epochs=None, steps=1, batch_size=4, optimiser="sgd", lr=1.0, **more)
    return task, fit(task, task.initial(), 0, 0).sent


@pytest.mark.parametrize("perturbed", ["steps", "update"])
def test_noise_has_its_deviation(perturbed: str) -> None:
    _, clean = one_step(defenses.NoDefense())
    _, noisy = one_step(defenses.GaussianNoise(sigma=0.3), perturbed=perturbed)
    away = torch.cat([(noisy[name] - clean[name]).flatten() for name in clean])
    assert 0.27 < float(away.std()) < 0.33
    assert abs(float(away.mean())) < 0.05


def test_ppp_on_the_update_leaves_what_follows_its_bottleneck() -> None:
    _, clean = one_step(defenses.Precode(k=4))
    _, noisy = one_step(defenses.Ppp(k=4, sigma=0.3), perturbed="update")
    away = {name: float((noisy[name] - clean[name]).std()) for name in clean if clean[name].numel() > 30}
    early = {name for name in away if not name.startswith("7.")}
    assert early
    assert early != set(away)
    assert all((away[name] > 0.2) == (name in early) for name in away), away


def test_a_process_that_is_ended_from_outside_is_said() -> None:
    task = federation(rounds=100_000)

    def end(done: int, *_: object) -> None:
        if done == 1:
            multiprocessing.active_children()[0].kill()

    with pytest.raises(ModelError, match="ended from outside"):
        train(task, workers=2, processes=True, tested=(), watch=end)


@pytest.mark.parametrize("defense", [defenses.Precode(k=4), defenses.Cvb(kernel=3, position=1)], ids=["precode", "cvb"])
def test_a_step_is_the_gradient_of_the_whole_objective(defense: Defense) -> None:
    """With the draws that the client made and the divergence in the loss, by torch.func."""
    task, sent = one_step(defense)
    net = copy.deepcopy(task.template)
    target = task.target(net)
    places = next(iter(federated.client._batches(task, 0, 0)))
    rng = federated.client.stream(0, "training", "secrets", "0", "round 0")
    target = replace(target, drawn=clients.draw_secrets(target, 4, rng))
    images, labels = task.images("train", places), task.labels("train", places)
    slope = torch.func.grad(target.objective)(target.parameters, images, labels)
    before = task.initial()
    for name, g in slope.items():
        assert torch.allclose(before[name] - sent[name], g, atol=1e-6), name


def test_dp_sgd_clips_every_example() -> None:
    bound = 0.01
    task, sent = one_step(defenses.DpSgd(clip=bound, sigma=0.0))
    change = torch.cat([(tensor - sent[name]).flatten() for name, tensor in task.initial().items()])
    assert float(change.norm()) <= bound * (1 + 1e-4)
    assert float(change.norm()) > 0.1 * bound


def test_pruned_steps_leave_most_weights_alone() -> None:
    task, sent = one_step(defenses.Pruning(ratio=0.9))
    weight = "5.weight"
    assert float((task.initial()[weight] == sent[weight]).float().mean()) >= 0.89


def test_locks_and_keys_stay_with_clients() -> None:
    task = federation(defenses.KeyLock(key=8), rounds=2)
    found = train(task)
    assert task.private
    sent = fit(task, task.initial(), 0, 0).sent
    assert not any(name in sent for name in task.private)
    for name in task.private:  # the server's copy is as it made it, the clients' differ from it and each other
        assert torch.equal(found.state[name], task.initial()[name])
        assert not torch.equal(found.private[0][name], found.private[1][name])
    last = found.history[-1]
    assert len(last["accuracies"]) == 3
    assert last["accuracy"] == pytest.approx(sum(last["accuracies"]) / 3)
    assert last["accuracies"][0] == evaluate(task, found.state, 0, found.private[0]).accuracy
    assert last["random_key"] == evaluate(task, {**found.state, **task.initial_private()}).accuracy
    shared = federation(defenses.KeyLock(key=8, share="both"))
    assert not shared.private
    assert "0.lock.scale.weight" in fit(shared, shared.initial(), 0, 0).sent


@pytest.mark.parametrize("share", ["none", "both"])
def test_a_client_that_never_trained_does_not_count(share: str) -> None:
    """One of three trains in the only round; the others have a lock or a key that nothing was trained for."""
    task = federation(defenses.KeyLock(key=8, share=share), share=0.34, rounds=1, validation=0.25)  # type: ignore[arg-type]
    found = train(task)
    (client,) = chosen(task, 0)
    own = found.private.get(client)
    (entry,) = found.history
    assert entry["accuracy"] == evaluate(task, found.state, client, own).accuracy
    assert entry["accuracies"] == [entry["accuracy"] if each == client else None for each in range(3)]
    assert entry["loss"] == pytest.approx(evaluate(task, found.state, client, own).loss)
    own_loss = federated.validate(task, found.state, client, own)
    assert own_loss is not None
    assert entry["validation_loss"] == pytest.approx(own_loss.loss)


def test_nothing_is_dropped_in_tests() -> None:
    task = federation(defenses.Dropout(rate=0.5))
    plain = federation()
    names = dict(zip(plain.initial(), task.initial(), strict=True))
    state = {names[name]: tensor for name, tensor in plain.initial().items()}
    assert evaluate(task, state) == evaluate(plain, plain.initial())


def test_validation_images_are_kept_out_and_end_training() -> None:
    task = federation(validation=0.25, patience=2, rounds=50, lr=0.2)
    for held in task.holdings:
        assert len(held.validation) == 4
        assert not set(held.validation) & set(held.train)
    found = train(task)
    losses = [entry["validation_loss"] for entry in found.history]
    assert len(losses) < 50
    assert losses.index(min(losses)) == len(losses) - 3


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.floats(0.01, 1.0), st.integers(0, 5))
def test_the_chosen_are_a_share_of_all(clients: int, share: float, round_: int) -> None:
    task = federation(clients=clients, share=share)
    found = chosen(task, round_)
    assert found == sorted(set(found))
    assert len(found) == max(1, round(share * clients))
    assert all(0 <= client < clients for client in found)
    assert found == chosen(task, round_)


def test_steps_go_on_where_the_last_round_ended() -> None:
    task = federation(clients=1, epochs=None, steps=4, batch_size=8)
    first, second = (list(federated.client._batches(task, 0, round_)) for round_ in (0, 1))
    epoch = np.concatenate([*first, *second[:2]])
    assert sorted(epoch.tolist()) == list(range(48))


def normed(pixels: int = 1) -> nn.Module:
    """Whose batch norm sees so many values a channel of every image."""
    torch.manual_seed(0)
    kernel = 8 // int(pixels**0.5)
    return nn.Sequential(nn.Conv2d(1, 4, kernel, kernel), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * pixels, 3))


def flat() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize("net", [flat, normed])
def test_a_last_batch_of_one_is_left_out_where_batch_norm_needs_two(net: Callable[[], nn.Module]) -> None:
    """Of 48 images three clients have 16 each, which is 15 and one."""
    task = federation(net=net(), batch_size=15, rounds=2)
    found = train(task)
    assert [entry["steps"] for entry in found.history] == [1, 1]
    assert [(entry["left_out"], entry["samples"]) for entry in found.history] == [(3, 45), (3, 45)]
    assert found.state["2.num_batches_tracked" if net is flat else "1.num_batches_tracked"] == 2
    two = [np.concatenate(list(federated.client._batches(task, 0, round_))) for round_ in range(2)]
    assert set(two[0]) != set(two[1])  # another image every time
    steps = federation(net=net(), batch_size=15, rounds=2, epochs=None, steps=3)
    assert [len(places) for places in federated.client._batches(steps, 0, 0)] == [15, 15, 15]


def test_a_client_of_one_image_takes_no_part_where_batch_norm_needs_two() -> None:
    alone = federation(net=flat(), clients=3, alpha=0.02, share=0.7)
    few = [client for client, held in enumerate(alone.holdings) if len(held.train) == 1]
    assert few
    found = train(alone)
    assert not any(set(few) & set(chosen(alone, round_)) for round_ in range(20))
    assert found.history[0]["left_out"] >= len(few)
    for words in ({"batch_size": 1}, {"clients": 48}):
        with pytest.raises(SettingError, match="batch norm"):
            train(federation(net=flat(), **words))


def test_batches_of_one_stay_where_they_can_be_trained_on() -> None:
    for net in (model(), normed(pixels=4)):
        task = federation(net=net, batch_size=15)
        assert [len(places) for places in federated.client._batches(task, 0, 0)] == [15, 1]
        assert "left_out" not in train(task).history[0]
    assert train(federation(net=normed(pixels=4), batch_size=1, rounds=1)).history[0]["steps"] == 16


def test_augmented_images_are_shifted_and_mirrored() -> None:
    images = torch.arange(2 * 64.0).reshape(2, 1, 8, 8) + 1
    found = augmented(images, np.random.default_rng(0))
    assert found.shape == images.shape
    values = {v for image in found for v in image.flatten().tolist()} - {0.0}
    assert values <= set(images.flatten().tolist())
    assert not torch.equal(found, images)
    task = federation(clients=1, rounds=1, augment=True)
    assert not same(train(task).state, train(federation(clients=1, rounds=1)).state)


def test_the_papers_protocols_are_as_printed() -> None:
    named = federated.BY_NAME
    ppp, cvb, fedkl = named["ppp"](), named["cvb"](), named["fedkl"]()
    assert (ppp.clients, ppp.rounds, ppp.epochs, ppp.batch_size) == (10, 200, 1, 64)
    assert (ppp.optimiser, ppp.lr) == ("adam", 1e-3)
    assert (cvb.rounds, cvb.validation, cvb.patience) == (300, 0.1, 40)
    assert (fedkl.clients, fedkl.optimiser, fedkl.lr) == (3, "sgd", 0.01)
    assert (fedkl.momentum, fedkl.nesterov, fedkl.weight_decay) == (0.9, True, 5e-4)
    rates = [fedkl.rate(round_) for round_ in (0, 59, 60, 119, 120, 160, 199)]
    assert rates == pytest.approx([0.01, 0.01, 2e-3, 2e-3, 4e-4, 8e-5, 8e-5])
    short, long = named["ig-10"](), named["ig-120"]()
    for ig in (short, long):
        assert (ig.optimiser, ig.momentum, ig.nesterov, ig.weight_decay) == ("sgd", 0.9, True, 5e-4)
        assert (ig.batch_size, ig.central, ig.augment) == (128, True, True)
    # Milestones are those of 120 epochs, none of which falls within the first 10.
    assert [short.rate(epoch) for epoch in range(10)] == [0.1] * 10 == [long.rate(epoch) for epoch in range(10)]
    assert [long.rate(epoch) for epoch in (44, 45, 75, 105)] == pytest.approx([0.1, 0.01, 1e-3, 1e-4])
    assert (short.rounds, long.rounds) == (10, 120)
    bayes = named["bayes"]()
    assert (bayes.rounds * (bayes.steps or 0), bayes.batch_size, bayes.central) == (500, 32, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"clients": 0}, "clients of at least 1"),
        ({"share": 0.0}, "share of clients"),
        ({"epochs": None}, "epochs or steps"),
        ({"steps": 3}, "epochs or steps"),
        ({"lr": math.nan}, "learning rate"),
        ({"optimiser": "adam", "momentum": 0.9}, "no setting momentum"),
        ({"optimiser": "sgd", "momentum": 1.0}, "a momentum in"),
        ({"optimiser": "sgd", "nesterov": True}, "a momentum above 0"),
        ({"patience": 3}, "validation share"),
        ({"validation": 1.0}, "validation"),
        ({"central": True}, "1 client"),
        ({"weight_decay": -1.0}, "decay"),
    ],
)
def test_protocols_that_cannot_work_are_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Protocol(**{"clients": 10, **words})  # type: ignore[arg-type]


def test_a_training_that_diverges_says_so() -> None:
    with pytest.raises(ModelError, match="smaller learning rate"):
        train(federation(optimiser="sgd", lr=1e30, rounds=5))


def test_result_is_a_value() -> None:
    found = train(federation(rounds=1))
    assert isinstance(found, Training)
    assert isinstance(found.state["0.weight"], Tensor)


@pytest.mark.parametrize("name", sorted(defenses.BY_NAME))
def test_every_defense_trains(name: str) -> None:
    words: dict[str, dict[str, object]] = {
        "noise": {"sigma": 0.01}, "laplace": {"scale": 0.01}, "precode": {"k": 4}, "ppp": {"k": 4, "sigma": 0.01},
        "fedkl": {"key": 8}, "cvb": {"kernel": 3, "position": 1},
    }  # fmt: skip
    task = federation(defenses.BY_NAME[name](**words.get(name, {})), rounds=1, clients=2)  # type: ignore[arg-type]
    found = train(task)
    before = task.initial()
    assert any(not torch.equal(before[key], tensor) for key, tensor in found.state.items())
    assert 0 <= found.history[0]["accuracy"] <= 1
    assert same(found.state, train(task).state)


ENDLESS = """
import multiprocessing, sys
sys.path.insert(0, sys.argv[1])
from small_federation import federation
from dosimeter.federated import train

def tell(done, *_):
    if done == 2:
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)

train(federation(rounds=100_000), workers=2, processes=True, tested=(), watch=tell)
"""


def test_processes_end_with_a_parent_that_is_killed() -> None:
    words = [sys.executable, "-c", ENDLESS, str(Path(__file__).parent.parent)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(children) == 2
    deadline = time.monotonic() + 30
    while any(map(_runs, children)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(_runs, children))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_is_heard_in_the_last_client_of_a_round() -> None:
    calls = []

    def loss(output: Tensor, labels: Tensor) -> Tensor:
        calls.append(len(labels))
        if len(calls) == 2:
            _thread.interrupt_main()
            time.sleep(0.5)  # until the main thread has heard it
        return F.cross_entropy(output, labels)

    task = replace(federation(clients=1, rounds=2), loss=loss)
    with pytest.raises(KeyboardInterrupt):
        federated.train(task, workers=1)
    assert len(calls) == 2


def test_a_model_that_works_in_place_on_its_images_trains_as_one_that_does_not() -> None:
    """DP-SGD runs the model once more on the same images."""
    defense = defenses.DpSgd(clip=0.5, sigma=0.1)
    nets = (Halved(model(), in_place=in_place) for in_place in (True, False))
    one, other = (train(federation(defense, net, rounds=2)) for net in nets)
    assert same(one.state, other.state)
    assert one.history[-1]["accuracy"] == other.history[-1]["accuracy"]


def test_an_optimiser_goes_on_from_round_to_round_where_it_may() -> None:
    """One client that keeps its momentum trains as one place does; one that begins anew does not."""
    how = {"clients": 1, "rounds": 3, "optimiser": "sgd", "lr": 0.05, "momentum": 0.9}
    central = train(federation(**how, central=True)).state
    assert same(train(federation(**how, goes_on=True)).state, central)
    assert not same(train(federation(**how)).state, central)


def test_a_client_that_rests_a_round_finds_its_momentum_again() -> None:
    how = {"clients": 4, "rounds": 4, "share": 0.5, "optimiser": "sgd", "lr": 0.05, "momentum": 0.9}
    task = federation(**how, goes_on=True)
    took_part = {client for round_ in range(4) for client in chosen(task, round_)}
    assert set(train(task).optimisers) == took_part
    assert not train(federation(**how)).optimisers
