"""Many tiles tell one bar how far they are, and hear when they should end."""

import io
import sys
import threading

import pytest
import torch
from torch import nn

import dosimeter as dm
from dosimeter.attacks import LabelsOnly
from dosimeter.auditing import Audit, audit_panel
from dosimeter.auditing.job import Job
from dosimeter.auditing.watches import Place, Watches
from dosimeter.types import Ended, Outcome, Reconstruction


class Terminal(io.StringIO):
    """Standard error of somebody who watches."""

    def isatty(self) -> bool:
        return True


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Sigmoid(), nn.Linear(16, 10))


def some(n: int = 2) -> dm.Victims:
    return dm.pick(dm.load("mnist-5k", size=8), n, seed=0)


def found() -> Reconstruction:
    job = Job(Audit(model=small(), victims=some(), attack=LabelsOnly()))
    return LabelsOnly()(job.attacker.target, job.observe(some()), seed=0)


def test_a_bar_counts_the_steps_of_all_tiles() -> None:
    told: list[tuple[float, float | None]] = []
    notes: list[str] = []

    def advance(done: float, note: str = "", *, total: float | None = None) -> None:
        told.append((done, total))
        notes.append(note)

    watches = Watches(advance, threading.Event(), tiles=3)
    watches.of(1)(done=5, total=40, match=torch.nan, active=2)
    watches.of(0)(done=3, total=40, match=0.5, active=2)
    watches.ended(1, found())  # at its 5th step: all of its victims were done
    watches.of(2)(done=1, total=20, match=0.5, active=1)
    assert told == [(5, 120), (8, 120), (43, 120), (44, 100)]
    assert notes[:3] == ["2 running", "loss 0.5000, 4 running", "loss 0.5000, 2 running"]


def test_whoever_runs_out_of_time_was_not_interrupted() -> None:
    stop = threading.Event()
    watches = Watches(lambda *_, **__: None, stop, tiles=1, limit=0)
    with pytest.raises(KeyboardInterrupt):
        watches.of(0)(done=0, total=2, match=0.5, active=2)
    watches.blind()(done=0, total=2, match=0.5, active=2)
    half = found()._replace(stopped=(Ended(Outcome.LABELS), Ended(Outcome.INTERRUPTED)))
    assert watches.ended(0, half).outcomes == ("labels", "out of time")
    assert not stop.is_set()
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        watches.blind()(done=0, total=2, match=0.5, active=2)
    assert watches.ended(0, half).outcomes == ("labels", "interrupted")


def test_the_time_left_is_that_of_all_attacks(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    now = iter([0.0, 10.0])
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    tell = Place(3, 6, ran=2, seconds=160.0).around(lambda done, note="", *, total=None: notes.append(note))
    tell(25, "loss 1", total=50)  # 20 s in all, as each of three more takes (160 + 20) / 3
    assert notes == ["loss 1, about 3 min 10 s left for all 6"]


def test_a_panel_says_at_which_attack_and_step_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    setting = Audit(
        model=small(),
        victims=some(),
        attack=dm.presets.inverting_gradients(),
        resources=dm.Resources(workers=1, progress=True),
    )
    for _ in audit_panel(setting, steps=300):
        pass
    said = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "attack 2 of 4: coarse to fine, 2 victims" in said
    assert "attack 4 of 4: all revealed, 2 victims" in said
    assert "/300" in said
    assert "left for all 4" in said
