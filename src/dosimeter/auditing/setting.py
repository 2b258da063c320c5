"""What an audit is made of besides model and victims."""

from dataclasses import dataclass

import torch

from dosimeter import engine
from dosimeter.defenses import Defense, NoDefense
from dosimeter.errors import SettingError
from dosimeter.types import Attack, Loss, Step, ThreatModel, Way


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The keyword arguments of `audit` that decide what is computed; their meaning is said there."""

    attack: Attack
    defense: Defense = NoDefense()
    loss: Loss | None = None
    step: Step | None = None
    threat: ThreatModel | None = None
    seed: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    budget: int = engine.DEFAULT_BUDGET
    workers: int | None = None
    compiled: bool = False
    way: Way | None = None

    def granted(self) -> ThreatModel:
        """The threat model: given, or the least that the attack needs; refused when it grants too little."""
        needed = self.attack.needs()
        granted = self.threat or needed
        if needed.labels and not granted.labels:
            raise SettingError(
                f"The attack {self.attack.name!r} needs the labels, which the threat model does not grant; "
                "grant them or let the attack recover them (labels=idlg)."
            )
        return granted
