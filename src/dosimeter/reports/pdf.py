"""A page in print, by a browser that is on this machine."""

import os
import shutil
import subprocess
from pathlib import Path

from dosimeter import files
from dosimeter.errors import SettingError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
SECONDS = 120
"""For a page; one of many pictures takes some."""


def browser() -> str:
    """Where Chromium or a relative of it is, or a refusal."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise SettingError("A PDF needs Chromium or Chrome on the path, found none; print the page from a browser.")
    return found


def print_page(page: Path, to: Path) -> Path:
    """Print an HTML page to a PDF and say where that is."""
    with files.scratch() as place:
        made = place / "page.pdf"
        words = [browser(), "--headless", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={place}/user"]
        if hasattr(os, "geteuid") and os.geteuid() == 0:  # its sandbox does not run as root, as in containers
            words.append("--no-sandbox")
        words += [f"--print-to-pdf={made}", page.resolve().as_uri()]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise SettingError(
                f"{page}: expected a PDF within {SECONDS} s, got none; print it from a browser."
            ) from None
        if not made.is_file():
            why = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise SettingError(f"{page}: expected a PDF of {words[0]}, got none ({why}); print it from a browser.")
        files.replace(to, made.read_bytes())
    return to
