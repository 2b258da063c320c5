"""Docstrings, signatures and settings as Markdown."""

import ast
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Literal, NamedTuple, get_args, get_origin


class Doc(NamedTuple):
    """A docstring taken apart: its first paragraph, what follows, its settings, and where it departs from its paper."""

    head: str
    body: str
    args: dict[str, str]
    deviations: str


def read(thing: Any) -> Doc:
    """Of a function or a class; of a class only its own, and not what dataclasses write for it."""
    text = thing.__doc__ or ""
    text = "" if is_dataclass(thing) and text.startswith(f"{thing.__name__}(") else inspect.cleandoc(text)
    head, *paragraphs = re.split(r"\n\n+", text)
    args: dict[str, str] = {}
    body, deviations = [], ""
    for paragraph in paragraphs:
        if paragraph.startswith("Args:\n"):
            args = _args(textwrap.dedent(paragraph.partition("\n")[2]))
        elif paragraph.startswith("Deviations:"):
            deviations = " ".join(paragraph.removeprefix("Deviations:").split())
        else:
            body.append(paragraph)
    return Doc(" ".join(head.split()), "\n\n".join(body), args, deviations)


def _args(text: str) -> dict[str, str]:
    """`name, other: what they are`, each once for every name."""
    found = {}
    for entry in re.split(r"\n(?=\S)", text):
        names, _, about = entry.partition(":")
        found |= {name.strip(): " ".join(about.split()) for name in names.split(",")}
    return found


def attributes(kind: type) -> dict[str, str]:
    """What stands below the fields of a class, also of those that it inherits."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except (OSError, TypeError, ValueError):
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(below.value.value).split())
    return found


def plain(text: str) -> str:
    """Text as Markdown that shows it as it is: outside of backticks nothing is a tag or emphasis."""
    parts = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"[*_]", r"\\\g<0>", parts[at].replace("<", "&lt;"))
    return "".join(parts)


def prose(text: str) -> str:
    """Paragraphs as they are, indented ones as code."""
    said = []
    for paragraph in re.split(r"\n\n+", text):
        indented = all(line.startswith("    ") for line in paragraph.splitlines())
        said.append(paragraph if indented else plain(textwrap.dedent(paragraph)))
    return "\n\n".join(filter(None, said))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def values(hint: Any) -> str:
    """What a setting may be, in the words of the command line."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        several = any(get_origin(each) is Sequence for each in get_args(hint))
        return ", ".join(
            dict.fromkeys(filter(None, (values(e) for e in get_args(hint) if not (several and e in (int, str)))))
        )
    if get_origin(hint) is Literal:
        return ", ".join(code(str(each)) for each in get_args(hint))
    if get_origin(hint) in (Sequence, tuple):
        return f"{values(get_args(hint)[0])}, several joined by `+`"
    known = {int: "whole number", float: "number", bool: "`true`, `false`", str: "word", types.NoneType: "`none`"}
    return known.get(hint, "")


def word(value: object) -> str:
    """A default, as the command line takes it."""
    if value is inspect.Parameter.empty:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(map(str, value)) if isinstance(value, tuple) else "none" if value is None else str(value)


def settings(maker: Callable[..., Any], about: Mapping[str, str]) -> str:
    """A table of what a part takes: its name, its default, what it may be and what it means."""
    hints = typing.get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
    rows = [
        [code(name), code(word(each.default)), values(hints.get(name)), plain(about.get(name, ""))]
        for name, each in inspect.signature(maker).parameters.items()
    ]
    if not rows:
        return "It has no settings."
    wide = 4 if any(row[3] for row in rows) else 3  # what settings mean may be said in the text above
    return table(["setting", "default", "may be", "what it is"][:wide], [row[:wide] for row in rows])


def signature(name: str, thing: Any) -> str:
    """A call as it is written, one setting a line where it is long."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    given = [_shown(each) for each in found.parameters.values()]
    kinds = [each.kind for each in found.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        given.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    back = "" if inspect.isclass(thing) else _named(found.return_annotation)
    arrow = f" -> {back}" if back and back != "None" else ""
    line = f"{name}({', '.join(given)}){arrow}"
    return line if len(line) < 90 else f"{name}(\n    " + ",\n    ".join(given) + f",\n){arrow}"


def _shown(each: inspect.Parameter) -> str:
    star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(each.kind, "")
    kind = _named(each.annotation)
    said = f"{star}{each.name}" + (f": {kind}" if kind else "")
    return said if each.default is each.empty else f"{said} = {_default(each.default)}"


def _default(value: object) -> str:
    return value.__name__ if inspect.isfunction(value) or inspect.isclass(value) else repr(value)


def _named(annotation: Any) -> str:
    """A type without the modules that it comes from."""
    if annotation is inspect.Parameter.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])", "", text)


def members(kind: type) -> list[tuple[str, Any]]:
    """Public functions and properties that a class itself defines and says something of."""
    found = []
    for name, each in vars(kind).items():
        held = each.__func__ if isinstance(each, classmethod | staticmethod) else each
        if not name.startswith("_") and (inspect.isfunction(held) or isinstance(held, property)) and held.__doc__:
            found.append((name, held))
    return found


def described(name: str, thing: Any, *, level: int = 3) -> str:
    """A function or a class: how it is called, what it is, its settings, its methods."""
    doc = read(thing)
    about = doc.args | (attributes(thing) if inspect.isclass(thing) else {})
    said = [f"{'#' * level} {name.rpartition('.')[2]}", f"```text\n{signature(name, thing)}\n```", plain(doc.head)]
    said.append(prose(doc.body))
    rows = [[code(key), plain(text)] for key, text in about.items() if text and not key.startswith("_")]
    said += [table(["field" if inspect.isclass(thing) else "argument", "what it is"], rows)] if rows else []
    said += [f"*Deviations:* {plain(doc.deviations)}"] if doc.deviations else []
    if inspect.isclass(thing):
        held = {field.name for field in fields(thing)} if is_dataclass(thing) else set()
        more = [[code(key), plain(read(each).head)] for key, each in members(thing) if key not in held]
        said += [table(["method", "what it does"], more)] if more else []
    return "\n\n".join(filter(None, said))


def page(title: str, *said: str) -> str:
    """A page of what there is to say."""
    return "\n\n".join(filter(None, [f"# {title}", *said])) + "\n"
