"""What people and machines read of the project besides the program."""

import re
import tomllib
from fnmatch import fnmatch
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import yaml

import licences
import release
from archives import wrong

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_is_that_of_this_version() -> None:
    """Fields that the schema of the Citation File Format 1.2.0 demands, and those that we have twice."""
    found = read("CITATION.cff")
    assert (found["cff-version"], found["type"], found["title"]) == ("1.2.0", "software", PROJECT["name"])
    assert found["message"]
    assert [each["name"] for each in found["authors"]] == [each["name"] for each in PROJECT["authors"]]
    assert str(found["version"]) == PROJECT["version"]
    assert found["license"] == PROJECT["license"].partition(" AND ")[0]
    assert found["abstract"] == PROJECT["description"]
    assert found["keywords"] == PROJECT["keywords"]


def test_every_file_of_the_package_is_installed() -> None:
    kept = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dosimeter"]
    source = ROOT / "src" / "dosimeter"
    for path in source.rglob("*"):
        if path.is_file() and path.suffix not in (".py", ".pyc"):
            name = path.relative_to(source).as_posix()
            assert any(fnmatch(name, pattern) for pattern in kept), name


def test_hooks_before_a_commit_are_the_checks_of_make_test_and_come_from_nowhere() -> None:
    (repo,) = read(".pre-commit-config.yaml")["repos"]
    assert repo["repo"] == "local"
    assert {hook["language"] for hook in repo["hooks"]} == {"system"}
    commands = " ".join(hook["entry"] for hook in repo["hooks"])
    made = (ROOT / "Makefile").read_text()
    for check in ("ruff check", "ruff format", "mypy"):
        assert f".venv/bin/{check}" in commands
        assert f"$(BIN)/{check}" in made


def test_the_workflow_runs_what_people_run() -> None:
    found = read(".github/workflows/test.yml")
    runs = [step["run"] for job in found["jobs"].values() for step in job["steps"] if "run" in step]
    assert runs == ["make test", "make wheel-check"]
    assert found["permissions"] == {"contents": "read"}
    oldest = re.search(r"\d+\.\d+", PROJECT["requires-python"])
    assert oldest is not None
    assert oldest[0] in found["jobs"]["test"]["strategy"]["matrix"]["python"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem
)
def test_issue_forms_are_whole(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    assert form["name"]
    assert form["description"]
    asked = [part for part in form["body"] if part["type"] != "markdown"]
    assert len({part["id"] for part in asked}) == len(asked) > 1
    assert all(part["attributes"]["label"] for part in asked)
    assert any(part.get("validations", {}).get("required") for part in asked)


def test_what_security_says_of_a_run_is_what_a_run_holds() -> None:
    """Every file that a run may consist of is in the table of what a report holds."""
    from dosimeter import store

    table = (ROOT / "SECURITY.md").read_text().partition("## What a report holds")[2]
    for name in (store.RUN, store.RECORDS, store.TENSORS, f"{store.IMAGES}/", "report.html", "run.toml", "attacks/"):
        assert f"`{name}`" in table, name


def test_archives_with_data_or_without_the_digits_are_noticed() -> None:
    whole = {f"x/{name}": 10 for name in ("dosimeter/data/mnist-5k.npz", "dosimeter/data/mnist-5k.md")}
    whole |= {"x/dosimeter/py.typed": 0, "x/dosimeter/cli/lists.json": 10}
    assert wrong(whole) == []
    assert wrong(whole | {"x/data/cifar10.npz": 10}) == ["x/data/cifar10.npz is data"]
    assert wrong(whole | {"x/docs/a.png": 2_000_000}) == ["x/docs/a.png has 2,000,000 bytes"]
    assert wrong({"a": 1})[0] == "dosimeter/data/mnist-5k.npz is missing"


def test_licences_are_read_as_their_packages_state_them() -> None:
    assert (
        licences.wrong({"a": "MIT", "b": "BSD License AND Public Domain", "c": "GPL-3.0 OR MIT", "e": "Apache 2.0"})
        == []
    )
    assert licences.wrong({"torch": "Apache-2.0 WITH LLVM-exception AND BSL-1.0"}) == []
    refused = {"a": "GPL-3.0", "b": "MIT AND GPL-3.0", "c": "", "d": "(MIT OR Zlib) AND GPL-3.0", "e": "MIT-like"}
    assert [each[0] for each in licences.wrong(refused)] == list(refused)
    assert licences.wrong({"c": ""}) == ["c: no licence is stated"]


def test_all_that_the_program_needs_may_be_used() -> None:
    names = [re.split(r"[<>=\[]", each)[0] for each in PROJECT["dependencies"]]
    assert licences.wrong({name: licences.stated(distribution(name)) for name in names}) == []


def test_versions_that_disagree_are_noticed() -> None:
    files = [(ROOT / name).read_text() for name in ("pyproject.toml", "CITATION.cff", "CHANGELOG.md")]
    assert release.versions(*files) == []
    project, citation = '[project]\nversion = "1.2.0"\n', "version: 1.2.0\n"
    assert release.versions(project, citation, "# Changelog\n\n## Unreleased\n\n## 1.2.0\n\n## 1.1.0\n") == []
    assert release.versions(project, "version: 1.1.0\n", "\n## Unreleased\n") == [
        "CITATION.cff has version 1.1.0, pyproject.toml 1.2.0"
    ]
    assert release.versions(project, citation, "\n## Unreleased\n\n## 1.1.0\n")[0].startswith(
        "CHANGELOG.md has version 1.1.0"
    )
    assert release.versions(project, citation, "# Changelog\n")[0].startswith("CHANGELOG.md has version None")
