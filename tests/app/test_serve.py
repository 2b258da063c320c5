"""The server by plain HTTP: who may ask, what is read, and what a form may start."""

import http.client
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from typer.testing import CliRunner

import many
from dosimeter.app import guard, serve
from dosimeter.app.jobs import DONE, FAILED, MOST, STOPPED, Jobs
from dosimeter.cli import app, explorer
from dosimeter.errors import SettingError
from dosimeter.reports.style import PALETTE

SECRET = b"\x89PNG what lies outside of the store"
TOKEN = "a token that nobody guesses"


class Answer:
    def __init__(self, found: http.client.HTTPResponse) -> None:
        self.status, self.body = found.status, found.read()
        self.headers = {key.lower(): value for key, value in found.getheaders()}


def ask(address: str, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Answer:
    """A request whose path is sent as it is."""
    link = http.client.HTTPConnection(urlsplit(address).netloc, timeout=20)
    link.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
    found = Answer(link.getresponse())
    link.close()
    return found


def test_a_picture_of_the_store_is_given(small: Path, served: Callable[..., str]) -> None:
    found = ask(served(small), f"/picture/{many.digest_of(59)}/victim-000-0-original.png")
    assert (found.status, found.headers["content-type"]) == (200, "image/png")
    assert "default-src 'none'" in found.headers["content-security-policy"]


def test_no_path_leads_out_of_the_store(small: Path, served: Callable[..., str], tmp_path: Path) -> None:
    digest, name = many.digest_of(59), "victim-000-0-original.png"
    outside = tmp_path / "outside"
    (outside / "images").mkdir(parents=True)
    for each in (tmp_path / "secret.png", outside / "images" / name, small / "trials" / name):
        each.write_bytes(SECRET)
    (small / "trials" / "abcdef01").symlink_to(outside)  # a whole trial
    (small / "trials" / digest / "images" / "victim-099-0-original.png").symlink_to(tmp_path / "secret.png")
    (small / "trials" / "abcdef02").mkdir()
    (small / "trials" / "abcdef02" / "images").symlink_to(outside / "images")
    address = served(small)
    paths = [
        f"/picture/{digest}/../../../../secret.png",
        f"/picture/{digest}/..%2f..%2f..%2f..%2fsecret.png",
        f"/picture/..%2f..%2f/{name}",
        f"/picture/../{name}",
        f"/picture/%2e%2e/{name}",
        f"/picture/abcdef01/{name}",
        f"/picture/abcdef02/{name}",
        f"/picture/{digest}/victim-099-0-original.png",
        f"/picture/{digest}/victim-000-0-original.png%00.png",
        f"/picture/{digest}//etc/passwd",
        "/assets/..%2fserve.py",
        "/assets/../serve.py",
        "/_dash-component-suites/dash/..%2f..%2f..%2fsecret.png",
        "/page/abcdef01/",
        "/page/..%2f..%2foutside/",
        f"/page/{digest}/attacks/..%2f..%2f..%2f../report.html",
    ]
    for path in paths:
        found = ask(address, path)
        assert SECRET not in found.body, path
        assert b"make_server" not in found.body, path
        assert found.status in (200, 404, 308), path  # 200 is the explorer itself, at whatever address
        if path.startswith("/picture"):
            assert found.status == 404 or b"react-entry-point" in found.body, path


def test_a_database_elsewhere_is_not_read(small: Path, served: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "trials.sqlite").symlink_to(small / "trials.sqlite")
    found = ask(served(tmp_path / "linked"), "/_dash-layout")
    assert found.status == 200
    assert b"leads out of it" in found.body
    assert many.digest_of(59).encode() not in found.body


def test_a_run_that_names_places_outside_or_is_damaged_is_not_read(small: Path, served: Callable[..., str]) -> None:
    folder, address = small / "trials" / many.digest_of(59), served(small)
    path = f"/page/{many.digest_of(59)}/"
    assert b"cannot be shown" in ask(address, path).body  # it has pictures alone
    (folder / "run.json").write_text("{")
    (folder / "records.json").write_text(json.dumps({"panel": [{"attack": "../../../x"}]}))
    assert b"expected the name of an attack" in ask(address, path).body
    (folder / "records.json").write_text("[" * 100_000)
    found = ask(address, path)
    assert found.status == 200
    assert b"damaged" in found.body
    (folder / "records.json").write_text("{}")
    found = ask(address, path)
    assert b"it is damaged" in found.body
    assert str(small).encode() not in found.body
    assert "sandbox" in found.headers["content-security-policy"]


def test_browsers_elsewhere_are_kept_out(small: Path, served: Callable[..., str]) -> None:
    address = served(small)
    assert ask(address, "/", Host="127.0.0.1").status == 200
    assert ask(address, "/", Host="localhost:80").status == 200
    assert ask(address, "/", Host="evil.example").status == 403, "a name that was made to lead here"
    json_ = {"Content-Type": "application/json"}
    assert ask(address, "/_dash-update-component", "POST", "{}", Origin="http://evil.example", **json_).status == 403
    assert ask(address, "/_dash-update-component", "POST", "{}", Origin="null", **json_).status == 403


def test_a_token_is_asked_for_before_anything_else(small: Path, served: Callable[..., str]) -> None:
    address, picture = served(small, token=TOKEN), f"/picture/{many.digest_of(59)}/victim-000-0-original.png"
    for path in (
        "/",
        "/_dash-layout",
        "/_dash-dependencies",
        "/assets/app.css",
        picture,
        f"/page/{many.digest_of(59)}/",
    ):
        assert ask(address, path).status == 401, path
        assert ask(address, path, Authorization="Bearer wrong").status == 401, path
        assert ask(address, path, Authorization="Bearer ").status == 401, path
        assert ask(address, path, Authorization=f"Bearer {TOKEN}").status == 200, path
    assert ask(address, "/_dash-update-component", "POST", "{}").status == 401
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    wrong = ask(address, "/token", "POST", urlencode({"token": TOKEN[:-1]}), **form)
    assert wrong.status == 401
    assert "set-cookie" not in wrong.headers
    right = ask(address, "/token", "POST", urlencode({"token": TOKEN}), **form)
    assert right.status == 302
    said = right.headers["set-cookie"]
    assert "HttpOnly" in said
    assert "SameSite=Strict" in said
    assert TOKEN not in said
    assert ask(address, picture, Cookie=said.partition(";")[0]).status == 200
    assert ask(address, picture, Cookie=said.partition("=")[0] + "=").status == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1.evil.example"])
def test_others_need_a_token(host: str) -> None:
    with pytest.raises(SettingError, match="--token"):
        guard.check(host, None)
    with pytest.raises(SettingError, match="16 letters"):
        guard.check(host, "short")
    guard.check(host, TOKEN)


def test_the_command_line_refuses_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("not a store")
    for given in (["--host", "0.0.0.0"], ["--store", str(tmp_path)], ["--store", str(tmp_path / "mine.txt")]):
        found = CliRunner().invoke(app, ["app", *given])
        assert found.exit_code == 2
        assert len(found.stderr.strip().splitlines()) == 1


def test_a_port_that_is_taken_is_said(small: Path, served: Callable[..., str]) -> None:
    port = urlsplit(served(small)).port
    found = CliRunner().invoke(app, ["app", "--store", str(small), "--port", str(port)])
    assert found.exit_code == 2
    assert "choose another --port" in found.stderr


def test_without_dash_a_line_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['dash'] = None; sys.argv = ['dosimeter', 'app']; import dosimeter.cli as c; c.main()"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2
    assert "pip install 'dosimeter[app]'" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


WRONG = [
    ["--defense=nois"], ["--victims=many"], ["--steps=0"], ["--attack=ig:tv=x"], ["--victims=0"],
    ["--model=cnn:wide=3"],
]  # fmt: skip


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_a_form_is_refused_by_the_line_of_the_command_line(words: list[str], tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["sweep", "--out", str(tmp_path / "none"), *words])
    assert found.exit_code == 2
    said = explorer.refusal(words)
    assert said
    assert "".join(said.split()) in "".join(found.stderr.replace("│", "").split())


def test_a_form_names_no_files(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (tmp_path / "mine.py").write_text(f"open({str(ran)!r}, 'w')\ndef model(**k): ...\n")
    for words in (
        f"--model={tmp_path}/mine.py:model", "--model=mine.py:model", f"--defense=none|{tmp_path}/mine.py:model",
        "--data=/etc/passwd", "--data=mine.npz", "--attack=tuned:mine", "--attack=ggl:generator=mine", "--data=~/x.npz",
        f"--weights={tmp_path}/mine.py", f"--out={tmp_path}/mine",
    ):  # fmt: skip
        assert explorer.refusal([words]), words
    assert not ran.exists()
    assert explorer.refusal(["--model=cnn", "--attack=ig:tv=1e-3", "--victims=1"]) == ""


def waited(is_so: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


SLEEPS = "import sys, time; print(flush=True); time.sleep(60)"


def test_audits_run_one_after_another_and_end_with_the_app(tmp_path: Path) -> None:
    jobs = Jobs((sys.executable, "-c", SLEEPS), tmp_path)
    first, second = jobs.add(["--a=1"]), jobs.add(["--b=$(touch x)"])
    waited(lambda: first.process)
    assert second.process is None
    for _ in range(MOST - 1):
        jobs.add([])
    with pytest.raises(SettingError, match="at most"):
        jobs.add([])
    jobs.stop(first.key)
    waited(lambda: second.process)
    assert first.status == STOPPED
    running = second.process
    jobs.close()
    assert running is not None
    assert running.poll() is not None
    assert all(job.status == STOPPED for job in jobs.all())


def test_what_an_audit_says_is_kept(tmp_path: Path) -> None:
    program = "import sys, json; print(json.dumps([{'digest': 'abcd', 'status': sys.argv[2], 'why': 'it broke'}]))"
    jobs = Jobs((sys.executable, "-c", program), tmp_path)
    done, failed = jobs.add(["done"]), jobs.add(["failed"])
    waited(lambda: failed.over)
    assert (done.status, done.digests) == (DONE, ("abcd",))
    assert (failed.status, failed.said) == (FAILED, "it broke")
    refused = Jobs((sys.executable, "-c", "import sys; sys.exit('dosimeter: Unknown model.')"), tmp_path).add([])
    waited(lambda: refused.over)
    assert (refused.status, refused.said) == (FAILED, "Unknown model.")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs locks on files")
def test_an_audit_whose_explorer_is_gone_gives_its_trial_back(tmp_path: Path) -> None:
    words = ["--attack=ig", "--steps=1000000", "--victims=1"]
    command = [sys.executable, "-m", "dosimeter.cli.explorer", str(tmp_path / "store"), *words]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert child.stdin is not None

    def statuses() -> list[str]:
        try:
            with closing(sqlite3.connect(f"file:{tmp_path}/store/trials.sqlite?mode=ro", uri=True)) as base:
                return [status for (status,) in base.execute("SELECT status FROM trials")]
        except sqlite3.Error:
            return []

    waited(lambda: "running" in statuses())
    child.stdin.close()
    assert child.wait(30) in (130, 128 + signal.SIGTERM)
    assert statuses() == []


def test_the_explorer_has_the_colours_of_pages() -> None:
    sheet = (Path(serve.__file__).parent / "assets" / "app.css").read_text()
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", part)) for part in sheet.split("prefers-color-scheme", 1)
    )
    for name in ("paper", "card", "well", "ink", "soft", "rule", "accent", "pale", "hot", "warm"):
        assert (light[name], dark[name]) == PALETTE[name], name
