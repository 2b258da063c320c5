"""The tests themselves run wherever they are started."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def test_ctrl_c_is_heard_in_a_background_job() -> None:
    words = [sys.executable, "-m", "pytest", str(HERE / "engine" / "test_engine_plan.py"), "-k", "ctrl_c"]
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *words, "-p", "no:cacheprovider"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parent, timeout=300)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
