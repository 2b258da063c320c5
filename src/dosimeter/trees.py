"""Arithmetic on gradients, which are {parameter name: tensor}, and on the NamedTuples that hold a search's state."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar, cast

import torch
from torch import Tensor

from dosimeter.errors import UpdateError
from dosimeter.types import Curve, Gradient, Reconstruction, Statistics

T = TypeVar("T")


def stack(gradients: Iterable[Gradient], n: int | None = None) -> dict[str, Tensor]:
    """Gradients of one shape each -> one gradient with an axis of victims in front.

    They may come one by one, `n` of them, and are then never in memory all at once beside the result.
    """
    if n is None:
        gradients = list(gradients)
        n = len(gradients)
    stacked: dict[str, Tensor] = {}
    for row, gradient in enumerate(gradients):
        if not stacked:
            stacked = {name: g.new_empty(n, *g.shape) for name, g in gradient.items()}
        for name, g in gradient.items():
            stacked[name][row] = g
    return stacked


def stack_pairs(statistics: Sequence[Statistics]) -> dict[str, tuple[Tensor, Tensor]]:
    """The same for pairs of tensors, such as means and variances."""
    first, second = (stack([{name: pair[i] for name, pair in one.items()} for one in statistics]) for i in (0, 1))
    return {name: (first[name], second[name]) for name in first}


def squared_norms(gradient: Gradient) -> Tensor:
    """(V, P): the squared norm of every tensor of every victim, tensors in the gradient's own order."""
    return torch.stack([_squared_norm(g) for g in gradient.values()], dim=1)


def _squared_norm(tensor: Tensor) -> Tensor:
    """(V,) of (V, ...): row by row, so that neither squares stand in memory nor roundings of long sums add up."""
    rows = tensor.reshape(-1, 1, tensor.shape[-1] if tensor.ndim > 1 else 1)
    return torch.bmm(rows, rows.transpose(1, 2)).reshape(len(tensor), -1).sum(1)


def flat(tensor: Tensor) -> Tensor:
    """(V, entries) of (V, ...); a parameter may be a single number, so that its gradients are (V,)."""
    return tensor.reshape(len(tensor), -1)


def rows(tree: T, where: Tensor | slice) -> T:
    """The chosen rows of every tensor in a tensor, dict, tuple or NamedTuple; everything else stays as it is."""
    if isinstance(tree, Tensor):
        return cast(T, tree[where])
    if isinstance(tree, dict):
        return cast(T, {name: rows(value, where) for name, value in tree.items()})
    if isinstance(tree, tuple):
        chosen = (rows(value, where) for value in tree)
        return cast(T, type(tree)(*chosen) if hasattr(tree, "_fields") else tuple(chosen))
    return tree


def repeat(tensors: Gradient, times: int) -> dict[str, Tensor]:
    """Every row of every tensor so many times, copies together."""
    return {name: t.repeat_interleave(times, 0) if times > 1 else t for name, t in tensors.items()}


def join(parts: Sequence[Reconstruction]) -> Reconstruction:
    """Reconstructions of several groups of victims one after another; a curve that ended early keeps its last value.

    Labels and guesses that not all groups have are left out, for it could not be told whose they are.
    """
    steps = tuple(sorted({step for part in parts for step in part.curve.steps}))
    curves, traces = [], dict[str, list[Tensor]]()
    for part in parts:
        at = [sum(s <= step for s in part.curve.steps) - 1 for step in steps]
        curves.append(part.curve.match[:, at])
        for name, each in part.curve.traces.items():
            traces.setdefault(name, []).append(each[:, at])
    labels = [part.labels for part in parts if part.labels is not None]
    solved, guessed = any(part.determined for part in parts), all(part.trained for part in parts)
    return Reconstruction(
        images=torch.cat([part.images for part in parts]),
        labels=torch.cat(labels) if len(labels) == len(parts) else None,
        match=torch.cat([part.match for part in parts]),
        steps=torch.cat([part.steps for part in parts]),
        restart=torch.cat([part.restart for part in parts]),
        stopped=tuple(why for part in parts for why in part.stopped),
        curve=Curve(
            steps,
            torch.cat(curves),
            {name: torch.cat(each) for name, each in traces.items() if len(each) == len(parts)},
        ),
        determined=tuple(each for part in parts for each in part.determined or ({},) * len(part.stopped) * solved),
        trained=tuple(guess for part in parts for guess in part.trained if guessed),
        again=_again(parts),
        trained_on=_trained_on(parts),
    )


def _again(parts: Sequence[Reconstruction]) -> tuple[int, ...]:
    if not any(part.again for part in parts):
        return ()
    return tuple(times for part in parts for times in part.again or (0,) * len(part.stopped))


def _trained_on(parts: Sequence[Reconstruction]) -> Tensor | None:
    if all(part.trained_on is None for part in parts):
        return None
    return torch.cat([part.images if part.trained_on is None else part.trained_on for part in parts])


def chosen(found: Reconstruction, victims: Sequence[int]) -> Reconstruction:
    """What was found of some of the victims, in this order."""

    def told(each: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(each[v] for v in victims) if each else ()

    return rows(found, torch.tensor(victims, device=found.images.device))._replace(
        stopped=told(found.stopped),
        determined=told(found.determined),
        trained=told(found.trained),
        again=told(found.again),
    )


def check_form(update: object, parameters: Gradient) -> None:
    """Refuse an update whose tensors are missing, extra, misshaped or no plain floats, naming the tensors."""
    if not isinstance(update, Mapping):
        raise UpdateError(f"The update is a {type(update).__name__}, expected {{parameter's name: tensor}}.")
    missing = [name for name in parameters if name not in update]
    extra = [name for name in update if name not in parameters]
    if missing or extra:
        parts = [
            f"{kind} {_few(names)}" for kind, names in (("missing", missing), ("not in the model", extra)) if names
        ]
        raise UpdateError(
            f"The update's tensors are not the model's parameters: {'; '.join(parts)}. "
            "Expected exactly one tensor for each trainable parameter, under its name in model.named_parameters()."
        )
    for name, parameter in parameters.items():
        _check_plain(name, update[name])
        if update[name].shape != parameter.shape:
            raise UpdateError(
                f"The update's tensor {name!r} has shape {tuple(update[name].shape)}, expected "
                f"{tuple(parameter.shape)}. Was it taken from another model?"
            )


def check_update(update: Gradient, parameters: Gradient) -> None:
    """Refuse an update that has not the form of these parameters, or is not finite, naming the tensors."""
    check_form(update, parameters)
    for name, tensor in update.items():
        if not tensor.isfinite().all():
            kind = "NaN" if tensor.isnan().any() else "infinity"
            raise UpdateError(
                f"The update's tensor {name!r} contains {kind}; expected finite numbers. "
                "Check the model's weights, the loss and the defense."
            )


def _check_plain(name: str, tensor: object) -> None:
    """Refuse what no number can be read from, or only in another form."""
    if not isinstance(tensor, Tensor):
        raise UpdateError(f"The update's {name!r} is a {type(tensor).__name__}, expected a tensor.")
    plain = tensor.layout == torch.strided and not tensor.is_meta and tensor.is_floating_point()
    if not plain or tensor.element_size() < 2:
        where = "on the device meta" if tensor.is_meta else f"of {tensor.dtype}, {tensor.layout}".replace("torch.", "")
        raise UpdateError(
            f"The update's tensor {name!r} is {where}, expected plain floats of 16 bits or more; convert what was "
            "quantised or compressed."
        )


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:3])
    return shown + (f" and {len(names) - 3} more" if len(names) > 3 else "")
