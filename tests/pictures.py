"""The pictures of pages that stand in the documents: at both widths and in both themes, each below 200 kB.

make audit pictures
python tests/pictures.py RUNS FOLDER     of the audits in RUNS and the store RUNS/explored, into FOLDER
"""

import shutil
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from dosimeter import store
from dosimeter.reports import write_comparison, write_page
from dosimeter.reports.page import Beside
from serving import running

MOST = 200_000
"""Bytes of a picture."""


def main(runs: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    audits = [place for name in ("none", "noise", "ppp", "cvb", "fedkl") if (place := runs / f"audit-{name}").is_dir()]
    chosen = runs / "audit-cvb"
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        page, together = Path(place) / "report.html", Path(place) / "comparison.html"
        write_page(store.read(chosen), page, beside=Beside.of(chosen))
        write_comparison(audits, together)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for theme in ("light", "dark"):
            for width, height in ((380, 900), (1600, 880)):
                for name, file in (("report", page), ("comparison", together)):
                    with_page(browser, file, width, height, theme, folder / f"{name}-{width}-{theme}.png")
        with_page(browser, page, 1600, 620, "light", folder / "gallery.png", at="#gallery")
        with_page(browser, page, 1600, 560, "light", folder / "success.png", at="#success")
        with_page(browser, page, 1600, 880, "light", folder / "zoom.png", click=".gallery figure >> nth=2 >> .strip")
        explored(browser, runs / "explored", folder)
        browser.close()


def explored(browser: Any, store_: Path, folder: Path) -> None:
    """The explorer over a store: all its audits, three of them compared, and one with its pictures."""
    with running(store_) as address:
        page = browser.new_page(viewport={"width": 1600, "height": 1000}, color_scheme="light")
        page.set_default_timeout(120_000)
        page.goto(address)
        page.fill("#text", "auto")  # audits; trainings have no attack
        page.wait_for_selector("#told:has-text('of 3')")
        for at in (1, 2, 3):
            page.click(f"#rows tr:nth-child({at}) input")
            page.wait_for_selector(f"#compared tbody tr:nth-child({at})")
        page.wait_for_selector("#plot .points path")
        page.wait_for_timeout(500)
        keep(page.screenshot(full_page=True), folder / "app-list.png")
        page.emulate_media(color_scheme="dark")
        page.click("#rows tr:has-text('noise') a")
        page.wait_for_selector("#gallery img")
        page.wait_for_timeout(500)
        keep(page.screenshot(), folder / "app-trial.png")
        page.close()


def with_page(
    browser: Any, file: Path, width: int, height: int, theme: str, to: Path, *, at: str = "", click: str = ""
) -> None:
    """One picture."""
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)
    page.goto(file.as_uri())
    if at:
        page.eval_on_selector(at, "e => scrollTo(0, e.getBoundingClientRect().top + scrollY - 60)")
    if click:
        page.click(click)
    page.wait_for_timeout(200)
    keep(page.screenshot(), to)
    page.close()


def keep(shot: bytes, to: Path) -> None:
    """A screenshot as a file that is not too large."""
    Image.open(BytesIO(shot)).convert("RGB").save(to, optimize=True)
    size = to.stat().st_size
    if size > MOST:
        raise SystemExit(f"{to}: expected at most {MOST:,} bytes, got {size:,}; show less of the page.")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
