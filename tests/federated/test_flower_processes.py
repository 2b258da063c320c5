"""The apps in processes on loopback: a SuperLink with two SuperNodes, and one that simulates its nodes with Ray."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file

from dosimeter import federated
from dosimeter.federated.checkpoint import read_history
from dosimeter.flower import Setup

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
"""Seconds after which a test gives up; far more than anything takes on a machine that is not overloaded."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def until(done: Callable[[], bool], what: str) -> None:
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < PATIENCE, f"{what} did not happen in {PATIENCE:g} s"
        time.sleep(0.1)


class Deployment:
    """Processes of one test, each at the head of a group of its own, which `stop` ends with all that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_ports(1)[0]
        home = folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n')
        self.env = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "UV_OFFLINE": "1",  # apps that name no dependencies need no index, though Flower asks uv to install them
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        log = (self.folder / f"log-{len(self.started)}.txt").open("wb")
        process = subprocess.Popen(
            words, env=self.env | env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, cwd=self.folder
        )
        log.close()
        self.started.append(process)
        return process

    def superlink(self, *more: str) -> None:
        self.start("flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port), *more)
        until(self._healthy, "the start of the SuperLink")

    def supernode(self, client: int, **env: str) -> subprocess.Popen[bytes]:
        where = ("--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_ports(1)[0]))
        return self.start(
            "flower-supernode", "--insecure", *where, "--node-config", f"partition-id={client} num-partitions=2", **env
        )

    def run(self, app: Path, words: dict[str, object], *more: str) -> None:
        config = " ".join(f"{key}={json.dumps(value)}" for key, value in words.items())
        command = ["flwr", "run", str(app), "here", "--run-config", config, *more]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=PATIENCE, cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("log-*.txt")))

    def stop(self) -> None:
        for process in reversed(self.started):
            kill(process)

    def _healthy(self) -> bool:
        assert self.started[-1].poll() is None, self.logs()
        try:
            return httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=1.0).is_success
        except httpx.HTTPError:
            return False


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a process that a test started and for its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    try:
        yield made
    except BaseException:
        sys.stderr.write(made.logs())
        raise
    finally:
        made.stop()


STALLING = """
import os, time
from dataclasses import dataclass
from pathlib import Path
from dosimeter.defenses import Defense


@dataclass(frozen=True, kw_only=True)
class Stall(Defense):
    def on_gradient(self, gradient, moment, rng):
        if place := os.environ.get("STALL_AT"):
            if Path(place).with_suffix(".armed").exists():
                Path(place).touch()
                time.sleep(3600)
        return gradient
"""


def finished(folder: Path) -> bool:
    return (folder / "model.safetensors").is_file()


def test_two_nodes_train_as_this_process_does_and_a_killed_one_takes_only_its_own_update_along(
    deployment: Deployment, digits: str, tmp_path: Path
) -> None:
    (tmp_path / "stall.py").write_text(STALLING)
    words: dict[str, object] = {
        "model": "mlp:width=16,depth=1",
        "data": digits,
        "protocol": "ppp:clients=2,rounds=1,batch_size=8",
        "defense": f"{tmp_path / 'stall.py'}:Stall",
    }
    app, stalled = ROOT / "examples" / "flower_federation", tmp_path / "stalled"
    deployment.superlink()
    deployment.supernode(0)
    doomed = deployment.supernode(1, STALL_AT=str(stalled))

    deployment.run(app, words | {"out": str(tmp_path / "whole")})
    until(lambda: finished(tmp_path / "whole"), "the end of the first run")
    federation = Setup(**words).federation()  # type: ignore[arg-type]
    expected = federated.train(federation, workers=1, progress=False)
    entry = read_history(tmp_path / "whole")["rounds"][0]
    assert entry["clients"] == 2
    _close(tmp_path / "whole", expected.state)

    stalled.with_suffix(".armed").touch()
    # What a round took in this run on this machine says how long a node that lives may take.
    timeout = 3.0 + 1.5 * entry["seconds"]
    deployment.run(app, words | {"out": str(tmp_path / "half"), "keep": str(tmp_path / "kept"), "timeout": timeout})
    until(stalled.is_file, "the middle of the second run's round")
    kill(doomed)
    until(lambda: finished(tmp_path / "half"), "the end of the second run")
    assert [entry["clients"] for entry in read_history(tmp_path / "half")["rounds"]] == [1]
    _close(tmp_path / "half", federated.fit(federation, federation.initial(), 0, 0).sent)
    assert len(list((tmp_path / "kept" / "round-1").glob("node-*.safetensors"))) == 1


def test_nodes_that_ray_simulates_train_as_this_process_does_and_the_quick_start_runs_as_printed(
    deployment: Deployment, digits: str, tmp_path: Path
) -> None:
    simulated = ("--federation-config", "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=2")
    deployment.superlink("--simulation")
    words: dict[str, object] = {
        "model": "lenet-bn",
        "data": digits,
        "protocol": "ppp:clients=3,rounds=2,share=0.7,batch_size=8",
        "defense": "fedkl:key=8",
        "tested": False,
    }
    out = tmp_path / "out"
    deployment.run(ROOT / "examples" / "flower_federation", words | {"out": str(out)}, *simulated)
    until(lambda: finished(out) and len(read_history(out)["rounds"]) == 2, "the end of the first run")
    federation = Setup(**words).federation()  # type: ignore[arg-type]
    _close(out, federated.train(federation, tested=(), workers=1, progress=False).state)

    app, kept = ROOT / "examples" / "flower_quickstart", tmp_path / "kept"
    deployment.run(app, {"rounds": 1, "kept": str(kept)}, *simulated)
    until((kept / "round-1" / "round.json").is_file, "the end of the quick start")
    line = re.search(r"^    dosimeter (audit --kept /tmp/kept .*)$", (ROOT / "docs/flower.md").read_text(), re.M)
    assert line is not None
    words_ = line[1].replace("/tmp/kept", str(kept)).replace("--steps 400", "--steps 2").split()
    command = ["dosimeter", *words_, "--out", str(tmp_path / "run")]
    done = subprocess.run(command, env=deployment.env, capture_output=True, text=True, timeout=PATIENCE, cwd=app)
    assert done.returncode == 0, done.stderr
    assert "3 updates of 3 clients" in done.stdout


def _close(folder: Path, expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in load_file(folder / "model.safetensors").items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=1e-6)
