"""From words on the command line to parts: `ig:tv=0.01,restarts=2` and `path/to/file.py:make_model:width=8`."""

import inspect
import re
import sys
import types
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dosimeter import checks, theirs
from dosimeter.errors import SettingError, unknown

T = TypeVar("T")


def make(kind: str, text: str, catalogue: Mapping[str, Callable[..., T]], *, hint: str = "", **more: object) -> T:
    """The part that `name:key=value,key=value` or `path/to/file.py:name:key=value` describes.

    Args:
        hint: what to say of names that are not there.
        more: settings that other options gave.
    """
    return maker(kind, text, catalogue, hint=hint, **more)()


def maker(
    kind: str, text: str, catalogue: Mapping[str, Callable[..., T]], *, hint: str = "", **more: object
) -> Callable[[], T]:
    """`make` up to the last act: what is wrong with the words is said now, the part is made when it is called."""
    if is_own(text):
        return _own_maker(kind, text, more)
    name, settings = parse(kind, text, catalogue, hint=hint)
    given = {key: value for key, value in more.items() if value is not None}
    for key in given:
        if key in settings:
            raise SettingError(f"{key!r} is given twice, in the {kind} {text!r} and by --{key}; give it once.")
        if key not in inspect.signature(catalogue[name]).parameters:
            raise SettingError(f"The {kind} {name!r} has no setting {key!r}; leave --{key} out.")
    for key, parameter in inspect.signature(catalogue[name]).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        )
        if needed and key not in {*settings, *given}:
            raise SettingError(f"The {kind} {name!r} needs a value of {key!r}; write {name}:{key}=...")
    return partial(catalogue[name], **settings, **given)


def _own_maker(kind: str, text: str, more: Mapping[str, object]) -> Callable[[], Any]:
    """A part of the user's own, with its settings."""
    words = text.partition(".py:")[2]
    found = maker(kind, words, {words.partition(":")[0]: own(kind, text)}, **dict(more))  # type: ignore[arg-type]

    def make() -> Any:
        with theirs.running(f"The {kind} {text!r} cannot be made", SettingError):
            return found()

    return make


def joined(kind: str, text: str, catalogue: Mapping[str, Callable[..., T]], *, of: type = object, by: str = "|") -> T:
    """Several parts of a class joined by a sign, each of which is described as for `make`."""
    parts: list[Any] = [make(kind, part, catalogue) for part in text.split(by)]
    for part in parts:
        check_kind(kind, text, part, of)
    whole: T = reduce(or_, parts)
    return whole


def check_kind(kind: str, text: str, found: object, of: type) -> None:
    """Refuse a part of the user's own that is something else."""
    if not isinstance(found, of):
        raise SettingError(f"The {kind} {text!r} is a {type(found).__name__}, expected a dosimeter {of.__name__}.")


def with_setting(text: str, at: int, key: str, value: str) -> str:
    """The words of joined parts with one setting of one of them replaced, all others as they are."""
    parts = text.split("|")
    place, own, rest = parts[at].rpartition(".py:")
    name, _, rest = rest.partition(":")
    others = [item for item in rest.split(",") if item and item.partition("=")[0] != key]
    parts[at] = f"{place}{own}{name}:{','.join([*others, f'{key}={value}'])}"
    return "|".join(parts)


def parse(
    kind: str, text: str, makers: Mapping[str, Callable[..., object]], *, own: Container[str] = (), hint: str = ""
) -> tuple[str, dict[str, object]]:
    """Name and settings of `name:key=value,key=value`, in the types that the maker of that name declares.

    Args:
        own: arguments of the makers that are not for the user to set.
        hint: what to say of names that are not there.
    """
    name, _, rest = text.partition(":")
    if name not in makers:
        raise SettingError(unknown(kind, name, makers, hint))
    maker = makers[name]
    allowed = [key for key in inspect.signature(maker).parameters if key not in own]
    settings: dict[str, object] = {}
    for item in rest.split(",") if rest else ():
        key, equals, value = item.partition("=")
        if not equals:
            raise SettingError(f"A setting of {kind} {name!r} is written key=value, got {item!r}.")
        if key not in allowed:
            raise SettingError(unknown(f"setting of {kind} {name!r}", key, allowed))
        if key in settings:
            raise SettingError(f"The setting {key!r} of {kind} {name!r} is given twice; give it once.")
        settings[key] = _convert(f"{kind} {name!r}", key, value, _hint(maker, key))
    return name, settings


def _hint(maker: Callable[..., object], key: str) -> Any:
    """The type that a setting is declared with; without one that of its default, or a word."""
    default = inspect.signature(maker).parameters[key].default
    while isinstance(maker, partial):
        maker = maker.func
    hints = get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
    return hints.get(key, str if default in (None, inspect.Parameter.empty) else type(default))


def _convert(owner: str, key: str, value: str, hint: Any) -> object:
    """A word as the type that the setting is declared with."""
    choices = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if types.NoneType in choices and value.lower() == "none":
        return None
    for choice in choices:
        if get_origin(choice) is Literal and value in get_args(choice):
            return value
        if choice is bool and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if choice in (int, float):
            try:
                number = choice(value)
            except ValueError:
                continue
            checks.reasonable(f"The setting {key!r} of {owner}", number)
            return number
        if choice is str:
            return value
        if get_origin(choice) is Sequence:
            return tuple(_convert(owner, key, one, *get_args(choice)) for one in value.split("+"))
    expected = " or ".join(_describe(choice) for choice in choices)
    raise SettingError(f"The setting {key!r} of {owner} expects {expected}, got {value!r}.")


def _describe(choice: Any) -> str:
    if get_origin(choice) is Literal:
        return " or ".join(map(str, get_args(choice)))
    if get_origin(choice) is Sequence:
        return f"{_describe(*get_args(choice))}, or several joined by +"
    words = {int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "none"}
    return words.get(choice, str(choice))


def several(option: str, text: str, kind: type[T]) -> tuple[T, ...]:
    """Numbers joined by +, as in 1+2+5."""
    found = _convert("the command line", option, text, Sequence[kind])  # type: ignore[valid-type]
    assert isinstance(found, tuple)
    return found


def spread(text: str) -> list[str]:
    """The words once for every number of a setting that has several, joined by +, as in noise:sigma=0.01+0.1."""
    several_ = re.search(r"=(-?[\d.]+(?:e[-+]?\d+)?(?:\+-?[\d.]+(?:e[-+]?\d+)?)+)(?=[,|]|$)", text)
    if several_ is None:
        return [text]
    start, end = several_.span(1)
    values = re.findall(r"-?[\d.]+(?:e[-+]?\d+)?", several_[1])
    return [made for value in values for made in spread(text[:start] + value + text[end:])]


def shown(text: str) -> str:
    """The same with files by their names alone, for pages that are passed on."""
    return re.sub(r"[^|=,:]*/", "", text)


def is_own(text: str) -> bool:
    """Whether the words name a function in the user's own file rather than something of ours."""
    return ".py:" in text or text.endswith(".py")


def own(kind: str, text: str) -> Callable[..., Any]:
    """What `path/to/file.py:name` names. The file is the user's own program and is run as such."""
    place, _, name = text.partition(".py:")
    place, name = (f"{place}.py", name.partition(":")[0]) if name else ("", "")
    if not place:
        raise SettingError(f"A {kind} of your own is given as path/to/file.py:function, got {text!r}.")
    path = Path(place)
    if not path.is_file():
        raise SettingError(f"There is no file {place!r}; a {kind} of your own is given as path/to/file.py:function.")
    module = types.ModuleType(f"{theirs.PREFIX}{path.resolve()}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickled layers look their module up by name
    with theirs.running(f"{place} cannot be run", SettingError):
        # From the text: a compiled file passes for that of another text of its size, written in the same second.
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    found = getattr(module, name, None)
    if not callable(found):
        functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise SettingError(unknown(f"function in {place}", name, functions))
    called: Callable[..., Any] = found
    return called
