"""What a result says, in words and rows that the terminal and the page share."""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import torch

from dosimeter import types
from dosimeter.auditing import Captured, Outcome, Result, Survey, Trial
from dosimeter.auditing.verdict import ORDER, Kind, Verdict
from dosimeter.lines import clean
from dosimeter.metrics import STANDARD, Rate, Score, in_units_of, percent
from dosimeter.progress import duration
from dosimeter.types import ThreatModel

LPIPS = {"label": "LPIPS", "about": "distance in a network's features, 0 is equal", "higher": False}


def described(result: Result) -> dict[str, dict[str, Any]]:
    """Each score's label, what it measures and its direction, in the order of tables, the user's own last."""
    ours = {metric.name: metric.described() for metric in (*STANDARD, *in_units_of(torch.ones(1, 1, 1)))}
    seen = {"lpips": LPIPS, "lpips_vgg": LPIPS | {"label": "LPIPS, VGG-16"}}
    first = {name: ours[name] for name in ("ssim", "psnr", "mse")}
    return {**first, **seen, **ours, **result.settings.get("metrics", {})}


def shown(result: Result) -> dict[str, str]:
    """{name: label} of the scores that stand beside pictures."""
    about = described(result)
    wanted = ("ssim", "psnr", "lpips", "lpips_vgg", *result.settings.get("metrics", {}))
    return {name: about[name]["label"] for name in wanted if name in result.scores.scores}


class Row(NamedTuple):
    """One score over all images, as text; against what clients trained on, where their defense made it."""

    name: str
    meaning: str
    mean: str
    std: str
    median: str
    worst: str  # the image that the attack read best
    baseline: str  # mean without the update
    originals: str = ""  # mean against the originals, where clients trained on others


class Share(NamedTuple):
    """A rate with its interval, as text."""

    name: str
    text: str
    note: str


class Tried(NamedTuple):
    """One attack of a panel, as text."""

    name: str
    role: str
    about: str
    read: str  # with its interval, or why it was refused
    ssim: str
    worst: str
    time: str


class Grant(NamedTuple):
    """A line of the threat model."""

    what: str
    value: str  # granted, not granted or another word
    meaning: str


def panel(result: Result) -> list[Tried]:
    """All attacks that were tried, the strongest first, the controls last and after them those that were refused."""
    return [_tried(one, len(result.victims.ids)) for one in ordered(result)]


def ordered(result: Result) -> list[Trial]:
    """The attacks of a panel in the order of `panel`."""
    order = {"published": 0, "adaptive": 0, "control": 1}

    def place(one: Trial) -> tuple[int, int, float]:
        if one.result is None:
            return 2, 0, 0.0
        return order[one.role], -one.result.scores.success.hits, -one.result.scores.nearest["ssim"].mean

    return sorted(result.panel, key=place)


def _tried(one: Trial, of: int) -> Tried:
    if one.result is None:
        return Tried(one.attack, one.role, one.about, f"refused: {one.refused}", "", "", "")
    scores, time = one.result.scores, duration(one.result.seconds)
    read = ", ".join([scores.success.text, *_left_out(scores.unmeasured, of, time)])
    mean = number(scores.nearest["ssim"].mean)
    if scores.transformed:
        own = number(scores["ssim"].mean)
        mean = f"{own} originals" if scores.nearest is scores else f"{mean} ({own} originals)"
    return Tried(one.attack, one.role, one.about, read, mean, number(scores.worst.ssim), time)


def _left_out(counts: dict[str, int], of: int, time: str) -> list[str]:
    """How many of so many victims an attack says nothing of, and why."""
    return [
        f"gave up after {time}: {of - n} of {of} victims done" if why == types.Outcome.OUT_OF_TIME else f"{n} {why}"
        for why, n in counts.items()
    ]


def number(value: object, digits: int = 3) -> str:
    """A number for people: `digits` significant ones below 100, none behind the point above; a dash for none."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "\N{EN DASH}"
    if abs(value) >= 100 or value == 0:
        return f"{value:.0f}"
    if abs(value) < 1e-3:
        return f"{value:.1e}"
    if abs(value) >= 1:
        return f"{value:.{digits - 1 - int(math.log10(abs(value)))}f}"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.4f}"


LONG = 48
"""Characters from which a defense stands by its name alone where there is little room."""


def brief(defense: object) -> str:
    """A defense in few words; nothing for none."""
    text = "" if defense in (None, "none", "NoDefense()") else str(defense)
    return text if len(text) < LONG else " and ".join(part.split("(")[0] for part in text.split(" | "))


def count(n: int, noun: str) -> str:
    """1 image, 1,024 images."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


SHORT = {
    "certain": "{} can be recovered exactly",
    "read": "{} can be read",
    "transformed": "{} can be read as clients trained on them",
    "identified": "{} can be told from others",
    "labels": "{} can be recovered",
    "nearer": "{} come nearer than without the update",
}
"""What leaks, by the name of a claim, in as few words as there are."""


def short(found: Verdict, images: int) -> str:
    """A verdict in one short sentence."""
    if found.kind is Kind.INCONCLUSIVE:
        return "This audit cannot tell whether the updates leak."
    if found.kind is Kind.NOT_SHOWN:
        return f"No leak was shown on {count(images, 'image')}."
    leaking = [claim for claim in found.claims if claim.leaks and claim.name in SHORT]
    if not leaking:
        return found.sentence
    first = min(leaking, key=lambda claim: (ORDER.index(claim.name), -claim.rate.rate))
    what = "label" if first.name == "labels" else "image"
    many = f"The {what}" if first.rate.of == 1 else f"{first.rate.hits:,} of {first.rate.of:,} {what}s"
    return SHORT[first.name].format(many) + "."


def blind_reads(result: Result) -> int:
    """How many images count as read when the attack is run without the update."""
    return sum(record.blind_ssim >= result.scores.success.threshold for record in result.records)


def headline(result: Outcome | Survey) -> str:
    """What was audited."""
    s = result.settings
    if isinstance(result, Survey):
        return f"{s['attack_name']} on kept updates of {s['model']}"
    if isinstance(result, Captured):
        return f"{s['attack_name']} on a captured update of {s['model']}"
    return f"{s['attack_name']} on {s['model']}, {s['data']}"


def verdict(result: Result) -> str:
    """How many images were read, how sure that is, and whether the update is to blame."""
    rate, blind = result.scores.success, blind_reads(result)
    hits, n = rate.hits, rate.of
    if n == 1:
        first = f"The image was {'read' if hits else 'not read'}"
    elif not hits:
        first = f"None of the {n:,} images was read (95 % interval 0-{percent(rate.high)} %)"
    else:
        interval = f"{percent(rate.low)}-{percent(rate.high)} %"
        first = f"{hits:,} of {n:,} images {'was' if hits == 1 else 'were'} read "
        first += f"({percent(rate.rate)} %, 95 % interval {interval})"
    if rate.originals is not None and hits:
        first += f", {rate.originals:,} of them as they were and not only as clients trained on them"
    if blind and blind >= hits:
        return f"{first}; without the update the same attack reads {blind:,}, as many or more."
    return f"{first}; without the update the same attack reads {blind:,}."


def labels_said(result: Result) -> str:
    """How many labels were recovered; nothing where they were granted."""
    one = result.scores.labels
    if one is None:
        return ""
    were = "was" if one.hits == 1 else "were"
    return f"{one.hits:,} of {one.of:,} labels {were} recovered; an even guess gets {percent(one.guess)} %."


def meaning(result: Result) -> str:
    """What the verdict is about and what it does not show."""
    threshold = result.scores.success.threshold
    text = f"An image counts as read when its reconstruction has an SSIM of at least {threshold:g} with the original."
    if result.transformed is not None:
        text = f"{text[:-1]}, or with what the client trained on, which its defense made of it."
    if result.scores.success.rate < 1:
        text += " Other attacks, or more steps, may read more than this one did."
    return text


def interruption(result: Outcome) -> str:
    """What an interrupted audit still tells; nothing for a complete one."""
    if result.status == "complete":
        return ""
    if isinstance(result, Captured):
        return "The search or its shadows were cut short; the numbers are those reached by then."
    cut = len({record.victim for record in result.records if record.stopped == types.Outcome.INTERRUPTED})
    text = f"This audit was {result.status} before it was done. The numbers are those of the "
    text += f"{count(len(result.victims.ids), 'victim')} reached by then"
    return text + (f", {cut:,} of them with the attack cut short." if cut else ".")


def rows(result: Result) -> list[Row]:
    """The table of scores."""
    made = result.scores.transformed
    found, floor = (made or result.scores).scores, (made or result.scores).baseline
    own = result.scores.scores if made else {}
    about = described(result)
    about |= {key: {"label": key, "about": "", "higher": True} for key in found if key not in about}
    return [_row(words, found[key], floor.get(key), own.get(key)) for key, words in about.items() if key in found]


def _row(about: dict[str, Any], one: Score, floor: Score | None, own: Score | None) -> Row:
    worst, blind = one.max if about["higher"] else one.min, floor.mean if floor else None
    texts = (number(value) for value in (one.mean, one.std, one.median, worst, blind))
    row = Row(about["label"], about["about"], *texts)
    return row._replace(originals=number(own.mean)) if own else row


def shares(result: Result) -> list[Share]:
    """Rates with their 95 % intervals."""
    scores = result.scores
    threshold, made = f"SSIM of at least {scores.success.threshold:g}", scores.transformed
    if made is None:
        found = [Share("Images read", scores.success.text, threshold)]
    else:
        own = Rate(scores.success.originals or 0, scores.images)
        found = [
            Share("Images read", scores.success.text, f"{threshold}, as trained on or as they were"),
            Share("Transformed images read", made.text, "what clients trained on, which their defense made"),
            Share("Originals read", own.text, "what their defense made it of"),
        ]
    if hidden := scores.evidence.get("hidden", 0):
        note = "not read, and what was found explains the update as well as the client's own step does"
        found.append(Share("Images hidden", Rate(hidden, scores.images).text, note))
    if short := scores.evidence.get("fell short", 0):
        note = "not read, but the client's own step explains the update better: no evidence of privacy"
        found.append(Share("Search fell short", Rate(short, scores.images).text, note))
    for name, one in (("", scores.identification), (", as trained on", made and made.identification)):
        if one:
            blind = "" if one.blind is None else f", {one.blind:,} without the update"
            decoys = "decoys transformed likewise" if name else "decoys"
            note = f"nearer to its victim than to {decoys}, chance {percent(one.chance)} %{blind}"
            found.append(Share(f"Victims identified{name}", one.text, note))
    if risk := scores.risk:
        found.append(Share("Adversarial risk", risk.text, f"further than {risk.delta:g} from the image (L2)"))
    if scores.recovered and scores.determined:
        share = percent(scores.determined.mean)
        note = f"explains the update and none of it is open; {share} % of all images' numbers are determined"
        found.append(Share("Images recovered", scores.recovered.text, note))
    if labels := scores.labels:
        note = f"recovered from the update, in any order; an even guess {percent(labels.guess)} %"
        found.append(Share("Labels right", labels.text, note))
        if result.settings["batch"] > 1:
            found.append(Share("All labels right", labels.updates.text, "updates whose every label was recovered"))
    if scores.trained:
        found.append(Share("Local training guessed", scores.trained.text, "what the threat model withholds of it"))
    return found


GRANTS: dict[str, dict[Any, tuple[str, str, str]]] = {
    "server": {"honest": ("Server", "honest", "It follows the protocol and only looks at what it is sent.")},
    "labels": {
        True: ("Labels of the private batch", "granted", "The attacker is told the labels."),
        False: ("Labels of the private batch", "not granted", "The attacker has to recover or do without the labels."),
    },
    "statistics": {
        "running": (
            "Batch-norm statistics",
            "running",
            "Batch norm uses running statistics, a part of the model.",
        ),
        "batch": ("Batch-norm statistics", "of the batch", "Clients and attacker each use those of their own batch."),
        "sent": ("Batch-norm statistics", "sent", "Clients use those of their batch and send them with the update."),
    },
    "defense": {
        True: ("The defense", "granted", "Which defense runs and its settings, though not its random draws."),
        False: ("The defense", "not granted", "The attacker does not know whether or which defense runs."),
    },
    "local_steps": {
        True: ("Number of local steps", "granted", "The attacker is told how many local steps an update holds."),
        False: ("Number of local steps", "not granted", "The attacker has to guess how many an update holds."),
    },
    "local_lr": {
        True: ("Local learning rate", "granted", "Updates are divided by it, as is the attacker's simulation."),
        False: ("Local learning rate", "not granted", "The attacker sees differences of weights and has to guess it."),
    },
    "secrets": {
        True: ("Draws inside the model", "revealed", "A control: what the defense drew is given to the attacker."),
        False: (
            "Draws inside the model",
            "not granted",
            "What a defense draws inside the model stays with the client.",
        ),
    },
}

ALWAYS = Grant(
    "Model, loss and update",
    "granted",
    "Always: the model before the update, the loss, the update, and the number and size of its images.",
)


COUNTS = {
    "rounds": ("Rounds", "How often it sees the same batch at the same weights; clients draw anew each time."),
    "same_client": ("Updates of a client", "How many it knows to be of one client, each on another batch."),
}


def grants(threat: ThreatModel) -> list[Grant]:
    """The threat model line by line; a field without words of its own stands as it is."""
    lines = [ALWAYS]
    for field in fields(threat):
        value = getattr(threat, field.name)
        said = GRANTS.get(field.name, {}).get(value)
        if field.name in COUNTS:
            what, meaning = COUNTS[field.name]
            said = (what, count(value, "update"), meaning)
        if field.name == "server" and not said:
            said = ("Server", clean(str(value)), "It is not honest: it changed the model before it sent it to clients.")
        lines.append(Grant(*said) if said else Grant(field.name.replace("_", " "), str(value), ""))
    return lines


PLAIN = ("granted", "not granted", "revealed")
"""Grants that are told by their names."""


def granted(threat: ThreatModel) -> list[str]:
    """The threat model in sentences."""
    lines = grants(threat)[1:]
    known = [_lower(line.what) for line in lines if line.value in ("granted", "revealed")]
    kept = [_lower(line.what) for line in lines if line.value == "not granted"]
    said = ["The attacker has the model before the update, the loss and the update, and knows how many images of what "]
    said[0] += "size it holds."
    if known:
        said.append(f"It is also told {listed(known)}.")
    if kept:
        said.append(f"It is not told {listed(kept, 'or')}.")
    server = next((line for line in lines if line.what == "Server"), None)
    if server:
        said.append(f"The server is {server.value}: {server.meaning[:1].lower()}{server.meaning[1:]}")
    seen, own = threat.rounds, threat.same_client
    said.append("It sees each batch once." if seen == 1 else f"It sees each batch {seen:,} times, at the same weights.")
    said += [f"It knows {own:,} updates to be of one client."] if own > 1 else []
    told = {"Server", *(what for what, _ in COUNTS.values())}
    rest = [line for line in lines if line.value not in PLAIN and line.what not in told]
    return said + [line.meaning or f"{line.what}: {line.value}." for line in rest]


def _lower(what: str) -> str:
    """The name of a grant within a sentence."""
    what = what[:1].lower() + what[1:]
    return what if what.startswith("the ") else f"the {what}"


def listed(names: Sequence[str], last: str = "and") -> str:
    """a, b and c."""
    return f" {last} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
