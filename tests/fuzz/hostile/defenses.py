"""Defenses of one's own. Those in SANE can be audited; all others must be refused in one line."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dosimeter import Defense


@dataclass(frozen=True, kw_only=True)
class Good(Defense):
    """Halves the update."""

    def on_gradient(self, gradient, moment, rng):
        return {name: g / 2 for name, g in gradient.items()}


@dataclass(frozen=True, kw_only=True)
class Needs(Defense):
    rate: float

    def on_gradient(self, gradient, moment, rng):
        return {name: self.rate * g for name, g in gradient.items()}


def doing(change):
    """A defense that does something to gradients."""

    @dataclass(frozen=True, kw_only=True)
    class Does(Defense):
        def on_gradient(self, gradient, moment, rng):
            return change(gradient)

    return Does()


def throw(error):
    def raising(*_):
        raise error

    return raising


def in_place():
    return doing(lambda g: {name: t.mul_(0.5) for name, t in g.items()})


def raises():
    return doing(throw(KeyError("no\ndefense")))


def raises_nothing_said():
    return doing(throw(AssertionError()))


def gives_none():
    return doing(lambda _: None)


def gives_a_list():
    return doing(lambda g: list(g.values()))


def gives_a_tensor():
    return doing(lambda g: next(iter(g.values())))


def gives_nothing():
    return doing(lambda _: {})


def leaves_one_out():
    return doing(lambda g: dict(list(g.items())[1:]))


def adds_one():
    return doing(lambda g: {**g, "more": torch.zeros(2)})


def changes_shapes():
    return doing(lambda g: {name: t.flatten() for name, t in g.items()})


def changes_names():
    return doing(lambda g: {f"x.{name}": t for name, t in g.items()})


def gives_halves():
    return doing(lambda g: {name: t.half() for name, t in g.items()})


def gives_integers():
    return doing(lambda g: {name: t.long() for name, t in g.items()})


def gives_complex():
    return doing(lambda g: {name: t.to(torch.complex64) for name, t in g.items()})


def gives_sparse():
    return doing(lambda g: {name: t.to_sparse() for name, t in g.items()})


def gives_meta():
    return doing(lambda g: {name: t.to("meta") for name, t in g.items()})


def gives_numbers():
    return doing(lambda g: {name: float(t.sum()) for name, t in g.items()})


def gives_nan():
    return doing(lambda g: {name: t * float("nan") for name, t in g.items()})


def gives_infinity():
    return doing(lambda g: {name: t + float("inf") for name, t in g.items()})


def gives_zeros():
    return doing(lambda g: {name: 0 * t for name, t in g.items()})


def gives_huge():
    return doing(lambda g: {name: 1e30 * t for name, t in g.items()})


def on_model(change):
    @dataclass(frozen=True, kw_only=True)
    class Changes(Defense):
        def on_model(self, model, shape):
            return change(model)

    return Changes()


def model_raises():
    return on_model(throw(TypeError("no model")))


def model_is_none():
    return on_model(lambda _: None)


def model_is_a_function():
    return on_model(lambda _: lambda x: x)


def model_is_weightless():
    return on_model(lambda _: nn.Flatten())


def model_is_torn():
    return on_model(lambda model: nn.Sequential(model, nn.Linear(3, 10)))


def on_batch(change):
    @dataclass(frozen=True, kw_only=True)
    class Changes(Defense):
        def on_batch(self, images, labels, rng):
            return change(images, labels)

    return Changes()


def batch_raises():
    return on_batch(throw(IndexError("no batch")))


def batch_is_none():
    return on_batch(lambda *_: None)


def batch_without_labels():
    return on_batch(lambda images, _: images)


def batch_shrinks():
    return on_batch(lambda images, labels: (images[:, :, 1:], labels))


def batch_is_empty():
    return on_batch(lambda images, labels: (images[:0], labels[:0]))


def batch_is_nan():
    return on_batch(lambda images, labels: (images * float("nan"), labels))


def labels_beyond():
    return on_batch(lambda images, labels: (images, labels + 1000))


class NotADefense:
    """No defense at all."""


def gives_no_defense():
    return 3


def gives_a_class():
    return Good


def a_function(gradient: dict[str, Tensor]) -> dict[str, Tensor]:
    return gradient


def raises_when_made():
    raise LookupError("no\ndefense")


NOT_A_FUNCTION = None

SANE = {"Good", "in_place", "gives_halves", "gives_zeros", "gives_huge"}
