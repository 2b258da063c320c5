"""Every snippet of Python on a page runs, or names only what is there where running it would take long."""

import ast
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from pages import PAGES, ROOT, snippets

LONG = {"sweeps.md"}
"""Pages whose snippets run for minutes: all that they name and all settings that they give are looked up instead."""
ELSEWHERE = {"README.md": "it shows an example, which runs", "flower.md": "it needs an app around it"}
"""Pages that `tests/test_examples.py` runs."""

SHOWN = [page for page in PAGES if snippets(page)]


def test_pages_show_something() -> None:
    assert {"README.md", "my-model.md", "quickstart.md", "defenses.md"} <= {page.name for page in SHOWN}
    assert {page.name for page in SHOWN} >= LONG | ELSEWHERE.keys()


@pytest.mark.parametrize(
    "page", [page for page in SHOWN if page.name not in LONG | ELSEWHERE.keys()], ids=lambda page: page.stem
)
def test_snippets_run_one_after_another(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    held: dict[str, Any] = {"__name__": "snippet"}
    for snippet in snippets(page):
        exec(compile(snippet, page.name, "exec"), held)


@pytest.mark.parametrize("page", [page for page in SHOWN if page.name in LONG], ids=lambda page: page.stem)
def test_long_snippets_name_what_is_there(page: Path) -> None:
    for snippet in snippets(page):
        assert resolved(snippet) > 0


@pytest.mark.parametrize(
    "snippet",
    [
        "import dosimeter as dm\ndm.sweeps_of({})",
        "import dosimeter as dm\ndm.sweep({}, stores='kept')",
        "from dosimeter import studies\nstudies.Row(modell='cnn')",
        "from dosimeter.studies import rum",
    ],
)
def test_a_long_snippet_that_is_out_of_date_would_be_found(snippet: str) -> None:
    with pytest.raises((AttributeError, ImportError, AssertionError)):
        resolved(snippet)


def resolved(snippet: str) -> int:
    """How many calls of ours there are in a snippet, all of which exist and take the settings that they are given."""
    tree, names, calls = ast.parse(snippet), dict[str, Any](), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name: importlib.import_module(each.name) for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for each in node.names:
                assert hasattr(module, each.name), f"{node.module} has no {each.name}"
                names[each.asname or each.name] = getattr(module, each.name)
    for node in ast.walk(tree):
        found = _found(node, names) if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Call) and (found := _found(node.func, names)) is not None:
            calls += 1
            takes = inspect.signature(found).parameters
            if not any(each.kind is each.VAR_KEYWORD for each in takes.values()):
                assert {each.arg for each in node.keywords} <= takes.keys(), ast.unparse(node)
    return calls


def _found(node: ast.AST, names: dict[str, Any]) -> Any:
    """What a dotted name stands for, if it begins with something imported."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        above = _found(node.value, names)
        return None if above is None else getattr(above, node.attr)
    return None


def test_the_readme_shows_the_example_that_runs() -> None:
    program = (ROOT / "examples" / "audit_my_model.py").read_text()
    shown = program.partition("\n\n")[2].replace("  # noqa: T201", "")
    assert snippets(ROOT / "README.md") == [shown]
