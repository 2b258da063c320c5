"""What went into the encoder of a known latent, from its weights' gradient.

The gradient is  dW[o, c, i] = sum_p d[o, p] u[c, p + i],  in which the slopes d = dL/dz are a function of the encoder's
outputs z = W * u + b and so of the unknown u itself: through the penalty, and through the noise (b - mean) / deviation.
These equations are solved by Levenberg and Marquardt's method, its steps by conjugate gradients, in float64. There are
2 K k^2 equations a channel for its H W pixels, with K draws a place and kernels k x k: twice as many as unknowns in the
CVB paper's CNN.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks.solve.ops import Learned
from dosimeter.attacks.solve.system import correlation
from dosimeter.attacks.stages import Beat, unheard

STEPS = 100
"""Steps of Levenberg and Marquardt's method at most."""

INNER = 150
"""Conjugate gradients in each at most."""

DAMPING = 0.2
"""How strongly the first step is damped, as a share of the equations' own curvature."""

BELOW = 0.15
"""How strongly an input below the least that its activation gives is pulled back, as a share of the same."""

SLOW = 0.9999
"""A step that leaves so much of the squared error is the last: what is left is rounding, noise or out of reach."""


class Solved(NamedTuple):
    inputs: Tensor  # (C, H, W) u
    slopes: Tensor  # (O, H', W') d at u
    error: float  # of the gradient that u gives, relative to the observed one


class _Point(NamedTuple):
    """An input and the equations around it."""

    inputs: Tensor  # (C, n)
    patches: Tensor  # (C * K, P) what the weights meet
    slopes: Tensor  # (O, P)
    rest: Tensor  # (O, C * K) simulated minus observed
    bends: Tensor  # (P, O, O) change of the slopes by a change of the outputs, place by place


class Equations:
    """Those of one encoder and one observed gradient.

    Args:
        learned: the encoder's layers side by side, (C, H, W) -> (O, H', W').
        shape: of its input.
        slopes_of: (1, O, H', W') -> (1, O, H', W'), outputs to slopes, differentiable.
        gradient: (O, C, k, k) dL/dW.
    """

    def __init__(
        self,
        learned: Learned,
        shape: tuple[int, int, int],
        slopes_of: Callable[[Tensor], Tensor],
        gradient: Tensor,
    ) -> None:
        self._places = learned.places  # (K, P)
        self._shape, self._slopes_of = shape, slopes_of
        self._matrix = learned.kernel.flatten(1)  # (O, C * K)
        self._observed = gradient.flatten(1)
        with torch.no_grad():
            self._offset = learned(gradient.new_zeros(1, *shape))  # (1, O, H', W')
        self.outputs = self._offset.shape[1:]  # (O, H', W')
        self.size = float(self._observed.square().sum())

    def at(self, inputs: Tensor) -> _Point:
        """(C, n) -> the equations there."""
        patches = self._patches(inputs)
        slopes, bends = linearised(self._slopes_of, (self._matrix @ patches).reshape(self._offset.shape) + self._offset)
        return _Point(inputs, patches, slopes, slopes @ patches.T - self._observed, bends)

    def push(self, point: _Point, move: Tensor) -> Tensor:
        """J move: the change (O, C * K) of what is left by a move (C, n)."""
        patches = self._patches(move)
        change = torch.einsum("pab,bp->ap", point.bends, self._matrix @ patches)
        return change @ point.patches.T + point.slopes @ patches.T

    def pull(self, point: _Point, rest: Tensor) -> Tensor:
        """J^T rest: (O, C * K) -> (C, n)."""
        change = torch.einsum("pab,ap->bp", point.bends, rest @ point.patches)
        back = rest.T @ point.slopes + self._matrix.T @ change  # (C * K, P)
        channels, n = point.inputs.shape
        found = back.new_zeros(channels, n + 1)
        return found.index_add_(1, self._places.flatten(), back.reshape(channels, -1))[:, 1:]

    def curve(self, point: _Point) -> Tensor:
        """(n, n): J^T J in every channel, if slopes did not change."""
        matrix = correlation(point.slopes, self._places, point.inputs.shape[1])
        return matrix.T @ matrix

    def _patches(self, inputs: Tensor) -> Tensor:
        channels = len(inputs)
        padded = torch.cat([inputs.new_zeros(channels, 1), inputs], 1)
        return padded.index_select(1, self._places.flatten()).reshape(self._matrix.shape[1], -1)


def solve_encoder(equations: Equations, start: Tensor, *, floor: float, least: float, beat: Beat = unheard) -> Solved:
    """The input near `start` (C, H, W) whose gradient is the observed one.

    Args:
        equations: of the encoder.
        floor: no input is below this, which helps on the way; minus infinity where nothing is known.
        least: the relative error at which it stops.
        beat: before every step.
    """
    point = equations.at(start.flatten(1))
    scale = float(equations.curve(point).diagonal().mean())
    damping, growth, pulled = DAMPING * scale, 2.0, BELOW * scale
    for _ in range(STEPS):
        beat()
        if not _size(point.rest) > least**2 * equations.size or not damping < 1e12 * scale:
            break
        held = pulled * (point.inputs < floor)  # (C, n)
        below = torch.where(held > 0, point.inputs - floor, 0)
        before = _size(point.rest) + pulled * _size(below)
        move = _step(equations, point, damping + held, equations.pull(point, point.rest) + held * below)
        hoped = before - _size(point.rest + equations.push(point, move)) - float((held * (below + move) ** 2).sum())
        trial = equations.at(point.inputs + move)
        after = _size(trial.rest) + pulled * _size((trial.inputs - floor).clamp_max(0))
        share = (before - after) / hoped if hoped > 0 else -1.0
        if not share > 0.01:
            damping, growth = damping * growth, 2 * growth
            continue
        point, damping, growth = trial, damping * max(1 / 3, 1 - (2 * share - 1) ** 3), 2.0
        if after > SLOW * before:
            break
    error = (_size(point.rest) / equations.size) ** 0.5 if equations.size else torch.inf
    return Solved(point.inputs.reshape(start.shape), point.slopes.reshape(equations.outputs), error)


def _step(equations: Equations, point: _Point, damping: Tensor, slope: Tensor) -> Tensor:
    """(C, n): the move with (J^T J + damping) move = -slope, by conjugate gradients.

    They are preconditioned by what the equations would be if slopes did not change.
    """
    curve = equations.curve(point)
    curve.diagonal().add_(float(damping.min()) + 0.02 * float(curve.diagonal().mean()))
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(curve))
    left = -slope
    along = left @ inverse
    move, size = torch.zeros_like(left), float((left * along).sum())
    enough = 1e-4 * size
    for _ in range(INNER):
        if not size > enough:
            break
        pushed = equations.push(point, along)
        length = size / (_size(pushed) + float((damping * along.square()).sum()))
        move = move + length * along
        left = left - length * (equations.pull(point, pushed) + damping * along)
        better = left @ inverse
        before, size = size, float((left * better).sum())
        along = better + size / before * along
    return move


def _size(rest: Tensor) -> float:
    return float(rest.square().sum())


def linearised(slopes_of: Callable[[Tensor], Tensor], outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes (O, P) at outputs (1, O, ...), and how they bend (P, O, O) where no place depends on another."""
    with torch.enable_grad():
        z = outputs.detach().requires_grad_()
        slopes = slopes_of(z)
        each = torch.eye(z.shape[1]).to(z)[:, None, :, *[None] * (z.ndim - 2)].expand(-1, *z.shape)
        (rows,) = torch.autograd.grad(slopes, z, each, is_grads_batched=True)  # (O, 1, O, ...)
    return slopes.detach()[0].flatten(1), rows[:, 0].flatten(2).permute(2, 0, 1).contiguous()
