"""Sweeps on a Ray cluster of two nodes: what comes of them is what comes of a sweep in this process."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is an extra of its own")

from dosimeter.errors import SettingError
from dosimeter.sweeps import Progress, Status, Store, Trial, cluster, packing, product_of, sweep
from stores import contents

TASK = {"model": "lenet", "attack": "ig", "steps": 2, "victims": 2}

OWN = """
import os, time
from dosimeter.defenses import NoDefense

class Slow(NoDefense):
    def on_gradient(self, gradient, moment, rng):
        with open({log!r}, "a") as log:
            log.write(f"{{os.getppid()}}:{{os.path.exists('mine.npz')}}\\n")  # which workers have not
        time.sleep(1.5)
        return gradient

class Broken(NoDefense):
    def on_gradient(self, gradient, moment, rng):
        raise ZeroDivisionError("mine")
"""

QUICK = {  # a lost node is noticed in a second and not in fifteen
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "500",
    "RAY_health_check_failure_threshold": "2",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


class Nodes(NamedTuple):
    address: str  # of the cluster
    client: int  # the port for drivers elsewhere
    second: int  # the process that is the second node


def _processes(*words: str) -> list[int]:
    """All whose command line has one of these words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(word in line for word in words):
            found.append(int(path.parent.name))
    return found


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.2", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two of one core each, on this machine; Ray takes 127.0.0.1 for the machine's address in its network."""
    place = tempfile.mkdtemp(prefix="r", dir="/tmp")  # sockets want a short path
    port, client = _free_port(), _free_port()
    address = f"127.0.0.2:{port}"
    both = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
    head = ["--head", f"--port={port}", f"--temp-dir={place}", "--node-ip-address=127.0.0.2"]
    head += [f"--ray-client-server-port={client}", "--include-dashboard=false"]
    try:
        for each in (head, [f"--address={address}", "--node-ip-address=127.0.0.3"]):
            words = [sys.executable, "-m", "ray.scripts.scripts", "start", *each, *both]
            subprocess.run(words, env=os.environ | QUICK, check=True, capture_output=True, timeout=90)
        raylets = _processes(f"--raylet_socket_name={place}")
        (second,) = (each for each in raylets if b"sockets/raylet.1\0" in Path(f"/proc/{each}/cmdline").read_bytes())
        yield Nodes(address, client, second)
    finally:
        for each in _processes(place, address):
            os.kill(each, signal.SIGKILL)
        shutil.rmtree(place, ignore_errors=True)


def test_models_data_and_weights_are_sent_once() -> None:
    sent: list[bytes] = []

    def put(content: bytes) -> int:
        sent.append(content)
        return len(sent) - 1

    packer = packing.Packer(put)
    items = [each.prepare() for each in product_of(TASK | {"defense": "noise:sigma=0.1+1+10"})]
    packed = [packer.pack(each.loaded()) for each in items]
    many = len(sent)
    again = packer.pack(Trial(**TASK | {"attack": "idlg"}).prepare().loaded())
    assert len(sent) == many  # the same victims, decoys and model
    assert len({tuple(each.apart) for each in [*packed, again]}) == 1
    assert max(len(each.body) for each in packed) < 20_000 < sum(map(len, sent))
    one = packing.unpack(packed[0], sent.__getitem__)
    assert one.audit.victims.images.equal(items[0].audit.victims.images)


def test_trainings_are_shared_failures_kept_and_victims_cut(nodes: Nodes, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(OWN.format(log=str(tmp_path / "log")))
    trials = list(product_of(TASK | {"protocol": "ppp:rounds=1,clients=2", "attack": ["ig", "idlg"]}))
    trials.append(Trial(**TASK, defense=f"{own}:Broken"))
    trials.append(Trial(**TASK | {"victims": 5, "budget": 0.0016}))  # in tiles of fewer than five
    here, there = tmp_path / "here", tmp_path / "there"
    sweep(trials, store=here)
    shown: set[str] = set()
    on = f"ray:{nodes.address}"
    found = sweep(trials, store=there, on=on, shards=2, told=lambda progress: shown.update(progress.running))
    assert [row["status"] for row in found.rows] == ["done", "done", "failed", "done"]
    assert any("shard 2 of 2" in each for each in shown)
    assert contents(there) == contents(here)
    with Store(there) as store:
        (failed,) = store.entries(Status.FAILED)
        assert "ZeroDivisionError: mine" in (failed.why or "")


def test_ctrl_c_gives_back_what_was_begun(nodes: Nodes, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.running:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        sweep(TASK | {"seed": [0, 1, 2]}, store=tmp_path / "store", on=f"ray:{nodes.address}", told=stop)
    with Store(tmp_path / "store") as store:
        assert store.entries() == []


def test_a_driver_may_be_elsewhere(nodes: Nodes, tmp_path: Path) -> None:
    for name, on in (("here", "here"), ("there", f"ray://127.0.0.2:{nodes.client}")):
        sweep(TASK, store=tmp_path / name, on=on)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_what_a_cluster_cannot_run_is_said(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = f"ray:{nodes.address}"
    with monkeypatch.context() as patched:
        patched.setattr(cluster.fingerprint, "code", lambda: "dosimeter of tomorrow")
        with pytest.raises(SettingError, match="Expected dosimeter of tomorrow on every node of the Ray cluster, got"):
            sweep(TASK, store=tmp_path / "store", on=on)
    with Store(tmp_path / "store") as store:
        assert store.entries() == []
    monkeypatch.setattr(cluster, "PROGRAM", 2**60)
    found = sweep(TASK, store=tmp_path / "store", on=on)
    assert "1 core, 0 GPU and 1073741824.0" in found.rows[0]["why"]


def test_a_node_that_is_lost_loses_nothing(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # so that files are found from here alone
    own, log = tmp_path / "own.py", tmp_path / "log"
    own.write_text(OWN.format(log=str(log)))
    drawn = np.random.default_rng(0)
    images, labels = drawn.integers(0, 256, (200, 8, 8), dtype=np.uint8), np.arange(200) % 10
    np.savez("mine.npz", train_images=images, train_labels=labels, test_images=images[:20], test_labels=labels[:20])
    axes = TASK | {"data": "mine.npz", "defense": "own.py:Slow", "seed": range(4)}
    sweep(axes, store=tmp_path / "here")
    alone = len(log.read_text().split())
    log.write_text("")
    killed = []

    def kill(progress: Progress) -> None:
        if not killed and f"{nodes.second}:False" in log.read_text().split():
            os.kill(nodes.second, signal.SIGKILL)
            killed.append(progress.done)

    sweep(axes, store=tmp_path / "there", on=f"ray:{nodes.address}", told=kill)
    assert killed
    assert killed[0] < 4
    assert len(log.read_text().split()) > alone  # what the node was doing was begun anew
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    with Store(tmp_path / "there") as store:
        assert [len(store.records(each.digest)) for each in store.entries(Status.DONE)] == [2] * 4


def test_what_is_wrong_with_a_cluster_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[tuple[str, str]] = [
        (f"ray:127.0.0.2:{_free_port()}", "Expected a Ray cluster at"),
        (f"ray://127.0.0.2:{_free_port()}", "Connection refused"),
        ("rays", "here, local:2, ray or the address"),
    ]
    for on, says in refused:
        with pytest.raises(SettingError, match=says):
            sweep(TASK, store=tmp_path / "store", on=on)
    monkeypatch.delitem(sys.modules, "dosimeter.sweeps.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingError, match=r"pip install 'dosimeter\[ray\]'"):
        sweep(TASK, store=tmp_path / "store", on="ray")
