"""What every attack is given by its base, and what attacks around others leave to the inner one."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import dosimeter as dm
from dosimeter.attacks import (
    Around,
    AverageOrders,
    AverageRounds,
    Cost,
    Found,
    GuessSteps,
    LeaveOut,
    RecoverKey,
    SolveLock,
    labels,
    presets,
)
from dosimeter.attacks.search import optimisers, priors, treatments
from dosimeter.auditing import Audit, Resources, Updates
from dosimeter.auditing.job import Job
from dosimeter.auditing.run import estimate
from dosimeter.errors import SettingError
from dosimeter.types import Ended, Observation, Outcome, Target
from small import observe, tiny_target


@dataclass(frozen=True, kw_only=True)
class Grey(dm.Attack):
    """An attack of somebody else's: one method."""

    def solve(self, target, seen, *, seed, beat):  # type: ignore[no-untyped-def]
        beat()
        return Found(torch.full(target.shape, 0.5), float(len(seen.ids)), Ended(Outcome.NOT_DETERMINED))


def three() -> tuple[Target, Observation]:
    torch.manual_seed(0)
    target = tiny_target()
    return target, observe(target, torch.rand(3, 1, 1, 6, 6), torch.tensor([[0], [1], [2]]))


def test_an_attack_is_one_method() -> None:
    target, seen = three()
    found = Grey()(target, [seen], seed=0)
    assert found.outcomes == ("not determined",) * 3
    assert found.match.tolist() == [1.0] * 3  # one victim at a time
    assert (Grey().name, Grey().cost(target, 1), Grey().needs().labels) == ("grey", Cost(), False)
    assert torch.equal(Grey().blind()(target, [seen], seed=0).images[0, 0], target.mean.expand(1, 6, 6))
    result = dm.audit(target.model.float(), some(2), attack=Grey(), resources=ONE)
    assert [record.stopped for record in result.records] == ["not determined"] * 2
    with pytest.raises(SettingError, match="'grey' reads one update of each victim, got 2"):
        Grey()(target, [seen, seen], seed=0)
    with pytest.raises(NotImplementedError, match="Nothing must define solve"):
        type("Nothing", (dm.Attack,), {})()(target, [seen], seed=0)


def some(n: int) -> dm.Victims:
    images = torch.rand(n, 1, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return dm.Victims(images, torch.zeros(n, 1, dtype=torch.long), torch.arange(n)[:, None], ("a", "b", "c")[:n])


@pytest.mark.parametrize("attack", [Grey(), presets.analytic(), presets.dlg(steps=2, inner=2)], ids=lambda a: a.name)
def test_victims_that_are_not_reached_stay_blank(attack: dm.Attack) -> None:
    target, seen = three()
    first = attack(target, [seen], seed=0)

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        if done >= total / 3:
            raise KeyboardInterrupt

    found = attack(target, [seen], seed=0, watch=watch)
    assert found.outcomes == (first.outcomes[0], "interrupted", "interrupted")
    assert torch.equal(found.images[0], first.images[0])
    assert torch.equal(found.images[2, 0], target.mean.expand(1, 6, 6))
    assert found.match[1:].isinf().all()
    assert len(found.determined) == len(first.determined)


def test_a_search_for_labels_hears_of_an_end() -> None:
    torch.manual_seed(0)
    target = tiny_target()
    seen = observe(target, torch.rand(3, 2, 1, 6, 6), torch.randint(0, 5, (3, 2)))._replace(labels=None)
    heard = []

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        heard.append(match)
        if len(heard) == 3:  # the second victim's labels
            raise KeyboardInterrupt

    found = presets.inverting_gradients(steps=3, labels="counts")(target, [seen], seed=0, watch=watch)
    assert len(heard) == 3
    assert found.outcomes == ("interrupted",) * 3
    assert found.images.shape == (3, 2, 1, 6, 6)


ONE = Resources(workers=1, progress=False)
SEARCH = presets.inverting_gradients(steps=4, restarts=5)
AROUND = [
    AverageRounds(attack=SEARCH),
    AverageOrders(attack=SEARCH),
    GuessSteps(attack=SEARCH, guesses=(1, 2), trial=3),
    LeaveOut(attack=SEARCH, probe=0.5),
    RecoverKey(attack=SEARCH),
    SolveLock(attack=SEARCH),
]


@pytest.mark.parametrize("attack", AROUND, ids=lambda a: type(a).__name__)
def test_attacks_around_others_leave_the_rest_to_them(attack: Around) -> None:
    exact = replace(attack, attack=presets.grnn(steps=7, restarts=3))
    assert exact.exact
    assert not attack.exact
    target = replace(tiny_target(), step=dm.clients.LocalTraining(steps=2, lr=0.1).untold(1, steps=False, lr=True))
    inner, outer = exact.attack.cost(target, 1), exact.cost(target, 1)
    assert inner.beside > 1000
    assert outer._replace(steps=7, least=7, tried=0, passes=1, updates=1) == inner
    assert outer.steps == 7 + outer.tried
    assert attack.at_most(2).attack.side_by_side == 2  # type: ignore[attr-defined]
    assert attack.relabelled(labels.Counts()).attack.labels == labels.Counts()  # type: ignore[attr-defined]
    assert attack.needs().labels == SEARCH.needs().labels
    assert attack.blind().name.startswith(SEARCH.name)


def test_trials_are_counted() -> None:
    target = replace(tiny_target(), step=dm.clients.LocalTraining(steps=2, lr=0.1).untold(1, steps=False, lr=True))
    guess, leave = (each.cost(target, 1) for each in AROUND[2:4])
    assert (guess.steps, guess.tried, guess.passes) == (4 + 2 * 3, 2 * 3, 2)
    assert (leave.steps, leave.tried) == (4 + 2 * 2, 2 * 2)


def test_a_wrapped_attack_takes_the_memory_of_the_inner_one() -> None:
    model = tiny_target().model.float()

    def planned(attack: dm.Attack, rounds: int) -> int:
        audit = Audit(model=model, victims=some(2), attack=attack, updates=Updates(rounds=rounds), resources=ONE)
        return Job(audit).plan.bytes

    alone, rounds = planned(presets.grnn(), 1), planned(AverageRounds(attack=presets.grnn()), 2)
    assert 1.1 * alone > rounds >= alone > 10 * planned(presets.inverting_gradients(), 1)


@pytest.mark.parametrize(
    "search",
    [
        presets.inverting_gradients(steps=9, restarts=5, median=2),
        presets.inverting_gradients(steps=30, restarts=5, target=0.4),
        replace(presets.bayes(steps=6, restarts=5, delta=0.1, k=2, langevin=1e-3), keep="best"),
        presets.dlg(steps=3, inner=2, restarts=5),
        replace(SEARCH, optimiser=optimisers.CMAES(population=4), keep="best"),
    ],
    ids=lambda s: f"{s.name} by {type(s.optimiser).__name__}",
)
def test_restarts_in_turn_are_restarts_side_by_side(search: dm.Search) -> None:
    target, seen = three()
    whole = search(target, [seen], seed=1)
    marks: list[tuple[int, int]] = []

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        marks.append((done, total))

    turns = search.at_most(2)(target, [seen], seed=1, watch=watch)
    for one, other in zip(whole, turns, strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.allclose(one.double(), other.double(), atol=1e-10)
    assert whole.outcomes == turns.outcomes
    assert whole.curve.steps == turns.curve.steps
    assert torch.allclose(whole.curve.match, turns.curve.match, atol=1e-10)
    assert marks == sorted(marks)
    assert search.at_most(2) == search
    assert repr(search.at_most(2)) == repr(search)


def test_an_interrupted_turn_ends_those_after_it() -> None:
    target, seen = three()

    def watch(*, done: int, total: int, match: float, active: int) -> None:
        if done >= 5:
            raise KeyboardInterrupt

    found = SEARCH.at_most(2)(target, [seen], seed=0, watch=watch)
    assert found.outcomes == ("interrupted",) * 3
    assert found.match.isfinite().all()
    assert int(found.restart.max()) < 4


def test_restarts_that_do_not_fit_run_in_turn_unless_they_need_each_other() -> None:
    model, victims = tiny_target().model.float(), some(2)
    plain = Audit(model=model, victims=victims, attack=presets.inverting_gradients(), resources=ONE)
    alone = Job(plain).plan.bytes // 2

    little = replace(ONE, budget=4 * alone)
    audit = Audit(model=model, victims=victims, attack=replace(SEARCH, restarts=64), resources=little)
    job = Job(audit)
    assert 1 < job.plan.restarts < 64
    assert job.plan.bytes <= little.budget
    assert job.cost.steps == 4 * -(-64 // job.plan.restarts)
    assert estimate(audit)["total"] == job.cost.steps
    assert dm.audit(model, victims, attack=audit.attack, resources=little).records
    group = replace(SEARCH, restarts=64, prior=0.1 * priors.Group() + priors.TotalVariation())
    with pytest.raises(SettingError, match=r"64 restart.*together.*lower restarts or batch"):
        Job(replace(audit, attack=group))


def test_a_batch_that_does_not_fit_is_simulated_in_parts() -> None:
    """In the memory of a part, to the same images: the gradient of a batch is the mean over its parts."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Sigmoid(), nn.Flatten(), nn.Linear(576, 5)
    )
    images, classes = torch.rand(1, 7, 1, 6, 6), torch.randint(0, 5, (1, 7))
    victims = dm.Victims(images, classes, torch.arange(7)[None], ("a",))
    attack = presets.inverting_gradients(steps=5, restarts=2, distance="l2")
    audit = Audit(model=model, victims=victims, attack=attack, resources=replace(ONE, dtype=torch.float64))
    little = replace(audit, resources=replace(audit.resources, budget=Job(audit).plan.bytes // 4))
    plan = Job(little).plan
    assert plan.part in range(1, 7)
    assert plan.bytes <= little.resources.budget
    whole, parts = (Job(one).run(lambda *_, **__: None)[0] for one in (audit, little))
    assert torch.allclose(whole.images, parts.images, atol=1e-9)
    assert torch.allclose(whole.match, parts.match)
    counted = replace(little, attack=presets.inverting_gradients(steps=1, labels="counts"))
    assert Job(counted).run(lambda *_, **__: None)[0].outcomes == ("steps",)
    mixed = replace(little, updates=Updates(batch_norm="batch"))
    with pytest.raises(SettingError, match="lower batch"):
        Job(mixed)


def test_an_estimate_ends_at_ctrl_c_and_with_attacks_that_end_by_themselves() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Stopped(priors.Prior):
        def loss(self, view: priors.View) -> torch.Tensor:
            raise KeyboardInterrupt

    audit = Audit(model=tiny_target().model.float(), victims=some(2), attack=SEARCH, resources=ONE)
    with pytest.raises(KeyboardInterrupt):
        estimate(replace(audit, attack=replace(SEARCH, prior=Stopped())))
    lost = replace(SEARCH, optimiser=optimisers.Descent(lr=1e38), moves=())
    for attack, unit in ((lost, "steps"), (presets.analytic(), "victims"), (presets.labels_only(), "victims")):
        guess = estimate(replace(audit, attack=attack))
        assert (guess["unit"], 0 <= guess["seconds"] < 60) == (unit, True)


def test_a_key_that_is_read_off_is_known_to_the_search() -> None:
    assert RecoverKey(attack=replace(SEARCH, secrets=treatments.Known())).needs().secrets is False


def test_only_a_search_can_be_built_upon() -> None:
    for kind in (GuessSteps, AverageOrders, LeaveOut):
        with pytest.raises(SettingError, match="'analytic' is none"):
            kind(attack=presets.analytic())  # type: ignore[arg-type]
