"""Apps that are not ours: a defense around their clients, what their server sees, and the attack on that."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Result, Strategy
from safetensors import safe_open
from torch import Tensor, nn

from dosimeter import defenses, presets
from dosimeter.errors import DataError, SettingError, UpdateError
from dosimeter.flower import Beside, Here, Keep, audit, defend, read_kept, run_here
from dosimeter.types import Victims

RATE = 0.1


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16, momentum=0.5), nn.Linear(16, 4)).eval()


def images(client: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(client)
    return torch.rand(1, 1, 8, 8, generator=rng), torch.tensor([client % 4])


def users_client(
    mods: list[Mod] | None = None, fails: int | None = None, plain: bool = False, steps: int = 1, momentum: float = 0.0
) -> ClientApp:
    """Steps on one image, as somebody else would write them; `plain` sends arrays without names."""
    app = ClientApp(mods=mods)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        if client == fails:
            raise RuntimeError("out of battery")
        model = make()
        names = list(model.state_dict())
        arrays = message.content.array_records["arrays"].to_numpy_ndarrays()
        message.content.array_records["arrays"].clear()  # as apps do to save memory
        model.load_state_dict({name: torch.from_numpy(a) for name, a in zip(names, arrays, strict=True)})
        x, y = images(client)
        rule = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
        for _ in range(steps):
            rule.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(x), y))
            rule.step()
        state = model.state_dict()
        sent = ArrayRecord([t.numpy() for t in state.values()]) if plain else ArrayRecord(state)
        figures = MetricRecord({"num-examples": len(x), "client": client})
        return Message(RecordDict({"arrays": sent, "metrics": figures}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def users_server(strategy: Strategy, results: list[Result], rounds: int = 2, plain: bool = False) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        state = make().state_dict()
        first = ArrayRecord([t.numpy() for t in state.values()]) if plain else ArrayRecord(state)
        results.append(strategy.start(grid, first, num_rounds=rounds))

    return app


def ended(strategy: Strategy, client: ClientApp, rounds: int = 2) -> dict[str, Tensor]:
    results: list[Result] = []
    run_here(users_server(strategy, results, rounds), client, nodes=3)
    return dict(results[0].arrays.to_torch_state_dict())


@pytest.mark.parametrize("make_strategy", [FedAvg, FedAvgM, FedAdam])
def test_keeping_changes_nothing(make_strategy: Callable[[], Strategy], tmp_path: Path) -> None:
    plain = ended(make_strategy(), users_client())
    kept = ended(Keep(make_strategy(), tmp_path), users_client())
    for name, tensor in plain.items():
        torch.testing.assert_close(kept[name], tensor, atol=1e-6, rtol=1e-6)
    assert len(list(read_kept(tmp_path))) == 6


def test_the_mean_of_what_was_kept_is_what_the_next_round_begins_with(tmp_path: Path) -> None:
    end = ended(Keep(FedAvg(), tmp_path), users_client())
    found = list(read_kept(tmp_path))
    assert [each.round for each in found] == [1, 1, 1, 2, 2, 2]
    for round_, after in ((1, found[3].before), (2, end)):
        sent = [each.after for each in found if each.round == round_]
        for name, tensor in after.items():
            mean = torch.stack([state[name].double() for state in sent]).mean(0)
            torch.testing.assert_close(tensor.double(), mean, atol=1e-6, rtol=1e-6)
    assert all(each.examples == 1 for each in found)
    assert sorted(each.metrics["client"] for each in found[:3]) == [0, 1, 2]
    assert not list(tmp_path.rglob("*.draft"))


def test_partial_participation_and_failures_are_kept_as_they_are(tmp_path: Path) -> None:
    strategy = FedAvg(fraction_train=0.5, min_train_nodes=1, fraction_evaluate=0.0)
    ended(Keep(strategy, tmp_path / "part"), users_client())
    assert [each.round for each in read_kept(tmp_path / "part")] == [1, 2]
    ended(Keep(FedAvg(), tmp_path / "fails"), users_client(fails=1), rounds=1)
    assert {each.metrics["client"] for each in read_kept(tmp_path / "fails")} == {0, 2}
    told = json.loads((tmp_path / "fails" / "round-1" / "round.json").read_text())["replies"]
    assert [entry["error"] for entry in told if "error" in entry] == ["RuntimeError: out of battery"]


def test_a_wrapped_strategy_keeps_its_own_attributes(tmp_path: Path) -> None:
    assert Keep(FedAvg(fraction_train=0.25), tmp_path).fraction_train == 0.25


def test_a_place_that_cannot_be_written_is_said_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    found = ended(Keep(FedAvg(), tmp_path / "file"), users_client())
    for name, tensor in ended(FedAvg(), users_client()).items():
        torch.testing.assert_close(found[name], tensor, atol=1e-6, rtol=1e-6)
    assert warned(caplog, "Not a directory") == 4  # what is sent and what comes back in each of two rounds


def warned(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records if record.levelname == "WARNING")


class Tolerant(FedAvg):
    """Leaves out what it cannot use, as somebody's careful strategy would."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        whole = [r for r in replies if r.has_content() and r.content.array_records.keys() == {"arrays"}]
        return super().aggregate_train(server_round, whole[:1])


@pytest.fixture(autouse=True)
def _inside_a_server() -> None:
    """Messages can be made in a process that has a grid."""
    Here(users_client(), 1)


def reply_of(node: int, content: RecordDict | Error) -> Message:
    told = Message(RecordDict(), dst_node_id=node, message_type="train")
    told.metadata.__dict__["_message_id"] = "asked"
    return Message(content, reply_to=told)


def told_of(node: int, **records: ArrayRecord) -> Message:
    return reply_of(node, RecordDict({**records, "metrics": MetricRecord({"num-examples": 1})}))


BEFORE = ArrayRecord(make().state_dict())
GOOD = ArrayRecord({name: t + 0.1 if t.is_floating_point() else t for name, t in make().state_dict().items()})


def one_round(strategy: Strategy, *replies: Message) -> ArrayRecord | None:
    """What a strategy makes of these in its first round."""
    list(strategy.configure_train(1, BEFORE, ConfigRecord(), Here(users_client(), 3)))
    return strategy.aggregate_train(1, replies)[0]


def test_no_name_of_a_message_becomes_a_path(tmp_path: Path) -> None:
    folder, aim = tmp_path / "a" / "b" / "kept", tmp_path / "global_model.safetensors"
    aim.write_text("mine")
    hostile = ["/../../../global_model", "/../before", "arrays", "x" * 5000, "a\0b"]
    reply = reply_of(7, RecordDict({name: ArrayRecord({"w": Array(np.ones(2))}) for name in hostile}))
    one_round(Keep(Tolerant(), folder), reply, told_of(5, arrays=GOOD))
    assert aim.read_text() == "mine"
    expected = ["before", "node-5", "node-7", *(f"node-7.{number}" for number in range(1, 5))]
    assert sorted(path.stem for path in tmp_path.rglob("*.safetensors") if path != aim) == expected
    first, second = read_kept(folder)
    assert (first.node, second.node) == (5, 7)
    assert first.before.keys() == first.after.keys()  # the other's /../before did not take its place
    with safe_open(folder / "round-1" / "node-7.1.safetensors", "pt") as file:
        assert file.metadata() == {"record": "/../before"}
    assert {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()} == {0o600}


@pytest.mark.parametrize("name", ["../outside.safetensors", "{}/outside.safetensors", "./node-5.safetensors"])
def test_no_name_of_an_index_is_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "kept"
    one_round(Keep(Tolerant(), folder), told_of(5, arrays=GOOD))
    shutil.copy(folder / "round-1" / "before.safetensors", folder / "outside.safetensors")
    path = folder / "round-1" / "round.json"
    told = json.loads(path.read_text())
    told["replies"][0]["files"] = [name.format(folder)]
    path.write_text(json.dumps(told))
    with pytest.raises(DataError, match="not whole"):
        list(read_kept(folder))


class Personal(Tolerant):
    """Sends every node weights of its own."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        state = make().state_dict()
        for node in grid.get_node_ids():
            own = ArrayRecord({name: torch.full_like(t, node) for name, t in state.items()})
            yield Message(RecordDict({"arrays": own}), dst_node_id=node, message_type="train")


def test_what_a_node_was_sent_is_what_its_update_begins_from(tmp_path: Path) -> None:
    nodes = (1000, 1001)
    one_round(Keep(Personal(), tmp_path), *(told_of(node, arrays=GOOD) for node in nodes))
    assert [float(kept.before["1.bias"][0]) for kept in read_kept(tmp_path)] == list(nodes)
    one_round(Keep(Tolerant(), tmp_path), *(told_of(node, arrays=GOOD) for node in nodes))  # nothing of it stays
    assert all(torch.equal(kept.before["1.bias"], make().state_dict()["1.bias"]) for kept in read_kept(tmp_path))


GARBAGE = {
    "an error": Error(3, "out of battery"),
    "nothing": RecordDict(),
    "no arrays": RecordDict({"metrics": MetricRecord({"num-examples": 1})}),
    "no tensors": RecordDict({"arrays": ArrayRecord()}),
    "a broken type": RecordDict({"arrays": ArrayRecord({"w": Array("float13", (2,), "numpy.ndarray", b"junk")})}),
    "bytes": RecordDict({"arrays": ArrayRecord({"w": Array("float32", (2,), "pickle", b"junk")})}),
    "words": RecordDict({"arrays": ArrayRecord({"w": Array(np.array(["a", "b"]))})}),
    "a name that is the header's": RecordDict({"arrays": ArrayRecord({"__metadata__": Array(np.ones(2))})}),
    "a huge name": RecordDict({"arrays": ArrayRecord({"w" * 110_000_000: Array(np.ones(2))})}),
    "other shapes": RecordDict({"arrays": ArrayRecord({name: Array(np.ones(3)) for name in make().state_dict()})}),
    "no count": RecordDict({"arrays": GOOD, "metrics": MetricRecord({"num-examples": [-1.0, 2.0]})}),
    "not numbers": RecordDict({"arrays": ArrayRecord({k: t * torch.nan for k, t in make().state_dict().items()})}),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_garbage_reply_stops_neither_training_nor_the_audit_of_the_others(
    what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = GARBAGE[what]
    assert one_round(Keep(Tolerant(), tmp_path), told_of(5, arrays=GOOD), reply_of(6, content)) is not None
    told = json.loads((tmp_path / "round-1" / "round.json").read_text())["replies"]
    assert [entry["node"] for entry in told] == [5, 6]
    found = audit(tmp_path, make(), attack=presets.analytic(), shape=(1, 8, 8), step="local:steps=1,lr=1")
    assert [each.node for each in found.entries if each.finding] == [5]
    refused = [each.left_out for each in found.entries if each.node == 6]
    assert bool(refused) == bool(told[1]["files"]), refused
    assert found.verdict.doubt


def truths(folder: Path) -> dict[tuple[int, int], Victims]:
    """What the clients of `users_client` trained on."""
    return {(kept.round, kept.node): one_victim(*images(int(kept.metrics["client"]))) for kept in read_kept(folder)}


def one_victim(x: Tensor, y: Tensor) -> Victims:
    return Victims(x[None], y[None], torch.arange(len(x))[None], ("own",))


@pytest.mark.parametrize("plain", [False, True])
def test_images_are_read_out_of_kept_updates(plain: bool, tmp_path: Path) -> None:
    run_here(users_server(Keep(FedAvg(), tmp_path), [], 1, plain), users_client(plain=plain), nodes=3)
    how = {"attack": presets.analytic(), "shape": (1, 8, 8), "step": f"local:steps=1,lr={RATE}"}
    found = audit(tmp_path, make(), beside=Beside(truth=truths(tmp_path)), **how)  # type: ignore[arg-type]
    assert [each.client for each in found.entries] == ["client 0", "client 1", "client 2"]
    assert all(each.ssim and each.ssim > 0.999 and each.certain == 1 for each in found.entries)
    assert (found.verdict.kind, found.verdict.doubt) == ("leaks", "")


def test_images_are_read_out_of_several_local_steps_with_momentum(tmp_path: Path) -> None:
    strategy = Keep(FedAvg(fraction_train=0.34, min_train_nodes=1, fraction_evaluate=0.0), tmp_path)
    run_here(users_server(strategy, [], 1), users_client(steps=4, momentum=0.9), nodes=3)
    attack = presets.inverting_gradients(steps=150, tv=0.0, labels="idlg", distance="l2", signed=False)
    step = f"local:steps=4,lr={RATE},momentum=0.9"
    found = audit(tmp_path, make(), attack=attack, shape=(1, 8, 8), step=step, beside=Beside(truth=truths(tmp_path)))
    (one,) = found.entries  # a share of three
    assert one.trained == "4 steps at lr 0.1, momentum 0.9"
    assert one.ssim is not None
    assert one.ssim > 0.8
    other = audit(
        tmp_path,
        make(),
        attack="labels",
        shape=(1, 8, 8),
        step="local:steps=1,lr=0.1",
        beside=Beside(truth=truths(tmp_path)),
    )
    assert "not what the truth gives by this training" in other.verdict.doubt


def test_a_defended_client_sends_what_the_defense_makes_of_its_change(tmp_path: Path) -> None:
    defense = defenses.Pruning(ratio=0.9) | defenses.GaussianNoise(sigma=0.0)
    ended(Keep(FedAvg(), tmp_path / "plain"), users_client(), rounds=1)
    ended(Keep(FedAvg(), tmp_path / "defended"), users_client([defend(defense)]), rounds=1)
    by_client = [{k.metrics["client"]: k for k in read_kept(tmp_path / name)} for name in ("plain", "defended")]
    for client, plain in by_client[0].items():
        change = plain.update(make())
        expected = defense.on_gradient(change, defenses.Moment(), torch.Generator())
        defended = by_client[1][client].update(make())
        for name, tensor in expected.items():
            torch.testing.assert_close(defended[name], tensor, atol=1e-6, rtol=0)
        assert sum(int((t == 0).sum()) for t in defended.values()) > sum(int((t == 0).sum()) for t in change.values())


def test_noise_is_new_every_time_unless_a_seed_is_given(tmp_path: Path) -> None:
    def change(name: str, seed: int | None) -> Tensor:
        mods = [defend(defenses.GaussianNoise(sigma=1.0), seed=seed)]
        ended(Keep(FedAvg(), tmp_path / name), users_client(mods), rounds=2)
        return torch.stack([kept.after["1.weight"] for kept in read_kept(tmp_path / name)][:1])

    assert torch.equal(change("a", 1), change("b", 1))
    assert not torch.equal(change("c", 1), change("d", 2))
    assert not torch.equal(change("e", None), change("f", None))
    found = list(read_kept(tmp_path / "a"))
    noise = [each.before["1.weight"] - each.after["1.weight"] for each in found]
    assert all(not torch.equal(noise[0], other) for other in noise[1:])  # no two clients or rounds share a draw
    assert torch.equal(found[0].after["2.running_mean"], make().state_dict()["2.running_mean"])


@pytest.mark.parametrize("defense", [defenses.Precode(), defenses.DpSgd(), defenses.KeyLock(), defenses.Soteria()])
def test_defenses_that_change_the_training_are_refused(defense: defenses.Defense) -> None:
    with pytest.raises(SettingError):
        defend(defense)


def test_a_folder_without_rounds_and_a_model_of_another_form_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found none"):
        list(read_kept(tmp_path))
    ended(Keep(FedAvg(), tmp_path), users_client(), rounds=1)
    with pytest.raises(UpdateError, match="the model that the app trains"):
        next(read_kept(tmp_path)).update(nn.Linear(2, 2))
    (tmp_path / "round-1" / "before.safetensors").write_bytes(b"no tensors")
    with pytest.raises(DataError, match="not whole"):
        list(read_kept(tmp_path))


def test_the_quickstart_gives_its_images_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "examples" / "flower_quickstart"
    monkeypatch.syspath_prepend(folder)
    from quickstart.client_app import app as client
    from quickstart.server_app import app as server

    words = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    run_here(server, client, nodes=3, config=words | {"rounds": 1, "kept": str(tmp_path)})
    command = [sys.executable, str(folder / "audit.py"), str(tmp_path), "--steps", "60"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert "The updates leak: " in done.stdout, done.stdout + done.stderr
    assert len(re.findall(r"round 1, client \d: SSIM 0.\d\d", done.stdout)) == 3, done.stdout
