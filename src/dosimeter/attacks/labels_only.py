"""What an update says of its labels, without a search for its images."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.analytic.certificate import blank
from dosimeter.errors import SettingError
from dosimeter.types import Curve, Observation, Reconstruction, Target, ThreatModel, Watch


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
        if watch is not None:
            watch(done=0, total=1, match=torch.nan, active=victims)
        labels = None if self.labels is None else self.labels.find(target, seen)
        if watch is not None:
            watch(done=1, total=1, match=torch.nan, active=0)
        none = torch.zeros(victims, dtype=torch.long, device=target.mean.device)
        return Reconstruction(
            images=blank(target).expand(victims, seen.batch, *target.shape),
            labels=labels,
            match=none.to(target.mean),
            steps=none,
            restart=none,
            stopped=("labels",) * victims,
            curve=Curve((0,), none.to(target.mean).unsqueeze(1)),
        )
