"""Who may ask: browsers on this machine, or whoever has the token; and what their pages may load."""

import hashlib
import hmac
import ipaddress
import os
import threading
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import flask

from dosimeter.errors import SettingError

SHORTEST = 16
"""Letters of a token, which cannot be guessed then."""

SLOW = 0.5
"""Seconds that a wrong token costs, one after another."""

_FORM = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>dosimeter</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:24rem;margin:20vh auto;padding:0 1rem}
input,button{font:inherit;padding:.5rem .7rem;width:100%;box-sizing:border-box;margin-top:.5rem}</style></head>
<body><h1>dosimeter</h1><form method="post" action="/token"><label>Token, as the app was started with
<input type="password" name="token" autocomplete="current-password" autofocus required></label>
<button>Open the store</button></form>WHY</body></html>"""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(host: str, token: str | None) -> None:
    """Refuse an address that others reach without a token, and a token that can be guessed."""
    if token is None and not is_loopback(host):
        raise SettingError(
            f"Others may reach {host!r} (--host) and would see private images; give a --token that they must know, or "
            "leave --host out."
        )
    if token is not None and len(token) < SHORTEST:
        raise SettingError(f"Expected a --token of at least {SHORTEST} letters, got {len(token)}; take a longer one.")


class Guard:
    """Looks at every request before anything else does."""

    def __init__(self, server: flask.Flask, *, host: str, port: int, token: str | None, scripts: Sequence[str]) -> None:
        self.host, self.token, self.loopback = host, token, is_loopback(host)
        self.cookie = f"dosimeter-{port}"
        self.pass_ = "" if token is None else hmac.new(os.urandom(32), token.encode(), hashlib.sha256).hexdigest()
        self.policy = "; ".join(
            (
                "default-src 'none'", "connect-src 'self'", "img-src 'self' data: blob:", "font-src 'self' data:",
                "style-src 'self' 'unsafe-inline'", f"script-src 'self' {' '.join(scripts)}", "frame-src 'self'",
                "base-uri 'none'", "form-action 'self'", "frame-ancestors 'self'",
            )
        )  # fmt: skip
        self._wrong = threading.Lock()
        server.before_request(self.look)
        server.after_request(self.dress)
        server.add_url_rule("/token", "token", self.enter, methods=["POST"])

    def look(self) -> Any:
        """None lets a request through."""
        request = flask.request
        name = urlsplit(f"//{request.host}").hostname or ""
        if self.loopback and not is_loopback(name):  # a page elsewhere whose name was made to lead here
            flask.abort(403)
        origin = request.headers.get("Origin")
        if request.method != "GET" and origin is not None and urlsplit(origin).netloc != request.host:
            flask.abort(403)
        if self.token is None or request.path == "/token":
            return None
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if _same(given, self.token) or _same(request.cookies.get(self.cookie, ""), self.pass_):
            return None
        return self._asked() if request.method == "GET" else flask.abort(401)

    def enter(self) -> Any:
        """Take a token and give the browser a pass, which ends with this process."""
        if self.token is None or not _same(flask.request.form.get("token", ""), self.token):
            with self._wrong:
                time.sleep(SLOW)
            return self._asked("<p>That is not the token.</p>")
        answer = flask.redirect("/")
        answer.set_cookie(self.cookie, self.pass_, httponly=True, samesite="Strict")
        return answer

    def _asked(self, why: str = "") -> Any:
        return flask.Response(_FORM.replace("WHY", why), 401, mimetype="text/html")

    def dress(self, answer: flask.Response) -> flask.Response:
        """Have browsers load nothing from elsewhere, and keep pages of elsewhere out."""
        answer.headers.setdefault("Content-Security-Policy", self.policy)
        answer.headers["X-Content-Type-Options"] = "nosniff"
        answer.headers["Referrer-Policy"] = "same-origin"
        answer.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return answer


def _same(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), right.encode())
