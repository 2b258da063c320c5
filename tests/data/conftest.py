"""Servers on the loopback, tiny data sets, and the real files where they are at hand."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from dosimeter.data import Dataset, download

REAL = Path(os.environ.get("DOSIMETER_DATA") or Path(__file__).parents[3] / "shared" / "data")


class Server(ThreadingHTTPServer):
    """Serves bytes; can hang up half way, ignore ranges, or answer with an error."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes], *, cuts: int = 0, ranges: bool = True, errors: tuple[int, ...] = ()):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cuts, self.ranges, self.errors = dict(files), cuts, ranges, list(errors)
        self.seen: list[tuple[str, str | None]] = []  # (path, Range header) of every request

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.seen.append((self.path, wanted))
        content = self.server.files.get(self.path.strip("/").split("?")[0])
        if self.server.errors or content is None:
            return self.send_error(self.server.errors.pop(0) if self.server.errors else 404)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start and start >= len(content):
            return self.send_error(416)
        payload = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(payload)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.server.cuts:
            self.server.cuts -= 1
            payload = payload[: len(payload) // 2]
        self.wfile.write(payload)
        self.close_connection = True
        return None

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers = []

    def start(files: Mapping[str, bytes], **how: object) -> Server:
        server = Server(files, **how)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No test touches the user's folders, goes through a proxy or waits between tries."""
    monkeypatch.delenv("DOSIMETER_DATA", raising=False)
    monkeypatch.setenv("DOSIMETER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "WAITS", (0.0, 0.0, 0.0))
    return tmp_path / "cache"


@pytest.fixture
def real() -> Path:
    if not (REAL / "mnist.npz").is_file():
        pytest.skip("the real data files are not at hand; set DOSIMETER_DATA to their folder")
    return REAL


@pytest.fixture(scope="session")
def tiny() -> Dataset:
    """30 + 12 random images of 6 x 6 in three colours, four classes."""
    rng = np.random.default_rng(0)
    return Dataset(
        name="tiny",
        train_images=rng.integers(0, 256, (30, 6, 6, 3), dtype=np.uint8),
        train_labels=rng.integers(0, 4, 30),
        test_images=rng.integers(0, 256, (12, 6, 6, 3), dtype=np.uint8),
        test_labels=np.full(12, 3),
    )
