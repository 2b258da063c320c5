"""FedKL undone: keys read off their lock's gradient, scale and shift solved for, secrets of one client kept equal."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dosimeter as dm
from dosimeter import clients, models, trees
from dosimeter.attacks import RecoverKey, Search, SolveLock, Stop, presets
from dosimeter.attacks.around.key import key_by_rank_one, key_of, recover
from dosimeter.attacks.search import optimisers, schedules, treatments
from dosimeter.attacks.solve.certificate import ENTRY_ROUNDING, ROUNDING
from dosimeter.attacks.solve.unlock import solve_lock
from dosimeter.auditing import Audit
from dosimeter.auditing.job import Job
from dosimeter.defenses import KeyLock, NoBias
from dosimeter.defenses.fedkl import Lock
from dosimeter.engine import Matcher
from dosimeter.errors import SettingError
from dosimeter.types import BatchNorm, Observation, Secrets, Target, ThreatModel, Victims
from small import target_of, tiny_target

SHAPE = (1, 12, 12)


def network(seed: int = 0, *, bias: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(5)
    norm.running_mean, norm.running_var = 0.3 * torch.randn(5), 0.5 + torch.rand(5)
    return nn.Sequential(
        models.Normalise((0.4,), (0.3,)),
        nn.Conv2d(1, 5, 3, stride=2, padding=1, bias=bias),
        norm,
        nn.Sigmoid(),
        nn.Conv2d(5, 6, 3, padding=1),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(216, 5),
    )


def locked(defense: KeyLock, seed: int = 0, dtype: torch.dtype = torch.float64) -> Target:
    return target_of(defense.on_model(network(seed), SHAPE), SHAPE, dtype)


def seen_by(target: Target, defense: KeyLock, images: Tensor, labels: Tensor, keys: Sequence[int]) -> Observation:
    """What a server sees of images (V, B, C, H, W) of clients whose streams have these seeds, secrets revealed."""
    drawn, updates = [], []
    for x, y, key in zip(images, labels, keys, strict=True):
        stream = torch.Generator().manual_seed(key)
        own = clients.draw_secrets(target, len(x), stream, stream)
        drawn.append({**own, **defense.draw(target, len(x), stream)})
        updates.append(clients.gradient(replace(target, drawn=drawn[-1]), x.to(target.mean), y))
    ids = tuple(f"train:{i}" for i in range(len(images)))
    names = tuple(f"client {key}" for key in keys)
    return Observation(trees.stack(updates), images.shape[1], ids, labels, None, trees.stack(drawn), names)


def truth(target: Target, seen: Observation, v: int) -> tuple[Tensor, Tensor]:
    """gamma and beta of one client."""
    ((name, value),) = (seen.secrets or {}).items()
    path, _, buffer = name.rpartition(".")
    lock = target.model.get_submodule(path)
    assert isinstance(lock, Lock)
    with torch.no_grad():
        features = torch.func.functional_call(lock, {buffer: value[v]}, (torch.zeros(1, 5, 1, 1).to(value),))
        ones = torch.func.functional_call(lock, {buffer: value[v]}, (torch.ones(1, 5, 1, 1).to(value),))
    return (ones - features).flatten(), features.flatten()


@settings(max_examples=4, deadline=None)
@given(
    seed=st.integers(0, 1000),
    defense=st.sampled_from([KeyLock(key=9), KeyLock(key=40, round="later"), KeyLock(key=7, share="lock")]),
)
def test_scale_and_shift_are_solved_for(seed: int, defense: KeyLock) -> None:
    target = locked(defense, seed)
    images, labels = torch.rand(1, 1, *SHAPE, dtype=torch.float64), torch.tensor([[seed % 5]])
    seen = seen_by(target, defense, images, labels, [seed])
    gamma, beta = truth(target, seen, 0)
    found = solve_lock(target, {name: g[0] for name, g in seen.gradient.items()})
    assert torch.allclose(found[0], gamma, rtol=1e-5, atol=1e-6)
    assert torch.allclose(found[1], beta, rtol=1e-5, atol=1e-6)


def test_the_image_behind_an_unknown_lock_is_solved_for() -> None:
    defense = KeyLock(round="later")
    target = locked(defense)
    torch.manual_seed(1)
    images, labels = torch.rand(2, 1, *SHAPE), torch.tensor([[3], [1]])
    seen = seen_by(target, defense, images, labels, [1, 2])._replace(secrets=None, labels=None)
    found = SolveLock()(target, [seen], seed=0)
    assert found.outcomes == ("recovered", "recovered")
    assert float((found.images - images).abs().max()) < 1e-4
    blind = SolveLock().blind()(target, [seen], seed=0)
    assert float((blind.images - images).abs().mean()) > 0.1


def test_a_certificate_allows_for_the_rounding_of_what_was_solved_first() -> None:
    """Scale, shift and image explain the update to some hundred units, far more than one pass is off."""
    data = dm.load("mnist-5k", size=32)
    model = models.build("lenet", shape=data.shape, classes=10, mean=(0.13,), std=(0.31,), seed=0)
    victims = dm.pick(data, 3, seed=3).take(slice(2, 3))
    lock = KeyLock(key=64)
    found = dm.audit(
        model, victims, attack=presets.unlock(), defense=lock, resources=dm.Resources(progress=False)
    ).records[0]
    assert found.stopped == "recovered"
    assert ENTRY_ROUNDING < found.match / torch.finfo(torch.float32).eps < ROUNDING  # type: ignore[operator]
    assert found.scores["ssim"] > 0.999


def test_interrupted_solving_says_so() -> None:
    defense = KeyLock(key=9)
    target = locked(defense)
    seen = seen_by(target, defense, torch.rand(3, 1, *SHAPE), torch.tensor([[3], [1], [0]]), [1, 2, 3])
    told: list[tuple[int, int]] = []

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        told.append((done, total))
        if done >= 2:
            raise KeyboardInterrupt

    found = SolveLock()(target, [seen], seed=0, watch=watch)
    assert found.outcomes == ("recovered", "recovered", "interrupted")
    assert told[0] == (0, 3)


@pytest.mark.parametrize(
    ("model", "batch", "says"),
    [
        (tiny_target().model, 1, "the model has 0"),
        (KeyLock(key=4).on_model(network(), SHAPE), 2, "one image"),
        (KeyLock(key=4).on_model(network(bias=False), SHAPE), 1, "bias of the convolution"),
    ],
)
def test_locks_that_cannot_be_solved_are_refused(model: nn.Module, batch: int, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        SolveLock().check(target_of(model, SHAPE), batch)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 1000))
def test_a_key_is_the_ratio_of_its_gradients(rows: int, size: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    key = torch.rand(2, size, generator=rng, dtype=torch.float64)
    slopes = torch.randn(2, rows, generator=rng, dtype=torch.float64)
    slopes[0, 0] = 0  # a dead channel says nothing
    slopes[1] = 0 if seed % 2 else slopes[1]
    found = key_of(slopes[..., None] * key[:, None], slopes)
    expected = [k if s.any() else torch.full_like(k, 0.5) for k, s in zip(key, slopes, strict=True)]
    assert torch.allclose(found, torch.stack(expected), atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 6), st.integers(1, 1024), st.integers(0, 1000))
def test_without_a_bias_a_key_is_known_up_to_its_largest_entry(rows: int, size: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    key = torch.rand(2, size, generator=rng, dtype=torch.float64)
    slopes = torch.randn(2, rows, generator=rng, dtype=torch.float64)
    found = key_by_rank_one(slopes[..., None] * key[:, None])
    assert torch.allclose(found, key / key.amax(1, keepdim=True) * size / (size + 1), atol=1e-9)
    assert torch.equal(key_by_rank_one(torch.zeros(1, rows, size)), torch.full((1, size), 0.5))


@pytest.mark.parametrize("batch", [1, 3])
def test_the_key_of_a_lock_without_bias_is_recovered(batch: int) -> None:
    lock = KeyLock(share="lock")
    target = target_of((lock | NoBias()).on_model(network(), SHAPE), SHAPE)
    torch.manual_seed(2)
    seen = seen_by(target, lock, torch.rand(2, batch, *SHAPE), torch.randint(5, (2, batch)), [1, 2])
    presets.recover_key().check(target, batch)
    (name,) = target.secrets
    found, true = (torch.special.ndtr(u[name]) for u in (recover(target, seen.gradient), seen.secrets or {}))
    assert torch.allclose(found.norm(dim=1), true.norm(dim=1), rtol=0.01)
    assert torch.allclose(torch.cosine_similarity(found, true), torch.ones(2, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_recovered_key_is_as_good_as_one_that_was_told(batch: int) -> None:
    defense = KeyLock(key=64, share="lock")
    target = locked(defense)
    torch.manual_seed(2)
    images, labels = torch.rand(2, batch, *SHAPE), torch.randint(5, (2, batch))
    seen = seen_by(target, defense, images, labels, [1, 2])
    search = Search(stop=Stop(steps=8), secrets=treatments.Known(), optimiser=optimisers.Adam(lr=0.05))
    attack = RecoverKey(attack=search)
    assert not attack.needs().secrets
    told, hidden = search(target, [seen], seed=0), attack(target, [seen._replace(secrets=None)], seed=0)
    assert torch.allclose(told.images, hidden.images, atol=1e-4)
    assert attack.blind()(target, [seen._replace(secrets=None)], seed=0).images.shape == images.shape
    (name,) = target.secrets
    assert torch.allclose(recover(target, seen.gradient)[name], (seen.secrets or {})[name], atol=1e-5)


def test_keys_of_locks_that_are_not_sent_are_refused() -> None:
    with pytest.raises(SettingError, match="no client sends one"):
        presets.recover_key().check(locked(KeyLock(key=4)), 1)


@dataclass(frozen=True, kw_only=True)
class Watched(treatments.Joint):
    """Notes what is supposed at every step."""

    noted: list[Secrets] = field(default_factory=list)

    def values(self, revealed: Secrets, drawn: Secrets, searched: Secrets) -> Secrets:
        self.noted.append({name: value.detach().clone() for name, value in searched.items()})
        return searched


class Uneven(schedules.Constant):
    """Another rate for every candidate, as those have that wait for their own losses to fall."""

    def update(self, step: int, steps: int, loss: Tensor, state: schedules.State) -> schedules.State:
        return state._replace(scale=torch.linspace(0.5, 1.5, len(loss)).to(loss))


@pytest.mark.parametrize(
    "parts",
    [{}, {"schedule": Uneven()}],
    ids=["constant", "uneven"],
)
@pytest.mark.parametrize("restarts", [1, 2])
def test_what_is_supposed_of_one_client_stays_the_same_for_all_its_updates(
    restarts: int, parts: dict[str, Any]
) -> None:
    defense = KeyLock(key=9, round="later")
    target = locked(defense)
    torch.manual_seed(3)
    images, labels = torch.rand(3, 1, *SHAPE), torch.randint(5, (3, 1))
    seen = seen_by(target, defense, images, labels, [1, 1, 2])._replace(secrets=None)
    watched = Watched()
    Search(stop=Stop(steps=15), secrets=watched, restarts=restarts, **parts)(target, [seen], seed=0)
    (name,) = target.secrets
    first, last = (noted[name].reshape(3, restarts, -1) for noted in (watched.noted[0], watched.noted[-1]))
    assert torch.equal(first[0], first[1])
    assert torch.allclose(last[0], last[1], atol=1e-9)
    assert not torch.allclose(first[0], last[0], atol=1e-3)  # they moved
    assert not torch.allclose(last[0], last[2], atol=1e-3)  # and another client's are its own
    assert restarts == 1 or not torch.allclose(last[0, 0], last[0, 1], atol=1e-3)


def test_a_guess_does_not_move() -> None:
    defense = KeyLock(key=9)
    target = locked(defense)
    seen = seen_by(target, defense, torch.rand(1, 1, *SHAPE), torch.tensor([[2]]), [1])._replace(secrets=None)
    noted: list[Secrets] = []

    class Still(treatments.Guessed):
        def values(self, revealed: Secrets, drawn: Secrets, searched: Secrets) -> Secrets:
            noted.append({name: value.detach().clone() for name, value in searched.items()})
            return super().values(revealed, drawn, searched)

    Search(stop=Stop(steps=5), secrets=Still())(target, [seen], seed=0)
    (name,) = target.secrets
    assert all(torch.equal(noted[0][name], later[name]) for later in noted)


@pytest.mark.parametrize("mode", ["running", "batch", "sent"])
@pytest.mark.parametrize("share", ["none", "lock"])
def test_the_truth_explains_the_update_under_every_batch_norm(mode: BatchNorm, share: str) -> None:
    torch.manual_seed(4)
    images, labels = torch.rand(2, 3, *SHAPE), torch.randint(5, (2, 3))
    victims = Victims(images, labels, torch.arange(6).reshape(2, 3), ("train:0", "train:1"))
    setting = Audit(
        model=network(),
        victims=victims,
        attack=presets.inverting_gradients(secrets="known"),
        defense=KeyLock(key=9, share=share),
        updates=dm.Updates(batch_norm=mode),
        resources=dm.Resources(dtype=torch.float64),
    )
    job = Job(setting)
    (seen,) = job.observe(victims)
    matcher = Matcher(job.attacker.target, seen.gradient, statistics=seen.statistics)
    owner = torch.arange(2)
    right = matcher(images.double(), labels, owner, seen.secrets or {})
    wrong = matcher(images.double(), labels, owner, {name: -value for name, value in (seen.secrets or {}).items()})
    assert matcher.way == "tape"
    norms = matcher.norms.sum(1)
    assert torch.allclose(right.cross.sum(1), norms, rtol=1e-9)
    assert torch.allclose(right.simulated.sum(1), norms, rtol=1e-9)
    assert not torch.allclose(wrong.cross.sum(1), norms, rtol=1e-3)


def test_a_client_that_sends_its_key_is_granted_as_such() -> None:
    attack = presets.inverting_gradients(secrets="known")
    plain = Audit(model=network(), attack=attack)
    assert replace(plain, defense=KeyLock(share="key")).granted().secrets
    assert replace(plain, attack=presets.dlg(), defense=KeyLock(share="both")).granted().secrets
    assert not replace(plain, attack=presets.dlg(), defense=KeyLock(share="lock")).granted().secrets
    with pytest.raises(SettingError, match="does not reveal"):
        replace(plain, defense=KeyLock(), threat=ThreatModel(labels=True)).granted()
