"""The direction of the arrows between folders, read off the import statements."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import dosimeter
from dosimeter.attacks import Attack
from dosimeter.defenses import Defense

SOURCE = Path(dosimeter.__file__).parent
VOCABULARY = {
    "channel",
    "checks",
    "errors",
    "files",
    "fingerprint",
    "lazy",
    "lines",
    "plain",
    "progress",
    "rng",
    "spec",
    "theirs",
    "trees",
    "types",
    "unpacking",
}
PARTS = {"attacks", "clients", "data", "defenses", "engine", "metrics", "models", "servers"}
ALLOWED = {
    **{name: set() for name in VOCABULARY},
    "checks": {"errors"},
    "files": {"errors"},
    "fingerprint": {"errors"},
    "progress": {"lines"},
    "trees": {"errors", "types"},
    "types": {"errors"},
    "networks": VOCABULARY,
    **dict.fromkeys(PARTS, VOCABULARY | {"networks"}),
    "attacks": VOCABULARY | {"networks", "engine"},
    "auditing": VOCABULARY | PARTS | {"networks"},
    "doses": VOCABULARY | PARTS | {"auditing", "networks"},
    "store": VOCABULARY | {"auditing"},
    "drafts": VOCABULARY | {"store"},
    "reports": VOCABULARY | {"auditing", "drafts", "metrics", "store"},
    "spec": {"checks", "errors", "theirs"},
    "theirs": {"errors"},
    "benchmarks": VOCABULARY
    | {"networks", "attacks", "auditing", "engine", "federated", "metrics", "models", "reports", "sweeps"},
    "task": VOCABULARY | {"data", "models", "spec"},
    "papers": VOCABULARY | PARTS | {"auditing", "federated", "spec", "sweeps"},
    "studies": VOCABULARY | PARTS | {"auditing", "federated", "papers", "spec", "sweeps"},
    "federated": VOCABULARY | PARTS | {"auditing", "networks", "spec", "task"},
    "flower": {"federated"},
    "sweeps": VOCABULARY | PARTS | {"auditing", "drafts", "federated", "networks", "spec", "store", "task"},
    "tuning": VOCABULARY | PARTS | {"auditing", "drafts", "federated", "spec", "sweeps", "task"},
    "app": VOCABULARY | {"reports", "store"},
    "cli": VOCABULARY
    | PARTS
    | {
        "app",
        "auditing",
        "benchmarks",
        "doses",
        "drafts",
        "federated",
        "papers",
        "reports",
        "spec",
        "store",
        "studies",
        "sweeps",
        "task",
        "tuning",
    },
}


def room(path: Path) -> str:
    """The top-level module or folder that a file belongs to."""
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported(tree: ast.AST) -> set[str]:
    """Our own rooms that a file imports, wherever in it the statement stands."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the arrow"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("dosimeter.")}
    return found


def wrong_arrows(room_: str, text: str) -> set[str]:
    return imported(ast.parse(text)) - ALLOWED[room_] - {room_}


def test_every_arrow_points_the_right_way() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        if path != SOURCE / "__init__.py":
            assert not wrong_arrows(room(path), path.read_text()), path.relative_to(SOURCE)


def test_a_wrong_arrow_is_found() -> None:
    assert wrong_arrows("attacks", "from dosimeter import metrics") == {"metrics"}
    assert wrong_arrows("attacks", "def f():\n    from dosimeter.data import pick") == {"data"}
    assert wrong_arrows("metrics", "import dosimeter.attacks.search.search") == {"attacks"}


def test_every_room_has_its_place_in_the_table() -> None:
    rooms = {room(path) for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == set(ALLOWED)


PROJECT = Path(__file__).parents[1] / "pyproject.toml"
IMPORTED_AS = {"PIL": "pillow"}
NEVER_INSTALLED = {"breaching", "omegaconf", "pandas"}
"""What is used only where the user has it: another program to compare with, and a table for those who like one."""
HEAVY = {"joblib", "matplotlib", "mlxtend", "pandas", "sklearn"}
"""What no part of the main job may need: 170 MB."""


def packages(tree: ast.AST) -> set[str]:
    """What a file imports that is neither ours nor Python's, by the names under which it is installed."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "import_module":
            names |= {each.value for each in node.args if isinstance(each, ast.Constant) and "." not in each.value}
    return {IMPORTED_AS.get(name, name) for name in names - sys.stdlib_module_names - {"dosimeter"}}


def test_all_that_is_imported_is_declared_and_the_other_way_round() -> None:
    project = tomllib.loads(PROJECT.read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(each for name, found in extras.items() if name not in ("dev", "docs") for each in found),
    ]
    declared = {re.match(r"[\w-]+", each)[0] for each in wanted}  # type: ignore[index]
    declared -= {"dosimeter", "plotly"}  # with which dash draws
    used = set().union(*(packages(ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")))
    assert used - NEVER_INSTALLED == declared


def test_an_undeclared_package_is_found() -> None:
    text = "import os, PIL.Image\ndef f():\n    from sklearn.svm import SVC\n    import_module('cma')"
    assert packages(ast.parse(text)) == {"pillow", "sklearn", "cma"}


def test_the_main_job_needs_nothing_heavy() -> None:
    """An audit and a search by CMA-ES run, without a warning, where none of the heavy packages can be imported."""
    code = f"""
import sys, warnings
warnings.simplefilter("error")
sys.modules.update(dict.fromkeys({HEAVY}))  # which makes their import an ImportError
import numpy as np, torch
import dosimeter as dm
from dosimeter.attacks.search.cmaes import CMAES
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
victims = dm.pick(dm.load("mnist-5k"), 1, seed=0)
print(dm.audit(model, victims, attack="ig:steps=2", seed=0).status)
CMAES()._begin(np.zeros(3)).ask()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "complete"), done.stderr


def test_no_pickle_is_read() -> None:
    """But for what processes of one Ray cluster send each other, which Ray pickles in any case."""
    for path in sorted({*SOURCE.rglob("*.py")} - {SOURCE / "sweeps/packing.py"}):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute | ast.Name):
                assert ast.unparse(node) not in ("pickle.load", "pickle.loads", "pickle.Unpickler"), path
            if isinstance(node, ast.ImportFrom):
                assert "pickle" not in (node.module or ""), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert given.get("weights_only") == "True" or given.get("allow_pickle") == "False", path


def classes_asked_for(tree: ast.AST) -> set[type]:
    """Classes of ours that a file asks a value's type against, by isinstance, issubclass, type(...) is or match."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    asked: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "issubclass"):
            asked += [part for part in ast.walk(node.args[1]) if isinstance(part, ast.Name | ast.Attribute)]
        elif isinstance(node, ast.MatchClass):
            asked.append(node.cls)
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Call):
            asked += node.comparators if getattr(node.left.func, "id", "") == "type" else []
    found = set()
    for expression in asked:
        first, *rest = ast.unparse(expression).split(".")
        module, _, name = names.get(first, "").rpartition(".")
        if module.startswith("dosimeter") and rest != ["__name__"]:
            value = getattr(importlib.import_module(module), name, None) or importlib.import_module(f"{module}.{name}")
            for part in rest:
                value = getattr(value, part, None)
            found |= {value} if isinstance(value, type) else set()
    return found


def concrete(path: Path) -> set[str]:
    """Attacks and defenses that a file outside their rooms asks for by class."""
    asked = classes_asked_for(ast.parse(path.read_text()))
    return {
        kind.__name__
        for room_, base in (("attacks", Attack), ("defenses", Defense))
        for kind in asked
        if issubclass(kind, base) and kind is not base and room(path) != room_
    }


def test_nobody_asks_for_a_certain_attack_or_defense_outside_its_room() -> None:
    wrong = {str(path.relative_to(SOURCE)): found for path in SOURCE.rglob("*.py") if (found := concrete(path))}
    assert not wrong


def test_asking_for_a_class_is_noticed(tmp_path: Path) -> None:
    text = """
from dosimeter import defenses
from dosimeter.attacks import Attack, Search as S
from dosimeter.defenses import KeyLock, Defense
def ask(x):
    isinstance(x, Attack | Defense), isinstance(x, int | S), type(x) is defenses.NoDefense
    match x:
        case KeyLock(): pass
"""
    (tmp_path / "file.py").write_text(text)
    found = classes_asked_for(ast.parse(text))
    assert {kind.__name__ for kind in found} == {"Attack", "Defense", "Search", "NoDefense", "KeyLock"}
