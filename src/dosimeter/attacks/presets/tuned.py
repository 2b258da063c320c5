"""Presets that `dosimeter tune` found: `tuned:NAME` is the attack in tuned/NAME.toml, with the evidence for it."""

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dosimeter import files, plain, spec
from dosimeter.attacks.base import Attack
from dosimeter.attacks.search.search import Search
from dosimeter.errors import SettingError

PREFIX, ENDING, FORMAT = "tuned:", ".toml", 1


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What a file has: the attack and the one that it was made of, in words, and how it came to its settings."""

    format: int
    name: str
    attack: str
    untuned: str
    settings: dict[str, Any] = field(default_factory=dict)
    """Those that were chosen."""
    task: dict[str, Any] = field(default_factory=dict)
    """Model, data, defense and so on, as a trial has them, where they are not the usual ones."""
    search: dict[str, Any] = field(default_factory=dict)
    """Space, sampler, how many settings were tried, and at what cost."""
    scores: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of the untuned and the tuned attack on shadows."""
    shadows: list[str] = field(default_factory=list)
    """Their places in the data."""
    images: list[str] = field(default_factory=list)
    """Their fingerprints, by which an audit knows them."""


def place_of(name: str) -> Path:
    """The file of that name in the folder $DOSIMETER_TUNED, or in tuned/; a path is one already."""
    if "/" in name or name.endswith(ENDING):
        return Path(name)
    return Path(os.environ.get("DOSIMETER_TUNED", "tuned")) / f"{name}{ENDING}"


def read(name: str) -> Tuned:
    """What a file says, or in one line what is wrong with it."""
    path = place_of(name)
    try:
        found: Tuned = plain.read(Tuned, tomllib.loads(path.read_text()), "it")
    except FileNotFoundError:
        beside = sorted(each.stem for each in path.parent.glob(f"*{ENDING}"))
        others = f"there {'is' if len(beside) == 1 else 'are'} {', '.join(beside)}" if beside else "there is none yet"
        raise SettingError(
            f"Expected a tuned attack in {str(path)!r}, found none; in that folder {others}. dosimeter tune makes them."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        said = files.reason(error)
        raise SettingError(f"{path}: expected a tuned attack as dosimeter tune writes it, but {said}.") from None
    if found.format != FORMAT:
        raise SettingError(f"{path}: expected a tuned attack of format {FORMAT}, got {found.format}; tune it again.")
    return found


def load(words: str, catalogue: Mapping[str, Callable[..., Attack]], **more: object) -> Search:
    """The attack that `tuned:NAME` names. It is told by what it does, so that other settings are another attack."""
    name = words.removeprefix(PREFIX)
    found = read(name)
    if given := [f"--{key}" for key, value in more.items() if value is not None]:
        raise SettingError(
            f"{words!r} was tuned with its own settings and takes no {', '.join(given)}; tune it with that instead."
        )
    try:
        attack = spec.make("attack", found.attack, catalogue)
    except SettingError as error:
        raise SettingError(f"{place_of(name)}: {error}") from None
    if not isinstance(attack, Search):
        raise SettingError(f"{place_of(name)}: expected the words of a search, got {found.attack!r}.")
    return replace(attack, name=f"tuned {found.name}", shadows=tuple(found.images))


def words_with(words: str, settings: Mapping[str, object]) -> str:
    """An attack's words with some of its settings replaced."""
    name, _, rest = words.partition(":")
    held = dict(item.partition("=")[::2] for item in rest.split(",") if item)
    held |= {key: f"{value:.6g}" if isinstance(value, float) else str(value) for key, value in settings.items()}
    return f"{name}:{','.join(f'{key}={value}' for key, value in held.items())}" if held else name
