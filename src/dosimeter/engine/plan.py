"""How many victims run at once, and on how many threads.

A tile of victims runs through the model as one batch on one thread of its own. Its size follows from the model, the
settings, the budget and the number of threads, which are all recorded, and never from what memory happens to be free,
so that a rerun is the same run. One thread a tile: on small matrices a second thread of the same operation mostly
waits, and OpenMP waits by spinning, which took a peer on the same cores down to a fiftieth of its speed.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dosimeter.engine.contract import cheaper_dense
from dosimeter.engine.memory import FEW, TRIED, training
from dosimeter.engine.tiles import PLACES
from dosimeter.engine.winograd import Winograd
from dosimeter.errors import SettingError
from dosimeter.networks import Call, is_leaf, watch
from dosimeter.types import Measured, Target

DEFAULT_BUDGET = 4 * 2**30  # bytes
TILE = 4 * 2**20  # bytes of activations that a tile should have about, so that caches hold a good part of them
MOST, LEAST = 64, 4  # candidates of a tile
OWN = 1.5  # times the activations of its images that a client's step takes
ACTIVE = 10  # times its activations that a candidate holds over both passes, windows of convolutions included
TRIALS = 2.5  # candidates, three that are not all there at once, on which ways are compared before a tile begins,
WRITTEN = 1.5  # and copies of all weights that each of them takes
DRAWN = 3  # times as much where clients draw numbers inside the model
CURVED = (nn.Sigmoid, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.CELU, nn.SELU, nn.Softplus, nn.Mish)
"""Layers whose slopes are kept too."""


class Plan(NamedTuple):
    """Victims of a tile, tiles at once, and the memory that these are expected to take."""

    victims: int
    workers: int
    bytes: int
    restarts: int  # side by side
    stretch: int | None  # local steps that are held at once; see `Target.stretch`
    part: int | None  # images of a batch at a time, None for all


def plan(
    target: Target,
    *,
    victims: int,
    batch: int,
    restarts: int,
    candidates: int = 1,
    together: bool = False,
    divisible: bool = False,
    passes: int = 1,
    budget: int = DEFAULT_BUDGET,
    workers: int | None = None,
    extra: tuple[int, int] = (0, 0),
    steady: bool = False,
) -> Plan:
    """Cut victims into tiles for the workers, by default one a core.

    A candidate holds its activations several times over both passes, windows of convolutions included, and the
    gradients of layers that are written out (see `written_out`). An observation is held as seen and, but for the
    matrices of linear layers under a single image, once more in the order in which it is compared. Before that ways are
    compared on a few candidates, beside what was seen. Of local training see `training`. Restarts that do not fit run
    in turn, and so do the images of a batch of which one candidate does not fit; gradients are written out then.

    Args:
        restarts: searches of a victim.
        candidates: simulated at once for each of them.
        together: whether restarts need each other and cannot run in turn.
        divisible: whether the images of a batch can be simulated apart.
        passes: of the model in one simulated update.
        extra: numbers that a candidate takes beside it, and that a tile does.
        steady: cut them by neither their number nor the workers, so that a part of them is cut as all are.
    """
    size = target.mean.element_size()
    weights = sum(p.numel() for p in target.parameters.values())
    image, calls = _activations(target)
    own, shared = (0, 0) if target.step else written_out(calls, batch)
    image *= DRAWN if target.secrets else 1
    active = batch * image
    once = sum(p.numel() for p in target.parameters.values() if p.ndim == 2 and batch == 1 and not target.step)
    step, stretch, least = passes * (ACTIVE * active + own + (4 * weights if target.step else 0)), None, 1
    if isinstance(target.step, Measured):
        room, least = budget // size - 2 * weights, TRIED
        at_once = max(least, candidates * (restarts if together else 1))
        step, stretch = training(target, target.step.holds(batch), weights, passes, room // at_once)
    one, held = size * candidates * (step + extra[0]), size * (2 * weights - once)
    tile_once = size * (shared + extra[1])
    few = ACTIVE * (batch if target.secrets else min(FEW, batch)) * image
    first = 0 if target.step else round(TRIALS * size * (passes * (few + own) + WRITTEN * weights))
    part = None
    if divisible and one + held > budget:
        part = min(batch, max(1, budget // (2 * size * ACTIVE * image)))
        active = part * image
        one, held = size * candidates * (8 * weights + extra[0]), held + ACTIVE * size * active
        first = 0  # there is one way
    if not together:  # parts are simulated one candidate after another in any case
        restarts = 1 if part else max(1, min(restarts, (budget - held - tile_once) // one))
    each = restarts * one + held

    def bytes_of(tile: int) -> int:
        return round(max(tile * each, least / candidates * one + held, tile * held + first) + tile_once)

    def fits(room: int) -> int:
        room -= tile_once
        return max(1, min(room // each, (room - first) // max(1, held)))

    most = bytes_of(1)
    cores = 1 if target.mean.device.type != "cpu" else max(1, workers or os.cpu_count() or 1)
    if most > budget:
        apart = "" if not together else ", which are compared with each other and run together,"
        raise SettingError(
            f"One victim with {restarts} restart(s){apart} needs about {most / 2**30:.2f} GiB, more than the budget of "
            f"{budget / 2**30:.2f} GiB; raise the budget or lower {'restarts or ' if restarts > 1 else ''}batch."
        )
    fitting = max(1, min(MOST, max(LEAST, TILE // (size * active))) // (restarts * candidates))
    if target.mean.device.type != "cpu":
        fitting = victims  # a GPU wants all that memory allows
    if steady:
        fitting = fits(budget) if target.mean.device.type != "cpu" else min(fitting, fits(budget))
        tile = 2 ** (max(1, fitting).bit_length() - 1)  # so that the tiles of several attacks begin together
        at_once = max(1, min(cores, -(-victims // tile), budget // bytes_of(tile)))
        return Plan(tile, at_once, at_once * bytes_of(min(tile, victims)), restarts, stretch, part)
    cores = min(cores, victims, budget // most)
    tiles = -(-victims // min(fitting, fits(budget // cores)))
    tile = -(-victims // (-(-tiles // cores) * cores))  # as many rounds as are needed, all workers busy in each
    at_once = min(cores, -(-victims // tile))
    return Plan(tile, at_once, at_once * bytes_of(tile), restarts, stretch, part)


def _activations(target: Target) -> tuple[int, list[Call]]:
    """Numbers that the layers give of one image, and their calls."""
    blank = torch.zeros(2, *target.shape).to(target.mean)  # batch norm with the statistics of its batch refuses one
    with torch.no_grad():
        calls = watch(target.model, lambda: target.model(blank), is_leaf)
    held = sum(
        call.output.numel() * (2 if isinstance(call.layer, CURVED) else 1)
        for call in calls
        if isinstance(call.output, Tensor)
    )
    return max(held, blank.numel()) // len(blank), calls  # a model may do its work outside of layers


def client_bytes(target: Target, images: int) -> int:
    """What a client's own step on so many images takes, before anything is attacked."""
    weights = sum(p.numel() for p in target.parameters.values())
    return round(target.mean.element_size() * (OWN * images * _activations(target)[0] + 2 * weights))


def written_out(calls: Sequence[Call], batch: int) -> tuple[int, int]:
    """Numbers that convolutions take beside activations: a candidate's own, and weights that a tile has once.

    Where gradients are written out there is one and what the match makes of it, with Winograd's algorithm at 36 places
    instead of 9, to which the weight is brought too.
    """
    own = shared = 0
    for call in calls:
        layer, output = call.layer, call.output
        if not isinstance(layer, nn.Conv2d) or not isinstance(output, Tensor) or output.ndim != 4:
            continue
        down, right = int(output.shape[2]), int(output.shape[3])
        places = layer.in_channels * layer.out_channels * PLACES if Winograd.suits(layer, (down, right), batch) else 0
        shared += places
        if cheaper_dense(batch * down * right, layer.weight[0].numel(), len(layer.weight)):
            own += layer.weight.numel() + max(places, layer.weight.numel())
    return own, shared
