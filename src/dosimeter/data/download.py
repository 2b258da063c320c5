"""Downloads that are whole and right or not there."""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from dosimeter.errors import DataError, OutputError
from dosimeter.progress import Advance, bar

WAITS = (0.5, 1.0, 2.0)
"""Seconds before each new try that follows one without progress."""

_BY_HAND = "Or put {}.npz in a folder and set DOSIMETER_DATA to that folder, or pass the file itself."
_TIMEOUT = 30.0  # seconds of silence before a connection counts as cut
_CHUNK = 2**18  # bytes
_PASSING = {408, 429}  # refusals that may pass, as all from 500 on may


def download(url: str, destination: Path, md5: str, *, title: str) -> None:
    """Fetch a file: resumed after a cut, compared with its checksum and only then given its name.

    Until then it is `destination.part`, from which a later call goes on; whoever wants the same meanwhile waits for it.
    `title` is the data set's name.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"Cannot download {url}: expected an address that starts with http:// or https://.")
    if destination.is_file() and _md5(destination) == md5:
        return
    part = destination.with_name(destination.name + ".part")
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(destination, error) from error
    with _alone(part):
        if destination.is_file() and _md5(destination) == md5:  # by whom we waited for
            return
        left_over = _size(part) > 0
        with bar(f"{title}: {destination.name}", None, bytes_=True) as advance:
            _persist(url, part, advance, title)
        found = _md5(part)
        if found == md5:
            try:
                os.replace(part, destination)
            except OSError as error:
                raise _unwritable(destination, error) from error
            return
        part.unlink()
    if not left_over:
        raise DataError(f"{url} gave a file of md5 {found}, expected {md5}; it was deleted. {_BY_HAND.format(title)}")
    # The beginning may stem from an older version of the file, so the server gets a second chance.
    download(url, destination, md5, title=title)


@contextmanager
def _alone(part: Path) -> Iterator[None]:
    """The part as nobody's else, once others have let go of it; one that nothing was written to is removed."""
    try:
        handle = _held(part)
    except OSError as error:
        raise _unwritable(part, error) from error
    try:
        yield
    finally:
        with suppress(OSError):
            if not os.fstat(handle).st_size and os.path.samestat(os.fstat(handle), part.stat()):
                part.unlink()
        os.close(handle)


def _held(part: Path) -> int:
    """The open file, locked where files have locks; others may have renamed or removed it while we waited."""
    while True:
        handle = os.open(part, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            import fcntl  # which Windows lacks

            fcntl.flock(handle, fcntl.LOCK_EX)
        except (ImportError, OSError):
            return handle
        except BaseException:
            os.close(handle)
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), part.stat()):
                return handle
        os.close(handle)


def _persist(url: str, part: Path, advance: Advance, title: str) -> None:
    """Fetch until the file is whole; give up after a few tries in a row that brought nothing new."""
    waits, most = list(WAITS), _size(part)
    while True:
        try:
            return _fetch(url, part, advance)
        except (OSError, HTTPException) as error:
            if isinstance(error, HTTPError):
                error.close()
            final = isinstance(error, HTTPError) and error.code < 500 and error.code not in _PASSING
            if _size(part) > most:
                waits, most = list(WAITS), _size(part)
            if final or not waits:
                why = error if isinstance(error, HTTPError) else getattr(error, "reason", error)
                raise DataError(
                    f"Cannot download {url} ({why}); check the network. {_BY_HAND.format(title)}"
                ) from error
        time.sleep(waits.pop(0))


def _fetch(url: str, part: Path, advance: Advance) -> None:
    """One connection: append to the part what is missing of it; OSError or HTTPException when it was cut."""
    have = _size(part)
    headers = {"User-Agent": "dosimeter"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=_TIMEOUT)
    except HTTPError as error:
        if error.code == 416 and have:  # nothing after these bytes: the checksum tells whether they are the file
            error.close()
            return
        raise
    with response:
        at = response.headers.get("Content-Range", "").removeprefix("bytes ").split("-")[0]
        if response.status == 206 and at != str(have):
            os.truncate(part, 0)
            raise ConnectionError(f"the server resumed at byte {at!r}, expected {have}")
        done = have if response.status == 206 else 0  # 200: the server ignores ranges and starts over
        length = response.headers.get("Content-Length")
        total = done + int(length) if length and length.isdigit() else None
        try:
            file = part.open("ab" if done else "wb")
        except OSError as error:
            raise _unwritable(part, error) from error
        with file:
            while block := response.read(_CHUNK):
                try:
                    file.write(block)
                    file.flush()
                except OSError as error:
                    raise _unwritable(part, error) from error
                done += len(block)
                advance(done, total=total)
    if total is not None and done < total:  # read() ends quietly when the other side hangs up
        raise ConnectionError(f"the connection was cut after {done} of {total} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        # The sources publish md5. It guards against accidents, not against forgers.
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(f"Cannot write {path}: {error.strerror or error}; make room or set DOSIMETER_CACHE elsewhere.")
