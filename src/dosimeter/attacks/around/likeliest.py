"""Which of the things that a defense may have done to images is the likeliest, and what they were before.

Stages are undone from the last to the first. For every change T that may have been drawn an image z in the box with
T(z) near what was there is found by least squares, and by its evidence

    log p(x' | T)  =  - |T(z) - x'|^2 / 2 s^2  -  sum log |dT|  +  (what T forces and x' shows)

the likeliest draws are kept: images that were brightened do not fit into a darkened range, and what was moved leaves
an edge. Images are taken to be uniform in the box, so a T that shrinks its range is likelier where x' fits into it.
What cannot be told, such as a mirror, stays as it is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dosimeter import rng
from dosimeter.attacks.stages import Beat, unheard
from dosimeter.channel import Change, Path

SLIP = 0.05
"""By how much a pixel that was read may be off, s."""
BEAM = 8
"""Draws that are kept from stage to stage, by image."""
MOST = 324
"""Draws that are tried at a stage, by image."""
AT_ONCE = 2**22
"""Pixels of all that is tried together."""
ROUNDS = 4
"""Times that a change is taken for linear to be inverted."""
CONJUGATE = 10
"""Steps of each of these inversions at most, which need not follow noise."""
MIDDLE = 1.0
"""How many pixels what an image shows is off its middle, about."""


def done(changes: Sequence[Change], images: Tensor) -> Tensor:
    """Images (n, C, H, W) after changes."""
    for change in changes:
        images = change(images)
    return images


class Undone(NamedTuple):
    """Images of before a defense changed them, and what was taken to have been drawn."""

    images: Tensor  # (n, C, H, W)
    picks: list[tuple[int, ...]]  # the number of the path, then of one change at each of its stages


class _Beam(NamedTuple):
    """The likeliest draws so far, K of every image."""

    images: Tensor  # (n, K, C, H, W)
    known: Tensor  # (n, K, 1, H, W) which of their pixels were not lost
    evidence: Tensor  # (n, K)
    picks: Tensor  # (n, K, stages)

    def likeliest(self, most: int) -> "_Beam":
        order = self.evidence.topk(min(most, self.evidence.shape[1]), 1).indices
        rows = torch.arange(len(order), device=order.device)[:, None]
        return _Beam(*(each[rows, order] for each in self))


def undo(changed: Tensor, paths: Sequence[Path], after: Sequence[Change] = (), beat: Beat = unheard) -> Undone:
    """What images (n, C, H, W) were before one of these paths, each with its likeliest draws.

    `after` is what was done to them later; pixels of which that left nothing are not known. Where `beat` ends the work,
    the rest stay as they are, without picks.
    """
    parts = []
    for some in torch.split(changed.detach(), max(1, AT_ONCE // (MOST * changed[0].numel()))):
        try:
            beat()
        except KeyboardInterrupt:
            break
        seen = torch.nan_to_num(some).clamp(0, 1)
        known = _depends(partial(done, after), seen, torch.ones_like(seen[:, :1], dtype=torch.bool))
        parts.append(_likeliest(seen, known, paths))
    picks = [each for part in parts for each in part.picks]
    return Undone(torch.cat([*(part.images for part in parts), changed[len(picks) :]]), picks)


def _likeliest(seen: Tensor, known: Tensor, paths: Sequence[Path]) -> Undone:
    found = []
    for path in paths:
        start, none = seen[:, None], torch.zeros(len(seen), 1, 0, dtype=torch.long, device=seen.device)
        beam = _Beam(start, known[:, None], start.new_zeros(len(seen), 1), none)
        for stage in reversed(path):
            beam = _before(stage, beam.likeliest(min(BEAM, max(1, MOST // len(stage)))))
        off = _off_middle((beam.images * beam.known).flatten(0, 1)).view_as(beam.evidence)
        found.append(beam._replace(evidence=beam.evidence - off).likeliest(1))
    best = torch.cat([each.evidence for each in found], 1).argmax(1).tolist()  # (n,) which path
    rows = list(enumerate(best))
    images, whole = (torch.stack([found[w][kind][at, 0] for at, w in rows]) for kind in (0, 1))
    return Undone(_filled(images, whole), [(w, *found[w].picks[at, 0].tolist()) for at, w in rows])


def _before(stage: Sequence[Change], beam: _Beam) -> _Beam:
    """Each of the images of before each of the changes."""
    n, k = beam.evidence.shape
    parts = []
    for at, change in enumerate(stage):
        images, known, evidence = fit(change, beam.images.flatten(0, 1), beam.known.flatten(0, 1))
        evidence = beam.evidence + evidence.view(n, k) - 1e-3 * (at > 0)  # of equals the first
        picks = torch.cat([beam.picks.new_full((n, k, 1), at), beam.picks], 2)
        parts.append(_Beam(images.view_as(beam.images), known.view_as(beam.known), evidence, picks))
    return _Beam(*(torch.cat(each, 1) for each in zip(*parts, strict=True)))


def fit(change: Change, seen: Tensor, known: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Images in the box (n, C, H, W) that a change takes to those that are seen, where these are known (n, 1, H, W).

    Beside them which of their own pixels are known, and the change's evidence (n,).
    """
    slopes, images = _slopes(change, seen), seen
    start = torch.full_like(seen, 0.5)  # first from grey, where nothing is clipped, then from what is best
    for _ in range(ROUNDS):
        moved = start + _solved(change, start, known, known * (seen - change(start).detach()))
        now, before = (
            (known * (seen - change(each).detach())).square().sum((1, 2, 3)) for each in (moved.clamp(0, 1), images)
        )
        # A step that closes little of the gap, as of an equalizer, whose slope is not its own, would only lead astray.
        better = now < 0.5 * before
        if not better.any():
            break
        images = torch.where(better[:, None, None, None], moved.clamp(0, 1), images)
        start = images
    made = change(images).detach()
    beyond = (known * (made - seen).abs() - 2 * SLIP).clamp_min(0)
    misfit = beyond.square().sum((1, 2, 3)) / (2 * SLIP**2)
    forced = slopes < 1e-4
    volume = 0.5 * (~forced).sum() * slopes[~forced].mean().log()
    return images, _depends(change, images, known), _edge(made, seen, known, forced) - misfit - volume


def _depends(change: Change, images: Tensor, known: Tensor) -> Tensor:
    """(n, 1, H, W): pixels on which known ones of the changed images depend."""
    weights = torch.rand(images.shape[1:], generator=rng.stream(0, "probe", "lost")).to(images) + 0.5
    return (_pulled(change, images, lambda _: known * weights) != 0).any(1, keepdim=True)


def _pushed(change: Change, images: Tensor, along: Tensor) -> Tensor:
    """How the changed images move when these move along, by the slope of a slope: `torch.func.jvp` warns of others."""
    x, weights = images.detach().requires_grad_(), torch.zeros_like(images).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(change(x), x, weights, create_graph=True)
        (moved,) = torch.autograd.grad(slope, weights, along, materialize_grads=True)
    return moved


def _pulled(change: Change, images: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
    """What weighs on the changed images, as it weighs on these."""
    x = images.detach().requires_grad_()
    with torch.enable_grad():
        made = change(x)
        (slope,) = torch.autograd.grad(made, x, weigh(made.detach()))
    return slope


def _solved(change: Change, images: Tensor, known: Tensor, gap: Tensor) -> Tensor:
    """The smallest step that closes a gap to first order, by conjugate gradients on the normal equations."""
    step, left = torch.zeros_like(images), gap
    down = _pulled(change, images, lambda _: left)
    along, size = down, down.square().sum((1, 2, 3), keepdim=True)
    for _ in range(CONJUGATE):
        if not (size > 1e-8).any():
            break
        pushed = known * _pushed(change, images, along)
        rate = size / pushed.square().sum((1, 2, 3), keepdim=True).clamp_min(1e-12)
        step, left = step + rate * along, left - rate * pushed
        down = _pulled(change, images, lambda _, left=left: left)  # type: ignore[misc]
        now = down.square().sum((1, 2, 3), keepdim=True)
        along, size = down + now / size.clamp_min(1e-12) * along, now
    return step


def _edge(made: Tensor, seen: Tensor, known: Tensor, forced: Tensor) -> Tensor:
    """(n,): what it says for a change that it forces pixels, by how rare their value is elsewhere.

    Neighbours are alike, so that a row or a column counts as one observation.
    """
    if not forced.any():
        return seen.new_zeros(len(seen))
    level, free = made[0][forced].mean(), known & ~forced
    rare = (((seen - level).abs() < 2 * SLIP) & free).sum((1, 2, 3)) / free.sum((1, 2, 3)).clamp_min(1)
    channels, down, across = forced.shape
    rows = (known & forced).sum((1, 2, 3)) / (channels * max(down, across))
    return -rare.to(seen).clamp_min(1e-3).log() * rows


def _slopes(change: Change, like: Tensor) -> Tensor:
    """(C, H, W): by how much a change scales what is broad at every pixel, squared.

    Images differ in what is broad. Patches are of one size, so that moves have slopes of exactly 1.
    """
    stream = rng.stream(0, "probe", "changes")
    channels, down, across = like.shape[1:]
    base = 0.35 + 0.3 * torch.rand(16, channels, down, across, generator=stream).to(like)
    signs = torch.rand(16, channels, -(-down // 8), -(-across // 8), generator=stream).to(like).sub(0.5).sign()
    noise = 0.01 * signs.repeat_interleave(8, -2).repeat_interleave(8, -1)[..., :down, :across]
    return (change(base + noise) - change(base)).detach().square().mean(0) / noise.square().mean()


def _filled(images: Tensor, known: Tensor) -> Tensor:
    """Lost pixels take the mean of their neighbours, from the edge inwards."""
    channels = images.shape[1]
    cross = torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]]).to(images).expand(channels, 1, 3, 3)
    for _ in range(sum(images.shape[2:])):
        if known.all():
            break
        near = F.conv2d(known.to(images), cross[:1], padding=1)
        mean = F.conv2d(images * known, cross, padding=1, groups=channels) / near.clamp_min(1)
        images, known = torch.where(known, images, mean), known | (near > 0)
    return images


def _off_middle(images: Tensor) -> Tensor:
    """(n,): how unlikely it is that what is shown lies so far off the middle."""
    light = images.mean(1) + 1e-6  # (n, H, W)
    far = torch.zeros(len(images)).to(images)
    for axis in (1, 2):
        places = torch.arange(light.shape[axis]).to(light)
        along = light.sum(3 - axis)  # (n, H) or (n, W)
        far = far + ((along * places).sum(1) / along.sum(1) - places.mean()).square()
    return far / (2 * MIDDLE**2)
