"""A store to look at, the server over it, and Debian's Chromium."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import many

pytest.importorskip("dash")

from serving import running

Serve = Callable[..., str]


@pytest.fixture
def served() -> Iterator[Serve]:
    """Starts servers that end with the test."""
    with ExitStack() as stack:
        yield lambda store, **more: stack.enter_context(running(store, **more))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A store of sixty audits of twelve images each, the newest of which has its pictures."""
    many.make(tmp_path / "store", 60, 12)
    many.draw(tmp_path / "store", 59, 12)
    return tmp_path / "store"


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 10,000 trials and 100,000 records."""
    folder = tmp_path_factory.mktemp("large") / "store"
    many.make(folder, 10_000, 10)
    many.draw(folder, 9_999, 10)
    return folder


class Watched:
    """A page of the browser, of which all that goes wrong and all that is asked for is kept."""

    def __init__(self, browser: Any, address: str, **more: Any) -> None:
        self.address, self.wrong, self.outside = address, list[str](), list[str]()
        self.page = browser.new_page(viewport={"width": 1600, "height": 1000}, **more)
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(dialog.message), dialog.dismiss()))
        self.page.on("request", self._asked)
        self.page.set_default_timeout(120_000)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:", "about:")):
            self.outside.append(request.url)

    def open(self, hash_: str = "") -> Any:
        self.page.goto(f"{self.address}/{hash_}")
        self.page.wait_for_selector("#rows tr", state="attached")
        return self.page

    def check(self) -> None:
        """Nothing went wrong, and nothing was asked of anybody else."""
        assert self.wrong == []
        assert self.outside == []
        self.page.close()


@pytest.fixture
def watched(browser: Any) -> Callable[..., Watched]:
    return lambda address, **more: Watched(browser, address, **more)
