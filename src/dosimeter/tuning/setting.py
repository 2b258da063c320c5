"""A tuning as one value: what is attacked, with which settings to choose from, and how they are chosen."""

from dataclasses import dataclass, replace
from typing import Any

from dosimeter import rng, spec
from dosimeter.attacks import Search, presets, searching
from dosimeter.attacks.presets.tuned import words_with
from dosimeter.auditing import part
from dosimeter.auditing.job import Job
from dosimeter.auditing.panel.channels import channel_of
from dosimeter.channel import Mask, Noise
from dosimeter.errors import SettingError
from dosimeter.sweeps import Trial
from dosimeter.tuning import journal
from dosimeter.tuning.spaces import Space

BY = ("psnr", "ssim")


def informed(trial: Trial) -> Trial:
    """The trial whose attack `bayes`, where nobody says by which density, has that of the noise that it knows of."""
    name, held = spec.parse("attack", trial.attack, presets.BY_NAME)
    if name != "bayes" or held.keys() & {"density", "scale", "rate"}:
        return trial
    job = Job(replace(trial, victims=1).prepare().audit)
    channel = channel_of(job.audit.defense, job.client.target, job.victims.labels[0], trial.seed)
    noises = [fact for fact in channel.facts if isinstance(fact, Noise) and fact.on is None]
    masks = [fact for fact in channel.facts if isinstance(fact, Mask) and fact.by == "random"]
    if len(noises) != 1 or len(masks) > 1:
        return trial
    known: dict[str, object] = {"density": noises[0].kind, "scale": noises[0].scale}
    if masks:
        known |= {"density": f"prune-{noises[0].kind}", "rate": masks[0].rate}
    return replace(trial, attack=words_with(trial.attack, known))


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """All that is set."""

    trial: Trial
    """Model, data, defense, training; its attack is the untuned one, and its victims are left alone."""
    space: Space
    trials: int | None = None
    """Settings to try, with the untuned one; a grid's all by default."""
    budget: int | None = None
    """Or image-steps that they may take together."""
    sampler: str = "tpe"
    prune: str = "halving"
    points: int = 4
    """Values of a range in a grid."""
    shadows: int = 8
    by: str = "psnr"
    at_once: int = 16
    """Settings that are proposed and tried together."""
    workers: int | None = None
    """Threads, by default one a core."""

    def __post_init__(self) -> None:
        journal.sampler(self.sampler, 0)
        journal.pruner(self.prune, 1)
        if self.by not in BY:
            raise SettingError(f"Expected to tune by {' or '.join(BY)}, got {self.by!r}.")
        if self.trials is None and self.budget is None and self.sampler != "grid":
            raise SettingError(f"Expected how many settings {self.sampler} tries (--trials), got none.")
        self.search({})

    def words(self, settings: dict[str, Any]) -> str:
        """The attack with these settings."""
        steps = {} if self.trial.steps is None else {"steps": self.trial.steps}
        return words_with(self.trial.attack, steps | settings)

    def search(self, settings: dict[str, Any]) -> Search:
        return searching(part("attack", self.words(settings)), "A tuning chooses settings of a search")

    @property
    def plain(self) -> Trial:
        """The trial of the untuned attack, for one victim: what depends on neither has the same digest."""
        return replace(self.trial, attack=self.words({}), steps=None, victims=1)

    @property
    def made(self) -> dict[str, Any]:
        """What those who join must agree in."""
        axes = {key: str(axis) for key, axis in self.space.axes.items()}
        chosen = {"sampler": self.sampler, "points": self.points, "prune": self.prune, "by": self.by}
        told = {"task": self.plain.words, "space": self.space.name, "axes": axes, "shadows": self.shadows, **chosen}
        return told | {"model, data or program": self.plain.prepare().digest}

    def grid(self) -> list[dict[str, Any]]:
        """All of a grid, in an order of which any beginning is spread over it."""
        whole = self.space.grid(self.points)
        order = rng.numpy_stream(self.trial.seed, "grid").permutation(len(whole)).tolist()
        return [whole[at] for at in order]

    @property
    def total(self) -> int | None:
        """Settings that will be tried, where that is known."""
        if self.sampler != "grid":
            return self.trials
        factors = len(self.space.factors)
        whole = 1 + (factors + len(self.space.around(1.0)) if factors else 0) + len(self.space.grid(self.points))
        return None if self.budget else min(whole, self.trials or whole)
