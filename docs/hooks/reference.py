"""The reference: a page for every attack and every defense, the other parts, the commands and the API.

All of it is made from the parts themselves when the documentation is built, so it says what the program does.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from docstrings import attributes, code, page, plain, prose, read, settings, table
from listing import MODULES, api, commands
from torch import nn

from dosimeter import defenses
from dosimeter.attacks import Attack, presets
from dosimeter.attacks.generators import Generator
from dosimeter.cli.catalogues import catalogues
from dosimeter.types import ThreatModel

DOCS = Path(__file__).parents[1]

NAMED = ["name", "what it is", "paper"]

PARTS = ("likelihood", "prior", "labels", "secrets", "space", "start", "optimiser", "schedule", "only", "moves", "ball")
"""Of a search, in the order of `docs/attacks.md`."""

FROM = {
    "GaussianNoise": "PPP, Sec. 5.2; Bayes, Sec. 6",
    "Ppp": "PPP, Sec. 3.4; PRECODE",
    "DpSgd": "DP-SGD, CVB, Opacus",
}
"""Where the papers of parts are said in their files rather than in their own docstrings."""


class Paper(NamedTuple):
    """An entry of the bibliography: the names it goes by, and its heading's anchor."""

    names: tuple[str, ...]
    anchor: str


def papers() -> list[Paper]:
    """What `docs/bibliography.md` lists, by its headings: `### Inverting Gradients, IG`."""
    heads = re.findall(r"^### (.+)$", (DOCS / "bibliography.md").read_text(), re.M)
    return [Paper(tuple(head.split(", ")), re.sub(r"[^\w]+", "-", head.lower()).strip("-")) for head in heads]


def cited(text: str, up: str) -> str:
    """The papers that a text names, as links."""
    found = [
        f"[{paper.names[0]}]({up}bibliography.md#{paper.anchor})"
        for paper in papers()
        if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text) for name in paper.names)
    ]
    return ", ".join(found)


def pages() -> dict[str, str]:
    """{path: Markdown} of the whole reference."""
    return {
        **attacks(),
        **defenses_(),
        "reference/parts.md": _parts(),
        "reference/commands.md": commands(),
        **api(),
    }


def attacks() -> dict[str, str]:
    """A page for every attack, and one that lists them."""
    made, rows = {}, []
    for name, preset in presets.BY_NAME.items():
        made[f"reference/attacks/{name}.md"] = _attack(name, preset)
        doc = read(preset)
        rows.append([f"[`{name}`]({name}.md)", plain(doc.head), _papers(preset)])
    intro = (
        "Every attack that goes by name. What they reach and how they are put together: [Attacks](../../attacks.md)."
    )
    return {
        "reference/attacks/index.md": page("Attacks by name", intro, table(NAMED, rows)),
        **made,
    }


def _attack(name: str, preset: Callable[..., Attack]) -> str:
    doc, attack = read(preset), _made(preset)
    return page(
        name,
        plain(doc.head),
        prose(doc.body),
        f"*Deviations from the paper:* {plain(doc.deviations)}" if doc.deviations else "",
        f"**Paper:** {_papers(preset)}.",
        f"    dosimeter audit --attack {name}{_needed(name)}",
        f"In Python: `dm.presets.{preset.__name__}()`.",
        "## Settings",
        settings(preset, _about(preset)),
        _made_of(attack),
        _needs(attack),
    )


def _made(preset: Callable[..., Any]) -> Any:
    """The attack with its defaults; a generator, which none comes with, is one that makes nothing."""
    if "generator" not in inspect.signature(preset).parameters:
        return preset()
    return preset(generator=Generator(network=nn.Flatten(), latent=128, shape=(1, 28, 28), name="yours"))


def _needed(name: str) -> str:
    """What an attack cannot do without, so that the line runs as it stands."""
    return {"recover-key": " --defense fedkl:share=lock"}.get(name, "")


def _about(preset: Callable[..., Attack]) -> dict[str, str]:
    """What is said of a preset's settings, by itself or, where it takes another's, by that."""
    known = dict[str, str]()
    near = [each for each in presets.BY_NAME.values() if each.__module__ == preset.__module__]
    for each in (presets.inverting_gradients, *near, preset):
        said = {key: text for key, text in read(each).args.items() if not text.startswith("as in `")}
        known |= {key: text for key, text in said.items() if key not in known or each is preset}
    return known


def _made_of(attack: Any) -> str:
    """The parts of a search, each with its formula; or how a solver works."""
    if hasattr(attack, "likelihood"):
        rows = [[name, code(repr(part)), plain(read(type(part)).head)] for name, part in _held(attack)]
        return "## What it is made of\n\n" + table(["part", "value", "what it is"], rows)
    doc = read(type(attack))
    said = ["## How it works", plain(doc.head), prose(doc.body)]
    said += [f"*Deviations:* {plain(doc.deviations)}"] if doc.deviations else []
    inner = getattr(attack, "attack", None)
    return "\n\n".join(filter(None, [*said, _made_of(inner) if hasattr(inner, "likelihood") else ""]))


def _held(attack: Any) -> Iterator[tuple[str, Any]]:
    for name in PARTS:
        part = getattr(attack, name)
        yield from ((name, each) for each in (part if isinstance(part, tuple) else (part,)) if each is not None)


def _needs(attack: Attack) -> str:
    """What is granted beyond the least, in the words of the threat model's own fields."""
    granted, least, about = attack.needs(), ThreatModel(defense=False), attributes(ThreatModel)
    rows = [
        [code(f"{each.name}={getattr(granted, each.name)}"), plain(about[each.name])]
        for each in fields(granted)
        if getattr(granted, each.name) != getattr(least, each.name)
    ]
    said = table(["of the [threat model](../../threat-models.md)", "what it is"], rows) if rows else "Nothing."
    return "## What it must be granted\n\n" + said


def defenses_() -> dict[str, str]:
    """A page for every defense, and one that lists them."""
    made, rows = {}, []
    for name, kind in defenses.BY_NAME.items():
        doc = read(kind)
        rows.append([f"[`{name}`]({name}.md)", plain(doc.head), _papers(kind)])
        strong = ", ".join(code(each) for each in kind().strengths())
        made[f"reference/defenses/{name}.md"] = page(
            name,
            plain(doc.head),
            prose(doc.body),
            f"*Deviations from the paper:* {plain(doc.deviations)}" if doc.deviations else "",
            f"**Paper:** {_papers(kind)}.",
            f"    dosimeter audit --defense {name} --attack auto",
            f"In Python: `dm.defenses.{kind.__name__}()`.",
            "## Settings",
            settings(kind, {**attributes(kind), **doc.args}),
            f"`dosimeter calibrate` turns up {strong}." if strong else "",
            "Attacks made for it, and what they reach: [Defenses](../../defenses.md).",
        )
    intro = "Every defense that goes by name. What they hide and what they cost: [Defenses](../../defenses.md)."
    return {
        "reference/defenses/index.md": page("Defenses by name", intro, table(NAMED, rows)),
        **made,
    }


def _parts() -> str:
    """Models, steps, servers, protocols and studies, as `dosimeter list` has them."""
    found, said = catalogues(), []
    for kind in ("models", "steps", "servers", "protocols", "studies"):
        rows = [[code(name), *map(plain, _lines(lines))] for name, lines in found[kind].rows.items()]
        said += [f"## {kind.capitalize()}", plain(found[kind].caption), table(["name", "what it is", "settings"], rows)]
    return page("Models, steps, servers, protocols, studies", "As `dosimeter list` shows them.", *said)


def _lines(lines: list[str]) -> tuple[str, str]:
    *facts, given = lines
    return ". ".join(facts), "" if given == "-" else given


def _papers(thing: Any) -> str:
    """The papers that a part is from: those that it names in its text, or else anywhere in its docstring."""
    doc = read(thing)
    if thing.__name__ in FROM:
        return cited(FROM[thing.__name__], "../../")
    if doc.head.startswith("Ours") or "our own" in doc.head:
        return "our own"
    return cited(f"{doc.head}\n{doc.body}", "../../") or cited(thing.__doc__ or "", "../../") or "none"


def named() -> Mapping[str, list[str]]:
    """{folder: its pages in order}, for the navigation."""
    return {
        "reference/attacks/": ["index", *presets.BY_NAME],
        "reference/defenses/": ["index", *defenses.BY_NAME],
        "reference/api/": ["index", *MODULES],
    }
