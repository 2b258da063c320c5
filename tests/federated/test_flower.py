"""Our federations as Flower apps, in this process: the same clients, the same weights."""

import importlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from safetensors.torch import load_file

from dosimeter import federated
from dosimeter.errors import OutputError, SettingError
from dosimeter.federated.checkpoint import read_history
from dosimeter.flower import Rounds, Setup, client_app, read_kept, run_here, server_app

SMALL = "mlp:width=16,depth=1"


def both(setup: Setup) -> tuple[federated.Training, dict[str, torch.Tensor], list[dict[str, object]]]:
    """The end of a training in this process and of the same on Flower."""
    federation = setup.federation()
    expected = federated.train(federation, workers=1, progress=False)
    run_here(server_app(setup), client_app(setup), nodes=federation.protocol.clients)
    return expected, load_file(Path(setup.out) / "model.safetensors"), read_history(Path(setup.out))["rounds"]


@pytest.mark.parametrize(
    ("model", "protocol", "defense"),
    [
        (SMALL, "ppp:clients=3,rounds=3,batch_size=8", "none"),
        (SMALL, "fedsgd:clients=4,rounds=4,share=0.5,batch_size=8", "noise:sigma=0.01"),
        (SMALL, "ppp:clients=3,rounds=2,batch_size=8,perturbed=update,alpha=1.0", "noise:sigma=0.01|prune:ratio=0.5"),
        (SMALL, "ppp:clients=2,rounds=2,batch_size=8", "precode"),
        ("lenet-bn", "ppp:clients=4,rounds=3,share=0.5,batch_size=8", "fedkl:key=8"),
        (SMALL, "ppp:clients=3,rounds=6,batch_size=8,lr=0.1,validation=0.2,patience=1", "none"),
        (SMALL, "fedkl-central:rounds=3,batch_size=16", "none"),
    ],
)
def test_flower_ends_where_rounds_in_this_process_do(
    model: str, protocol: str, defense: str, digits: str, tmp_path: Path
) -> None:
    setup = Setup(model=model, data=digits, protocol=protocol, defense=defense, seed=3, out=str(tmp_path))
    expected, found, history = both(setup)
    assert found.keys() == expected.state.keys()
    for name, tensor in expected.state.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=1e-6)
    assert len(history) == len(expected.history)
    for here, there in zip(expected.history, history, strict=True):
        for key in ("round", "clients", "steps"):
            assert there[key] == here[key]
        for key in ("accuracy", "loss", "train_loss", "validation_loss", "random_key"):
            assert there.get(key) == pytest.approx(here.get(key), abs=1e-5), key


def test_flower_leaves_out_the_same_batches_of_one(digits: str, tmp_path: Path) -> None:
    """20 images each, which are 19 and one that batch norm cannot train on."""
    file = tmp_path / "mine.py"
    layers = "nn.Flatten(), nn.Linear(784, 4), nn.BatchNorm1d(4), nn.Linear(4, 10)"
    file.write_text(f"from torch import nn\n\ndef make():\n    return nn.Sequential({layers})\n")
    protocol = "ppp:clients=3,rounds=2,batch_size=19"
    expected, found, history = both(Setup(model=f"{file}:make", data=digits, protocol=protocol, out=str(tmp_path)))
    for name, tensor in expected.state.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=1e-6)
    assert [(entry["steps"], entry["left_out"]) for entry in history] == [(1, 3), (1, 3)]


def test_private_weights_stay_in_the_state_of_their_client(digits: str, tmp_path: Path) -> None:
    setup = Setup(
        model="lenet-bn",
        data=digits,
        protocol="ppp:clients=2,rounds=2,batch_size=16",
        defense="fedkl:key=8",
        keep=str(tmp_path),
    )
    grid = run_here(server_app(setup), client_app(setup), nodes=2)
    federation = setup.federation()
    expected = federated.train(federation, workers=1, progress=False).private
    for client, context in enumerate(grid.contexts.values()):
        own = context.state.array_records["private"].to_torch_state_dict()
        assert own.keys() == federation.private
        for name, tensor in own.items():
            torch.testing.assert_close(tensor, expected[client][name], atol=1e-6, rtol=1e-6)
    for kept in read_kept(tmp_path):
        assert not kept.after.keys() & federation.private


def test_a_run_config_has_the_last_word(digits: str) -> None:
    told = Setup(seed=1).told({"data": digits, "defense": "noise:sigma=0.5", "timeout": 5})
    assert (told.data, told.defense, told.timeout, told.seed) == (digits, "noise:sigma=0.5", 5, 1)
    assert told.federation() is replace(told, out="elsewhere").federation()


@pytest.mark.parametrize(
    ("config", "said"),
    [({"modle": "cnn"}, "model"), ({"seed": "three"}, "int"), ({"seed": True}, "int"), ({"tested": 1}, "bool")],
)
def test_words_that_cannot_work_are_refused(config: dict[str, object], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Setup().told(config)


def test_nodes_that_are_no_client_are_left_out(digits: str, tmp_path: Path) -> None:
    """A third node of a federation of two cannot say which client it is; the training goes on without it."""
    setup = Setup(model=SMALL, data=digits, protocol="ppp:clients=2,rounds=1,batch_size=8", out=str(tmp_path))
    run_here(server_app(setup), client_app(setup), nodes=3)
    assert [entry["clients"] for entry in read_history(tmp_path)["rounds"]] == [2]


GARBAGE = {
    "nothing": RecordDict(),
    "no arrays": RecordDict({"metrics": MetricRecord({"num-examples": 1, "partition-id": 0})}),
    "bytes": RecordDict({"arrays": ArrayRecord({"w": Array("float13", (2,), "numpy.ndarray", b"junk")})}),
    "other figures": RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"num-examples": [1, 2]})}),
}


@pytest.mark.parametrize("what", GARBAGE)
@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_a_garbage_reply_is_left_out_of_its_round(
    kind: str, what: str, digits: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    share = ",share=0.7" if kind == "query" else ""
    protocol = f"ppp:clients=3,rounds=2,batch_size=8,validation=0.2{share}"
    setup = Setup(model=SMALL, data=digits, protocol=protocol, out=str(tmp_path))
    app = client_app(setup)

    def one_is_hostile(message: Message, context: Context) -> Message:
        hostile = context.node_config["partition-id"] == 0 and message.metadata.message_type.startswith(kind)
        return Message(GARBAGE[what], reply_to=message) if hostile else app(message, context)

    run_here(server_app(setup), one_is_hostile, nodes=3)  # type: ignore[arg-type]
    rounds = read_history(tmp_path)["rounds"]
    assert len(rounds) == 2
    assert {entry["clients"] for entry in rounds} == {"train": {2}, "evaluate": {3}, "query": {1, 2}}[kind]
    assert all("validation_loss" in entry for entry in rounds)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("node 1000 " in line for line in said)


def test_an_out_that_cannot_be_written_is_said_before_the_first_round(digits: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    setup = Setup(model=SMALL, data=digits, protocol="ppp:clients=2,rounds=1", out=str(tmp_path / "file" / "run"))
    with pytest.raises(OutputError, match="choose another out"):
        Rounds(setup)


def test_a_missing_flower_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dosimeter.federated.flower")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"pip install 'dosimeter\[flower\]'"):
        importlib.import_module("dosimeter.federated.flower")
