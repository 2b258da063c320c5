"""What an audit is made of besides model and victims."""

from dataclasses import dataclass, fields, replace
from typing import Any, get_args

import torch

from dosimeter import checks, clients, engine, fingerprint
from dosimeter.defenses import Defense, NoDefense
from dosimeter.errors import SettingError, unknown
from dosimeter.servers import Honest, Tamper
from dosimeter.types import Attack, BatchNorm, Loss, Step, ThreatModel, Victims, Way


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """The keyword arguments of `audit` that decide what is computed; their meaning is said there."""

    attack: Attack
    defense: Defense = NoDefense()
    server: Tamper = Honest()
    loss: Loss | None = None
    step: Step | None = None
    threat: ThreatModel | None = None
    batch_norm: BatchNorm | None = None
    seed: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    budget: int = engine.DEFAULT_BUDGET
    workers: int | None = None
    compiled: bool = False
    way: Way | None = None
    rounds: int = 1
    same_client: int = 1

    def __post_init__(self) -> None:
        for key in ("rounds", "same_client", "workers", "budget"):
            checks.count("An audit", key, getattr(self, key))

    def made(self, victims: Victims, threshold: float) -> dict[str, Any]:
        """All that makes two audits of a model the same, as plain values, without what only makes them faster."""
        apart = ("attack", "budget", "compiled", "way", "workers")
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in apart}
        return {
            "attack": fingerprint.named(self.attack),
            "audit": fingerprint.of(rest),
            "victims": fingerprint.named(victims, f"{len(victims.ids)} of {victims.batch}"),
            "threshold": threshold,
        }

    def granted(self) -> ThreatModel:
        """The threat model: given, or the least that the attack needs; refused when it grants too little."""
        needed = self.attack.needs()
        granted = self.threat or replace(needed, defense=True)
        if self.defense.reveals:
            granted = replace(granted, secrets=True)
        if needed.defense and not granted.defense:
            raise SettingError(
                f"The attack {self.attack.name!r} uses settings of the defense, which the threat model withholds; "
                "grant them (ThreatModel(defense=True)) or use an attack without them, such as ig."
            )
        if needed.labels and not granted.labels:
            raise SettingError(
                f"The attack {self.attack.name!r} needs the labels, which the threat model does not grant; "
                "grant them or let the attack recover them (labels=idlg, or counts for batches)."
            )
        if needed.secrets and not granted.secrets:
            raise SettingError(
                f"The attack {self.attack.name!r} needs what clients draw inside the model, which the threat model "
                "does not reveal; reveal it as a control (ThreatModel(secrets=True)) or let the attack suppose its own."
            )
        self._check_training(needed, granted)
        granted = self._with_server(self._with_statistics(granted))
        granted = replace(granted, rounds=self.rounds, same_client=self.same_client)
        if needed.statistics == "sent" and granted.statistics != "sent":
            raise SettingError(
                f"The attack {self.attack.name!r} matches batch-norm statistics of the private batch, which the threat "
                "model does not grant; have them sent (--batch-norm sent) or use those of the model."
            )
        if granted.statistics == "sent" and self.step is not None:
            raise SettingError(
                f"Batch-norm statistics are sent with one gradient, but {self.step!r} takes several passes, each with "
                "its own; use one gradient or batch_norm='batch'."
            )
        return granted

    def _check_training(self, needed: ThreatModel, granted: ThreatModel) -> None:
        """What the attack needs to know of local training is granted, and what is withheld can be."""
        if self.step is None or (granted.local_steps and granted.local_lr):
            return
        if (needed.local_steps and not granted.local_steps) or (needed.local_lr and not granted.local_lr):
            raise SettingError(
                f"The attack {self.attack.name!r} needs the local steps and learning rate, of which the threat model "
                "withholds some; grant them or let the attack guess (GuessSteps, --guess-local-steps)."
            )
        if not isinstance(self.step, clients.LocalTraining | clients.UntoldTraining):
            raise SettingError(
                f"The threat model withholds how clients train locally, but {self.step!r} is no LocalTraining; "
                "use that or grant it."
            )

    def _with_server(self, granted: ThreatModel) -> ThreatModel:
        """The threat model with the server of the audit, unless it names another one itself."""
        if granted.server not in ("honest", self.server.name):
            raise SettingError(
                f"The threat model says server {granted.server!r}, the audit {self.server.name!r}; say one of them."
            )
        return replace(granted, server=self.server.name)

    def _with_statistics(self, granted: ThreatModel) -> ThreatModel:
        """The threat model with the batch norm that was asked for, unless it says something else itself."""
        for asked in (granted.statistics, self.batch_norm or "running"):
            if asked not in get_args(BatchNorm):
                raise SettingError(unknown("batch norm", asked, get_args(BatchNorm)))
        if self.batch_norm is None or self.batch_norm == granted.statistics:
            return granted
        if granted.statistics != "running":
            raise SettingError(
                f"The threat model says batch-norm statistics {granted.statistics!r}, the audit {self.batch_norm!r}; "
                "say one of them."
            )
        return replace(granted, statistics=self.batch_norm)
