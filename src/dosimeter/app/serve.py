"""The server: the explorer, pictures of trials, and the page of one."""

import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import flask
from dash.exceptions import DependencyException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from dosimeter.app import places
from dosimeter.app.explorer import Explorer
from dosimeter.app.guard import Guard, check
from dosimeter.app.jobs import Jobs
from dosimeter.app.page import Field
from dosimeter.app.trials import Trials
from dosimeter.errors import DataError, DosimeterError, SettingError

PAGE = (
    "sandbox allow-scripts allow-downloads allow-popups; default-src 'none'; img-src data:; font-src data:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'self'"
)
"""What the page of a trial may do: it shows what it holds, and reaches neither the explorer nor anybody else."""


class _Quiet(WSGIRequestHandler):
    """Answers without a line on the terminal for each."""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002  werkzeug's name
        return


@contextmanager
def serving(
    store: Path,
    *,
    command: Sequence[str],
    fields: Sequence[Field],
    refusal: Callable[[Sequence[str]], str],
    host: str = "127.0.0.1",
    port: int = 8050,
    token: str | None = None,
) -> Iterator[BaseWSGIServer]:
    """A server that is ready to `serve_forever`; audits that it has started end with the block.

    Args:
        command: runs an audit, given the store and its options.
        fields, refusal: as in `Explorer`.
        port: 0 for any that is free.
        token: what others must know; needed where others reach the host.
    """
    check(host, token)
    flask_ = flask.Flask("dosimeter")
    try:
        server = make_server(host, port, flask_, threaded=True, request_handler=_Quiet)
    except (OSError, OverflowError, SystemExit) as error:  # werkzeug exits where a port is taken
        why = getattr(error, "strerror", None) or "it is taken, or no address of this machine"
        raise SettingError(f"Cannot listen on {host}:{port}: {why}; choose another --port or --host.") from None
    jobs = Jobs(command, store)
    try:
        made = Explorer(Trials(store), jobs, fields, refusal, lambda owner: alive(store, owner), server=flask_)
        Guard(flask_, host=host, port=server.port, token=token, scripts=made.app.csp_hashes())
        _route(flask_, store)
        yield server
    finally:
        server.server_close()
        jobs.close()


def _route(server: flask.Flask, store: Path) -> None:
    server.register_error_handler(DependencyException, lambda _: ("", 404))  # a path that Dash has no file of

    @server.get("/picture/<digest>/<name>")
    def picture(digest: str, name: str) -> Any:
        try:
            return flask.send_file(places.picture(store, digest, name), mimetype="image/png", max_age=60)
        except DataError:
            return flask.abort(404)

    @server.get("/page/<digest>/")
    @server.get("/page/<digest>/attacks/<attack>/report.html")
    def page(digest: str, attack: str | None = None) -> Any:
        try:
            folder = places.trial(store, digest)
            folder = folder if attack is None else places.inside(folder, "attacks", attack)
        except DataError:
            return flask.abort(404)
        return flask.Response(_page(folder), mimetype="text/html", headers={"Content-Security-Policy": PAGE})


_DRAWING = threading.Lock()
_SORRY = """<!doctype html><html lang="en"><meta charset="utf-8"><title>dosimeter</title>
<style>:root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;margin:2rem}</style>
<p>This page cannot be shown. WHY</p></html>"""


def _page(folder: Path) -> str:
    """The report of a run, or the sentence that says why there is none."""
    try:
        places.check_run(folder)
        with _DRAWING:
            return _drawn(folder, (folder / "records.json").stat().st_mtime_ns)
    except DosimeterError as error:
        said = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), folder.name)
    except Exception as error:  # whatever a damaged run brings about
        traceback.print_exc(file=sys.stderr)
        said = f"The run is damaged ({type(error).__name__})."
    return _SORRY.replace("WHY", escape(said))


@lru_cache(maxsize=8)
def _drawn(folder: Path, _: int) -> str:
    """Made anew from the records, never taken from a file that lies there."""
    from dosimeter.reports.page import render
    from dosimeter.store import read

    return render(read(folder))


def alive(store: Path, owner: str) -> bool:
    """Whether the process that has claimed a trial holds its lock."""
    try:
        import fcntl

        path = places.inside(store / places.OWNERS, f"{owner}.lock")
        handle = os.open(path, os.O_RDONLY)
    except (ImportError, OSError, DataError):
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        with suppress(OSError):
            os.close(handle)
