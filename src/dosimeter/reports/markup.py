"""HTML and SVG whose text is escaped by construction: only `Html` is taken as markup, anything else as text."""

from collections.abc import Iterable
from html import escape

from dosimeter.lines import clean

EMPTY = frozenset({"br", "img", "input", "line", "link", "meta", "path", "polygon", "polyline", "rect"})
"""Elements without content."""


class Html(str):
    """Markup. Made by `tag` and `join`; a literal is written as Html("...") and must hold nothing of the user's."""


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. None and False leave a child or an attribute out; `class_` is class, `stroke_width` stroke-width."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in EMPTY:
        assert not children
        return Html(f"<{name}{shown}>" if name in ("br", "img", "input", "link", "meta") else f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(children)}</{name}>")


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after another, those that are no markup escaped; None and False are left out."""
    shown = (part for part in parts if part is not None and part is not False)
    return Html(between.join(part if isinstance(part, Html) else _text(part) for part in shown))


def _text(value: object) -> str:
    return escape(clean(str(value)), quote=True)
