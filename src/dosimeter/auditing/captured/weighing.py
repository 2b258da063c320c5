"""The verdict on one captured update, whose truth need not be known.

What is certain of it speaks for itself. Beyond that, updates of other images speak for it, whose truth the auditor has:
made by the same step and defense and attacked in the same way. If these leak, and the captured update was matched as
well as they were, it leaks. If all of them are hidden, no leak was shown. Where its own match is none of theirs, they
do not speak for it.
"""

from typing import TYPE_CHECKING

from dosimeter.auditing.verdict import SHOWS, Kind, Verdict, weigh
from dosimeter.metrics import percent

if TYPE_CHECKING:
    from dosimeter.auditing.result import Captured


def weigh_captured(result: "Captured") -> Verdict:
    """Whether the update leaks, as far as can be told."""
    judged = None if result.judged is None else weigh(result.judged)
    claims = () if judged is None else judged.claims
    doubt = _doubt(result, judged)
    if leak := _leak(result, judged):
        return Verdict(Kind.LEAKS, leak, claims, doubt)
    if doubt:
        return Verdict(Kind.INCONCLUSIVE, f"The audit cannot tell: {doubt}.", claims, doubt)
    beside, by = result.scores.shadows, result.settings["attack_name"]
    told = [f"No leak was shown by {by}"]
    if judged is not None:
        told.append("what was found explains the update as well as the truth does")
    if not beside.left_out:
        told.append(f"none of {beside.updates:,} updates of other images leaks, and its match is one like theirs")
    return Verdict(Kind.NOT_SHOWN, f"{'; '.join(told)}.", claims)


def _leak(result: "Captured", judged: Verdict | None) -> str:
    """What shows that the update leaks, the surest first; nothing where nothing does."""
    certain, labels, beside = (getattr(result.scores, part) for part in ("certificate", "labels", "shadows"))
    if certain.share:
        whole = certain.verdict == "recovered"
        what = "its image is certain" if whole else f"{percent(certain.share)} % of its image's numbers are certain"
        return f"The update leaks: {what}."
    if judged is not None and judged.kind is Kind.LEAKS:
        return judged.sentence.replace("The updates leak", "The update leaks, beside its truth", 1)
    if beside.leaks and _within(result):
        return f"The update leaks, as updates of other images like it do: {beside.leaks}."
    if labels.least and labels.source != "granted":
        times = [f"class {c}" + (f" {n} times" if n > 1 else "") for c, n in labels.least.items()]
        return f"The update leaks: for certain it holds {', '.join(times)}."
    return ""


def _doubt(result: "Captured", judged: Verdict | None) -> str:
    """Why it would be no evidence if nothing leaked; nothing where it would be."""
    scores, beside = result.scores, result.scores.shadows
    if result.unmeasured:
        return result.unmeasured.rstrip(".")
    if scores.labels.doubt:
        return scores.labels.doubt
    if judged is not None and (judged.doubt or (near := _nearer(result))):
        return judged.doubt or near
    if judged is None and beside.left_out:
        return f"its truth is not known, and {beside.left_out}"
    if beside.left_out:
        return ""
    if not _within(result):
        return (
            "it was matched less well than each of the shadows, so the search fell short on it, or it was made "
            "otherwise than was said; use more steps (--steps), or say how it was made (--step, --defense, --batch)"
        )
    return f"of the shadows, {beside.doubt}" if beside.doubt else ""


def _within(result: "Captured") -> bool:
    """Whether shadows speak for the update, since its match is no worse than all of theirs, or there is none."""
    beside = result.scores.shadows
    return beside.rank is None or beside.rank <= (beside.updates or 0)


def _nearer(result: "Captured") -> str:
    """What one update shows of its truth and is too little to test."""
    assert result.judged is not None
    for record in result.judged.records:
        for key, least in SHOWS.items():
            if record.baseline and key in record.baseline:
                with_, without = record.scores[key], record.baseline[key]
                if (with_ - without) * (1 if least > 0 else -1) > abs(least):
                    return (
                        f"what was found is nearer to the truth ({key.upper()} {with_:.2f}) than without the update "
                        f"({without:.2f}), and one update is too few to tell that from chance; look at it, and compare "
                        "with updates of images of your own (--data, --shadows)"
                    )
    return ""
