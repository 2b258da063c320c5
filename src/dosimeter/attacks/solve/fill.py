"""The smoothest image among those that solve the equations, where these leave some of it open."""

from collections.abc import Callable

import torch
from torch import Tensor

from dosimeter.attacks.stages import Beat, unheard

STEPS = 50
"""Newton steps at most at each weight of smoothness; the set of violated bounds usually settles within ten."""

SMOOTHNESS = (1e-2, 1e-4, 1e-6)
"""Weights of the squared differences of neighbouring pixels beside violated bounds, one after another."""

MARGIN = 1e-3
"""How far below 0 the inputs of inactive neurons are kept, in units of their mean size, so that rounding wakes none."""


def smoothest(
    image: Tensor,
    directions: Tensor,
    level: Tensor,
    below: Callable[[Tensor], Tensor],
    beat: Beat = unheard,
    *,
    bounded: bool = True,
) -> Tensor:
    """Move an image along open directions to where neighbouring pixels differ least.

    Pixels stay in [0, 1] and neurons that were inactive stay so; both are bounds on what the equations leave open. They
    are met by penalties on the square of their violation, a convex problem.

    Args:
        image: (C, H, W) that solves the equations.
        directions: (q, C, H, W) in which it may move.
        level: (C, H, W) what a pixel is where nothing at all is known.
        below: (n, C, H, W) -> (n, k), affine, the inputs of inactive neurons.
        beat: before every step.
        bounded: whether to meet the bounds, which takes most of the time.
    """
    if not len(directions):
        return image
    start, open_ = image.flatten(), directions.flatten(1).T  # (pixels, q)
    rough, slope = _differences(directions).T, _differences(image[None])[0]  # (d, q), (d,)
    anchor = 1e-6 * (start - level.flatten())
    curve = rough.T @ rough + 1e-6 * open_.T @ open_
    pull = rough.T @ slope + open_.T @ anchor
    beat()
    move: Tensor = -torch.linalg.solve(curve, pull)
    if not bounded:
        return (start + open_ @ move).reshape(image.shape)
    resting = below(image[None])[0]
    gates = (below(directions) - below(torch.zeros_like(image)[None])).T  # (k, q)
    margin = MARGIN * float(resting.abs().mean()) if len(resting) else 0.0
    # every bound as  rows @ move + rest <= 0
    rows = torch.cat([gates, open_, -open_])
    rest = torch.cat([resting + margin, start - 1, -start])
    for weight in SMOOTHNESS:
        move = _settle(weight * curve, weight * pull, rows, rest, move, beat)
    return (start + open_ @ move).reshape(image.shape)


def _settle(curve: Tensor, pull: Tensor, rows: Tensor, rest: Tensor, move: Tensor, beat: Beat) -> Tensor:
    """The least of  move.curve.move / 2 + pull.move + |max(rows @ move + rest, 0)|^2 / 2  by damped Newton steps."""

    def height(move: Tensor) -> float:
        return float(move @ (curve @ move) / 2 + pull @ move + (rows @ move + rest).clamp_min(0).square().sum() / 2)

    for _ in range(STEPS):
        beat()
        over = rows @ move + rest
        broken = over > 0
        slope = curve @ move + pull + rows[broken].T @ over[broken]
        step = torch.linalg.solve(curve + rows[broken].T @ rows[broken], slope)
        here, fall, length = height(move), float(slope @ step), 1.0
        while length > 1e-6 and height(move - length * step) > here - 1e-4 * length * fall:
            length /= 2
        move = move - length * step
        if float(step.abs().max()) <= 1e-10 * (1 + float(move.abs().max())):
            break
    return move


def _differences(images: Tensor) -> Tensor:
    """(n, d): of all neighbouring pixels."""
    across, down = images.diff(dim=-1).flatten(1), images.diff(dim=-2).flatten(1)
    return torch.cat([across, down], 1)
