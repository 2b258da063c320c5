"""The tables of a report: scores and rates, threat model, settings, how to run it again."""

from collections.abc import Iterable, Sequence

from dosimeter.auditing import Outcome, Result, Survey
from dosimeter.metrics import Rate, percent
from dosimeter.reports import words
from dosimeter.reports.markup import Html, join, tag
from dosimeter.reports.style import CSS
from dosimeter.reports.words import grants, interruption, rows, shares

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
    "shape": "Image (channels, height, width)",
    "form": "Form of the images",
    "victims": "Victims",
    "pick": "Picked by the auditor",
    "batch": "Images in an update",
    "loss": "Loss",
    "defense": "Defense",
    "attack_name": "Attack",
    "picked": "Picked for the task",
    "threshold": "Read from SSIM",
    "seed": "Seed",
    "dtype": "Precision",
    "device": "Device",
    "budget": "Memory budget",
    "tile": "Victims at once",
}
"""Settings in the order of the table; others follow under their own names."""

APART = ("attack",)
"""Settings that stand outside the table."""


def section(name: str, title: str, content: Html) -> Html:
    """A part of the page under its heading."""
    return tag("section", tag("h2", title, id=name), content, aria_labelledby=name)


POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
"""Should anything slip through, the browser refuses to load or run it."""


def document(title: str, *body: Html) -> str:
    """A whole page as text: it opens offline, runs no script and asks nothing of the network."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Html(CSS)),
    )
    return "<!doctype html>\n" + tag("html", head, "\n", tag("body", *body), lang="en") + "\n"


def drawing(figure: Html, name: str, *words: str) -> Html:
    """A figure with its caption."""
    return tag("figure", figure, tag("figcaption", tag("b", name), " ", *words))


def banners(result: Outcome) -> Html:
    """What a reader must know before any number: that nothing was measured, or that the audit was interrupted."""
    said = {"Not measured. ": result.unmeasured, "Interrupted. ": interruption(result)}
    return join([tag("p", tag("strong", k), v, class_="banner", role="note") for k, v in said.items() if v])


def scores(result: Result) -> Html:
    """Scores with the baseline beside them, and rates with their intervals."""
    made = result.scores.transformed
    head = [
        "Score",
        "Mean ± std",
        "Median",
        "Worst victim",
        "Without the update",
        *(["With originals"] if made else []),
    ]
    body: list[list[object]] = []
    for row in rows(result):
        name = join([tag("b", row.name), " ", tag("span", row.meaning, class_="note")])
        beside = [row.originals] if made else []
        body.append([name, f"{row.mean} ± {row.std}", row.median, row.worst, row.baseline, *beside])
    rates = [(tag("b", share.name), share.text, share.note) for share in shares(result)]
    note = "The worst victim is the image that the attack read best. Without the update, the same attack runs blind: "
    note += "what it reaches then is owed to its prior."
    if made:
        note += " Scores are against the images that clients trained on, which their defense made of the originals; "
        note += "the last column has the means against these."
    return join(
        [
            table(head, body, "scores"),
            tag("p", note, class_="note"),
            table(("Rate", "With its 95 % interval", "Of what"), rates, "rates"),
        ]
    )


def panel(result: Result) -> Html:
    """Every attack that was tried on the defense, the controls apart."""
    body = [
        (
            join([tag("b", one.name), " ", tag("span", one.about, class_="note")]),
            one.role,
            one.read,
            one.ssim,
            one.worst,
            one.time,
        )
        for one in words.panel(result)
    ]
    note = "The images below are the strongest attack's. Every attack has a report of its own in the folder attacks."
    head = ("Attack", "Kind", "Images read, with the 95 % interval", "SSIM", "Worst victim", "Time")
    return join([table(head, body, "panel"), tag("p", note, class_="note")])


def threat(result: Outcome) -> Html:
    """What the attacker was granted, in words."""
    kinds = {"granted": "chip granted", "not granted": "chip withheld"}
    body = [
        (tag("b", grant.what), tag("span", grant.value, class_=kinds.get(grant.value, "chip")), grant.meaning)
        for grant in grants(result.threat)
    ]
    return table(("Knowledge", "Grant", "Meaning"), body, "threat")


def settings(result: Outcome | Survey) -> Html:
    """What was set; the attack in full below."""
    found = result.settings
    order = [key for key in SETTINGS if key in found]
    order += [key for key in found if key not in SETTINGS and key not in APART]
    pairs = [
        tag("div", tag("dt", SETTINGS.get(key, key.replace("_", " "))), tag("dd", _value(key, found[key])))
        for key in order
    ]
    attack = tag("pre", tag("code", unfold(str(found["attack"]))), tabindex=0) if "attack" in found else None
    return join([tag("dl", *pairs, class_="settings"), attack and tag("h3", "The attack in full"), attack])


def rerun(result: Outcome | Survey) -> Html:
    """The command, where the audit knows it."""
    if not result.command:
        words = "The same model, victims, attack and seed give the same numbers; the settings are above and in "
        return tag("p", words, tag("code", "records.json"), ".")
    return again(result.command)


def again(command: str) -> Html:
    """A command to run."""
    return join([tag("pre", tag("code", command), tabindex=0), tag("p", "The same command gives the same numbers.")])


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


def tile(name: str, value: str, *notes: str) -> Html:
    """A number, large, with what is to be said of it."""
    return tag("div", tag("dt", name), tag("dd", value, class_="big"), *(tag("dd", note) for note in notes))


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
