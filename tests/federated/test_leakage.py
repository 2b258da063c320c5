"""The same victims at several rounds of a training, by honest and dishonest servers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dosimeter import clients, defenses, pick, presets, servers
from dosimeter.auditing import Audit, perform
from dosimeter.errors import OutputError, SettingError
from dosimeter.federated import Federation, Training, as_audited, train
from dosimeter.federated import leakage as module
from dosimeter.federated.leakage import Point, follow, update_norms
from dosimeter.reports import kept
from small_federation import federation


def audit(task: Federation, steps: int = 5, victims: int = 3) -> Audit:
    return Audit(model=task.model, victims=pick(task.dataset, victims), attack=presets.inverting_gradients(steps=steps))


def followed(task: Federation, folder: str | Path, at: set[int], steps: int = 5) -> list[Point]:
    tampers = [servers.Honest(), servers.PermutedRows()]
    return follow(task, audit(task, steps), at=at, servers=tampers, folder=folder)


def test_a_point_is_the_audit_of_the_model_at_that_round(tmp_path: Path) -> None:
    task = federation(rounds=3, lr=0.01)
    points = followed(task, tmp_path, {0, 2, 3})
    assert [(point["round"], point["server"]) for point in points] == [
        (round_, server) for round_ in (0, 2, 3) for server in ("honest", "permuted-rows")
    ]
    trained = train(replace(task, protocol=replace(task.protocol, rounds=2)))
    model = task.template.__class__(*task.template)  # the same layers
    model.load_state_dict(trained.state)
    result = perform(replace(audit(task), model=model))
    assert points[2]["ssim"] == pytest.approx(result.scores["ssim"].mean, abs=1e-6)
    assert points[2]["accuracy"] == trained.history[-1]["accuracy"]


def test_norms_are_those_of_the_gradients(tmp_path: Path) -> None:
    task = federation(rounds=1)
    victims = pick(task.dataset, 10)
    norms = update_norms(audit(task, victims=10))
    target = task.target(task.template.eval())
    for at, norm in enumerate(norms):
        gradient = clients.gradient(target, victims.images[at], victims.labels[at])
        assert norm == pytest.approx(float(torch.cat([g.flatten() for g in gradient.values()]).norm()), rel=1e-4)


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = federation(rounds=2)
    first = followed(task, tmp_path, {0, 2})
    done = json.loads((tmp_path / "leakage.json").read_text())
    done["found"].popitem()
    (tmp_path / "leakage.json").write_text(json.dumps(done))
    ran: list[str] = []
    monkeypatch.setattr(module, "perform", lambda *a, **k: ran.append("audit") or perform(*a, **k))
    again = followed(task, tmp_path, {0, 2})
    assert ran == ["audit"]
    assert [point["ssim"] for point in again] == [point["ssim"] for point in first]
    with pytest.raises(OutputError, match="another attack"):
        followed(task, tmp_path, {0, 2}, steps=6)


def test_rounds_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no round 4"):
        followed(federation(rounds=3), tmp_path / "run", {0, 4})
    assert not (tmp_path / "run").exists()


def test_a_training_that_ends_early_is_attacked_where_it_ended(tmp_path: Path) -> None:
    task = federation(validation=0.25, patience=2, rounds=50, lr=0.2)
    last = len(train(task).history)
    assert 2 < last < 49
    for points in (followed(task, tmp_path, {0, 48, 50}), followed(task, str(tmp_path), {0, 48, 50})):  # and again
        told = [(point["round"], point.get("instead_of")) for point in points]
        assert told == [(0, None), (0, None), (last, [48, 50]), (last, [48, 50])]
    assert all("instead_of" not in point for point in followed(task, tmp_path, {0, last}))


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
    task = federation(rounds=2)
    points = followed(task, tmp_path / "run", {0, 2})
    leaks = kept.write(tmp_path / "leaks", "leakage", about="<b>a model</b>", command="a <command>", points=points)
    histories = {"0": train(task).history}
    rounds = kept.write(tmp_path / "rounds", "training", about="a model", command="", histories=histories)
    for page in (leaks, rounds):
        text = page.read_text()
        assert "</html>" in text
        assert "http://" not in text.replace("http://www.w3.org", "")
        assert "<svg" in text
        assert "nan" not in text.lower().replace("finance", "")
    assert "&lt;b&gt;a model" in leaks.read_text()
    assert "a &lt;command&gt;" in leaks.read_text()
