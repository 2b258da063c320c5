"""A page that is handed on: without pictures, in print, and in colours that everybody can tell apart."""

import json
import shutil
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dosimeter import store
from dosimeter.auditing import Result
from dosimeter.cli import app
from dosimeter.reports import pdf, style, write_comparison, write_pages
from dosimeter.reports.page import Beside, render

MISSES = {  # Machado et al. 2009, severity 1
    "red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What is left of a colour, in linear light, to who does not see one of the primaries."""


def linear(colour: str) -> tuple[float, ...]:
    values = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    return tuple(v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)


def light(colour: str) -> float:
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    """CIELAB of linear sRGB, white at D65."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    whole = [sum(w * max(0.0, v) for w, v in zip(row, rgb, strict=True)) for row in rows]
    x, y, z = (
        v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116
        for v in (each / white for each, white in zip(whole, (0.9505, 1.0, 1.089), strict=True))
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(dark: bool) -> None:
    colours = {name: pair[dark] for name, pair in style.PALETTE.items()}
    for ground in ("paper", "card"):
        for text in ("ink", "soft", "accent", "hot", "warm"):
            low, high = sorted((light(colours[ground]), light(colours[text])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (ground, text)  # WCAG 2, level AA


@pytest.mark.parametrize("misses", MISSES)
@pytest.mark.parametrize("dark", [False, True])
def test_evidence_is_told_apart_without_one_primary(dark: bool, misses: str) -> None:
    seen = {}
    for name in ("accent", "hot", "warm", "blind"):
        rgb = linear(style.PALETTE[name][dark])
        seen[name] = lab(tuple(sum(w * v for w, v in zip(row, rgb, strict=True)) for row in MISSES[misses]))
    for one, other in combinations(seen, 2):
        apart = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        assert apart > 12, (one, other, apart)  # and what fell short has a pattern besides its colour


def test_a_redacted_page_has_no_picture_and_says_so(panel: Result) -> None:
    whole, text = render(panel), render(panel, beside=Beside(redact=True))
    assert whole.count("data:image") > 10
    assert "data:image" not in text
    assert "<img" not in text
    assert "Originals and reconstructions are left out of this page" in text
    assert "This page shows the private images" not in text
    assert text.count("data-ssim") == len(panel.records)  # scores stay


def test_a_redacted_page_lies_beside_the_other(panel: Result, tmp_path: Path) -> None:
    store.write_run(panel, tmp_path / "run")
    write_pages(panel, tmp_path / "run")
    before = (tmp_path / "run" / "report.html").read_bytes()
    found = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--redact"])
    assert found.exit_code == 0, found.output
    assert "report-redacted.html" in "".join(found.output.split())
    assert (tmp_path / "run" / "report.html").read_bytes() == before
    assert "data:image" not in (tmp_path / "run" / "report-redacted.html").read_text()
    assert store.stranger(tmp_path / "run") is None
    together = write_comparison([tmp_path / "run", tmp_path / "run"], tmp_path / "both.html", redact=True)
    assert "data:image" not in together.read_text()


def test_the_dose_and_digests_of_the_folder_are_shown(panel: Result, tmp_path: Path) -> None:
    store.write_run(panel, tmp_path / "run")
    image = {"number": 7, "place": 0, "share": 0.25, "dimensions": 100, "determined": 25}
    image["tensors"] = {"conv.weight": {"alone": 20, "without": 5}}
    pairs = [{"attack": "ig", "predicted": 20.0, "reached": 18.0}]
    kept = {"sentence": "A quarter is determined.", "images": [image]}
    kept["attacks"] = {"sentence": "The two agree.", "pairs": pairs}
    (tmp_path / "run" / "dose.json").write_text(json.dumps(kept))
    text = write_pages(panel, tmp_path / "run").read_text()
    for said in (
        "A quarter is determined.",
        "The two agree.",
        "By tensor, alone.",
        "conv.weight 0.200",
        "SHA-256 of records",
    ):
        assert said in text
    (tmp_path / "run" / "dose.json").write_text("{")
    assert "By image." not in write_pages(panel, tmp_path / "run").read_text()


def test_works_are_cited(panel: Result) -> None:
    settings = panel.settings | {"defense": "Cvb(kernel=5)"}
    text = render(replace(panel, settings=settings))
    assert "@software{dosimeter" in text
    assert "Convolutional Variational Bottlenecks" in text
    assert "Inverting Gradients: How easy" in text
    assert "Key-Lock" not in text


def test_a_pdf_without_a_browser_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf.shutil, "which", lambda _: None)
    found = CliRunner().invoke(app, ["report", str(tmp_path), "--format", "pdf"])
    assert found.exit_code == 2
    assert "needs Chromium" in " ".join(found.output.split())
    assert "Traceback" not in found.output


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium on this machine")
def test_a_pdf(panel: Result, tmp_path: Path) -> None:
    store.write_run(panel, tmp_path / "run")
    found = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--format", "pdf", "--redact"])
    assert found.exit_code == 0, found.output
    made = (tmp_path / "run" / "report-redacted.pdf").read_bytes()
    assert made.startswith(b"%PDF")
    assert len(made) > 20_000
    assert store.stranger(tmp_path / "run") is None
