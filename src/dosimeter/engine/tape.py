"""One pass of all images through the model, written down so that every candidate's gradients can be told apart.

The model runs once on the images of all candidates. Each known layer with parameters notes what went in; what comes
back to it is then taken from one backward pass that never forms a gradient of its parameters. From the two follow the
parts of every candidate's gradient (see `layers`).

A parameter that is used anywhere else, such as a class token, has its gradient written out: all but the known layers
then runs in a `torch.func.vmap` over candidates ("lifted"), in which each has a copy of that parameter. Known layers
still get the rows of all candidates at once.
"""

import copy
import types
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from dosimeter.engine.attention import PlainAttention
from dosimeter.engine.layers import TWINS, Own, Part, Vector
from dosimeter.networks import clone_modules
from dosimeter.trees import flat
from dosimeter.types import Secrets, Statistics, Target, call

READS = {"__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy"}
"""How a model's program reads numbers off tensors, usually to decide what to do next."""


class Branches(TorchFunctionMode):
    """Notices a model that reads its data: what is right for one candidate may then be wrong for several at once."""

    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= func.__name__ in READS
        return func(*args, **(kwargs or {}))


Note = tuple[Tensor, int, Callable[[Tensor], list[Part]]]
"""A layer's output, how often it had been written to, and the parts given what came back to it."""


class Tape:
    """A copy of the model whose layers note what passes through them. Raises what the model raises.

    Args:
        target: the model and its loss.
        lifted: write out the gradients of parameters that are used outside known layers.
    """

    def __init__(self, target: Target, *, lifted: bool = False) -> None:
        self._model = clone_modules(target.model)
        self._target, self._lifted = replace(target, model=self._model), lifted
        self.candidates = 1
        self._notes: list[Note] = []
        self.how: dict[str, str] = {}
        self._kept = False  # whether the model overwrites what its layers give, so that it gets copies
        self.branches = False  # whether the model read its data in the first pass
        self._given: Statistics = {}
        self._secrets = target.secrets
        self._paths: dict[int, str] = {}
        self._mark = torch.empty(0)  # a tensor that every candidate has its own of, in a lifted pass
        self._raw = {name: p.detach() for name, p in self._model.named_parameters() if p.requires_grad}
        self.outside: dict[str, str] | None = None  # after the first pass: what is used outside known layers, and why
        self.idle: dict[str, int] = {}  # those that nothing uses, and their sizes
        names = {id(p): name for name, p in self._model.named_parameters() if p.requires_grad}
        for path, layer in self._model.named_modules():
            if isinstance(getattr(layer, "inplace", None), bool):
                setattr(layer, "inplace", False)  # noqa: B010  overwriting an output would overwrite the note of it
            own = {key: names.get(id(p)) for key, p in layer.named_parameters(recurse=False)}
            twin = TWINS.get(type(layer))
            if twin is not None and (own or isinstance(layer, nn.modules.batchnorm._BatchNorm)):
                self._replace(path, layer, twin, own)
        for parameter in self._model.parameters():
            parameter.requires_grad_(False)

    def _replace(self, path: str, layer: nn.Module, twin: Callable[..., Tensor], own: Own) -> None:
        """Have a known layer run by its twin, with its parameters as they are and not as candidates have them."""
        fixed = copy.copy(layer)
        fixed._parameters = {
            key: None if p is None else nn.Parameter(p.detach(), requires_grad=False)
            for key, p in layer._parameters.items()
        }
        self._paths[id(fixed)] = path
        by_image = not isinstance(layer, nn.Linear | nn.LayerNorm)

        def lifted(x: Tensor) -> Tensor:  # (N, ...)
            return self.grouped(twin(self, fixed, x.flatten(0, 1), own)) if by_image else twin(self, fixed, x, own)

        def forward(_layer: nn.Module, x: Tensor) -> Tensor:
            return self.at_once(lifted, x) if self._lifted else twin(self, fixed, x, own)

        layer.forward = types.MethodType(forward, layer)

    def __call__(self, images: Tensor, labels: Tensor, statistics: Statistics, secrets: Secrets) -> list[Part]:
        """The parts of all gradients of images (N, B, C, H, W), one candidate a row.

        `statistics` are the means and variances (N, C) of the batch norms for which they are given, `secrets` what was
        drawn inside the model, (N, B, ...) or (N, ...).
        """
        self.candidates, self._given, self._notes = len(images), statistics, []
        if not images.requires_grad:
            images = images.detach().requires_grad_()  # what comes back to layers is taken by differentiating
        leaves, loss = (self._lift if self._lifted else self._run)(images, labels, secrets)
        notes, self._notes = self._notes, []
        if any(out._version != version for out, version, _ in notes):
            self._kept = True
            return self(images, labels, statistics, secrets)
        ends = [*(out for out, *_ in notes), *leaves.values()]
        slopes = torch.autograd.grad(loss, ends, create_graph=True, allow_unused=True)
        backs = [torch.zeros_like(end) if slope is None else slope for end, slope in zip(ends, slopes, strict=True)]
        parts = [part for (*_, make), back in zip(notes, backs, strict=False) for part in make(back)]
        if self.outside is None:
            used = {name for name, slope in zip(leaves, slopes[len(notes) :], strict=True) if slope is not None}
            self._decide(used, {part.name for part in parts})
        kept = self._raw if self._lifted else {}
        written = zip(leaves, backs[len(notes) :], strict=True)
        parts += [Vector(name, flat(back)) for name, back in written if name in kept]
        zero = images.detach().new_zeros(1, 1)
        return parts + [Vector(name, zero.expand(len(images), size)) for name, size in self.idle.items()]

    def _decide(self, used: set[str], noted: set[str]) -> None:
        """After the first pass: which parameters known layers do not account for."""
        owners = {name: type(self._model.get_submodule(name.rpartition(".")[0])).__name__ for name in used}
        why = "used outside linear layers, convolutions and norms"
        self.outside = {name: f"a parameter of {owner}, {why}" for name, owner in owners.items()}
        self.idle = {name: p.numel() for name, p in self._raw.items() if name not in used | noted}
        self.how |= dict.fromkeys(self.idle, "nothing uses it")
        self._raw = {name: p for name, p in self._raw.items() if name in used}

    def _run(self, images: Tensor, labels: Tensor, secrets: Secrets) -> tuple[dict[str, Tensor], Tensor]:
        """All images as one batch; with parameters to differentiate by, for the first pass to find who uses them."""
        n, batch = images.shape[:2]
        first = self.outside is None
        leaves = {name: p.detach().requires_grad_() for name, p in self._raw.items()} if first else {}
        drawn = {name: self._by_image(name, value, batch) for name, value in secrets.items()}
        with PlainAttention(), Branches() if first else nullcontext() as watched:
            output = call(self._model, {**leaves, **drawn}, images.flatten(0, 1))
        if watched is not None:
            self.branches = watched.found
        loss = total_loss(self._target, output.reshape(n, batch, *output.shape[1:]), labels)
        extra = self._target.penalty(self._model) if self._secrets else None
        return leaves, loss if extra is None else loss + extra.sum() / batch

    def _lift(self, images: Tensor, labels: Tensor, secrets: Secrets) -> tuple[dict[str, Tensor], Tensor]:
        """Every candidate's images as its own batch, with its own copy of the parameters outside known layers."""
        leaves = {name: p.expand(len(images), *p.shape).requires_grad_() for name, p in self._raw.items()}

        def one(raw: dict[str, Tensor], drawn: Secrets, mark: Tensor, x: Tensor, y: Tensor) -> Tensor:
            self._mark = mark
            return replace(self._target, drawn=drawn).objective(raw, x, y)

        mark = torch.zeros(len(images), device=images.device)
        with PlainAttention(self.at_once):
            return leaves, vmap(one)(leaves, dict(secrets), mark, images, labels).sum()

    def at_once(self, work: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """Work on all candidates' tensors (N, ...) in the midst of a lifted pass, which sees one candidate's."""
        done: Tensor = _AtOnce.apply(work, self._mark, *tensors)  # type: ignore[no-untyped-call]
        return done

    def _by_image(self, name: str, value: Tensor, batch: int) -> Tensor:
        """What was drawn for a buffer, one row an image."""
        return value.flatten(0, 1) if self._secrets[name].scope == "image" else value.repeat_interleave(batch, 0)

    def note(self, output: Tensor, parts: Callable[[Tensor], list[Part]]) -> Tensor:
        """Write a layer's output down, with what to make of what comes back; gives what the model goes on with."""
        if not output.requires_grad:  # it depends on no image, as a layer of a client's key
            output.requires_grad_()
        self._notes.append((output, output._version, parts))
        return output.clone() if self._kept else output

    def grouped(self, rows: Tensor) -> Tensor:
        """(n, ...) by candidates, (N, n / N, ...)."""
        return rows.reshape(self.candidates, -1, *rows.shape[1:])

    def summed(self, rows: Tensor) -> Tensor:
        """(n, ...) summed over the rows of each candidate, (N, ...)."""
        return rows if len(rows) == self.candidates else self.grouped(rows).sum(1)

    def given(self, layer: nn.Module, rows: int) -> tuple[Tensor, Tensor] | None:
        """Mean and variance (n, C) that a layer was given, for each of so many rows."""
        pair = self._given.get(self._paths[id(layer)])
        if pair is None:
            return None
        mean, variance = (t.repeat_interleave(rows // self.candidates, 0) for t in pair)
        return mean, variance

    def statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of (n, C, ...) over the images and places of each candidate, (n, C, 1, ...)."""
        grouped = self.grouped(x)
        axes = [axis for axis in range(1, grouped.ndim) if axis != 2]
        mean, variance = grouped.mean(axes, keepdim=True), grouped.var(axes, correction=0, keepdim=True)
        mean, variance = (t.expand(-1, grouped.shape[1], *t.shape[2:]).flatten(0, 1) for t in (mean, variance))
        return mean, variance


class _AtOnce(torch.autograd.Function):
    """Leaves `vmap` for the time of some work. It never runs outside of one, so it has no passes of its own."""

    @staticmethod
    def forward(work: Callable[..., Tensor], mark: Tensor, *tensors: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, work: Callable[..., Tensor], _mark: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, int]:
        whole = [
            t.expand(info.batch_size, *t.shape) if axis is None else t.movedim(axis, 0)
            for t, axis in zip(tensors, in_dims[2:], strict=True)
        ]
        return work(*whole), 0


def plain_classes(outputs: Tensor, labels: Tensor) -> bool:
    """One class an image, none of them to be ignored: what cross-entropy can be summed over in one go."""
    return outputs.ndim == 3 and labels.ndim == 2 and labels.dtype == torch.long and bool((labels >= 0).all())


def total_loss(target: Target, outputs: Tensor, labels: Tensor) -> Tensor:
    """The sum of all candidates' losses for outputs (N, B, ...)."""
    if target.loss is F.cross_entropy and plain_classes(outputs, labels):
        each = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(0, 1), reduction="sum")
        return each / labels.shape[1]
    return vmap(target.loss)(outputs, labels).sum()
