"""The direction of the arrows between folders, read off the import statements."""

import ast
from pathlib import Path

import dosimeter

SOURCE = Path(dosimeter.__file__).parent
VOCABULARY = {"channel", "checks", "errors", "files", "fingerprint", "progress", "rng", "spec", "trees", "types"}
PARTS = {"attacks", "clients", "data", "defenses", "engine", "metrics", "models", "servers"}
ALLOWED = {
    **{name: set() for name in VOCABULARY},
    "checks": {"errors"},
    "files": {"errors"},
    "fingerprint": {"errors"},
    "trees": {"errors", "types"},
    "types": {"errors"},
    **dict.fromkeys(PARTS, VOCABULARY),
    "attacks": VOCABULARY | {"engine"},
    "auditing": VOCABULARY | PARTS,
    "store": VOCABULARY | {"auditing"},
    "drafts": VOCABULARY | {"store"},
    "reports": VOCABULARY | {"auditing", "drafts", "metrics", "store"},
    "spec": {"errors"},
    "benchmarks": VOCABULARY | {"attacks", "auditing", "engine", "federated", "metrics", "models", "reports"},
    "task": VOCABULARY | {"data", "models", "spec"},
    "studies": VOCABULARY | PARTS | {"auditing", "federated", "spec", "task"},
    "federated": VOCABULARY | PARTS | {"auditing", "spec", "task"},
    "flower": {"federated"},
    "cli": VOCABULARY
    | PARTS
    | {"auditing", "benchmarks", "drafts", "federated", "reports", "spec", "store", "studies", "task"},
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
    assert wrong_arrows("metrics", "import dosimeter.attacks.search") == {"attacks"}


def test_every_room_has_its_place_in_the_table() -> None:
    rooms = {room(path) for path in SOURCE.rglob("*.py")} - {"__init__"}
    assert rooms == set(ALLOWED)


def test_no_pickle_is_read() -> None:
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute | ast.Name):
                assert ast.unparse(node) not in ("pickle.load", "pickle.loads", "pickle.Unpickler"), path
            if isinstance(node, ast.ImportFrom):
                assert "pickle" not in (node.module or ""), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.load", "np.load", "numpy.load"):
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                assert given.get("weights_only") == "True" or given.get("allow_pickle") == "False", path
