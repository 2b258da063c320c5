"""The commands with their options, and the API by module."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import click
from docstrings import code, described, page, plain, table
from typer.main import get_command

from dosimeter.cli import app

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


def commands() -> str:
    said = ["Every command with its options, as `--help` says them."]
    for name, command in _leaves(get_command(app)):
        said += [f"## dosimeter {name}", plain(" ".join((command.help or "").split()))]
        rows = [_option(each) for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
        said.append(table(["option", "default", "what it is"], rows))
    return page("Commands", *said)


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


def api() -> dict[str, str]:
    made = {}
    for place, title in MODULES.items():
        module = importlib.import_module(place)
        about = inspect.cleandoc(module.__doc__ or "")
        said = [f"`{place}`", f"```text\n{about}\n```" if about and place != "dosimeter" else ""]
        for name, thing in sorted(_public(module).items(), key=lambda each: each[0].lower()):
            said.append(described(f"{place if place != 'dosimeter' else 'dm'}.{name}", thing, level=2))
        made[f"reference/api/{place}.md"] = page(title, *said)
    rows = [[f"[{title}]({place}.md)", code(place)] for place, title in MODULES.items()]
    return {"reference/api/index.md": page("API", "By module.", table(["what", "module"], rows)), **made}


def _public(module: Any) -> dict[str, Any]:
    """Functions and classes that a module offers: those it lists, or those that it defines itself."""
    own = [name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
    found = {name: getattr(module, name) for name in getattr(module, "__all__", own) if not name.startswith("_")}
    return {
        name: each
        for name, each in found.items()
        if (inspect.isclass(each) or inspect.isfunction(each)) and str(each.__module__).startswith("dosimeter")
    }
