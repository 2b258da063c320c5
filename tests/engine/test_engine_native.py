"""The engine's own kernels give what torch gives, for sizes that do and do not fill their vectors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dosimeter.engine import Matcher, native, reading
from dosimeter.engine.direct import Direct
from dosimeter.engine.ops import Memory
from dosimeter.engine.patches import Window
from dosimeter.engine.program import OFTEN
from dosimeter.engine.rows import packed
from engine.test_engine_oracle import CLASSES, Case, make

built = pytest.mark.skipif(
    native.kernels() is None, reason="kernels are not built here: python -m dosimeter.engine.native"
)

NETWORKS = {
    "cnn": nn.Sequential(
        nn.Conv2d(3, 5, 5, stride=2), nn.ReLU(), nn.Conv2d(5, 18, 3, stride=2, bias=False), nn.Sigmoid(), nn.Flatten()
    ),
    "lenet": nn.Sequential(
        nn.Conv2d(3, 12, 5, stride=2, padding=2), nn.Sigmoid(), nn.Conv2d(12, 33, 3, padding=1), nn.ReLU(), nn.Flatten()
    ),
    "mlp": nn.Sequential(
        nn.Flatten(), nn.Linear(363, 70), nn.BatchNorm1d(70), nn.ReLU(), nn.Linear(70, 37, bias=False), nn.Sigmoid()
    ),
}


def network(name: str) -> Case:
    torch.manual_seed(1)
    body = NETWORKS[name]
    width = body(torch.rand(2, 3, 11, 11)).shape[1]
    for layer in body:
        if isinstance(layer, nn.BatchNorm1d):
            nn.init.normal_(layer.weight)
            nn.init.uniform_(layer.running_var, 0.5, 2.0)
            nn.init.normal_(layer.running_mean)
    return make(nn.Sequential(*body, nn.Linear(width, CLASSES)).eval(), (3, 11, 11), batch=1)


def slopes(matcher: Matcher, case: Case, images: Tensor) -> tuple[Tensor, Tensor]:
    """A loss of all products that weighs each of them differently, and its slope."""
    images = images.clone().requires_grad_()
    found = matcher(images, case.labels, case.owner)
    weights = torch.linspace(0.5, 2.0, found.cross.shape[1], dtype=images.dtype)
    loss = ((found.simulated * weights).sum() + (found.cross * weights.flip(0)).sum()) / found.observed.sum()
    return loss.detach(), torch.autograd.grad(loss, images)[0]


@built
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_by_kernels_agree_with_those_without_also_as_a_script(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = network(name)
    ours = Matcher(case.target, case.observed, way="chain")
    monkeypatch.setattr(reading, "known", lambda like: False)
    theirs = Matcher(case.target, case.observed, way="chain")
    stream = torch.Generator().manual_seed(2)
    for _ in range(OFTEN + 3):
        images = torch.rand(case.images.shape, generator=stream, dtype=case.images.dtype)
        with monkeypatch.context() as patch:
            patch.setattr(reading, "known", lambda like: native.kernels() is not None)
            one = slopes(ours, case, images)
        other = slopes(theirs, case, images)
        for a, b in zip(one, other, strict=True):
            assert (a - b).norm() < 1e-12 * b.norm()


@built
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 40, 33), (13, 7, 64), (65, 129, 100)])
def test_products_with_packed_weights(rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight, bias = (torch.randn(*size, dtype=dtype) for size in ((rows, inputs), (inputs, outputs), (outputs,)))
    panels, z = packed(weight), torch.randn(rows, outputs, dtype=dtype)
    assert panels is not None
    assert packed(weight.clone()) is panels  # one copy for all tiles
    wanted = z + x @ weight
    native.kernels().times(x, panels, None, True, z)
    torch.testing.assert_close(z, wanted)
    native.kernels().times(x, panels, bias, False, z)
    torch.testing.assert_close(z, torch.addmm(bias, x, weight))


@built
@pytest.mark.parametrize(("channels", "outputs", "kernel", "stride", "padding"), [(3, 12, 5, 2, 2), (20, 35, 3, 1, 0)])
def test_a_candidate_of_nan_leaves_others_alone(
    channels: int, outputs: int, kernel: int, stride: int, padding: int
) -> None:
    torch.manual_seed(0)
    window = Window(*((side, side) for side in (kernel, stride, padding, 1)))
    weight, bias = torch.randn(outputs, channels, kernel, kernel), torch.randn(outputs)
    observed = [torch.randn(3, *weight.shape), torch.randn(3, outputs)]
    layer = Direct(weight, bias, window, (9, 9, channels), ("w", "b"), observed, memory=Memory())
    layer.take(torch.arange(3))
    a = torch.randn(3, 9, 9, channels)
    a[1] = torch.nan
    z = layer.forward(a)
    back = layer.backward(z, needed=True)
    found = layer.products()
    layer.turn([(torch.ones(3), torch.ones(3))] * 2)
    moved = layer.tangent(a)
    assert back is not None
    assert moved is not None
    for value in (z, back, moved, layer.returning(moved), *(p for pair in found for p in pair)):
        assert value.flatten(1).isnan().any(1).tolist() == [False, True, False] if value.ndim > 1 else True
        assert value.view(3, -1)[[0, 2]].isfinite().all()
    wanted = F.conv2d(a[::2].permute(0, 3, 1, 2), weight, bias, stride, padding).permute(0, 2, 3, 1)
    torch.testing.assert_close(z[::2], wanted, atol=1e-4, rtol=1e-4)


def test_without_a_compiler_the_engine_says_so_and_runs(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "CXX": "no-such-compiler"}
    run = [sys.executable, "-m", "dosimeter.engine.native"]
    said = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert "runs without its kernels" in said.stdout
    assert "no-such-compiler" in said.stdout
    look = "from dosimeter.engine import native; assert native.kernels() is None"
    subprocess.run([sys.executable, "-c", look], env=environment, check=True)
