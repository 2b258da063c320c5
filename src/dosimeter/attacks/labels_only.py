"""What an update says of its labels, without a search for its images."""

from dataclasses import dataclass

from dosimeter.attacks import labels as labels_
from dosimeter.attacks.base import Attack, Blank, Cost
from dosimeter.attacks.stages import Stages, blank
from dosimeter.errors import SettingError
from dosimeter.types import Ended, Observation, Outcome, Reconstruction, Target, Watch


@dataclass(frozen=True, kw_only=True)
class LabelsOnly(Attack):
    """Recovers labels and leaves the images blank, so that an audit measures labels alone, in no steps."""

    name: str = "labels"
    labels: labels_.Labels = labels_.Counts()
    reads_images = False

    def cost(self, target: Target, batch: int) -> Cost:
        return Cost(candidates=0)

    def blind(self) -> Blank:
        return Blank(name=f"{self.name} without the update")

    def relabelled(self, source: labels_.Labels) -> Attack:
        raise SettingError(
            f"The attack {self.name!r} finds the labels, which are granted; leave --labels out, or use a search with "
            "them (--attack ig)."
        )

    def run(self, target: Target, seen: Observation, *, seed: int, watch: Watch | None) -> Reconstruction:
        stages = Stages(watch, len(seen.ids))
        images = blank(target).expand(1, seen.batch, *target.shape)

        def one(_v: int, part: Observation, tell: Watch) -> Reconstruction:
            labels = self.labels.find(target, part, stages.begun(tell))
            return Reconstruction.without_steps(images, labels, target.mean.new_zeros(1), (Ended(Outcome.LABELS),))

        return stages.each(target, seen, one)
