"""Kernels in C++ for what torch has no fast operation for; whoever has no compiler runs without them.

    python -m dosimeter.engine.native       builds them, as `make setup` does, and says where they are

They are built for this processor and this torch and kept in the user's cache, under a name made of both and of the
sources, so that another machine or another torch never loads them. `DOSIMETER_NATIVE=0` leaves them out.
"""

import hashlib
import math
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch

_HERE = Path(__file__).parent
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-Wno-psabi", "-Wno-unknown-pragmas")
_TUNED = ("-march=native", "-mprefer-vector-width=512") if platform.machine() in ("x86_64", "AMD64") else ()


def place() -> Path:
    """Where the kernels for this machine are, or would be."""
    told = hashlib.sha256()
    for part in (torch.__version__, platform.platform(), _processor(), *_FLAGS, *_TUNED):
        told.update(part.encode())
    for source in sorted([*_HERE.glob("*.cpp"), *_HERE.glob("*.h")]):
        told.update(source.read_bytes())
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "dosimeter" / f"kernels-{told.hexdigest()[:16]}.so"


def build() -> Path:
    """Compile the kernels, unless they are there."""
    there = place()
    if there.exists():
        return there
    there.parent.mkdir(parents=True, exist_ok=True)
    root = Path(torch.__file__).parent
    include = [f"-I{root / 'include'}", f"-I{root / 'include/torch/csrc/api/include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    with tempfile.TemporaryDirectory(dir=there.parent) as folder:
        made = Path(folder) / "kernels.so"
        libraries = [f"-L{root / 'lib'}", "-ltorch_cpu", "-lc10"]
        source = str(_HERE / "kernels.cpp")
        compiler = os.environ.get("CXX", "c++")
        command = [compiler, *_FLAGS, *_TUNED, abi, *include, source, "-o", str(made), *libraries]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(there)  # at once: another process may look for it
    return there


@cache
def kernels() -> Any:
    """The kernels' operations, None where they were not built or are switched off."""
    if os.environ.get("DOSIMETER_NATIVE") == "0" or not place().exists():
        return None
    try:
        torch.ops.load_library(str(place()))  # type: ignore[no-untyped-call]
    except OSError:  # such as a library that is gone
        return None
    return torch.ops.dosimeter


def lanes(like: torch.Tensor) -> int:
    """Numbers of a vector."""
    return int(kernels().vector_bytes()) // like.element_size()


def flops() -> dict[Any, Callable[..., int]]:
    """{operation: floating-point operations, given its arguments' shapes}, of those that are products."""
    if (found := kernels()) is None:
        return {}

    def conv(rows: int, shape: int, *sources: int) -> Callable[..., int]:
        """One product of all windows, and one more for every source that is there."""

        def count(*args: Any, out_shape: Any = None) -> int:
            _, _, channels, kernel, *_ = args[shape]
            products = 1 + sum(args[source] is not None for source in sources)
            return int(2 * products * math.prod(args[rows]) * channels * kernel**2)

        return count

    return {
        found.times: lambda x, panels, bias, add, z, out_shape=None: 2 * x[0] * x[1] * z[1],
        found.conv_forward: conv(4, 3),
        found.conv_products: conv(1, 3),
        found.conv_backward: conv(0, 2),
        found.conv_tangent: conv(10, 8, 5),
        found.conv_returning: conv(0, 4, 3),
    }


def _processor() -> str:
    """What the processor can do, since kernels are built for it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
