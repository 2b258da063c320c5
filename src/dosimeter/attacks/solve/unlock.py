"""Scale and shift of a lock that stays with the client, solved for.

FedKL (Sec. III-B) holds that without gamma and beta nothing in the update can be followed back to the input. Where the
network is straight, all that lies above the lock is solved without them (see `analytic.layers`): what the lock gave, s,
and dL/ds. With s = gamma n + beta and n = f (W * x + b) + h, batch norm's scale f and shift h, every channel's own
gradients then say, summed over pixels p,

    dL/db = gamma f  sum_p dL/ds                           which gives gamma
    <dL/dW, W> + b dL/db = gamma f  sum_p (dL/ds) (W * x + b)
    sum_p (dL/ds) s = gamma sum_p (dL/ds) n + beta sum_p dL/ds      which with the line above gives beta

whatever the image is, which is solved for afterwards. No key, no start and no step is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dosimeter.attacks.base import Around, Attack
from dosimeter.attacks.solve.analytic import Analytic
from dosimeter.attacks.solve.first_layer import SEARCH, in_double
from dosimeter.attacks.solve.layers import reach_first
from dosimeter.attacks.solve.ops import Block, Scale
from dosimeter.attacks.solve.straight import read_straight
from dosimeter.attacks.stages import Beat, Stages, unheard
from dosimeter.errors import SettingError
from dosimeter.networks import clone_modules
from dosimeter.types import Gradient, Observation, Reconstruction, Target, Watch

EPSILON = 1e-9
"""A scale of 0 is taken for this, so that it can be divided by."""


@runtime_checkable
class Locking(Protocol):
    """A layer that scales and shifts channels by numbers of the client's own."""

    locked: int  # channels

    def secrets(self) -> dict[str, object]: ...


class Opened(nn.Module):
    """gamma * x + beta with numbers that are known."""

    gamma: Tensor
    beta: Tensor

    def __init__(self, gamma: Tensor, beta: Tensor) -> None:
        super().__init__()
        self.register_buffer("gamma", gamma[:, None, None])
        self.register_buffer("beta", beta[:, None, None])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma + self.beta


@dataclass(frozen=True, kw_only=True)
class SolveLock(Around):
    """`attack` on the model whose lock has been opened: gamma and beta are solved for, one update after another."""

    attack: Attack = Analytic()

    @property
    def name(self) -> str:
        return f"{self.attack.name}, lock solved"

    def check(self, target: Target, batch: int) -> None:
        """Refuse what cannot be solved, before any work."""
        opened = _with_identity(target)
        _first(read_straight(in_double(opened)))
        if batch != 1 or target.step is not None:
            raise SettingError(f"A lock is solved for from one gradient of one image; use --batch 1 or {SEARCH}.")
        self.attack.check(opened, batch)

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        self.check(target, seen.batch)
        stages = Stages(watch, len(seen.ids))

        def one(_v: int, part: Observation, tell: Watch) -> Reconstruction:
            gradient = {name: g[0] for name, g in part.gradient.items()}
            opened = open_lock(target, *solve_lock(target, gradient, stages.begun(tell)))
            part = part._replace(gradient={name: part.gradient[name] for name in opened.parameters}, secrets=None)
            return self.attack(opened, [part], seed=seed, watch=tell)

        return stages.each(target, seen, one)


def solve_lock(target: Target, gradient: Gradient, beat: Beat = unheard) -> tuple[Tensor, Tensor]:
    """gamma and beta (O,) of the client that sent this gradient of one image, in float64."""
    exact = in_double(_with_identity(target))
    blocks = read_straight(exact)
    first, scale = _first(blocks)
    observed = {name: gradient[name].double() for name in exact.parameters}
    anything = torch.zeros(1, dtype=torch.long, device=target.mean.device)  # only a last layer without bias needs it
    above = reach_first(exact, blocks, observed, anything, target.mean.dtype, beat)
    if above is None:
        return torch.ones_like(scale.factor.flatten()), torch.zeros_like(scale.shift.flatten())
    weight, bias = first.learned.weight, first.learned.bias
    assert bias is not None
    values = exact.parameters
    slopes = above.slopes.sum((1, 2))  # (O,) dL/dbeta
    gamma = observed[bias] / (scale.factor.flatten() * slopes)
    gamma = torch.where(gamma.isfinite() & (gamma.abs() > EPSILON), gamma, EPSILON)
    through = (observed[weight] * values[weight]).flatten(1).sum(1) + observed[bias] * values[bias]
    rest = (above.slopes * above.outputs).sum((1, 2)) - through
    beta = rest / slopes - gamma * scale.shift.flatten()
    return gamma, beta.nan_to_num(0.0, 0.0, 0.0)


def open_lock(target: Target, gamma: Tensor, beta: Tensor) -> Target:
    """The target with these numbers in place of its lock's secrets."""
    model = clone_modules(target.model)
    found = [path for path, layer in model.named_modules() if isinstance(layer, Locking)]
    if len(found) != 1:
        raise SettingError(
            f"One lock is solved for, but the model has {len(found)}; use it with a defense that has one (fedkl)."
        )
    parent, _, name = found[0].rpartition(".")
    setattr(model.get_submodule(parent), name, Opened(gamma.to(target.mean), beta.to(target.mean)))
    return replace(target, model=model)


def _with_identity(target: Target) -> Target:
    channels = next((layer.locked for layer in target.model.modules() if isinstance(layer, Locking)), 0)
    return open_lock(target, torch.ones(channels), torch.zeros(channels))


def _first(blocks: Sequence[Block]) -> tuple[Block, Scale]:
    """The block of the lock, and all that is done between its convolution and the lock."""
    first = blocks[0]
    if first.learned.bias is None or not all(isinstance(op, Scale) for op in first.after):
        raise SettingError(
            "A lock is solved for with the bias of the convolution before it and nothing but batch norm between them; "
            f"here it is otherwise; {SEARCH}."
        )
    factor, shift = torch.ones(1, 1, 1).to(first.learned.kernel), torch.zeros(1, 1, 1).to(first.learned.kernel)
    for op in first.after:
        assert isinstance(op, Scale)
        factor, shift = op.factor * factor, op(shift)
    return first, Scale(factor, shift)
