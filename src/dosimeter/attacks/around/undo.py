"""An attacker who knows what a defense may have done to images before training, and undoes it.

What an attack reads is the image x' that the client trained on, x' = T_k(... T_1(x)), where the defense states what
every T may be (`Defense.changes`). `likeliest` finds which of them were drawn and what the image was before; neither
it nor this sees the truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from dosimeter.attacks.around.likeliest import BEAM, Undone, done, undo
from dosimeter.attacks.base import Around, Cost
from dosimeter.attacks.search.search import Search, searching
from dosimeter.attacks.search.spaces import PixelField, Pixels
from dosimeter.attacks.stages import Stages
from dosimeter.channel import Change, Changing, Path
from dosimeter.errors import SettingError
from dosimeter.types import Ended, Observation, Outcome, Reconstruction, Target, ThreatModel, Watch

SMOOTH = 0.01
"""The weight of the total variation of images that are searched through what was done to them."""


@dataclass(frozen=True, kw_only=True)
class Undo(Around):
    """`attack`, and then what a defense did to the images that it read is undone.

    `jointly`, a second search is made for the images of before all operations but those with many draws, which are the
    first; what it simulates is the update of these images after the operations that were found likeliest.
    """

    by: Changing
    """The defense."""
    jointly: bool = False

    def __post_init__(self) -> None:
        if self.jointly and not isinstance(self.attack, Search):
            raise SettingError(
                f"Images are searched through what was done to them by a search, and {self.attack.name!r} is none; "
                "use it without `jointly`."
            )

    @property
    def name(self) -> str:
        return f"{self.attack.name}, {'searched through' if self.jointly else 'undone'}"

    def needs(self) -> ThreatModel:
        return replace(self.attack.needs(), defense=True)

    def check(self, target: Target, batch: int) -> None:
        super().check(target, batch)
        if not self.by.changes(target.shape):
            raise SettingError(
                "Undoing what a defense does to images needs a defense that states it (`changes`), got one that states "
                "nothing; use the attack itself."
            )

    def cost(self, target: Target, batch: int) -> Cost:
        whole = super().cost(target, batch)
        return whole._replace(steps=2 * whole.steps, tried=whole.steps) if self.jointly else whole

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        paths, victims = self.by.changes(target.shape), len(seen.ids)
        share = self.attack.cost(target, seen.batch).steps or victims
        stages = Stages(watch, (1 + self.jointly) * share)
        tell = stages.next(share)
        found = stages.ended(self.attack(target, [seen], seed=seed, watch=tell))
        if stages.cut:
            return found
        beat = partial(tell, done=share, total=share, match=stages.match, active=victims)
        undone = undo(found.images.flatten(0, 1), paths, beat=beat)
        done = len(undone.picks) // seen.batch
        stopped = (*found.stopped[:done], *(Ended(Outcome.INTERRUPTED),) * (victims - done))
        found = found._replace(
            images=undone.images.view_as(found.images), trained_on=found.images, stopped=tuple(stopped)
        )
        return self._through(target, seen, seed, stages, found, undone) if self.jointly and done == victims else found

    def _through(
        self, target: Target, seen: Observation, seed: int, stages: Stages, found: Reconstruction, undone: Undone
    ) -> Reconstruction:
        """The second search; what was undone is kept where this one explains the update less well."""
        paths, victims, shape = self.by.changes(target.shape), len(seen.ids), found.images.shape
        heads, tails = zip(*(_split(paths, picks) for picks in undone.picks), strict=True)
        rows = [tails[v * seen.batch : (v + 1) * seen.batch] for v in range(victims)]
        kinds = list(dict.fromkeys(rows))
        groups = [[v for v, row in enumerate(rows) if row == kind] for kind in kinds]

        def search(at: int, part: Observation, tell: Watch) -> Reconstruction:
            through = replace(searching(self.attack), space=Through(changes=kinds[at]))
            return through(target, [part], seed=seed, watch=tell)

        share = searching(self.attack).cost(target, seen.batch).steps / victims
        again = stages.each(target, seen, search, groups=groups, share=share)
        each = zip(again.images.flatten(0, 1), heads, tails, strict=True)
        images = torch.cat([undo(image[None], [head], tail).images for image, head, tail in each]).view(shape)
        better = again.match < found.match
        images = torch.where(better[:, None, None, None, None], images, found.images)
        match = torch.minimum(again.match, found.match)
        return again._replace(images=images, match=match, trained_on=found.trained_on)


@dataclass(frozen=True, kw_only=True)
class Through(Pixels):
    """Images of before changes, those of an update one by one; what is simulated is the update of the changed ones."""

    changes: tuple[tuple[Change, ...], ...]

    def field(self, target: Target, batch: int, classes: int) -> PixelField:
        return _ThroughField(target, batch, self.changes)


class _ThroughField(PixelField):
    def __init__(self, target: Target, batch: int, changes: Sequence[Sequence[Change]]) -> None:
        super().__init__(target, batch)
        self._target, self._changes = target, changes

    def found(self, unknowns: Tensor) -> Tensor:
        return super().images(unknowns)

    def images(self, unknowns: Tensor) -> Tensor:
        pixels = self.found(unknowns) * self._target.std + self._target.mean
        changed = [done(change, pixels[:, at]) for at, change in enumerate(self._changes)]
        return (torch.stack(changed, 1) - self._target.mean) / self._target.std

    def loss(self, unknowns: Tensor) -> Tensor:
        """Total variation, without which pixels that the changes lose would stay as they began."""
        images = self.found(unknowns)
        across, down = (images.diff(dim=axis).abs().flatten(1).mean(1) for axis in (-1, -2))
        return SMOOTH * (across + down)


def _split(paths: Sequence[Path], picks: Sequence[int]) -> tuple[Path, tuple[Change, ...]]:
    """The stages up to the last one with many draws, and what was picked at those after it."""
    path = paths[picks[0]]
    many = [at for at, stage in enumerate(path) if len(stage) > BEAM]
    after = many[-1] + 1 if many else 0
    return path[:after], tuple(stage[pick] for stage, pick in zip(path[after:], picks[1 + after :], strict=True))
