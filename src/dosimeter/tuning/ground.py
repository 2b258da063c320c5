"""Where settings are tried: shadow images of the attacker's own under the defense, seen once and attacked by many."""

import os
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter import engine, fingerprint
from dosimeter.attacks import Search
from dosimeter.attacks.search.running import Run
from dosimeter.attacks.search.together import shared
from dosimeter.auditing import Audit
from dosimeter.auditing.job import Job
from dosimeter.auditing.observe import trained_on
from dosimeter.metrics import STANDARD, match_batches, score_images
from dosimeter.types import Reconstruction, Victims

Decide = Callable[[int, Mapping[int, float]], Collection[int]]
"""Steps taken and {number of a setting: its score so far} -> the numbers of those that are to leave."""

METRICS = tuple(metric for metric in STANDARD if metric.name in ("psnr", "ssim"))


MANY = 1000
"""Candidates beyond which a batch never goes."""


class Tried(NamedTuple):
    """What a setting came to on all shadows, and what it cost."""

    psnr: float
    ssim: float
    read: int
    of: int
    cost: int  # image-steps: of every image of every restart
    left: bool = False  # before its last step

    def score(self, by: str) -> float:
        return float(getattr(self, by))


class Ground:
    """Updates of shadows as the attacker makes them: with the model, defense and step that it knows."""

    def __init__(self, audit: Audit, shadows: Victims) -> None:
        self.audit = replace(audit, victims=shadows, scoring=replace(audit.scoring, decoys=None, among=None))
        self.shadows, self.job = shadows, Job(self.audit)
        self.seen = self.job.observe(shadows)
        self.truth = trained_on(self.job.client, shadows)
        self.images = [fingerprint.of(image) for image in shadows.images.flatten(0, 1)]
        cost, trained = self.job.cost, self.job.trained
        self.workers = audit.resources.workers or os.cpu_count() or 1
        rows = engine.plan(
            self.job.client.target, victims=MANY, batch=shadows.batch, restarts=1, candidates=max(1, cost.candidates),
            passes=cost.updates * max(cost.passes, trained.steps if trained else 1), extra=(cost.beside, 0), workers=1,
            budget=audit.resources.budget // self.workers,
        )  # fmt: skip
        self.rows = rows.victims
        """Candidates of one batch."""

    def cost_of(self, search: Search) -> int:
        """Image-steps that it takes at most."""
        return search.stop.steps * search.restarts * self.shadows.indices.numel()

    def attempt(
        self,
        searches: Sequence[Search],
        pauses: Sequence[int] = (),
        decide: Decide | None = None,
        *,
        by: str = "psnr",
        stop: threading.Event | None = None,
    ) -> list[Tried]:
        """Run all of them, as many in a batch as share one; at pauses some may be told to leave.

        Ctrl-C sets `stop`, on which a KeyboardInterrupt is raised.
        """
        stop, target = stop or threading.Event(), self.job.attacker.target
        searches = [search.fitted(target, self.shadows.batch) for search in searches]
        tiles = [_Tile(self, searches, who, pauses, stop) for who in self._tiles(searches)]
        for at in (*pauses, None):
            going = [tile for tile in tiles if tile.found is None]
            engine.threads.run(_Tile.advance, going, workers=self.workers, stop=stop, release=False)
            if stop.is_set():
                raise KeyboardInterrupt
            if at is not None and decide is not None:
                scores = {n: value for tile in going for n, value in tile.partly(self.truth, by).items()}
                gone = set(decide(at, scores)) if scores else set()
                for tile in going:
                    tile.gone |= gone & set(tile.who)
        found = {n: tried for tile in tiles for n, tried in tile.tried(self).items()}
        return [found[n] for n in range(len(searches))]

    def _tiles(self, searches: Sequence[Search]) -> list[list[int]]:
        """The numbers of settings that run in one batch, each with all shadows and restarts."""
        groups: dict[object, list[int]] = {}
        for n, search in enumerate(searches):
            groups.setdefault(shared(search), []).append(n)
        tiles = []
        for who in groups.values():
            many = -(-self.rows // (len(self.shadows.ids) * searches[who[0]].restarts))
            many = min(many, -(-len(who) // self.workers)) if len(groups) == 1 else many  # so that all are busy
            tiles += [who[first : first + many] for first in range(0, len(who), many)]
        return tiles


class _Tile:
    """Settings in one batch, and how far they are."""

    def __init__(
        self, ground: Ground, searches: Sequence[Search], who: list[int], pauses: Sequence[int], stop: threading.Event
    ) -> None:
        self.who, self.searches, self.gone = who, [searches[n] for n in who], set[int]()
        self.found: Reconstruction | None = None
        self._images: Tensor | None = None  # (V, S, R, B, C, H, W) at the last pause
        self._work: Generator[Tensor, Collection[int], Reconstruction] | None = None
        self._ground, self._pauses, self._stop = ground, pauses, stop

    def advance(self) -> None:
        """Go on to the next pause or to the end."""
        try:
            if self._work is None:
                self._work = self._begun()
                self._images = next(self._work)
            else:
                self._images = self._work.send([self.who.index(n) for n in self.gone])
        except StopIteration as ended:
            self.found, self._work = ended.value, None

    def _begun(self) -> Generator[Tensor, Collection[int], Reconstruction]:
        first, job = self.searches[0], self._ground.job
        target, seen = job.attacker.cloned().target, self._ground.seen[0]
        known = seen._replace(labels=first.labels.find(target, seen).to(target.mean.device))
        run = Run(self.searches, target, known, job.audit.seed, range(first.first, first.first + first.restarts))

        def watch(*, done: int, total: int, match: float, active: int) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt

        return run.going(watch, frozenset(self._pauses))

    def partly(self, truth: Tensor, by: str) -> dict[int, float]:
        """{number: score} at a pause; a restart is as good as they are on average, since none is chosen yet."""
        if self.found is not None or self._images is None:
            return {}
        found = {}
        for at, n in enumerate(self.who):
            restarts = self._images[:, at].unbind(1)
            each = [float(_scores(images, truth)[by].mean()) for images in restarts]
            found[n] = sum(each) / len(each)
        return {n: score for n, score in found.items() if n not in self.gone}

    def tried(self, ground: Ground) -> dict[int, Tried]:
        assert self.found is not None
        many, found, threshold = len(self.who), {}, ground.audit.scoring.threshold
        for at, (n, search) in enumerate(zip(self.who, self.searches, strict=True)):
            scores = _scores(self.found.images[at::many], ground.truth)
            taken = int(self.found.steps[at::many].sum()) * search.restarts * ground.shadows.batch
            read = int((scores["ssim"] >= threshold).sum())
            psnr, ssim = (float(scores[key].mean()) for key in ("psnr", "ssim"))
            found[n] = Tried(psnr, ssim, read, len(scores["ssim"]), taken, n in self.gone)
        return found


def _scores(found: Tensor, truth: Tensor) -> dict[str, Tensor]:
    """{score: (V * B,)} of images (V, B, C, H, W), each with the one of its update that it is nearest to."""
    found = found.cpu().float()
    if truth.shape[1] > 1:
        order = match_batches(torch.where(found.isfinite(), found, 0), truth)
        found = torch.take_along_dim(found, order[:, :, None, None, None], dim=1)
    return score_images(found.flatten(0, 1), truth.flatten(0, 1), METRICS)
