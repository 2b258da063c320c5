"""What an update says of its labels, without a search for its images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.analytic.certificate import blank
from dosimeter.attacks.stages import beat_of, only
from dosimeter.errors import SettingError
from dosimeter.types import UNTOLD, Curve, Ended, Observation, Outcome, Reconstruction, Target, ThreatModel, Watch


@dataclass(frozen=True, kw_only=True)
class LabelsOnly:
    """Recovers labels and leaves the images blank, so that an audit measures labels alone, in no steps."""

    name: str = "labels"
    labels: labels_.Labels | None = labels_.Counts()
    """None: nothing is recovered either."""

    @property
    def at_once(self) -> int:
        """How many images of one update are simulated at once for a victim: none."""
        return 0

    def needs(self) -> ThreatModel:
        return ThreatModel(labels=self.labels is not None and self.labels.granted, defense=False)

    def check(self, target: Target, batch: int) -> None:
        """Refuse a task or a model whose updates do not tell labels, before any work."""
        if self.labels is not None:
            self.labels.check(target, batch)

    def blind(self) -> "LabelsOnly":
        return LabelsOnly(name=f"{self.name} without the update", labels=None)

    def __call__(
        self, target: Target, observations: Sequence[Observation], *, seed: int, watch: Watch | None = None
    ) -> Reconstruction:
        if len(observations) != 1:
            raise SettingError(f"Labels are read off one update of each victim, got {len(observations)}.")
        (seen,) = observations
        victims = len(seen.ids)
        found: list[Tensor] = []
        try:
            for v in range(victims):
                beat_of(watch, v, victims, torch.nan)()
                found += [] if self.labels is None else [self.labels.find(target, only(seen, [v]))]
            beat_of(watch, victims, victims, torch.nan)()
        except KeyboardInterrupt:
            pass
        cut = victims - len(found) if self.labels is not None else 0
        untold = torch.full((cut, seen.batch), UNTOLD, device=target.mean.device)
        none = torch.zeros(victims, dtype=torch.long, device=target.mean.device)
        return Reconstruction(
            images=blank(target).expand(victims, seen.batch, *target.shape),
            labels=None if self.labels is None else torch.cat([*found, untold]),
            match=none.to(target.mean),
            steps=none,
            restart=none,
            stopped=(Ended(Outcome.LABELS),) * (victims - cut) + (Ended(Outcome.INTERRUPTED),) * cut,
            curve=Curve((0,), none.to(target.mean).unsqueeze(1)),
        )
