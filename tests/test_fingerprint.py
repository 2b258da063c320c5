"""Fingerprints: the same for the same value in any process, another for any change of it."""

import copy
import functools
import os
import subprocess
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dosimeter import defenses, fingerprint, models, presets, spec
from dosimeter.errors import ModelError
from small_federation import dataset, federation

LOCK = threading.Lock()
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.frozensets(st.integers()) | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@dataclass(frozen=True)
class Knob:
    turn: object
    cache: object = None


class Net(nn.Module):
    """A network of somebody's own, whose weights do not tell what it computes."""

    def __init__(self, act: Callable[..., Any] = F.relu, scale: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.act, self.scale = act, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.act(self.first(x)) * self.scale)


class Other(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.act(self.first(x)) + self.scale)


def values() -> dict[str, object]:
    """One of each kind, all of them different."""
    made = {
        name: models.build(name, shape=(1, 32, 32), classes=3, mean=(0.0,), std=(1.0,), seed=0, settings=given)
        for name, given in (("cnn", {}), ("lenet", {"width": 2}), ("mlp-2", {}))
    }
    return {
        **made,
        "own": Net(),
        "lambda": Net(lambda x: x + 1),
        "other lambda": Net(lambda x: x + 2),
        "closure": Net(functools.partial(F.leaky_relu, negative_slope=0.1)),
        "attack": presets.inverting_gradients(steps=3),
        "defense": defenses.GaussianNoise(sigma=0.1) | defenses.Precode(k=4),
        "data": dataset(),
        "protocol": federation().protocol,
        "words": {"b": {1, 2, 30}, "a": (1.0, True, None), "c": frozenset("xyz")},
        "loss": F.cross_entropy,
        "file": Path(__file__),
    }


def test_the_same_value_has_one_fingerprint_in_every_process() -> None:
    here = {name: fingerprint.of(value) for name, value in values().items()}
    assert len(set(here.values())) == len(here)
    assert here == {name: fingerprint.of(copy.deepcopy(value)) for name, value in values().items()}
    program = (
        "import importlib.util, sys;"
        f"spec = importlib.util.spec_from_file_location('elsewhere', {__file__!r});"
        "made = sys.modules['elsewhere'] = importlib.util.module_from_spec(spec); spec.loader.exec_module(made);"
        "print({name: made.fingerprint.of(value) for name, value in made.values().items()}, made.fingerprint.code())"
    )
    there = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert there == f"{here} {fingerprint.code()}"


@settings(max_examples=100, deadline=None)
@given(PLAIN, PLAIN)
def test_plain_values_have_the_same_fingerprint_only_where_they_are_the_same(one: object, other: object) -> None:
    assert fingerprint.of(one) == fingerprint.of(copy.deepcopy(one))
    assert fingerprint.of({"a": one, "b": other}) == fingerprint.of({"b": other, "a": one})
    assert fingerprint.of([one, other]) != fingerprint.of([[one, other]]) != fingerprint.of([one, [other]])
    if one != other:
        assert fingerprint.of(one) != fingerprint.of(other)


def test_types_and_fields_tell_equal_values_apart() -> None:
    alike: list[object] = [1, True, 1.0, "1", b"1", (1,), [1], {1}, frozenset({1}), {1: None}, Knob(1), Knob(None, 1)]
    assert len({fingerprint.of(value) for value in alike}) == len(alike)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]))
def test_any_entry_of_a_tensor_tells(seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = (torch.rand(3, 4, generator=generator) * 9).to(dtype)
    changed = tensor.clone()
    at = seed % 12
    changed.view(-1)[at] = (changed.view(-1)[at] == 0).to(dtype)
    whole = fingerprint.of(tensor)
    assert whole == fingerprint.of(tensor.t().contiguous().t())
    assert whole not in {fingerprint.of(x) for x in (changed, tensor.reshape(4, 3), nn.Parameter(tensor.float()))}
    assert fingerprint.of(tensor[0, 0]) != fingerprint.of(tensor[:1, 0])


def change_weight(net: Any) -> None:
    with torch.no_grad():
        net.first.weight[1, 2] += 1e-6


def freeze(net: Any) -> None:
    net.first.weight.requires_grad_(False)


def tie(net: Any) -> None:
    with torch.no_grad():
        net.second.weight.copy_(net.first.weight)
    net.second.weight = net.first.weight


def loosely_tie(net: Any) -> None:
    tie(net)
    net.second.weight = nn.Parameter(net.first.weight.detach().clone())


def hook(net: Any) -> None:
    net.first.register_forward_hook(lambda layer, inputs, output: output * 2)


def other_hook(net: Any) -> None:
    net.first.register_forward_hook(lambda layer, inputs, output: output * 3)


def patch(net: Any) -> None:
    net.forward = types.MethodType(lambda self, x: self.second(x), net)


CHANGES: list[Callable[[Any], object]] = [
    change_weight, freeze, tie, loosely_tie, hook, other_hook, patch,
    lambda net: setattr(net, "scale", 2.0), lambda net: setattr(net, "act", torch.tanh),
    lambda net: setattr(net, "act", nn.LeakyReLU(0.1)), lambda net: setattr(net, "act", nn.LeakyReLU(0.2)),
    lambda net: setattr(net, "act", functools.partial(F.leaky_relu, negative_slope=0.2)),
    lambda net: net.register_buffer("mask", torch.ones(2)),
    lambda net: net.register_buffer("mask", torch.ones(2), persistent=False),
]  # fmt: skip


def test_any_change_of_a_module_tells() -> None:
    nets: list[nn.Module] = [Net(), Other()]
    for change in CHANGES:
        nets.append(Net())
        change(nets[-1])
    assert len({fingerprint.of(net) for net in nets}) == len(nets)
    order = [nn.Sequential(OrderedDict((name, nn.ReLU()) for name in names)) for names in ("ab", "ba")]
    assert fingerprint.of(order[0]) != fingerprint.of(order[1])


LAYERS: list[Callable[[], nn.Module]] = [
    lambda: nn.LSTM(3, 4), lambda: nn.LSTM(3, 4, bidirectional=True), lambda: nn.MultiheadAttention(4, 2),
    lambda: nn.TransformerEncoderLayer(4, 2, 8), lambda: nn.BatchNorm2d(3), lambda: nn.Embedding(5, 3),
    lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    lambda: nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)), lambda: nn.ModuleDict({"a": nn.Linear(1, 1)}),
    lambda: nn.Conv2d(3, 3, 3, padding=1), lambda: nn.Conv2d(3, 3, 3, padding=1, padding_mode="reflect"),
    lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
    lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.Tanh())),
]  # fmt: skip


def test_layers_of_every_kind_are_told() -> None:
    found = []
    for make in LAYERS:
        torch.manual_seed(0)
        found.append(fingerprint.of(make()))
        torch.manual_seed(0)
        assert found[-1] == fingerprint.of(make())
    assert len(set(found)) == len(LAYERS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_module_is_what_was_compiled() -> None:
    assert fingerprint.of(torch.compile(Net())) == fingerprint.of(torch.compile(Net()))
    assert fingerprint.of(torch.compile(Net())) != fingerprint.of(torch.compile(Net(torch.tanh)))


def test_what_a_module_was_used_for_does_not_tell() -> None:
    net = Net()
    before = fingerprint.of(net)
    net.eval()(torch.ones(1, 4)).sum().backward()
    handle = net.register_forward_hook(lambda *_: None)
    handle.remove()
    assert fingerprint.of(net) == before


def test_settings_of_parts_and_functions_they_close_over_tell() -> None:
    attack, noise = presets.inverting_gradients(steps=3), defenses.GaussianNoise(sigma=0.1)
    parts: list[object] = [
        attack,
        presets.inverting_gradients(steps=4),
        presets.inverting_gradients(steps=3, tv=0.5),
        noise,
        replace(noise, sigma=0.2),
        defenses.LaplaceNoise(scale=0.1),
        noise | defenses.Pruning(ratio=0.5),
        defenses.Pruning(ratio=0.5) | noise,
    ]
    parts += [make(value) for make in (_adding, _named) for value in (1.0, 2.0)]
    assert len({fingerprint.of(part) for part in parts}) == len(parts)
    assert fingerprint.of(_adding(1.0)) == fingerprint.of(_adding(1.0))


def _adding(value: float) -> Callable[[float], float]:
    return lambda x: x + value


def _named(value: float) -> object:
    """A class whose methods close over a value."""

    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * value

    return Scaled()


def test_data_is_its_contents() -> None:
    rows = dataset()
    other = rows.train_images.copy()
    other[0, 0, 0] += 1
    assert fingerprint.of(rows) == fingerprint.of(replace(rows, name="renamed", source="elsewhere"))
    assert fingerprint.of(rows) != fingerprint.of(replace(rows, train_images=other))


OWN = """
import torch.nn.functional as F
from torch import nn
SCALE = 1.0

def bend(x):
    return F.relu(x) * SCALE

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        nn.init.ones_(self.layer.weight)
        nn.init.ones_(self.layer.bias)

    def forward(self, x):
        return bend(self.layer(x))
"""


@pytest.mark.parametrize(
    "changed",
    [OWN.replace("relu", "tanh"), OWN.replace("SCALE = 1.0", "SCALE = 2.0"), OWN.replace("self.layer(x)", "x")],
)
def test_the_source_of_a_users_own_model_tells(tmp_path: Path, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path, elsewhere = tmp_path / "mine.py", tmp_path / "below" / "yours.py"
    elsewhere.parent.mkdir()
    for place in (path, elsewhere):
        place.write_text(OWN)
    before, again, there = (fingerprint.of(spec.own("model", f"{p}:Mine")()) for p in (path, path, elsewhere))
    assert before == again == there  # wherever the file lies
    written = path.stat().st_mtime
    path.write_text(changed)
    os.utime(path, (written, written))  # within the same second, which compiled files of the same size cannot tell
    after = spec.own("model", f"{path}:Mine")()
    assert fingerprint.of(after) != before
    images = torch.tensor([[0.3, 0.6]])
    assert not torch.equal(after(images), spec.own("model", f"{elsewhere}:Mine")()(images))


def test_a_file_that_a_users_own_file_imports_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text("import bends_of_mine\nfrom torch import nn\nclass Mine(nn.Module):\n    pass\n")
    prints = []
    for text in ("A = 1", "A = 2"):
        (tmp_path / "bends_of_mine.py").write_text(text)
        monkeypatch.delitem(sys.modules, "bends_of_mine", raising=False)
        prints.append(fingerprint.of(spec.own("model", f"{tmp_path / 'mine.py'}:Mine")()))
    assert prints[0] != prints[1]


def test_what_cannot_be_told_is_refused() -> None:
    net = Net()
    net.odd = sys._getframe()
    with pytest.raises(ModelError, match="got a frame"):
        fingerprint.of(net)


def test_a_module_may_hold_itself_and_a_function_may_name_a_lock() -> None:
    net = Net(locked)
    net.itself = [net]
    assert fingerprint.of(net) == fingerprint.of(copy.deepcopy(net)) != fingerprint.of(Net(locked))


def locked(x: torch.Tensor) -> torch.Tensor:
    with LOCK:
        return x


def test_the_program_tells_its_source_and_torchs_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = fingerprint.code.__wrapped__
    before = code()
    assert before == fingerprint.code()
    assert f"torch {torch.__version__.partition('+')[0]}" in before
    monkeypatch.setattr(fingerprint, "OURS", tmp_path)
    (tmp_path / "cli").mkdir()
    (tmp_path / "rng.py").write_text("a = 1")
    first = code()
    (tmp_path / "cli" / "train.py").write_text("b = 1")
    assert code() == first  # which computes nothing
    (tmp_path / "rng.py").write_text("a = 2")
    assert code() != first


def test_arrays_and_scalars() -> None:
    array = np.arange(4)
    kinds: list[object] = [array, array.astype(np.int32), array[:2], list(range(4)), np.int64(1), 1, np.float64(1)]
    kinds += [array.astype(object), Path("nowhere"), Path("elsewhere")]
    assert len({fingerprint.of(kind) for kind in kinds}) == len(kinds)
    assert fingerprint.of(array[::2]) == fingerprint.of(array[::2].copy())
