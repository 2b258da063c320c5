"""The documentation builds, every link leads somewhere, and nothing comes from elsewhere."""

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from dosimeter import defenses
from dosimeter.attacks import presets
from pages import PAGES, ROOT


@pytest.fixture(scope="module", name="site")
def _site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages as HTML, as `make docs` builds them."""
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("no mkdocs here; pip install 'dosimeter[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "mkdocs", "-q", "build", "--strict"]
    around = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run([*command, "-d", folder], capture_output=True, text=True, cwd=ROOT, env=around, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """What a page loads, where it leads, and the places in it that can be led to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.places |= {given.get("id", ""), given.get("name", "")}
        if tag == "a" and "href" in given:
            self.leads.append(given["href"])
        elif tag in ("script", "img", "iframe", "source", "video", "audio", "embed") and "src" in given:
            self.loads.append(given["src"])
        elif tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(given["href"])


def test_links_lead_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if path.name != "404.html"]  # a server's, with its own root
    found = {path.resolve(): Page(path.read_text()) for path in pages}
    assert len(found) > 80
    for path, page in found.items():
        for address in page.loads:
            assert not re.match(r"(https?:)?//", address), f"{path.name} loads {address}"
            assert (path.parent / unquote(address.partition("?")[0])).is_file(), f"{path.name} loads {address}"
        for address in page.leads:
            if re.match(r"(https?|mailto):", address):
                continue
            place, anchor = urldefrag(unquote(address))
            target = (path.parent / place).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            assert target in found, f"{path.name} leads to {address}"
            assert anchor in found[target].places, f"{path.name} leads to {address}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", path.read_text()), path.name


def test_links_between_the_files_lead_somewhere() -> None:
    """As they stand in the repository, where nothing is built."""
    for page in PAGES:
        for address in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", page.read_text())):
            if not re.match(r"https?:|#", address):
                assert (page.parent / address.partition("#")[0]).exists(), f"{page.name} leads to {address}"


def test_every_attack_and_every_defense_has_its_page_with_paper_and_settings(site: Path) -> None:
    for folder, names in (("attacks", presets.BY_NAME), ("defenses", defenses.BY_NAME)):
        for name in names:
            text = (site / "reference" / folder / f"{name}.html").read_text()
            assert "Settings" in text
            assert re.search(r"<strong>Paper:</strong>.*?(bibliography\.html#|our own|none)", text, re.S), name
    bare = [name for name in defenses.BY_NAME if "Paper:</strong> none" in _text(site, "defenses", name)]
    assert bare == ["none", "quantise", "dropout"], "defenses of no paper"
    assert not [name for name in presets.BY_NAME if "Paper:</strong> none" in _text(site, "attacks", name)]


def _text(site: Path, folder: str, name: str) -> str:
    return (site / "reference" / folder / f"{name}.html").read_text()


def test_all_pages_and_all_commands_are_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text()
    for page in PAGES[1:]:
        assert f'href="{page.stem}.html"' in home or page.stem == "index", page.name
    commands = (site / "reference" / "commands.html").read_text()
    for name in ("audit", "dose", "captured", "reproduce", "bench engine", "store merge"):
        assert f"dosimeter {name}<" in commands


def test_a_browser_asks_nobody_else_and_searches_from_the_disk(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    asked: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for name in ("index", "quickstart", "results", "reference/attacks/ig", "reference/api/dosimeter"):
        page.goto(f"file://{site}/{name}.html")
    page.keyboard.press("/")
    page.keyboard.type("soteria")
    page.wait_for_selector(".md-search-result__item", timeout=60_000)
    assert not [url for url in asked if not url.startswith(("file:", "data:", "about:", "blob:"))]
    assert not wrong
    page.close()
