"""The tables of a report: scores and rates, threat model, settings, how to run it again."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dosimeter.auditing import Outcome, Result, Survey
from dosimeter.metrics import Rate, percent
from dosimeter.reports import evidence, style, words
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.words import count, grants, interruption, rows, shares

SETTINGS = {
    "model": "Model",
    "weights": "Weights",
    "weights_fingerprint": "Fingerprint of the weights",
    "parameters": "Trainable parameters",
    "data": "Data",
    "fingerprint": "Fingerprint of the data",
    "update": "Update",
    "update_fingerprint": "Fingerprint of the update",
    "shadows": "Shadows",
    "source": "Source of the data",
    "split": "Split",
    "shape": "Image (channels, height, width)",
    "form": "Form of the images",
    "victims": "Victims",
    "pick": "Picked by the auditor",
    "batch": "Images in an update",
    "loss": "Loss",
    "step": "Step of clients",
    "server": "Server",
    "defense": "Defense",
    "channel": "What attacks answer",
    "attack_name": "Attack",
    "steps": "Steps",
    "picked": "Picked for the task",
    "threshold": "Read from SSIM",
    "seed": "Seed",
    "dtype": "Precision",
    "device": "Device",
    "budget": "Memory budget",
    "tile": "Victims at once",
    "workers": "Workers",
    "lpips": "LPIPS by",
}
"""Settings in the order of the table; others follow under their own names."""

APART = ("attack",)
"""Settings that stand outside the table."""


class Part(NamedTuple):
    """A part of a page: the name that links lead to, its heading and what is in it."""

    name: str
    title: str
    content: Html


def laid(parts: Iterable[Part | None]) -> list[Html]:
    """Links to all parts and the parts, each under its heading; those without content are left out."""
    shown = [part for part in parts if part is not None and part.content]
    links = tag("nav", *(tag("a", part.title, href=f"#{part.name}") for part in shown), aria_label="Parts of this page")
    return [links, *(section(*part) for part in shown)]


def section(name: str, title: str, content: Html) -> Html:
    """A part of the page under its heading."""
    return tag("section", tag("h2", title, id=name), content, aria_labelledby=name)


def header(title: str, *about: object) -> Html:
    """The top of a page: what it is, what of, and the switch between light and dark."""
    switch = tag("button", "Dark", class_="theme", type="button", aria_label="Switch between a light and a dark page")
    return tag(
        "header", tag("p", "dosimeter", class_="brand"), tag("h1", title), switch, tag("p", *about, class_="about")
    )


def document(title: str, *body: Html) -> str:
    """A whole page as text: it opens offline, runs one script of its own and asks nothing of the network."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=style.policy()),
        tag("title", title),
        tag("style", Html(style.css())),
    )
    whole = tag("body", *body, "\n", tag("script", Html(style.script())))
    return "<!doctype html>\n" + tag("html", head, "\n", whole, lang="en") + "\n"


def folded(summary: str, *content: object, open_: bool = False) -> Html:
    """What is shown on demand."""
    return tag("details", tag("summary", summary), *content, open="" if open_ else None)


def drawing(figure: Html, name: str, *words: str) -> Html:
    """A figure with its caption."""
    return tag("figure", figure, tag("figcaption", tag("b", name), " ", *words))


def banners(result: Outcome) -> Html:
    """What a reader must know before any number: that nothing was measured, or that the audit was interrupted."""
    said = {"Not measured. ": result.unmeasured, "Interrupted. ": interruption(result)}
    return join([tag("p", tag("strong", k), v, class_="banner", role="note") for k, v in said.items() if v])


def scores(result: Result) -> Html:
    """Scores with the baseline beside them, and rates with their intervals; the papers' variants on demand."""
    made = result.scores.transformed
    head = [
        "Score",
        "Mean ± std",
        "Median",
        "Worst victim",
        "Without the update",
        *(["With originals"] if made else []),
    ]
    first: list[list[object]] = []
    more: list[list[object]] = []
    usual = set(words.shown(result).values()) | {"MSE"}
    for row in rows(result):
        name = join([tag("b", row.name), " ", tag("span", row.meaning, class_="note")])
        beside = [row.originals] if made else []
        line: list[object] = [name, f"{row.mean} ± {row.std}", row.median, row.worst, row.baseline, *beside]
        (first if row.name in usual else more).append(line)
    rates = [(tag("b", share.name), share.text, share.note) for share in shares(result)]
    note = "The worst victim is the image that the attack read best. Without the update, the same attack runs blind: "
    note += "what it reaches then is owed to its prior."
    if made:
        note += " Scores are against the images that clients trained on, which their defense made of the originals; "
        note += "the last column has the means against these."
    return join(
        [
            table(("Rate", "With its 95 % interval", "Of what"), rates, "rates"),
            table(head, first, "scores"),
            tag("p", note, class_="note"),
            folded(f"{count(len(more), 'more score')}, as the papers define them", table(head, more, "scores"))
            if more
            else None,
        ]
    )


def panel(result: Result) -> Html:
    """Every attack that ran on the defense, the controls apart; those that do not fit on demand."""
    lines, refused = [], []
    for trial, one in zip(words.ordered(result), words.panel(result), strict=True):
        if trial.result is None:
            refused.append(tag("li", tag("b", one.name), f": {trial.refused}"))
            continue
        scores_ = trial.result.scores
        lines.append(
            tag(
                "tr",
                tag("th", tag("b", one.name), tag("span", one.about, class_="note"), scope="row"),
                tag("td", one.role),
                tag("td", evidence.bar(scores_.evidence, mini=True), data_value=scores_.success.hits),
                tag("td", one.read, data_value=scores_.success.rate),
                *(tag("td", text, class_="n") for text in (one.ssim, one.worst, one.time)),
                class_="control" if trial.role == "control" else None,
            )
        )
    names = ("Attack", "Kind", "Evidence", "Images read, 95 % interval", "Mean SSIM", "Best SSIM", "Time")
    head = tag("tr", *(tag("th", name, scope="col", class_="n" if at > 3 else None) for at, name in enumerate(names)))
    note = "The strongest attack stands first; the control has all that the defense hides revealed to it, which shows "
    note += "whether the attack itself works here. Every attack has a page of its own in the folder attacks."
    return join(
        [
            tag("div", tag("table", tag("thead", head), tag("tbody", *lines), class_="panel sorts"), class_="scroll"),
            tag("p", note, class_="note"),
            folded(f"{count(len(refused), 'attack')} refused, and why", tag("ul", *refused)) if refused else None,
        ]
    )


def threat(result: Outcome) -> Html:
    """What the attacker was granted, in words, and line by line on demand."""
    kinds = {"granted": "chip granted", "revealed": "chip granted", "not granted": "chip withheld"}
    body = [
        (tag("b", grant.what), tag("span", grant.value, class_=kinds.get(grant.value, "chip")), grant.meaning)
        for grant in grants(result.threat)
    ]
    said = tag("p", " ".join(words.granted(result.threat)))
    return tag(
        "div", said, folded("Line by line", table(("Knowledge", "Grant", "Meaning"), body, "threat")), class_="words"
    )


def settings(result: Outcome | Survey) -> Html:
    """What was set; the attack in full below."""
    found = {key: value for key, value in result.settings.items() if value is not None}
    order = [key for key in SETTINGS if key in found]
    order += [key for key in found if key not in SETTINGS and key not in APART]
    pairs = [
        tag("div", tag("dt", SETTINGS.get(key, key.replace("_", " "))), tag("dd", _value(key, found[key])))
        for key in order
    ]
    attack = tag("pre", tag("code", unfold(str(found["attack"]))), tabindex=0) if "attack" in found else None
    return join([tag("dl", *pairs, class_="settings"), attack and folded("The attack in full", attack)])


def rerun(result: Outcome | Survey) -> Html:
    """The command, where the audit knows it."""
    if not result.command:
        words = "The same model, victims, attack and seed give the same numbers; the settings are above and in "
        return tag("p", words, tag("code", "records.json"), ".")
    return again(result.command)


def again(command: str) -> Html:
    """A command to run."""
    return join(
        [
            tag("pre", tag("code", command), tabindex=0, class_="wrap"),
            tag("p", "The same command gives the same numbers."),
        ]
    )


def tiles(result: Result) -> Html:
    """The few numbers that matter, large."""
    scores, made = result.scores, result.scores.transformed
    shown = [share_tile("Images read", scores.success)]
    for name, each in (("", scores), (", as trained on", made)):
        if each:
            floor = f"{each.baseline['ssim'].mean:.2f} without the update"
            shown.append(tile(f"Mean SSIM{name}", f"{each['ssim'].mean:.2f}", floor))
        if each and (one := each.identification):
            shown.append(share_tile(f"Victims identified{name}", one, f"by chance {percent(one.chance)} %"))
    if labels := result.scores.labels:
        shown.append(share_tile("Labels right", labels, f"by an even guess {percent(labels.guess)} %"))
    return tag("dl", *shown, class_="tiles")


def share_tile(name: str, rate: Rate, *more: str) -> Html:
    """A rate, large, with its interval."""
    interval = f"95 % interval {percent(rate.low)}-{percent(rate.high)} %"
    return tile(name, f"{rate.hits:,} of {rate.of:,}", interval, *more)


def unbroken(text: str) -> list[str]:
    """A sentence in which no line ends within a percentage."""
    pieces = re.split(r"([\d.]+(?:-[\d.]+)? %)", text)
    return [tag("span", piece, class_="key") if k % 2 else piece for k, piece in enumerate(pieces)]


def tile(name: str, value: str, *notes: str) -> Html:
    """A number, large, with what is to be said of it."""
    return tag("div", tag("dt", name), tag("dd", value, class_="big"), *(tag("dd", *unbroken(note)) for note in notes))


def table(head: Sequence[str], body: Iterable[Sequence[object]], class_: str | None = None) -> Html:
    """A table whose first column names its rows; wide ones scroll by themselves."""
    lines = [tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest)) for first, *rest in body]
    top = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
    return tag("div", tag("table", top, tag("tbody", *lines), class_=class_), class_="scroll")


def unfold(text: str) -> str:
    """The repr of a dataclass with one field a line; any other text as it is."""
    start = text.find("(")
    if start < 0 or not text.endswith(")"):
        return text
    parts, depth, quote, begin = [], 0, "", start + 1
    for place in range(start + 1, len(text) - 1):
        char = text[place]
        if quote:
            quote = "" if char == quote and text[place - 1] != "\\" else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    parts.append(text[begin:-1].strip())
    if depth or len(parts) < 2:
        return text
    return f"{text[: start + 1]}\n" + "".join(f"    {part},\n" for part in parts if part) + ")"


def _value(key: str, value: object) -> object:
    """A setting for people."""
    if key == "shape" and isinstance(value, list | tuple):
        return " \N{MULTIPLICATION SIGN} ".join(str(side) for side in value)
    if key == "budget" and isinstance(value, int):
        return f"{value / 2**30:.3g} GiB"
    if key == "defense":
        return "none" if value == "NoDefense()" else tag("code", value)
    if isinstance(value, int) and not isinstance(value, bool) and key != "seed":
        return f"{value:,}"
    return value
