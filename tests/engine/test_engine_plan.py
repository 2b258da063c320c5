"""Tiles that fit the budget, and tiles side by side: order, errors, threads and Ctrl-C."""

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dosimeter import clients, engine
from dosimeter.engine import threads
from dosimeter.errors import SettingError
from dosimeter.types import Target
from small import target_of

MIB = 2**20


def network(**changed: object) -> Target:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    base = target_of(layers, (1, 6, 6))
    return Target(base.model, base.loss, base.shape, base.mean, base.std, **changed)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    victims=st.integers(1, 300),
    batch=st.integers(1, 8),
    restarts=st.integers(1, 8),
    budget=st.integers(2 * MIB, 64 * MIB),
    workers=st.integers(1, 6),
)
def test_tiles_cover_all_victims_within_the_budget(
    victims: int, batch: int, restarts: int, budget: int, workers: int
) -> None:
    asked = {"victims": victims, "batch": batch, "restarts": restarts, "budget": budget, "workers": workers}
    found = engine.plan(network(), **asked)
    assert found.victims >= 1
    assert 1 <= found.workers <= workers
    assert found.workers <= -(-victims // found.victims)  # no worker without a tile
    assert 0 < found.bytes <= budget
    assert found.bytes % found.workers == 0
    assert found == engine.plan(network(), **asked)
    steady = engine.plan(network(), **asked, steady=True)
    assert steady.victims == engine.plan(network(), **{**asked, "victims": 1, "workers": 1}, steady=True).victims
    assert 1 <= steady.workers <= min(workers, -(-victims // steady.victims))
    assert 0 < steady.bytes <= budget
    richer = engine.plan(network(), **{**asked, "budget": 2 * budget})
    assert richer.workers * richer.victims >= found.workers * found.victims


def test_more_restarts_images_and_local_training_take_more_memory() -> None:
    def each(target: Target, **asked: Any) -> int:
        return engine.plan(target, **{"victims": 1, "batch": 1, "restarts": 1, "workers": 1, **asked}).bytes

    assert each(network(), restarts=9) > each(network(), restarts=6) > each(network())
    assert each(network(), batch=24) > each(network(), batch=16) > each(network())
    assert each(network(step=clients.LocalTraining(steps=20, lr=0.1))) > each(network())
    assert each(network(), extra=(0, 10_000)) == each(network()) + 10_000 * network().mean.element_size()


def test_what_ways_are_compared_on_counts_for_few_victims_alone() -> None:
    def taken(victims: int) -> int:
        return engine.plan(network(), victims=victims, batch=1, restarts=1, workers=1, steady=True).bytes

    assert taken(1) < taken(2) < 2 * taken(1)  # beside three candidates one victim more is not much
    assert taken(32) == 2 * taken(16)


def test_a_victim_that_does_not_fit_is_refused_with_both_sizes() -> None:
    with pytest.raises(SettingError, match=r"with 7 restart.*needs about .* GiB, more than the budget of .* GiB"):
        engine.plan(network(), victims=1, batch=1, restarts=7, together=True, budget=100)


def test_planning_leaves_no_hook_behind() -> None:
    target = network()
    engine.plan(target, victims=3, batch=1, restarts=1)
    assert not any(layer._forward_hooks for layer in target.model.modules())


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_tiles_each_on_one_thread(workers: int) -> None:
    def work(tile: int) -> tuple[int, int]:
        time.sleep(0.01 * (4 - tile))  # the last is done first
        return tile, torch.get_num_threads()

    found = threads.run(work, range(4), workers=workers, stop=threading.Event())
    assert found == [(tile, 1) for tile in range(4)]
    assert torch.get_num_threads() == 2


def test_tiles_run_side_by_side() -> None:
    meeting = threading.Barrier(2, timeout=10)  # passes only if both are inside at once
    assert sorted(threads.run(lambda tile: meeting.wait(), range(2), workers=2, stop=threading.Event())) == [0, 1]


def test_no_tiles_give_no_results() -> None:
    assert threads.run(lambda tile: tile, [], workers=2, stop=threading.Event()) == []


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_in_a_tile_reaches_the_caller_and_stops_the_others(workers: int) -> None:
    begun: list[int] = []
    stop = threading.Event()

    def work(tile: int) -> int:
        begun.append(tile)
        if tile == 1:
            raise ValueError("tile 1 is bad")
        if tile > 1:
            stop.wait(10)
        return tile

    with pytest.raises(ValueError, match="tile 1 is bad"):
        threads.run(work, range(50), workers=workers, stop=stop)
    assert stop.is_set()
    assert len(begun) < 5
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_ctrl_c_keeps_what_is_done_and_leaves_out_what_was_not_begun() -> None:
    stop = threading.Event()

    def work(tile: int) -> str:
        if tile == 1:
            main = threading.main_thread().ident
            assert main is not None
            signal.pthread_kill(main, signal.SIGINT)  # as from the keyboard, to the thread that waits
        if tile >= 1:
            assert stop.wait(10)
            return f"{tile} as far as it came"
        return f"{tile} done"

    found = threads.run(work, range(6), workers=1, stop=stop)
    assert found == ["0 done", "1 as far as it came"]
    assert torch.get_num_threads() == 2


def test_a_stop_from_outside_leaves_the_rest_out() -> None:
    stop = threading.Event()

    def work(tile: int) -> int:
        if tile == 2:
            stop.set()
        return tile

    assert threads.run(work, range(6), workers=1, stop=stop) == [0, 1, 2]


@pytest.mark.usefixtures("two_threads")
def test_one_thread_each_is_undone_by_errors_too() -> None:
    def fail() -> None:
        with threads.one_thread_each():
            assert torch.get_num_threads() == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.get_num_threads() == 2
