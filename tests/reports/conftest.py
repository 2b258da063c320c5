"""One small audit of each kind, really run, and a browser to look at their pages with."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dosimeter import auditing, models
from dosimeter.attacks import presets
from dosimeter.types import Victims

Opens = Callable[..., AbstractContextManager[Any]]


def small_audit(channels: int, victims: int, batch: int) -> auditing.Result:
    rng = torch.Generator().manual_seed(0)
    images = torch.rand(victims, batch, channels, 32, 32, generator=rng)
    labels = torch.arange(victims * batch).reshape(victims, batch) % 10
    indices = 1000 + torch.arange(victims * batch).reshape(victims, batch)
    ids = tuple(f"train:{'+'.join(map(str, row))}" for row in indices.tolist())
    scale = {"mean": (0.5,) * channels, "std": (0.25,) * channels}
    model = models.build("cnn", shape=(channels, 32, 32), classes=10, seed=0, **scale)
    whole = auditing.Audit(
        model=model,
        victims=Victims(images, labels, indices, ids),
        attack=presets.inverting_gradients(steps=3, labels="idlg" if batch == 1 else "known"),
        names={"model": "cnn", "data": "noise"},
        resources=auditing.Resources(progress=False),
        scoring=auditing.Scoring(decoys=torch.rand(9, channels, 32, 32, generator=rng)),
    )
    return auditing.perform(whole)


@pytest.fixture(scope="session")
def colour() -> auditing.Result:
    """Five updates of one image, labels recovered."""
    return small_audit(3, 5, 1)


@pytest.fixture(scope="session")
def grey() -> auditing.Result:
    """Two updates of three grey images, labels granted, the command known."""
    return replace(small_audit(1, 2, 3), command="dosimeter audit --data 'noise & more'")


@pytest.fixture(scope="session")
def panel(grey: auditing.Result) -> auditing.Result:
    """The same victims under three attacks, one of them a control, and one that was refused; evidence of every kind."""
    kinds = ("hidden", "fell short", "does not fit", "not measured")
    records = [
        replace(
            record, read=k < 2, scores=record.scores | {"ssim": 0.9 - 0.15 * k}, explained=kinds[k % 4], label=k % 3
        )
        for k, record in enumerate(grey.records)
    ]
    counts = {"read": 2, "hidden": 1, "fell short": 1, "does not fit": 1, "not measured": 1}
    best = replace(grey, records=records, scores=replace(grey.scores, evidence=counts))
    trials = [
        auditing.Trial(attack="ig", role="published", about="Inverting Gradients", result=best),
        auditing.Trial(attack="joint", role="adaptive", about="image and draws together", result=grey),
        auditing.Trial(attack="analytic", role="adaptive", about="solved", refused="it solves no convolutions."),
        auditing.Trial(attack="all revealed", role="control", about="all is revealed", result=grey),
    ]
    return replace(best, panel=tuple(trials), verdict="Three attacks were tried.")


@pytest.fixture(scope="session")
def many(colour: auditing.Result) -> auditing.Result:
    """512 victims with images, scores and labels of their own."""
    images = torch.rand(512, 1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    ids = tuple(f"train:{k}" for k in range(512))
    labels, indices = (torch.arange(512).reshape(512, 1) % n for n in (10, 512))
    records = [
        replace(
            colour.records[k % 5], victim=k, index=k, label=k % 10, read=k % 4 == 0, explained="fell short",
            scores=colour.records[0].scores | {"ssim": (k * 37 % 512) / 512},
        )
        for k in range(512)
    ]  # fmt: skip
    curve = auditing.result.Curve(colour.curve.steps, colour.curve.match[:1].repeat(512, 1))
    settings = colour.settings | {"victims": 512}
    victims = Victims(images, labels, indices, ids)
    return replace(
        colour, settings=settings, victims=victims, raw=1 - images, raw_baseline=images, records=records, curve=curve
    )


@pytest.fixture
def opens(browser: Any, tmp_path: Path) -> Opens:
    """Open a page; at the end it has asked nothing of the network and complained of nothing."""

    @contextmanager
    def opened(text: str | Path, *, width: int = 1200, theme: str = "light", complains: bool = False) -> Iterator[Any]:
        where = text if isinstance(text, Path) else tmp_path / "page.html"
        if isinstance(text, str):
            where.write_text(text, encoding="utf-8")
        asked: list[str] = []
        told: list[str] = []
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
        page.goto(where.resolve().as_uri())
        try:
            yield page
            assert [url for url in asked if not url.startswith(("data:", "file:"))] == []
            assert len({url for url in asked if url.startswith("file:")}) == 1 + complains  # what the policy stopped
            assert bool(told) == complains, told
        finally:
            context.close()

    return opened
