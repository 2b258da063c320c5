"""An audit as one value: model and victims, the parts, seeds, resources, and how it is scored."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, get_args

import torch
from torch import nn

from dosimeter import checks, clients, defenses, engine, fingerprint, servers, spec
from dosimeter.attacks import Attack, presets
from dosimeter.attacks.presets import tuned
from dosimeter.auditing.score import Scoring
from dosimeter.defenses import Defense, NoDefense
from dosimeter.errors import SettingError, unknown
from dosimeter.metrics import Metric
from dosimeter.servers import Honest, Tamper
from dosimeter.types import BatchNorm, Loss, Step, ThreatModel, Victims, Way

BY_NAME: dict[str, Mapping[str, Any]] = {
    "attack": presets.BY_NAME, "defense": defenses.BY_NAME, "server": servers.BY_NAME, "step": clients.BY_NAME,
}  # fmt: skip
MOST_ROUNDS = 10_000
"""Every one of them is a client's step, and is held."""
MOST_BATCH = 100_000
"""Images of one update; labels and images of all of them are held."""
_KINDS: dict[str, type] = {"attack": Attack, "defense": Defense, "server": Tamper}
_JOINED = {"defense": "|", "server": "+"}


def part(kind: str, given: Any, **more: object) -> Any:
    """A part as it was given, or the one that its words describe, as on the command line: `ig:tv=0.01`, `noise|cvb`.

    `more` are settings that other options gave.
    """
    if not isinstance(given, str):
        return given
    if kind in ("loss", "metric"):
        found = spec.own(kind, given)
        if kind == "metric" and not isinstance(found, Metric):
            raise SettingError(f"Expected a dosimeter.Metric at {given!r}, got a {type(found).__name__}.")
        return found
    if kind == "attack" and given.startswith(tuned.PREFIX):
        return tuned.load(given, presets.BY_NAME, **more)
    if kind in _JOINED:
        return spec.joined(kind, given, BY_NAME[kind], of=_KINDS[kind], by=_JOINED[kind])
    hint = "The attack's own steps are set by --steps." if kind == "step" else ""
    found = spec.make(kind, given, BY_NAME[kind], hint=hint, **more)
    if kind in _KINDS:
        spec.check_kind(kind, given, found, _KINDS[kind])
    return found


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What an audit runs on. Its numbers depend on device and dtype alone, unless its time is up before it is done."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    """float32 or float64."""
    budget: int = engine.DEFAULT_BUDGET
    """Bytes that the victims attacked at once may take."""
    workers: int | None = None
    """Threads, by default one a core."""
    steady: bool = False
    """Attack as many victims at once as the model, the attack and the budget have it, whoever else is there and however
    many threads there are. A part of the victims, or another machine of the kind, then gives the same to the byte."""
    compiled: bool = False
    """Run straight networks through torch.compile, on one thread."""
    way: Way | None = None
    """How gradients are compared, where it must be a certain one; the fastest that works by default."""
    minutes: float | None = None
    """After which attacks give up, those of a panel together; whoever was not done counts as not measured. The short
    runs without the update are not cut. No limit by default."""
    until_read: bool = False
    """End a panel once its attacks have read every image, since others could not say more of whether it leaks."""
    progress: bool | None = None
    """Show a bar; by default when standard error is a terminal."""

    def __post_init__(self) -> None:
        for key in ("workers", "budget"):
            checks.count("An audit", key, getattr(self, key))
        if self.minutes is not None:
            checks.positive("An audit", "a limit of minutes", self.minutes)

    @property
    def seconds(self) -> float:
        """That attacks may take."""
        return math.inf if self.minutes is None else 60 * self.minutes


@dataclass(frozen=True, kw_only=True)
class Updates:
    """What the server sees of clients besides their step."""

    batch_norm: BatchNorm | None = None
    """"running" statistics, which are part of the model; or clients train with those of their "batch", which the
    attacker does not know; or these are "sent" with the update and the attacker uses them as fixed. By default what the
    threat model says, which is "running" unless you say otherwise there."""
    rounds: int = 1
    """How many updates of the same batch at the same weights it sees; clients draw anew for each."""
    same_client: int = 1
    """How many victims in a row are updates of one client, which keeps its private numbers."""

    def __post_init__(self) -> None:
        checks.count("An audit", "rounds", self.rounds, most=MOST_ROUNDS)
        checks.count("An audit", "same_client", self.same_client)


@dataclass(frozen=True, kw_only=True, eq=False)
class Audit:
    """All that is set. The meaning of its parts is said at `dosimeter.audit`, which makes one and performs it."""

    model: nn.Module = field(repr=False)
    victims: Victims | None = field(default=None, repr=False)  # none where an update was captured and is not compared
    attack: Attack
    defense: Defense = NoDefense()
    server: Tamper = Honest()
    loss: Loss | None = None
    step: Step | None = None
    threat: ThreatModel | None = None
    seed: int = 0
    updates: Updates = Updates()
    resources: Resources = Resources()
    scoring: Scoring = Scoring()
    names: Mapping[str, Any] = field(default_factory=dict)  # what records call model and data

    @property
    def made(self) -> dict[str, Any]:
        """All that makes two audits of a model the same, as plain values, without what only makes them faster."""
        apart = ("attack", "model", "names", "resources", "scoring", "victims")
        rest = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in apart}
        rest |= {"device": self.resources.device, "dtype": self.resources.dtype}
        rest |= {"minutes": self.resources.minutes} if self.resources.minutes else {}  # which may cut it short
        rest |= {"until_read": True} if self.resources.until_read else {}
        assert self.victims is not None
        return {
            "attack": fingerprint.named(self.attack),
            "audit": fingerprint.of(rest),
            "victims": fingerprint.named(self.victims, f"{len(self.victims.ids)} of {self.victims.batch}"),
            "threshold": self.scoring.threshold,
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
                "grant them (ThreatModel(labels=True)) or have them found (attack.relabelled(dm.labels.Counts()), or "
                "ig:labels=counts)."
            )
        if needed.secrets and not granted.secrets:
            raise SettingError(
                f"The attack {self.attack.name!r} needs what clients draw inside the model, which the threat model "
                "does not reveal; reveal it as a control (ThreatModel(secrets=True)) or let the attack suppose its own."
            )
        self._check_training(needed, granted)
        granted = replace(
            granted,
            server=_one("server", granted.server, self.server.name, "honest"),
            statistics=_one("batch-norm statistics", granted.statistics, self.updates.batch_norm, "running"),
            rounds=self.updates.rounds,
            same_client=self.updates.same_client,
        )
        if granted.statistics not in get_args(BatchNorm):
            raise SettingError(unknown("batch norm", granted.statistics, get_args(BatchNorm)))
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


def _one(what: str, granted: Any, said: Any, usual: str) -> Any:
    """What the audit says, unless the threat model says something else than the usual itself."""
    if said in (None, granted) or granted == usual:
        return granted if said is None else said
    raise SettingError(f"The threat model says {what} {granted!r}, the audit {said!r}; say one of them.")
