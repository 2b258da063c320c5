"""Builds the kernels: python -m dosimeter.engine.native"""

import subprocess
import sys

from dosimeter.engine.native import build

try:
    sys.stdout.write(f"The engine's kernels are at {build()}.\n")
except (OSError, subprocess.CalledProcessError) as error:
    said = getattr(error, "stderr", "") or str(error)
    reason = next((line for line in said.splitlines() if "error" in line), said.strip().splitlines()[-1])
    sys.stdout.write(f"The engine runs without its kernels, which could not be built: {reason}\n")
