"""The reference: a page for every attack and every defense, the other parts, the commands and the API.

All of it is made from the parts themselves when the documentation is built, so it says what the program does.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import click
from docstrings import attributes, code, described, plain, prose, read, settings, table
from torch import nn
from typer.main import get_command

from dosimeter import defenses
from dosimeter.attacks import Attack, presets
from dosimeter.attacks.generators import Generator
from dosimeter.cli import app
from dosimeter.cli.catalogues import catalogues
from dosimeter.types import ThreatModel

DOCS = Path(__file__).parents[1]

PARTS = ("likelihood", "prior", "labels", "secrets", "space", "start", "optimiser", "schedule", "only", "moves", "ball")
"""Of a search, in the order of `docs/attacks.md`."""

MODULES = {
    "dosimeter": "Audits, data, results: what `import dosimeter as dm` gives",
    "dosimeter.defenses": "Defenses",
    "dosimeter.clients": "What clients send",
    "dosimeter.servers": "Servers that change the model, and checks of it",
    "dosimeter.models": "Models and their weights",
    "dosimeter.metrics": "Scores of reconstructions",
    "dosimeter.channel": "Facts that a defense states of its channel",
    "dosimeter.types": "What flows between parts",
    "dosimeter.attacks.labels": "Labels",
    "dosimeter.attacks.search.likelihoods": "Likelihoods",
    "dosimeter.attacks.search.priors": "Priors",
    "dosimeter.attacks.search.treatments": "Treatments of what clients drew",
    "dosimeter.attacks.search.masks": "Which tensors are matched",
    "dosimeter.attacks.search.starts": "Starts",
    "dosimeter.attacks.search.optimisers": "Optimisers",
    "dosimeter.attacks.search.schedules": "Schedules",
    "dosimeter.attacks.search.moves": "Moves",
    "dosimeter.attacks.generators": "Generators",
    "dosimeter.doses": "Doses",
    "dosimeter.federated": "Federations",
    "dosimeter.flower": "Flower",
    "dosimeter.sweeps": "Sweeps",
    "dosimeter.studies": "Studies",
    "dosimeter.tuning": "Tuning",
    "dosimeter.reports": "Reports",
    "dosimeter.store": "Run folders",
}


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
        **_attacks(),
        **_defenses(),
        "reference/parts.md": _parts(),
        "reference/commands.md": _commands(),
        **_api(),
    }


def _attacks() -> dict[str, str]:
    made, rows = {}, []
    for name, preset in presets.BY_NAME.items():
        made[f"reference/attacks/{name}.md"] = _attack(name, preset)
        doc = read(preset)
        rows.append([f"[`{name}`]({name}.md)", plain(doc.head), _papers(preset)])
    intro = (
        "Every attack that goes by name. What they reach and how they are put together: [Attacks](../../attacks.md)."
    )
    return {"reference/attacks/index.md": _page("Attacks by name", intro, table(["", "", "paper"], rows)), **made}


def _attack(name: str, preset: Callable[..., Attack]) -> str:
    doc, attack = read(preset), _made(preset)
    return _page(
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
    said = table(["of the [threat model](../../threat-models.md)", ""], rows) if rows else "Nothing."
    return "## What it must be granted\n\n" + said


def _defenses() -> dict[str, str]:
    made, rows = {}, []
    for name, kind in defenses.BY_NAME.items():
        doc = read(kind)
        rows.append([f"[`{name}`]({name}.md)", plain(doc.head), _papers(kind)])
        strong = ", ".join(code(each) for each in kind().strengths())
        made[f"reference/defenses/{name}.md"] = _page(
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
    return {"reference/defenses/index.md": _page("Defenses by name", intro, table(["", "", "paper"], rows)), **made}


def _parts() -> str:
    """Models, steps, servers, protocols and studies, as `dosimeter list` has them."""
    found, said = catalogues(), []
    for kind in ("models", "steps", "servers", "protocols", "studies"):
        rows = [[code(name), *map(plain, _lines(lines))] for name, lines in found[kind].rows.items()]
        said += [f"## {kind.capitalize()}", plain(found[kind].caption), table(["name", "what it is", "settings"], rows)]
    return _page("Models, steps, servers, protocols, studies", "As `dosimeter list` shows them.", *said)


def _lines(lines: list[str]) -> tuple[str, str]:
    *facts, given = lines
    return ". ".join(facts), "" if given == "-" else given


def _commands() -> str:
    said = ["Every command with its options, as `--help` says them."]
    for name, command in _leaves(get_command(app)):
        said += [f"## dosimeter {name}", plain(" ".join((command.help or "").split()))]
        rows = [_option(each) for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
        said.append(table(["option", "default", "what it is"], rows))
    return _page("Commands", *said)


def _leaves(group: Any, above: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, f"{name} ")
        else:
            yield above + name, command


def _option(each: Any) -> list[str]:
    given = each.param_type_name == "option"
    names = "/".join(each.opts + each.secondary_opts) if given else each.metavar or each.name.upper()
    default = each.default() if callable(each.default) else each.default
    shown = "" if default in (None, False, ()) or "Sentinel" in type(default).__name__ else _plain(default)
    return [code(names), code(shown), plain(each.help or "")]


def _plain(default: Any) -> str:
    if isinstance(default, list | tuple):
        return " ".join(map(_plain, default))
    return str(default).lower() if isinstance(default, bool) else str(getattr(default, "value", default))


def _api() -> dict[str, str]:
    made = {}
    for place, title in MODULES.items():
        module = importlib.import_module(place)
        about = inspect.cleandoc(module.__doc__ or "")
        said = [f"`{place}`", f"```text\n{about}\n```" if about and place != "dosimeter" else ""]
        for name, thing in sorted(_public(module).items(), key=lambda each: each[0].lower()):
            said.append(described(f"{place if place != 'dosimeter' else 'dm'}.{name}", thing, level=2))
        made[f"reference/api/{place}.md"] = _page(title, *said)
    rows = [[f"[{title}]({place}.md)", code(place)] for place, title in MODULES.items()]
    return {"reference/api/index.md": _page("API", "By module.", table(["", ""], rows)), **made}


def _public(module: Any) -> dict[str, Any]:
    """Functions and classes that a module offers: those it lists, or those that it defines itself."""
    own = [name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
    found = {name: getattr(module, name) for name in getattr(module, "__all__", own) if not name.startswith("_")}
    return {
        name: each
        for name, each in found.items()
        if (inspect.isclass(each) or inspect.isfunction(each)) and str(each.__module__).startswith("dosimeter")
    }


def _papers(thing: Any) -> str:
    """The papers that a part is from: those that it names in its text, or else anywhere in its docstring."""
    doc = read(thing)
    if thing.__name__ in FROM:
        return cited(FROM[thing.__name__], "../../")
    if doc.head.startswith("Ours") or "our own" in doc.head:
        return "our own"
    return cited(f"{doc.head}\n{doc.body}", "../../") or cited(thing.__doc__ or "", "../../") or "none"


def _page(title: str, *said: str) -> str:
    return "\n\n".join(filter(None, [f"# {title}", *said])) + "\n"


def named() -> Mapping[str, list[str]]:
    """{folder: its pages in order}, for the navigation."""
    return {
        "reference/attacks/": ["index", *presets.BY_NAME],
        "reference/defenses/": ["index", *defenses.BY_NAME],
        "reference/api/": ["index", *MODULES],
    }
