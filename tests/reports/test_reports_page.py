"""The page stands alone, shows everything and lets nothing of the user's act as markup."""

import base64
import io
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dosimeter.auditing import Result
from dosimeter.errors import OutputError
from dosimeter.reports import PAGE, gallery, page, report, style, write_page
from dosimeter.reports.markup import EMPTY
from dosimeter.reports.sections import unfold
from dosimeter.reports.words import grants
from dosimeter.store import read_run
from dosimeter.types import Curve, ThreatModel, Victims

EVIL = "<script>alert('x')</script>\"><img src=http://evil.example/x onerror=alert(1)>&amp;\x1b[2J"


class Page(HTMLParser):
    """Tags with attributes, text, and whether every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text += data
        elif self.open[-1] == "script":
            self.scripts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def pixels(source: str | None) -> torch.Tensor:
    assert source is not None
    assert source.startswith("data:image/png;base64,")
    with Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2]))) as image:
        return torch.from_numpy(np.array(image))


@pytest.fixture(params=["colour", "grey"])
def result(request: pytest.FixtureRequest) -> Result:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Result)
    return found


def test_the_page_stands_alone(result: Result) -> None:
    text = page.render(result)
    found = Page(text)
    assert text.startswith("<!doctype html>")
    assert "http:" not in text
    assert "https:" not in text
    assert "@import" not in text
    assert "url(" not in text
    assert found.scripts == [style.script()]
    policy = next(each["content"] for each in found.all("meta") if each.get("http-equiv"))
    assert policy == style.policy()
    for name, attributes in found.tags:
        assert name not in {"link", "iframe", "object", "embed", "form", "base"}
        assert not any(key.startswith("on") or key in {"srcset", "action"} for key in attributes)
        assert (attributes.get("href") or "#").startswith("#")
        if "src" in attributes:
            assert (attributes["src"] or "").startswith("data:image/png;base64,")


def test_every_image_is_shown(result: Result) -> None:
    found = Page(page.render(result))
    for record in result.records:
        assert f"Image {record.index}" in found.text
    assert len([each for each in found.all("figure") if "data-place" in each]) == len(result.records)
    titles = {attributes.get("title") for attributes in found.all("figure")}
    assert set(result.victims.ids) <= titles
    images = found.all("img")
    assert len(images) == 3 + 3 * len(result.records)  # the most exposed one first, then all, with the blind image
    assert all(attributes["alt"] for attributes in images)


def test_pictures_have_the_pixels(colour: Result) -> None:
    images = Page(page.render(colour)).all("img")
    best = gallery.ranked(colour)[0]
    v, b = colour.records.index(best), 0
    for attributes, tensors in zip(images, (colour.victims.images, colour.images, colour.baseline), strict=False):
        assert pixels(attributes["src"]).permute(2, 0, 1).equal((tensors[v, b] * 255).round().byte())


def test_headings_and_language(result: Result) -> None:
    found = Page(page.render(result, title="A title"))
    assert found.all("html") == [{"lang": "en"}]
    assert len(found.all("h1")) == 1
    assert "A title" in found.text
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = [attributes["aria-labelledby"] for attributes in found.all("section") if "aria-labelledby" in attributes]
    assert set(named) <= set(ids)
    links = [attributes["href"] for attributes in found.all("a")]
    assert [link for link in links if not link.startswith("#image-")] == [f"#{name}" for name in named]
    assert {link[1:] for link in links} <= set(ids)
    assert all(attributes["aria-label"] for attributes in found.all("svg"))


def test_names_are_text(colour: Result) -> None:
    settings = dict.fromkeys(("model", "data", "attack_name", "attack", "defense", "loss", EVIL), EVIL)
    hostile = replace(
        colour,
        command=EVIL,
        settings=colour.settings | settings,
        victims=colour.victims._replace(ids=(EVIL,) * 5),
        records=[replace(record, label=EVIL, stopped=EVIL) for record in colour.records],
        environment={EVIL: EVIL},
    )
    text = page.render(hostile, title=EVIL)
    assert text.count("<script") == 1
    assert "<img src=http" not in text
    assert "\x1b" not in text
    plain, found = Page(page.render(colour)), Page(text)
    assert "<script>alert('x')</script>" in found.text
    assert found.scripts == [style.script()]
    assert len(found.all("img")) == len(plain.all("img"))


def test_interruption_is_said(colour: Result) -> None:
    records = [replace(record, stopped="interrupted") for record in colour.records[:2]] + colour.records[2:]
    text = Page(page.render(replace(colour, status="interrupted", records=records))).text
    assert "Interrupted. This audit was interrupted" in text
    assert "5 victims reached by then, 2 of them with the attack cut short" in text
    assert "Interrupted." not in Page(page.render(colour)).text


def test_settings_threat_and_command_are_there(grey: Result) -> None:
    text = Page(page.render(grey)).text
    assert "dosimeter audit --data 'noise & more'" in text
    assert "Search(\n    stop=Stop(steps=3, patience=None, target=None, match=None, leg=None),\n" in text
    for grant in grants(grey.threat):
        assert grant.what in text
        assert grant.meaning in text
    assert grey.environment["torch"] in text


def test_a_large_gallery_is_cut(colour: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "MOST", 9)
    found = Page(page.render(colour))
    assert "Left out: the 2 images with the lowest SSIM." in found.text
    assert len(found.all("img")) == 3 + 3 * 3


def test_large_images_are_reduced_in_the_gallery_alone(colour: Result) -> None:
    wide = torch.rand(1, 1, 3, 200, 160)
    victims = Victims(wide, torch.tensor([[0]]), torch.tensor([[1000]]), ("train:1000",))
    one = replace(colour, victims=victims, raw=wide, raw_baseline=wide, records=colour.records[:1])
    found = Page(page.render(one))
    sizes = [(attributes["width"], attributes["height"]) for attributes in found.all("img")]
    assert sizes == [("160", "200")] * 3 + [("102", "128")] * 3
    assert "Pictures are reduced here." in found.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_images(colour: Result, count: int) -> None:
    few = replace(colour, records=colour.records[:count])
    found = Page(page.render(few))
    assert len([each for each in found.all("figure") if "data-place" in each]) == count


def test_two_channels_and_targets_that_are_no_classes(colour: Result) -> None:
    images = torch.rand(5, 1, 2, 32, 32)
    records = [
        replace(record, label=[0.123456789] * 20, scores=record.scores | {"lpips": 0.2}) for record in colour.records
    ]
    odd = replace(
        colour, victims=colour.victims._replace(images=images), raw=images, raw_baseline=images, records=records
    )
    Page(page.render(odd))


def test_losses_that_cannot_be_drawn(colour: Result) -> None:
    empty = replace(colour, curve=Curve((0,), torch.full((5, 1), torch.inf)))
    assert "no matching loss above zero" in Page(page.render(empty)).text


def test_a_new_field_of_the_threat_model_is_shown(colour: Result) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Wider(ThreatModel):
        side_channel: str = "timing"

    lines = grants(Wider())
    assert lines[-1][:2] == ("side channel", "timing")


def test_report_writes_the_whole_folder(result: Result, tmp_path: Path) -> None:
    place = report(result, tmp_path / "run")
    assert place == tmp_path / "run" / PAGE
    Page(place.read_text(encoding="utf-8"))
    read_run(tmp_path / "run")
    with pytest.raises(OutputError, match="--overwrite"):
        report(result, tmp_path / "run")
    report(result, tmp_path / "run", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_page_that_fails_leaves_the_run(colour: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(page, "render", fail)
    with pytest.raises(RuntimeError, match="in the middle"):
        report(colour, tmp_path / "run")
    assert read_run(tmp_path / "run").info["status"] == "complete"


def test_a_page_that_cannot_be_written(colour: Result, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(OutputError, match="Cannot write"):
        write_page(colour, tmp_path / "taken" / "report.html")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("A(b=1, c=(2, 3), d='x, (y')", "A(\n    b=1,\n    c=(2, 3),\n    d='x, (y',\n)"),
        ("A(b=[1, 2])", "A(b=[1, 2])"),
        ("A()", "A()"),
        ("a function, or so", "a function, or so"),
        ("A(b=(1, c=2)", "A(b=(1, c=2)"),
        (r"A(b='it\'s, so', c=1)", "A(\n    b='it\\'s, so',\n    c=1,\n)"),
    ],
)
def test_unfold(text: str, shown: str) -> None:
    assert unfold(text) == shown
