"""Settings in one batch: each finds what it would find alone, and one that leaves takes nothing with it."""

from collections.abc import Collection

import pytest
import torch

from dosimeter.attacks import Search, presets
from dosimeter.attacks.search.running import Run
from dosimeter.attacks.search.together import shared
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Target
from small import observe, tiny_target

SETTINGS = [
    {"lr": 0.3, "decay": 0.97, "tv": 0.1, "weights": "by-layer"},
    {"lr": 0.05, "decay": 1.0, "tv": 0.0, "ramp": 0.01},
    {"lr": 0.5, "decay": 0.94, "tv": 10.0, "weights": "exponential"},
    {"lr": 0.2, "decay": 0.99, "tv": 1.0, "ramp": 3.0, "pixels": 2.0},
]


def bayes(**settings: object) -> Search:
    return presets.bayes(steps=30, restarts=2, **settings)  # type: ignore[arg-type]


def three() -> tuple[Target, Observation]:
    target = tiny_target()
    torch.manual_seed(3)
    return target, observe(target, torch.rand(3, 1, 1, 6, 6), torch.randint(0, 5, (3, 1)))


def beside(searches: list[Search], leaving: dict[int, Collection[int]] | None = None) -> Reconstruction:
    target, seen = three()
    assert target.mean.dtype == torch.float64
    work = Run(searches, target, seen, 0, range(searches[0].restarts)).going(None, (leaving or {}).keys())
    try:
        images = next(work)
        for at in leaving or {}:
            assert images.shape[:3] == (3, len(searches), searches[0].restarts)
            images = work.send((leaving or {})[at])
    except StopIteration as ended:
        found: Reconstruction = ended.value
        return found
    raise AssertionError


@pytest.mark.parametrize("density", ["cosine", "gaussian", "laplace"])
def test_a_setting_in_a_batch_of_settings_finds_what_it_finds_alone(density: str) -> None:
    searches = [bayes(density=density, **each) for each in SETTINGS]
    assert len({shared(each) for each in searches}) == 1
    together = beside(searches)
    target, seen = three()
    for at, search in enumerate(searches):
        alone = search(target, [seen], seed=0)
        torch.testing.assert_close(together.images[at :: len(searches)], alone.images, rtol=0, atol=1e-7)
        torch.testing.assert_close(together.match[at :: len(searches)], alone.match, rtol=1e-7, atol=1e-7)
        assert together.restart[at :: len(searches)].equal(alone.restart)
    spread = together.images.reshape(3, len(searches), -1).std(1).max()
    assert spread > 0.05  # or equal settings would pass too


def test_settings_that_leave_do_not_change_the_others() -> None:
    searches = [bayes(density="cosine", **each) for each in SETTINGS]
    whole, left = beside(searches), beside(searches, {10: [1, 2]})
    rows = torch.arange(12).reshape(3, 4)
    stayed, gone = rows[:, [0, 3]].flatten(), rows[:, [1, 2]].flatten()
    torch.testing.assert_close(left.images[stayed], whole.images[stayed], rtol=0, atol=1e-9)
    assert left.steps[gone].eq(10).all()
    assert left.steps[stayed].eq(30).all()


def test_searches_that_differ_in_more_than_numbers_do_not_share_a_batch() -> None:
    ig = presets.inverting_gradients
    apart = [
        bayes(),
        bayes(density="cosine"),
        bayes(langevin=0.1),
        ig(steps=30),
        ig(steps=40),
        ig(steps=30, restarts=3),
        ig(steps=30, decay="none"),
        ig(steps=30, decay="cosine"),
    ]
    assert len({shared(each) for each in apart}) == len(apart)
    assert shared(ig(steps=30, lr=0.2, tv=0.0)) == shared(ig(steps=30, tv=0.01))
    alone = bayes(k=2, delta=1.0)  # whose candidates have several points each
    assert shared(alone) != shared(alone)


def test_a_ramp_changes_what_counts_early_and_nothing_at_the_end() -> None:
    target, seen = three()
    plain, steep = (bayes(density="cosine", tv=0.01, ramp=ramp) for ramp in (1.0, 1e-3))
    run = Run([steep], target, seen, 0, range(2))
    rows = torch.arange(12)
    assert run._terms(0, rows).ramp == pytest.approx(1e-3 ** (14 / 15))
    assert run._terms(14, rows).ramp == run._terms(29, rows).ramp == 1.0
    assert not torch.allclose(plain(target, [seen], seed=0).images, steep(target, [seen], seed=0).images)
    with pytest.raises(SettingError, match="ramp"):
        Search(stop=plain.stop, keep="best", ramp=0.5)
