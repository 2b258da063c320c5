"""What every attack is: what it needs, what it works on, what it costs, what its prior alone gives, and its work.

    @dataclass(frozen=True, kw_only=True)
    class Mine(Attack):
        def solve(self, target, seen, *, seed, beat):
            return Found(image, match, Ended(Outcome.NOT_DETERMINED))

An attack overrides `solve`, for one victim, or `run`, for all of them at once. The base owns the rest: that one update
of each victim is read, who is told how far it is, Ctrl-C, and what becomes of victims that it does not come to.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.stages import Beat, Stages, blank, only, unreached
from dosimeter.errors import SettingError
from dosimeter.trees import squared_norms
from dosimeter.types import Ended, Observation, Outcome, Reconstruction, Target, ThreatModel, Watch


class Cost(NamedTuple):
    """What an attack takes of time and memory."""

    steps: int = 0  # of a search, trials included; 0 where victims are solved for one after another
    least: int = 0  # of these, as many as it takes at least, where it stops by itself
    tried: int = 0  # of these, steps of trials before the search itself
    restarts: int = 1  # searches of a victim side by side, which may run in turn if need be
    candidates: int = 1  # simulated at once for each of them; 0 where nothing is simulated
    together: bool = False  # whether restarts need each other and cannot run in turn
    passes: int = 1  # local steps of a simulated update at most, where the client's own number is not told
    updates: int = 1  # simulated for every candidate
    beside: int = 0  # numbers that a candidate takes beside its simulated step
    entries: bool = False  # whether every entry of gradients is compared, which have to be written out for it


@dataclass(frozen=True)
class Found:
    """What was solved for one victim: its image (C, H, W), or images (B, C, H, W), how far their update is from the
    observed one, and what that says."""

    image: Tensor
    match: float
    ended: Ended
    determined: Mapping[str, float] | None = None
    """{layer: share of the numbers that went into it which the equations determine}; into the first went the image"""


Solve = Callable[[int, Beat], Found]
"""Solves for the victim of that number."""


class Attack:
    """From what the server sees to images. Neither the truth nor a score can be passed in."""

    labels: labels_.Labels | None = None
    """Where its labels come from; None where it has no use for any."""
    exact = False
    """Whether it needs |simulated - observed|^2 to the last digit."""
    reads_images = True
    shadows: tuple[str, ...] = ()
    """Fingerprints of images of the attacker's own by which its settings were chosen; a victim is none of them."""
    picked: str = ""
    """What it left open and was picked for the task, in words; see `fitted`."""

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def needs(self) -> ThreatModel:
        """The least that must be granted for this attack to run."""
        return ThreatModel(labels=self.labels is not None and self.labels.granted, defense=False)

    def check(self, target: Target, batch: int) -> None:
        """Refuse what it cannot work on, before any work."""
        if self.labels is not None:
            self.labels.check(target, batch)

    def cost(self, target: Target, batch: int) -> Cost:
        return Cost()

    def blind(self) -> "Attack":
        """The same attack without the update: what its prior alone gives."""
        return Blank(name=f"{self.name} without the update", labels=self.labels)

    def fitted(self, target: Target, batch: int) -> "Attack":
        """The same attack with what it leaves open picked for the task, by what the attacker knows before any update.

        Itself where nothing is open; one that is run without it does so itself.
        """
        return self

    def at_most(self, restarts: int) -> "Attack":
        """The same attack with at most so many restarts side by side."""
        return self

    @property
    def steps(self) -> int | str | None:
        """How many steps it was asked to take, or "auto"; None where it takes none."""
        return None

    def again(self, number: int) -> "Attack | None":
        """The same attack from another start, one for each number from 1 on, and for longer before it gives up.

        None where that is not for an auditor to say: it takes as many steps as was asked for, or has no start.
        """
        return None

    def relabelled(self, source: labels_.Labels) -> "Attack":
        """The same attack with labels from there."""
        if self.labels is None:
            raise SettingError(f"The attack {self.name!r} says not where its labels come from; use one of the presets.")
        changed: Attack = replace(self, labels=source)  # type: ignore[type-var]
        return changed

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        if len(observations) != 1:
            raise SettingError(
                f"The attack {self.name!r} reads one update of each victim, got {len(observations)}; use their mean "
                "(AverageRounds)."
            )
        try:
            return self.run(target, observations[0], seed=seed, watch=watch)
        except KeyboardInterrupt:
            return unreached(target, observations[0])

    def apart(self, target: Target, clean: Sequence[Observation], seen: Sequence[Observation]) -> Tensor:
        """(V,): `match` of updates that an auditor knows to be the clients' own, without noise; no attack calls it.

        By default the relative error, which is what solvers give.
        """
        gaps = {name: g - clean[0].gradient[name] for name, g in seen[0].gradient.items()}
        return (squared_norms(gaps).sum(1) / squared_norms(seen[0].gradient).sum(1)).sqrt()

    def nearest(self, target: Target, images: Tensor) -> Tensor | None:
        """What it could find at best that is nearest to given images (V, B, C, H, W); None where it could find these.

        An auditor asks for it who knows the images; no attack does.
        """
        return None

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        """The work on all victims: one after another, unless a subclass knows better."""
        self.check(target, seen.batch)
        labels = None if self.labels is None else self.labels.find(target, seen).to(target.mean.device)
        anything = torch.zeros(len(seen.ids), seen.batch, dtype=torch.long, device=target.mean.device)
        solve = self.prepare(target, seen, anything if labels is None else labels_.usable(labels), seed=seed)
        stages = Stages(watch, len(seen.ids))

        def one(v: int, part: Observation, tell: Watch) -> Reconstruction:
            found = solve(v, stages.begun(tell))
            return Reconstruction.without_steps(
                found.image.to(target.mean).reshape(1, seen.batch, *target.shape),
                None if labels is None else labels[v : v + 1],
                torch.tensor([found.match]).to(target.mean),
                (found.ended,),
                () if found.determined is None else (found.determined,),
            )

        return stages.each(target, seen, one)

    def prepare(self, target: Target, seen: Observation, labels: Tensor, *, seed: int) -> Solve:
        """What is done once for all victims, with labels (V, B) that a model can be run with, before `solve`."""
        return lambda v, beat: self.solve(target, only(seen, [v]), seed=seed, beat=beat)

    def solve(self, target: Target, seen: Observation, *, seed: int, beat: Beat) -> Found:
        """The work on one victim, whose update alone is in `seen`; call `beat` about every second."""
        raise NotImplementedError(f"{type(self).__name__} must define solve, for one victim, or run, for all.")


@dataclass(frozen=True, kw_only=True)
class Blank(Attack):
    """What is known before any update: the image that the model's normalisation takes to 0, grey where it has none."""

    name: str = "blank"
    labels: labels_.Labels | None = None

    def check(self, target: Target, batch: int) -> None:
        pass

    def blind(self) -> Attack:
        return self

    def prepare(self, target: Target, seen: Observation, labels: Tensor, *, seed: int) -> Solve:
        found = Found(blank(target).expand(seen.batch, *target.shape), 0.0, Ended(Outcome.NOT_DETERMINED))
        return lambda v, beat: found


@dataclass(frozen=True, kw_only=True)
class Around(Attack):
    """An attack with something done before or around it; all that a subclass does not change is the inner attack's."""

    attack: Attack

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return self.attack.exact

    @property
    def reads_images(self) -> bool:  # type: ignore[override]
        return self.attack.reads_images

    @property
    def shadows(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.attack.shadows

    @property
    def picked(self) -> str:  # type: ignore[override]
        return self.attack.picked

    def needs(self) -> ThreatModel:
        return self.attack.needs()

    def fitted(self, target: Target, batch: int) -> Attack:
        return replace(self, attack=self.attack.fitted(target, batch))

    def check(self, target: Target, batch: int) -> None:
        self.attack.check(target, batch)

    def cost(self, target: Target, batch: int) -> Cost:
        return self.attack.cost(target, batch)

    def blind(self) -> Attack:
        return self.attack.blind()

    def apart(self, target: Target, clean: Sequence[Observation], seen: Sequence[Observation]) -> Tensor:
        return self.attack.apart(target, clean, seen)

    def nearest(self, target: Target, images: Tensor) -> Tensor | None:
        return self.attack.nearest(target, images)

    def at_most(self, restarts: int) -> Attack:
        return replace(self, attack=self.attack.at_most(restarts))

    @property
    def steps(self) -> int | str | None:
        return self.attack.steps

    def again(self, number: int) -> Attack | None:
        longer = self.attack.again(number)
        return None if longer is None else replace(self, attack=longer)

    def relabelled(self, source: labels_.Labels) -> Attack:
        return replace(self, attack=self.attack.relabelled(source))

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        return self.attack(target, [seen], seed=seed, watch=watch)
