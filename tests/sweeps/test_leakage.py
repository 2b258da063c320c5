"""The same victims at several rounds of a training, by honest and dishonest servers."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import small_federation
from dosimeter import clients, defenses, pick, presets
from dosimeter.auditing import Audit
from dosimeter.errors import SettingError
from dosimeter.federated import Federation, Training, as_audited, train
from dosimeter.reports import kept
from dosimeter.sweeps import Progress, Status, Store, Trial, run_all
from dosimeter.sweeps.leakage import Point, follow, update_norms
from dosimeter.sweeps.trial import Trained
from small_federation import federation

EARLY = "ppp:clients=3,rounds=50,lr=0.3,validation=0.25,patience=2"


def audit(task: Federation, steps: int = 5, victims: int = 3) -> Audit:
    return Audit(model=task.model, victims=pick(task.dataset, victims), attack=presets.inverting_gradients(steps=steps))


def trial(folder: Path, protocol: str = "ppp:clients=3,rounds=3,lr=0.01", **more: Any) -> Trial:
    words = small_federation.words(folder)
    return Trial(**words, attack="ig", victims=1, steps=2, protocol=protocol, decoys=0, **more)


def followed(one: Trial, folder: Path, at: set[int], seen: list[Progress] | None = None) -> list[Point]:
    with Store(folder / "run") as store:
        run = partial(run_all, store=store, told=seen.append if seen is not None else None)
        points, failed = follow(one, at=at, servers=["honest", "permuted-rows"], store=store, run=run)
    assert not failed
    return points


def test_a_point_is_the_audit_of_the_model_at_that_round(tmp_path: Path) -> None:
    one = trial(tmp_path)
    points = followed(one, tmp_path, {0, 2, 3})
    assert [(point["round"], point["server"]) for point in points] == [
        (round_, server) for round_ in (0, 2, 3) for server in ("honest", "permuted-rows")
    ]
    shorter = replace(one, protocol="ppp:clients=3,rounds=2,lr=0.01")
    with Store(tmp_path / "other") as store:
        (entry,) = run_all([shorter], store)
        assert entry.uses
        training = store.entry(entry.uses)
        assert training
        assert points[2]["ssim"] == (entry.found or {})["ssim"]
        assert points[2]["accuracy"] == (training.found or {})["accuracy"]


def test_norms_are_those_of_the_gradients(tmp_path: Path) -> None:
    task = federation(rounds=1)
    victims = pick(task.dataset, 10)
    norms = update_norms(audit(task, victims=10))
    target = task.target(task.template.eval())
    for at, norm in enumerate(norms):
        gradient = clients.gradient(target, victims.images[at], victims.labels[at])
        assert norm == pytest.approx(float(torch.cat([g.flatten() for g in gradient.values()]).norm()), rel=1e-4)


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    first = followed(trial(tmp_path), tmp_path, {0, 2})
    seen: list[Progress] = []
    assert followed(trial(tmp_path), tmp_path, {0, 2}, seen) == first
    assert (seen[-1].kept, seen[-1].done) == (4, 0)
    more = followed(trial(tmp_path), tmp_path, {0, 1, 2, 3}, seen)
    assert (seen[-1].kept, seen[-1].done) == (4, 4)
    assert [point for point in more if point["round"] in (0, 2)] == first
    with Store(tmp_path / "run", create=False) as store:
        trainings = [each for each in store.entries(Status.DONE) if each.kind == "training"]
        assert sorted((each.found or {})["rounds"] for each in trainings) == [0, 1, 2, 3]


def test_a_round_on_the_way_begins_where_the_one_before_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[int | None, int]] = []
    run = Trained.run

    def watched(self: Trained, folder: Path, needed: Training | None = None, **how: Any) -> Training:
        begun.append((self.asked.round, len(needed.history) if needed else 0))
        return run(self, folder, needed, **how)

    monkeypatch.setattr(Trained, "run", watched)
    points = followed(trial(tmp_path), tmp_path, {1, 2, 3})
    trained = [each for each in dict.fromkeys(begun) if each[1]]
    assert trained == [(2, 1), (3, 2)]
    whole = train(federation_of(trial(tmp_path)))
    assert points[-1]["accuracy"] == whole.history[-1]["accuracy"]


def federation_of(one: Trial) -> Federation:
    assert one.training
    made = one.training.prepare()
    assert isinstance(made, Trained)
    return made.federation


def test_rounds_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no round 4"):
        followed(trial(tmp_path), tmp_path, {0, 4})
    assert not list((tmp_path / "run" / "trials").iterdir())


def test_a_training_that_ends_early_is_attacked_where_it_ended(tmp_path: Path) -> None:
    one = trial(tmp_path, EARLY)
    for _ in range(2):
        points = followed(one, tmp_path, {0, 48, 50})
        last = points[-1]["round"]
        assert 2 < last < 48
        told = [(point["round"], point.get("instead_of")) for point in points]
        assert told == [(0, None), (0, None), (last, [48, 50]), (last, [48, 50])]
    with Store(tmp_path / "run", create=False) as store:
        assert sum(each.kind == "audit" for each in store.entries()) == 4  # what ended is attacked once
    assert all("instead_of" not in point for point in followed(one, tmp_path, {0, last}))


def test_a_clients_trained_lock_is_what_its_update_shows() -> None:
    """The server's model with the client's scale and shift gives the same output as the client's own."""
    task = federation(defenses.KeyLock(key=8), rounds=2, lr=0.05)
    found = train(task)
    defense = as_audited(task, found)
    model = defense.on_model(task.model, task.dataset.shape)
    target = task.target(model)
    drawn = defense.draw(target, 1, torch.Generator())
    images = task.dataset.images("test", range(5))
    seen = torch.func.functional_call(model, dict(drawn), (images,))
    own = task.template.eval()
    own.load_state_dict({**found.state, **found.private[0]})
    from dosimeter.federated.client import client_secrets, set_secrets

    set_secrets(own, client_secrets(task, task.target(own), 0))
    assert torch.allclose(seen, own(images), atol=1e-5)


def test_an_audit_of_the_start_leaves_the_start_alone() -> None:
    task = federation(rounds=1)
    before = task.initial()
    as_audited(task, Training({name: tensor + 1 for name, tensor in before.items()}, {}, []))
    assert all(torch.equal(before[name], tensor) for name, tensor in task.initial().items())


def test_pages_are_whole_and_ask_nothing_of_the_network(tmp_path: Path) -> None:
    task, points = federation(rounds=2), followed(trial(tmp_path), tmp_path, {0, 2})
    leaks = kept.write(tmp_path / "leaks", "leakage", about="<b>a model</b>", command="a <command>", points=points)
    histories = {"0": train(task).history}
    rounds = kept.write(tmp_path / "rounds", "training", about="a model", command="", histories=histories)
    for page in (leaks, rounds):
        text = page.read_text()
        assert "</html>" in text
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "<svg" in text
        shown = re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)
        assert "nan" not in shown.lower().replace("finance", "")
    assert "&lt;b&gt;a model" in leaks.read_text()
    assert "a &lt;command&gt;" in leaks.read_text()
