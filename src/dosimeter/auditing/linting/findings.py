"""What lint finds: leaks, each with the attack that shows it and what would remove it."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple


class Level(IntEnum):
    """How much leaks: images (error), labels or parts of images (warning), what helps an attack (note)."""

    NOTE = 1
    WARNING = 2
    ERROR = 3

    @property
    def word(self) -> str:
        return self.name.lower()

    def lowered(self) -> "Level":
        return Level(max(Level.NOTE, self - 1))


class Leak(NamedTuple):
    """Something that the structure gives away."""

    rule: str
    level: Level
    where: str  # a layer or tensor; "" for the whole model
    what: str
    attack: str  # which shows it, in the command line's words
    remedy: str
    share: float | None = None  # of the image, or of what goes into the layer, that it determines at most
    options: tuple[tuple[str, str], ...] = ()  # of the command that shows it, beside the model's own


class LayerRank(NamedTuple):
    """What the gradient of a layer's weight determines of the layer's input at most, if what came back is known."""

    name: str  # of the weight
    shape: tuple[int, ...]  # of the weight
    places: int  # where it is applied
    numbers: int  # that go into the layer
    rank: int

    @property
    def share(self) -> float:
        return self.rank / self.numbers


@dataclass(frozen=True, kw_only=True)
class Linted:
    """All that was found of a model, the worst first."""

    leaks: tuple[Leak, ...]
    layers: tuple[LayerRank, ...]
    channel: str  # what becomes of updates, in words
    refused: Mapping[str, str]  # {attack that solves: why it does not fit}
    options: Mapping[str, str] = field(default_factory=dict)
    """Of a command that audits this model, which whoever knows its words gives."""

    def command(self, leak: Leak) -> str:
        """The command line that shows a leak, on one update."""
        options = dict(self.options) | {"--victims": "1", "--attack": leak.attack} | dict(leak.options)
        return "dosimeter audit " + " ".join(f"{key} {shlex.quote(value)}" for key, value in options.items())

    def from_level(self, level: Level) -> list[Leak]:
        """The leaks of that level or a worse one."""
        return [leak for leak in self.leaks if leak.level >= level]

    def document(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "channel": self.channel,
            "leaks": [self._plain(leak) for leak in self.leaks],
            "layers": [layer._asdict() | {"share": layer.share} for layer in self.layers],
            "refused": dict(self.refused),
        }

    def _plain(self, leak: Leak) -> dict[str, Any]:
        more = {"level": leak.level.word, "options": dict(leak.options), "shown_by": self.command(leak)}
        return leak._asdict() | more

    def summary(self) -> str:
        """How much of what was found, in one line."""
        counts = {level: sum(leak.level == level for leak in self.leaks) for level in reversed(Level)}
        words = [f"{n} {level.word}{'s' if n > 1 else ''}" for level, n in counts.items() if n]
        if not words:
            return (
                "Nothing that leaks by structure was found. That is no pass: a search needs no such structure; "
                "audit it (--attack auto)."
            )
        return f"{', '.join(words)}. By structure alone; what is read of images an audit says."
