from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dosimeter as dm
import small_federation
from dosimeter import rng
from dosimeter.auditing import Audit, audit_panel, estimate
from dosimeter.federated import as_audited, train

names = st.lists(st.text(max_size=5), max_size=3)


@given(st.integers(0, 2**31), names, names)
def test_streams_of_other_names_differ_and_of_the_same_agree(seed: int, a: list[str], b: list[str]) -> None:
    first, second = (torch.rand(4, generator=rng.stream(seed, *n)) for n in (a, b))
    joined = ["\x1f".join([str(seed), *n]) for n in (a, b)]
    assert torch.equal(first, second) == (joined[0] == joined[1])


def test_scoped_leaves_the_global_generator_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with rng.scoped(0, "weights"):
        inside = torch.rand(3)
    with rng.scoped(0, "weights"):
        assert torch.equal(inside, torch.rand(3))
    assert torch.equal(before, torch.get_rng_state())


DEFENSE = dm.defenses.Precode(k=2) | dm.defenses.GaussianNoise(sigma=0.1)
SEARCH = dm.presets.inverting_gradients(steps=2)


def _panel(federation: dm.Federation, victims: dm.Victims) -> None:
    setting = Audit(
        model=federation.model, victims=victims, attack=SEARCH, defense=DEFENSE, resources=dm.Resources(progress=False)
    )
    list(audit_panel(setting, steps=1))


def _captured(federation: dm.Federation, victims: dm.Victims) -> None:
    update = {name: torch.ones_like(p) for name, p in federation.model.named_parameters()}
    labels = torch.zeros(1, dtype=torch.long)
    dm.reconstruct(federation.model, dm.Capture(update, victims.shape, labels=labels), attack=SEARCH)
    dm.captured(
        federation.model,
        dm.Capture(update, victims.shape),
        attack=SEARCH,
        shadows=victims,
        resources=dm.Resources(progress=False),
    )


VERBS: dict[str, Callable[[dm.Federation, dm.Victims], object]] = {
    "audit": lambda f, v: dm.audit(f.model, v, attack=SEARCH, defense=DEFENSE, resources=dm.Resources(progress=False)),
    "audit_panel": _panel,
    "captured": _captured,
    "estimate": lambda f, v: estimate(Audit(model=f.model, victims=v, attack=SEARCH, defense=DEFENSE)),
    "pick": lambda f, v: dm.pick_decoys(f.dataset, dm.pick(f.dataset, 2), 3, seed=0, split="train"),
    "train": lambda f, v: as_audited(f, train(f, progress=False)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_moves_the_callers_generators(verb: str) -> None:
    federation = small_federation.federation(DEFENSE, rounds=1)
    victims = dm.pick(federation.dataset, 2)
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    VERBS[verb](federation, victims)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
