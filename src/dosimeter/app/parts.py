"""Pieces of the page. Text is React's, which escapes it; nothing here is taken as markup."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dash import dcc, html

from dosimeter.app import places
from dosimeter.app.jobs import DONE, FAILED, RUNNING, STOPPED, WAITING, Job
from dosimeter.app.trials import DAMAGED, number
from dosimeter.errors import DataError
from dosimeter.progress import duration

HEAD = {
    "model": "model", "data": "data", "defense": "defense", "attack": "attack", "seed": "seed", "verdict": "verdict",
    "read": "read", "ssim": "SSIM", "psnr": "PSNR", "accuracy": "accuracy", "seconds": "time", "began": "begun",
}  # fmt: skip
"""Columns of the table; each can be sorted by."""

TONES = {
    "leaks": "hot", "read": "hot", "failed": "hot", DAMAGED: "hot",
    "inconclusive": "warm", "fell short": "warm", "running": "warm",
    "not shown": "calm", "hidden": "calm",
}  # fmt: skip
EVIDENCE = ("read", "hidden", "fell short", "does not fit", "not measured")


def chip(word: Any) -> Any:
    """A word with its colour."""
    text = str(word)[:40]
    return html.Span(text, className=f"chip {TONES.get(text, '')}")


def said(value: Any, digits: int = 3) -> str:
    """A number, or a dash where there is none."""
    found = number(value)
    return "-" if found is None else f"{found:.{digits}f}"


def share(row: Mapping[str, Any]) -> str:
    read, of = number(row["read"]), number(row["of"])
    return "-" if read is None or of is None else f"{read:.0f} of {of:.0f}"


def took(value: Any) -> str:
    found = number(value)
    return "-" if found is None else duration(found)


def when(value: Any) -> str:
    found = number(value)
    try:
        return "-" if found is None else time.strftime("%b %d %H:%M", time.localtime(found))
    except (OverflowError, ValueError, OSError):
        return "-"


def standing(row: Mapping[str, Any]) -> Any:
    """The verdict of a done trial, or what else became of it."""
    return chip(row["verdict"]) if row["status"] == "done" and row["verdict"] else chip(row["status"])


def cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's cells by the columns of the table."""
    words = {
        name: str(row[name] if row[name] is not None else "-")[:200]
        for name in ("model", "data", "defense", "attack", "seed")
    }
    numbers = {"read": share(row), "ssim": said(row["ssim"]), "psnr": said(row["psnr"], 1)}
    rest = {"accuracy": said(row["accuracy"]), "seconds": took(row["seconds"]), "began": when(row["began"])}
    return words | {"verdict": standing(row)} | numbers | rest


def heads(sort: str, down: bool) -> Any:
    """The table's head, each of its words a button that sorts."""
    made = [html.Th(html.Span("compare", className="away"), scope="col")]
    for name, label, how in zip(HEAD, *arrows(sort, down), strict=True):
        button = html.Button(label, id={"sort": name}, n_clicks=0, className="plain")
        made.append(html.Th(button, id={"head": name}, scope="col", className=f"c-{name}", **{"aria-sort": how}))
    return html.Thead(html.Tr(made))


def arrows(sort: str, down: bool) -> tuple[list[str], list[str]]:
    """The words of the head and what they say to who cannot see, by what is sorted."""
    shown = [label + (" ↓" if down else " ↑") * (name == sort) for name, label in HEAD.items()]
    return shown, ["none" if name != sort else "descending" if down else "ascending" for name in HEAD]


def rows_of(rows: Sequence[Mapping[str, Any]], picked: Sequence[str]) -> list[Any]:
    """Trials, of which any can be picked and opened."""
    return [html.Tr([html.Td(_box(row, picked)), *_cells(row)]) for row in rows]


def _box(row: Mapping[str, Any], picked: Sequence[str]) -> Any:
    digest = str(row["digest"])
    label = html.Span(f"compare {row['model']}, {row['defense']}, {row['attack']}"[:120], className="away")
    on = [digest] if digest in picked else []
    return dcc.Checklist([{"label": label, "value": digest}], on, id={"pick": digest}, className="pick")


def _cells(row: Mapping[str, Any]) -> list[Any]:
    made = []
    for name, value in cells(row).items():
        shown = dcc.Link(value, href=f"#{row['digest']}", className="open") if name == "model" else value
        made.append(html.Td(shown, className=f"c-{name}", **{"data-label": HEAD[name]}))
    return made


def compared(rows: Sequence[Mapping[str, Any]], faces: Mapping[str, Any]) -> Any:
    """Trials beside each other, with the most exposed image of each."""
    if not rows:
        return html.P("Pick trials in the table to compare them here.", className="note")
    names = {"model": "model", "defense": "defense", "attack": "attack", "verdict": "verdict", "read": "read"}
    names |= {"ssim": "SSIM", "psnr": "PSNR", "lpips": "LPIPS", "identified": "identified", "labels": "labels"}
    names |= {"blind_ssim": "SSIM without the update", "accuracy": "accuracy", "seconds": "time"}
    more = ("lpips", "identified", "labels", "blind_ssim")
    made = [cells(row) | {name: said(row[name]) for name in more} for row in rows]
    names = {name: label for name, label in names.items() if any(each[name] != "-" for each in made)}
    head = [html.Th("most exposed image"), *(html.Th(label, scope="col") for label in names.values())]
    body = []
    for row, found in zip(rows, made, strict=True):
        told = [html.Td(dcc.Link(found[n], href=f"#{row['digest']}") if n == "model" else found[n]) for n in names]
        body.append(html.Tr([html.Td(faces.get(row["digest"], "-")), *told]))
    return html.Div(html.Table([html.Thead(html.Tr(head)), html.Tbody(body)], className="scores"), className="scroll")


def evidence(counts: Any) -> Any:
    """What the attack says of privacy, image by image, as a bar."""
    found = counts if isinstance(counts, dict) else {}
    known = {kind: int(n) for kind in EVIDENCE if (n := number(found.get(kind))) is not None and n > 0}
    if not known:
        return None
    parts = [
        html.Span(f"{many:,} {kind}", className=f"part {TONES.get(kind, '')}", style={"flexGrow": many})
        for kind, many in known.items()
    ]
    words = ", ".join(f"{many:,} {kind}" for kind, many in known.items())
    return html.Div(parts, className="evidence", role="img", **{"aria-label": f"Evidence by image: {words}"})


def pictures(store: Path, digest: str, record: Mapping[str, Any]) -> list[Any]:
    """Original and reconstruction of an image, and between them what the client trained on where that is another."""
    victim, image = record.get("victim"), record.get("image")
    if not isinstance(victim, int) or not isinstance(image, int) or isinstance(victim, bool) or victim < 0 or image < 0:
        return []
    made = []
    for kind in ("original", "transformed", "reconstruction"):
        name = f"victim-{victim:03d}-{image}-{kind}.png"
        try:
            places.picture(store, digest, name)
        except DataError:
            continue
        scores = f", SSIM {said(record.get('ssim'))}, PSNR {said(record.get('psnr'), 1)} dB" * (
            kind == "reconstruction"
        )
        alt = f"{kind} of victim {victim}, image {image}{scores}"
        made.append(html.Img(src=f"/picture/{digest}/{name}", alt=alt, title=alt))
    return made


def card(store: Path, digest: str, record: Mapping[str, Any] | None) -> Any:
    """One image of a trial with its scores."""
    if record is None:
        return html.Figure(html.Figcaption(["This record is ", chip(DAMAGED), "."]), className="shot")
    shown = pictures(store, digest, record) or [html.P("no pictures", className="note")]
    word = "read" if record.get("read") is True else record.get("explained")
    label = "" if record.get("label") is None else f", label {str(record['label'])[:20]}"
    caption = [
        html.B(f"SSIM {said(record.get('ssim'))}"),
        f" PSNR {said(record.get('psnr'), 1)} dB ",
        chip(word) if word else None,
        html.Div(
            f"victim {str(record.get('victim'))[:9]}, image {str(record.get('image'))[:9]}{label}", className="note"
        ),
    ]
    return html.Figure([html.Div(shown, className="pair"), html.Figcaption(caption)], className="shot")


def live(running: Sequence[Mapping[str, Any]], alive: Mapping[str, bool], jobs: Sequence[Job]) -> Any:
    """What runs now, here or in other processes, and what waits."""
    lines = []
    for row in running:
        lives = alive.get(str(row["owner"]), False)
        since = max(0.0, time.time() - (number(row["began"]) or time.time()))
        usual = number(row["usual"])
        words = f"{row['kind']} of {row['model']} on {row['data']}, defense {row['defense']}, attack {row['attack']}"
        about = f"{duration(since)} of about {duration(usual)}" if usual else f"for {duration(since)}"
        bar = html.Progress(value=str(min(since, usual)), max=str(usual)) if usual else html.Progress()
        told = [bar, about] if lives else [chip("stopped"), "its process is gone; the same command goes on"]
        lines.append(html.Li([dcc.Link(words[:200], href=f"#{row['digest']}"), html.Span(told, className="way")]))
    for job in [each for each in jobs if each.status == WAITING]:
        lines.append(html.Li([html.Span(" ".join(job.words)[:200]), html.Span([chip(WAITING)], className="way")]))
    return html.Ul(lines, className="live") if lines else None


def job_line(job: Job) -> Any:
    """An audit that was started here."""
    tone = {DONE: "calm", FAILED: "hot", RUNNING: "warm", STOPPED: "", WAITING: ""}[job.status]
    end: list[Any] = [html.Span(job.status, className=f"chip {tone}")]
    if job.began is not None and job.status == RUNNING:
        end.append(html.Span(f"for {duration(time.time() - job.began)}"))
    if not job.over:
        end.append(html.Button("Stop", id={"stop": job.key}, n_clicks=0, className="small"))
    end += [dcc.Link("open", href=f"#{digest}") for digest in job.digests[:4]]
    why = html.Div(job.said, className="wrong") if job.said else None
    return html.Li([html.Code(" ".join(job.words)[:300]), html.Span(end, className="way"), why])
