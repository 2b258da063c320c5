"""The wheel as a stranger gets it: in an empty environment of each Python, tried out from another folder.

python tests/release.py DIST PYTHON...        a Python that is not here is said and passed over, but one must be
"""

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ABSENT = "No matching distribution found"
"""What pip says of a package that has no release for a Python."""

MODEL = """
from torch import nn

def make(): return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))
"""
STEERING = "\x1b[31m\x1b]0;owned\x07\x9b2J"
"""A part of a file's name that would colour a terminal, rename its window and clear it."""


def versions(project: str, citation: str, changelog: str) -> list[str]:
    """What disagrees among the three places that name the version; a CHANGELOG may have it under Unreleased yet."""
    version = tomllib.loads(project)["project"]["version"]
    cited = re.search(r"^version: *['\"]?([^'\"\s]+)", citation, re.M)
    latest = re.search(r"^## v?(\d[^\s]*)", changelog, re.M)
    found = {"CITATION.cff": cited and cited[1], "CHANGELOG.md": latest[1] if latest else version}
    if not latest and "\n## Unreleased" not in changelog:
        found["CHANGELOG.md"] = None
    return [f"{name} has version {each}, pyproject.toml {version}" for name, each in found.items() if each != version]


def steered(shown: str) -> list[str]:
    """The control characters in what a program shows, but for the ends of lines and tabs."""
    return sorted({f"{each!r}" for each in shown if not each.isprintable() and each not in "\n\r\t"})


def interpreter(name: str) -> str | None:
    """A Python by its name, such as python3.12: on the path or among pyenv's."""
    rest = name.removeprefix("python")
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{rest}.*/bin/python"))
    for each in (shutil.which(name), *map(str, reversed(kept))):
        if each and subprocess.run([each, "-c", ""], capture_output=True).returncode == 0:  # pyenv has shims of none
            return each
    return None


def run(*words: str | Path, where: Path) -> None:
    """A command whose output is shown only where it fails."""
    done = subprocess.run([str(word) for word in words], cwd=where, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def on_a_terminal(*words: str, where: Path) -> tuple[int, str]:
    """The exit code of a command and what a plain terminal gets of it."""
    ours, its = pty.openpty()
    plain = {**os.environ, "TERM": "dumb", "COLUMNS": "80"}
    process = subprocess.Popen(words, stdin=its, stdout=its, stderr=its, cwd=where, env=plain)
    os.close(its)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # which Linux has for the end of a terminal
        pass
    finally:
        os.close(ours)
    return process.wait(), shown.decode("utf-8", "replace")


def check_names(program: str, place: Path) -> None:
    """Files whose names steer a terminal are audited, refused and shown, and what is printed steers nothing."""
    file = f"{STEERING}mine.py"
    (place / file).write_text(MODEL)
    audit = (program, "audit", "--model", f"{file}:make", "--victims", "1", "--steps", "2", "--out", f"{STEERING}run")
    expected = {
        audit: 0,
        (*audit, "--json"): 2,
        (program, "report", f"{STEERING}run"): 0,
        (program, "lint", "--model", f"{file}:make", "--shape", "1,28,28"): 0,
        (program, "audit", "--model", f"{file}:{STEERING}"): 2,
        (program, "audit", "--data", f"{STEERING}.npz"): 2,
    }
    for words, code in expected.items():
        got, shown = on_a_terminal(*words, where=place)
        if got != code:
            raise SystemExit(f"{words} ended with {got}, expected {code}:\n{shown}")
        if found := steered(shown):
            raise SystemExit(f"{words} shows {', '.join(found)}")


def try_out(python: str, wheel: Path) -> bool:
    """Install the wheel for one Python, check licences, run the main job in short; False where it cannot be had."""
    place = Path(tempfile.mkdtemp())
    try:
        run(python, "-m", "venv", "env", where=place)
        began, pip = time.monotonic(), ("env/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check")
        done = subprocess.run([*pip, "install", str(wheel)], cwd=place, capture_output=True, text=True)
        if ABSENT in done.stderr:
            sys.stdout.write(f"  passed over: {done.stderr.strip().splitlines()[-1]}\n")
            return False
        if done.returncode:
            raise SystemExit(done.stderr)
        files = [each for each in (place / "env").rglob("*") if each.is_file() and not each.is_symlink()]
        size = sum(each.stat().st_size for each in files)
        sys.stdout.write(f"  installed in {time.monotonic() - began:.0f} s, {size / 1e6:,.0f} MB\n")
        run("env/bin/python", ROOT / "tests" / "licences.py", where=place)
        began = time.monotonic()
        run("make", "--file", ROOT / "Makefile", "short-audit", "PROGRAM=env/bin/dosimeter", where=place)
        sys.stdout.write(f"  the main job in short took {time.monotonic() - began:.0f} s\n")
        check_names("env/bin/dosimeter", place)
    finally:
        shutil.rmtree(place)
    return True


def main(folder: Path, pythons: Sequence[str]) -> None:
    """Try all of them, and end with 1 where one fails or none is here."""
    if found := versions(*((ROOT / each).read_text() for each in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md"))):
        sys.exit("\n".join(found))
    (wheel,) = folder.resolve().glob("*.whl")
    tried = 0
    for name in pythons:
        python = interpreter(name)
        sys.stdout.write(f"{name}: {'not here, passed over' if python is None else wheel.name}\n")
        sys.stdout.flush()
        tried += python is not None and try_out(python, wheel)
    sys.exit(0 if tried else f"None of {', '.join(pythons)} could be tried; name another Python.")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
