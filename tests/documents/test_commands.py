"""Every line that a page has a reader type is one that the program takes."""

import importlib
import re
import shlex
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

import stage
from dosimeter import clients, defenses, federated, models, papers, servers, spec, studies
from dosimeter.attacks import presets
from dosimeter.cli import app
from dosimeter.cli.dose import OTHERS
from dosimeter.errors import DosimeterError
from pages import PAGES, ROOT, SHELL, Line, inline, lines, lines_of

TYPED = [line for page in PAGES for line in lines(page)]
OURS = {line.text: line for line in TYPED if line.words[0] == "dosimeter"}

PLANNED = ("audit", "dose", "train", "follow", "compare", "calibrate", "sweep", "tune")
"""Commands that can say what they would do: these are asked to."""
QUICK = ("check", "lint", "list", "report", "score")
"""Commands that are run as they stand."""
ELSEWHERE = {"--kept /tmp/kept": "tests/test_examples.py runs the page on Flower as a whole"}

CATALOGUES = (
    *(presets.BY_NAME, defenses.BY_NAME, servers.BY_NAME, clients.BY_NAME, federated.BY_NAME),
    {name: entry.make for name, entry in models.BY_NAME.items()},
    OTHERS,  # of `dose --others`
)


@pytest.fixture(scope="module", name="here")
def _here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that pages name."""
    folder = tmp_path_factory.mktemp("stage")
    stage.build(folder)
    return folder


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans without the steps that are taken to time them: whether they come out right is for other tests."""
    from dosimeter.cli import audit, sweep, tradeoff, train, tune

    guess = {"unit": "steps", "picked": "", **dict.fromkeys(("tried", "again"), 0)}
    guess |= dict.fromkeys(("done", "fewest", "total", "side_by_side", "restarts", "bytes", "tiles", "tile"), 1)
    guess |= {"least": 1.0, "seconds": 1.0}
    for module in (audit, tradeoff, train):
        monkeypatch.setattr(module, "estimate", lambda *_, **__: guess)
    monkeypatch.setattr(audit, "estimate_panel", lambda *_, **__: iter(()))
    for module in (tradeoff, train):
        monkeypatch.setattr(module, "estimate_training", lambda *_, **__: 1.0)
    monkeypatch.setattr(sweep, "plan", lambda trials, *_, **__: trials[0].prepare())
    monkeypatch.setattr(sweep, "_plan", lambda *_: None)
    monkeypatch.setattr(tune, "_plan", lambda *_: None)


def run(words: list[str]) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "300"})


@pytest.mark.parametrize("text", sorted(text for text in OURS if text.split()[1] in PLANNED))
def test_what_can_be_planned_is(text: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(words in text for words in ELSEWHERE):
        return
    monkeypatch.chdir(here)
    monkeypatch.setenv("DOSIMETER_DATA", str(here / "data"))
    words = [word for word in OURS[text].words[1:] if word != "..."]
    if len(words) == 1:  # the name alone, in a list of commands
        return
    done = run([*words, *([] if "--dry-run" in words else ["--dry-run"])])
    assert done.exit_code == 0, f"{OURS[text].page}:{OURS[text].number}: {done.output or done.exception}"


@pytest.mark.parametrize("text", sorted(text for text in OURS if text.split()[1] in QUICK))
def test_what_is_quick_is_run(text: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("DOSIMETER_DATA", str(here / "data"))
    words = OURS[text].words[1:]
    if words[-1].endswith("...") or "vgg.pth" in words or "resnet18" in words:  # a trial and weights of one's own; slow
        taken(OURS[text])
        return
    done = run(words)
    assert done.exit_code in (0, 1), f"{OURS[text].page}:{OURS[text].number}: {done.output or done.exception}"
    assert done.exit_code == 0 or "--fail-on" in words or "--weights" in words or "--gate" in words, done.output


@pytest.mark.parametrize("kind", ["attacks", "defenses"])
def test_lines_of_the_reference_can_be_planned(kind: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    reference = importlib.import_module("reference")
    monkeypatch.chdir(here)
    made = {"attacks": reference.attacks, "defenses": reference.defenses_}[kind]()
    found = [line for path, text in made.items() for line in lines_of(path, text)]
    assert len(found) == len(made) - 1  # one on every page but the first, which lists them
    for line in found:
        done = run([*line.words[1:], "--dry-run"])
        assert done.exit_code == 0, f"{line.page}: {done.output or done.exception}"


def taken(line: Line, *, whole: bool = True) -> click.Context:
    """What the command line makes of a line, without doing it; of a part of a line, only whether its options exist."""
    command: Any = get_command(app)
    words = line.words[1:]
    while hasattr(command, "commands"):
        assert words, line
        assert words[0] in command.commands, f"{line.page}:{line.number}: no command {words[0]!r}"
        command = command.commands[words.pop(0)]
    if whole:
        made: click.Context = command.make_context(command.name, list(words))
        return made
    context = click.Context(command)
    command.make_parser(context).parse_args(list(words))
    return context


@pytest.mark.parametrize("text", sorted(text for text in OURS if text.split()[1] not in (*PLANNED, *QUICK)))
def test_what_takes_long_is_one_that_is_taken(text: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    line = OURS[text]
    asked = taken(line).params
    name = line.words[1]
    if name == "study":
        assert asked["name"] in (*studies.BY_NAME, "densities", "dose")
    if name == "reproduce" and asked["name"] not in (None, "all", "map"):
        assert asked["name"] in papers.ITEMS
    for kind, given in asked.items():
        for words in [given] if isinstance(given, str) else given or () if isinstance(given, list | tuple) else ():
            if kind in ("attack", "defense", "protocol", "step", "server", "model") and not spec.is_own(str(words)):
                assert known(words), f"{line.page}:{line.number}: {kind} {words!r}"


def known(words: str) -> bool:
    """Whether some part goes by these words, with these settings."""
    return all(any(_parsed(part, each) for each in CATALOGUES) for part in re.split(r"[|]|\+(?=[a-z])", words))


def _parsed(words: str, catalogue: Any) -> bool:
    name = words.partition(":")[0]
    try:
        return name in catalogue and all(spec.parse("part", each, catalogue) for each in spec.spread(words))
    except DosimeterError:
        return False


def test_commands_in_the_middle_of_a_text_name_options_that_exist() -> None:
    found = list(chain.from_iterable(map(inline, PAGES)))
    assert len(found) > 30
    for line in found:
        words = [*line.words, "..."] if line.words[-1].startswith("--") else line.words  # an option without its value
        try:
            taken(line._replace(words=words), whole=False)
        except click.UsageError as reason:
            pytest.fail(f"{line.page}:{line.number}: {line.text}: {reason.format_message()}")


FOREIGN = {"--no-deps"}
"""Options of other programs."""


def test_options_in_the_middle_of_a_text_exist() -> None:
    def options(command: Any) -> set[str]:
        inner = getattr(command, "commands", {}).values()
        own = {each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)}
        return own.union(*map(options, inner))

    all_of_them = options(get_command(app)) | FOREIGN | {"--help"}
    for page in PAGES:
        for option in re.findall(r"`(--[a-z][a-z-]*)[^`]*`", page.read_text()):
            assert option in all_of_them, f"{page.name}: {option}"


def test_settings_in_the_middle_of_a_text_exist() -> None:
    found = 0
    for page in PAGES:
        for words in re.findall(r"`([a-z][a-z0-9-]*:[a-z_0-9]+=[^`\s]*)`", page.read_text()):
            name = words.partition(":")[0]
            if any(name in each for each in CATALOGUES) and not words.endswith(("=", "...")):
                found += 1
                assert known(words.partition("`")[0]), f"{page.name}: {words}"
    assert found > 50


@pytest.mark.parametrize("line", [line for line in TYPED if line.words[0] != "dosimeter"], ids=lambda line: line.text)
def test_what_else_is_typed_is_there(line: Line) -> None:
    assert line.words[0] in SHELL
    match line.words:
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
        case ["pip", "install", what, *_] if "[" in what:
            extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M)
            assert set(what.split("[")[1].rstrip("]").split(",")) <= set(extras)
        case ["python", program, *_]:
            assert list((ROOT / "examples").rglob(Path(program).name)), line
        case ["cd", folder] | ["flwr", "run", folder, *_] if folder.startswith("examples"):
            assert (ROOT / folder).is_dir()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("dosimeter audit --model cnn --stepz 3", "--stepz"),
        ("dosimeter audit --attack ig:speed=3", "speed"),
        ("dosimeter audit --defense noize:sigma=0.1", "noize"),
        ("dosimeter sweep --rows defense --collumns model", "--collumns"),
    ],
)
def test_a_line_that_is_out_of_date_would_be_found(
    words: str, why: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    done = run([*shlex.split(words)[1:], "--dry-run"])
    assert done.exit_code == 2
    assert why in done.output
