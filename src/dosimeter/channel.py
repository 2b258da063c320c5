"""What becomes of an update on its way from the client's gradient to the server, as facts.

A defense states its facts (`Defense.channel`) or is probed (`dosimeter.defenses.probe`). Whoever chooses attacks for it
reads facts and never a class, so that a user's own defense meets what one of ours would.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

Tensors = frozenset[str] | None
"""Names of the tensors that a fact is about; None for all of the update."""


class Noise(NamedTuple):
    """Added to every entry, drawn anew in every round."""

    kind: Literal["gaussian", "laplace"]
    scale: float  # the deviation, or the Laplace density's scale
    on: Tensors = None


class Mask(NamedTuple):
    """A share of the entries is set to 0: the smallest of every tensor, or whichever were drawn."""

    rate: float
    by: Literal["size", "random"]
    on: Tensors = None


class Rounding(NamedTuple):
    """Entries are whole multiples of a step."""

    step: float
    relative: bool = False  # whether the step is a share of the tensor's largest entry
    on: Tensors = None


class Clip(NamedTuple):
    """Scaled down to a norm where it is larger: every example's gradient, the whole update, or each of its tensors."""

    bound: float
    of: Literal["example", "update", "tensor"] = "example"


class Hides(NamedTuple):
    """What is sent of these tensors is changed in a way that no other fact describes."""

    on: Tensors = None


class Draws(NamedTuple):
    """Numbers are drawn inside the model, for every image or once by a client."""

    scope: Literal["image", "client"]
    sent: bool = False  # whether the client sends them along
    trained: bool = False  # whether the layer that takes them has parameters whose gradients are sent


class Change(Protocol):
    """One thing that a defense may do to images (n, C, H, W) in [0, 1] before training, as can be differentiated.

    All that may be drawn for it has a value, so that the same images always give the same.
    """

    def __call__(self, images: "Tensor") -> "Tensor": ...


Path = tuple[tuple[Change, ...], ...]
"""What images go through, stage by stage: at each stage one of these was done, which one the client drew."""


class Changing(Protocol):
    """A defense that says what it may do to images."""

    def changes(self, shape: tuple[int, int, int]) -> tuple[Path, ...]: ...


class Transforms(NamedTuple):
    """The client trains on changed images."""

    by: Changing | None = None  # who says what is done to them, where that is known


Fact = Noise | Mask | Rounding | Clip | Hides | Draws | Transforms
Facts = tuple[Fact, ...]
"""In the order in which they come about."""


class Channel(NamedTuple):
    """All facts of a defense on a model, and which of its parts were measured because they state none."""

    facts: Facts
    measured: tuple[str, ...] = ()

    def words(self) -> str:
        """All of it as a report says it."""
        if not self.facts and not self.measured:
            return "the update as it is"
        facts = "; ".join(map(words, self.facts)) or "nothing that shows"
        return f"{facts} ({'measured on ' + ', '.join(self.measured) if self.measured else 'stated'})"


def words(fact: Fact) -> str:
    """A fact as a report says it."""
    where = "" if getattr(fact, "on", None) is None else f" on {len(fact.on)} tensor(s)"  # type: ignore[union-attr, arg-type]
    match fact:
        case Noise(kind, scale):
            return f"{'Laplace' if kind == 'laplace' else 'Gaussian'} noise of {scale:.3g}{where}"
        case Mask(rate, by):
            chosen = "smallest entries" if by == "size" else "entries drawn at random"
            return f"{rate:.1%} of the {chosen} set to 0{where}"
        case Rounding(step, relative):
            return f"rounded to steps of {step:.3g}{' of the largest entry' if relative else ''}{where}"
        case Clip(bound, of):
            return f"every {of}{chr(39) + 's gradient' if of == 'example' else ''} clipped to a norm of {bound:.3g}"
        case Hides():
            return f"changed in a way of its own{where or ', for which no attack was made'}"
        case Draws(scope):
            return f"numbers drawn inside the model for every {scope}"
        case Transforms():
            return f"images changed before training{'' if fact.by else ', in a way that is not stated'}"
