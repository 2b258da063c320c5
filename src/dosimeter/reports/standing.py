"""What can be said of a captured update, in sentences that claim nothing about a truth that was not seen."""

from collections import Counter
from typing import Any

from dosimeter.auditing import Captured
from dosimeter.auditing.evidence import tally
from dosimeter.auditing.records import Shadows
from dosimeter.metrics import percent
from dosimeter.reports.words import Share, count, number
from dosimeter.types import Outcome

CAVEAT = (
    "All of this holds if the update is what it was said to be: made by this step on so many images at these weights. "
)
UNSEEN = "The truth was not seen, so nothing here says that a picture is right; only a certificate does."


def said(result: Captured) -> str:
    """The sentences of the verdict: what is certain, what labels were found, how it compares."""
    parts = (doubt(result), certainty(result), labels(result), comparison(result))
    return " ".join(part for part in parts if part)


def doubt(result: Captured) -> str:
    """Why the update cannot be what it was said to be; nothing where it can."""
    why = result.scores.labels.doubt
    return f"Beware: {why}." if why else ""


def certainty(result: Captured) -> str:
    """What the equations determine of the image."""
    one = result.scores.certificate
    if one.refused:
        return "No image is certain: the analytic attack, which gives certificates, does not solve this update."
    own = one.attack == result.settings["attack_name"]
    shown = "" if own else f" by the {one.attack} attack, which ran beside {result.settings['attack_name']}"
    if one.verdict == "recovered":
        return f"The image is certain{shown}: it reproduces the update to rounding, and none of it is left open."
    if one.share:
        return f"{percent(one.share)} % of the image's numbers are certain{shown}; the update leaves the rest open."
    return "No image is certain: none was solved for that reproduces the update to rounding."


def labels(result: Captured) -> str:
    """The labels that were found and those that are certain."""
    one = result.scores.labels
    if one.found is None:
        return ""
    if one.source == "granted":
        return "Its labels were granted."
    text = f"Its labels were recovered: {counted(one.found)}"
    if sure := one.least:
        times = [f"class {c}" + (f" at least {n} times" if n > 1 else "") for c, n in sure.items()]
        text += f"; for certain it holds {', '.join(times)}"
    return text + "."


def counted(found: list[Any]) -> str:
    """Classes with how often each occurs."""
    return ", ".join(f"class {c}" + (f" {n} times" if n > 1 else "") for c, n in sorted(Counter(found).items()))


def comparison(result: Captured) -> str:
    """How the match compares with those of shadows."""
    one = result.scores.shadows
    if one.left_out:
        return f"How good its match is cannot be said: {one.left_out}."
    if one.success is None:
        return ""
    rate, of = one.success, count(one.updates or 0, "update")
    interval = f"{percent(rate.rate)} %, 95 % interval {percent(rate.low)}-{percent(rate.high)} %"
    text = f"On {of} of other images, made and attacked in the same way, the attack read {rate.hits:,} of "
    text += f"{count(rate.of, 'image')} ({interval})."
    return f"{text} {_place(result, one)}"


def _place(result: Captured, one: Shadows) -> str:
    """Where the match stands among the shadows', and what that is worth."""
    match, n = result.scores.match, one.updates or 0
    if one.rank is None:
        zero = Outcome.ZERO_UPDATE in result.scores.unmeasured
        why = "This update is zero" if zero else "On this update it diverged"
        return f"{why}, so there is no match to compare."
    well, less = one.as_well, one.less_well
    if well is None:
        return f"This update it matched better (loss {number(match)}) than each of them."
    if less is None and one.rank > n:
        return (
            f"This update it matched less well (loss {number(match)}) than each of them, so they do not tell how often "
            "a match like this one is read."
        )
    read = f"updates that matched as well as this one (loss {number(match)}) were read in {well.hits:,} of "
    read += count(well.of, "case")
    rest = f", those that matched less well in {less.hits:,} of {less.of:,}" if less else ""
    return f"{read[0].upper()}{read[1:]}{rest}."


def rates(result: Captured) -> list[Share]:
    """What shadows say, as rates with their intervals."""
    one = result.scores.shadows
    found = []
    if one.success:
        note = f"SSIM of at least {one.success.threshold:g}; without their updates {one.blind:,}"
        found.append(Share("Shadows' images read", one.success.text, note))
    for rate, name, note in (
        (one.as_well, "Of those that matched as well", "their matching loss is at most this update's"),
        (one.less_well, "Of those that matched less well", "their matching loss is above this update's"),
    ):
        if one.rank:
            found.append(Share(name, rate.text if rate else "none did", note))
    if one.evidence:
        found.append(Share("Shadows' evidence", tally(one.evidence), "what the attack says of each of their images"))
    if one.labels:
        guess = f"recovered from shadows' updates; an even guess {percent(one.labels.guess)} %"
        found.append(Share("Shadows' labels right", one.labels.text, guess))
    return found


def facts(result: Captured) -> list[tuple[str, str, str]]:
    """Certificates line by line: what, how much, why."""
    one, labels_ = result.scores.certificate, result.scores.labels
    if one.refused:
        rows = [("Image", "nothing is certain", one.refused)]
    else:
        why = f"{one.attack}: {one.verdict}; relative error of its update {number(one.match)}"
        rows = [("Image", f"{percent(one.share)} % certain", why)]
        shares = {layer: value for layer, value in one.layers.items() if layer != "image"}
        rows += [(f"Input of {layer}", f"{percent(value)} % certain", "") for layer, value in shares.items()]
    if labels_.least is not None:
        sure = [f"class {c}: at least {n}" for c, n in labels_.least.items()]
        why = "from the gradient of the last bias, p - n / B with p above 0"
        rows.append(("Labels", ", ".join(sure) or "nothing is certain", why))
    if labels_.found is not None:
        rows.append(("Labels used", ", ".join(map(str, labels_.found)), labels_.source))
    return rows
