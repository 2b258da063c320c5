"""The explorer over a store, on a port of this machine, while a block runs."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dosimeter.app import serve
from dosimeter.cli import explorer

COMMAND = (sys.executable, "-m", "dosimeter.cli.explorer")


@contextmanager
def running(store: Path, **more: Any) -> Iterator[str]:
    """The address of a server over a store."""
    given = {"command": COMMAND, "fields": explorer.form(), "refusal": explorer.refusal, "port": 0} | more
    with serve.serving(store, **given) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.port}"
        finally:
            server.shutdown()
            thread.join(10)
