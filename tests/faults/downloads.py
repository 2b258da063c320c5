"""A server on this machine that has one file, goes on from where it is asked to, and takes its time."""

import hashlib
import random
import threading
import time
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = random.Random(0).randbytes(2_000_000)
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()
PIECES, PAUSE = 40, 0.01
"""So many, with so many seconds after each."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.end_headers()
        size = len(CONTENT) // PIECES
        for at in range(start, len(CONTENT), size):
            try:
                self.wfile.write(CONTENT[at : at + size])
            except OSError:  # whoever asked was killed
                return
            time.sleep(PAUSE)

    def log_message(self, *_: object) -> None:
        """Nothing is said."""


@cache
def address() -> str:
    """Of the server, which runs as long as this process; children are forked from it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/{MD5}.npz"
