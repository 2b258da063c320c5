"""Pages in a real browser: what a reader clicks, at every width, in both themes, and what a name cannot do."""

import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import shots
from dosimeter import store
from dosimeter.auditing import Result
from dosimeter.reports import kept, page, write_comparison, write_pages

Opens = Callable[..., AbstractContextManager[Any]]
EVIL = "<script>alert('x')</script>\"><img src=http://evil.example/x onerror=alert(1)>&amp;"
SHOWN = "#images > figure:not([hidden])"


def told(page_: Any, what: str) -> list[str]:
    """An attribute of all figures of the gallery that are shown, in their order."""
    found = page_.eval_on_selector_all(SHOWN, f"all => all.map(each => each.getAttribute('{what}'))")
    assert isinstance(found, list)
    return found


def wide(page_: Any) -> int:
    return int(page_.evaluate("document.documentElement.scrollWidth"))


def test_the_gallery_is_sorted_and_filtered(opens: Opens, panel: Result) -> None:
    with opens(page.render(panel)) as shown:
        values = [float(each) for each in told(shown, "data-ssim")]
        assert values == sorted(values, reverse=True)
        assert len(values) == 6
        shown.select_option("[name=sort]", label="least exposed first")
        assert [float(each) for each in told(shown, "data-ssim")] == sorted(values)
        shown.select_option("[name=sort]", label="SSIM of joint")
        joint = [float(each.split()[1]) for each in told(shown, "data-each")]
        assert joint == sorted(joint, reverse=True)
        shown.select_option("[name=kind]", "short")
        assert told(shown, "data-kind") == ["short"]
        assert shown.inner_text("output") == "1 of 6 shown"
        shown.select_option("[name=kind]", "")
        shown.select_option("[name=label]", "2")
        assert told(shown, "data-label") == ["2", "2"]
        before = shown.eval_on_selector(f"{SHOWN} img", "img => img.clientWidth")
        shown.eval_on_selector(
            "[name=size]", "e => { e.value = 12; e.dispatchEvent(new Event('input', {bubbles: true})) }"
        )
        assert shown.eval_on_selector(f"{SHOWN} img", "img => img.clientWidth") > before


def test_zoom_by_mouse_and_keyboard(opens: Opens, panel: Result) -> None:
    with opens(page.render(panel)) as shown:
        first = shown.locator(f"{SHOWN} > button.strip").first
        first.focus()
        shown.keyboard.press("Enter")
        box = shown.locator("dialog")
        assert box.is_visible()
        assert box.locator("img").count() == 5  # the original, three attacks, and what needs no update
        assert all(box.locator("img").nth(k).is_visible() for k in range(5))
        name = box.locator("p").inner_text()
        shown.keyboard.press("ArrowRight")
        assert box.locator("p").inner_text() != name
        shown.keyboard.press("ArrowLeft")
        assert box.locator("p").inner_text() == name
        shown.keyboard.press("Escape")
        assert not box.is_visible()
        assert first.evaluate("e => e === document.activeElement")
        shown.locator("svg a").first.click()  # a point opens its pictures
        assert box.is_visible()
        box.get_by_text("Close").click()
        assert not box.is_visible()


def test_the_theme_is_the_readers_and_can_be_switched(opens: Opens, colour: Result) -> None:
    def ground(shown: Any) -> str:
        return str(shown.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    text = page.render(colour)
    grounds = []
    for theme in ("light", "dark"):
        with opens(text, theme=theme) as shown:
            before = ground(shown)
            shown.click("button.theme")
            assert ground(shown) != before
            shown.reload()
            assert ground(shown) != before  # it is remembered
            shown.click("button.theme")
            assert ground(shown) == before
            grounds.append(before)
            shown.evaluate("localStorage.clear()")
    assert grounds[0] != grounds[1]


def test_tables_are_sorted_and_the_refused_unfolded(opens: Opens, panel: Result) -> None:
    with opens(page.render(panel)) as shown:
        head = shown.locator(".panel thead button", has_text="Best SSIM")
        head.click()
        down = shown.locator(".panel tbody tr").all_inner_texts()
        assert shown.locator(".panel th[aria-sort=descending]").count() == 1
        head.click()
        assert shown.locator(".panel th[aria-sort=ascending]").count() == 1
        assert sorted(shown.locator(".panel tbody tr").all_inner_texts()) == sorted(down)
        why = shown.get_by_text("it solves no convolutions.")
        assert not why.is_visible()
        shown.get_by_text("1 attack refused, and why").click()
        assert why.is_visible()


def test_512_victims_open_and_filter_at_once(opens: Opens, many: Result, tmp_path: Path) -> None:
    text = page.render(many)
    (tmp_path / "wide.html").write_text(text)
    opened = []
    for _ in range(3):  # the best of them, since other tests run beside it
        begin = time.perf_counter()
        with opens(tmp_path / "wide.html") as shown:
            shown.get_by_text("512 of 512 shown").wait_for()
            opened.append(time.perf_counter() - begin)
    assert min(opened) < 3
    with opens(tmp_path / "wide.html") as shown:
        took = shown.evaluate(
            """async () => {
                const begin = performance.now(), select = document.querySelector("[name=kind]");
                select.value = "read";
                select.dispatchEvent(new Event("change", {bubbles: true}));
                await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
                return performance.now() - begin;
            }"""
        )
        assert took < 500
        assert len(told(shown, "data-kind")) == 128
        assert shown.inner_text("output") == "128 of 512 shown"


def test_a_name_runs_nothing(opens: Opens, panel: Result) -> None:
    named = dict.fromkeys(("model", "data", "attack_name", "attack", "defense", EVIL), EVIL)
    hostile = replace(
        panel,
        command=EVIL,
        settings=panel.settings | named,
        records=[replace(record, label=EVIL) for record in panel.records],
        panel=tuple(replace(each, attack=EVIL, about=EVIL, refused=EVIL) for each in panel.panel),
    )
    text = page.render(hostile, title=EVIL)
    with opens(text) as shown:
        assert shown.inner_text("h1").startswith("<script>")
        shown.locator(f"{SHOWN} > button.strip").first.click()
        shown.select_option("[name=sort]", index=4)
    slipped = text.replace(
        "</main>", "<script>document.title = 'run'</script><img src=x onerror=document.title='run'></main>"
    )
    with opens(slipped, complains=True) as shown:  # had one slipped through, the policy would stop it
        assert shown.title() != "run"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1600])
def test_every_width_and_theme(opens: Opens, panel: Result, width: int, theme: str) -> None:
    with opens(page.render(panel), width=width, theme=theme) as shown:
        assert wide(shown) <= width
        shots.check(shown, width, theme)
        for name in ("details", "summary"):
            assert shown.locator(name).count() > 0
        shapes = shown.eval_on_selector_all(
            "img",
            """all => all.filter(img => img.clientWidth).map(img => [
                img.clientWidth / img.clientHeight, img.getAttribute("width") / img.getAttribute("height"),
                getComputedStyle(img).imageRendering, img.alt])""",
        )
        assert len(shapes) > 10
        for drawn, own, how, alt in shapes:
            assert drawn == pytest.approx(own, rel=0.03)
            assert how == "pixelated"
            assert alt
        scored = [alt for *_, alt in shapes if alt.startswith("Reconstruction")]
        assert scored
        assert all(re.search(r"SSIM -?\d", alt) for alt in scored)


def test_all_is_reached_by_the_keyboard(opens: Opens, panel: Result) -> None:
    with opens(page.render(panel)) as shown:
        reached = set()
        for _ in range(60):
            shown.keyboard.press("Tab")
            reached.add(shown.evaluate("(e => e.getAttribute('class') || e.name || e.tagName)(document.activeElement)"))
        assert {"theme", "A", "SUMMARY", "sort", "kind", "label", "size", "strip"} <= reached


def test_several_audits_on_one_page(opens: Opens, panel: Result, grey: Result, tmp_path: Path) -> None:
    for name, result in {"audit-cvb": panel, "audit-none": grey}.items():
        store.write_run(result, tmp_path / name)
        write_pages(result, tmp_path / name)
    where = write_comparison([tmp_path / "audit-cvb", tmp_path / "audit-none"], tmp_path / "all" / "page.html")
    for width in (380, 1600):
        with opens(where, width=width) as shown:
            assert wide(shown) <= width
            rows = shown.locator("section.verdict tbody tr")
            assert rows.count() == 2
            assert rows.nth(0).locator("a").inner_text() == "cvb"
            link = rows.nth(1).locator("a").get_attribute("href")
            assert (where.parent / link).resolve() == tmp_path / "audit-none" / "report.html"
            assert shown.locator(f"{SHOWN} >> nth=0").locator("img").count() == 3  # the original and two audits


def test_points_of_a_comparison_open_their_pictures(opens: Opens, grey: Result, tmp_path: Path) -> None:
    store.write_run(grey, tmp_path / "trials" / "abc")
    where = kept.write(
        tmp_path, "compare", about="<b>a</b>", command="dosimeter compare", threshold=0.5,
        points=[("none", 0.9, 0.95), ("noise (cannot tell)", 0.8, 0.2)], pictures=[["none", "abc"], ["noise", "abc"]],
        head=["defense", "accuracy", "verdict"], rows=[["none", "90 %", "leaks"], ["noise", "80 %", "inconclusive"]],
        verdicts=[["none", "2 read", "all"], ["noise", "2 fell short", "all"]],
    )  # fmt: skip
    for width in (380, 1600):
        with opens(where, width=width) as shown:
            assert wide(shown) <= width
            assert shown.locator("h2").first.inner_text() == "1 of 2 defenses leak; none was shown to hold."
            points = shown.locator("svg a")
            assert points.count() == 2
            points.nth(1).focus()
            shown.keyboard.press("Enter")
            assert shown.locator("dialog").is_visible()
            assert shown.locator("dialog p").inner_text() == "noise"
    redacted = kept.draw(tmp_path, redact=True)
    assert (redacted.name, "<img" in redacted.read_text()) == ("compare-redacted.html", False)
