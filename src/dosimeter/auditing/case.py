"""What clients know and what the attacker knows, from one audit."""

from dataclasses import dataclass, replace

from torch import Tensor, nn

from dosimeter import clients, networks
from dosimeter.attacks import Attack
from dosimeter.auditing.setting import Audit, Updates
from dosimeter.auditing.target import as_attacked, make_target
from dosimeter.defenses import Defense
from dosimeter.errors import SettingError
from dosimeter.types import Observation, Reconstruction, Shape, Target, ThreatModel, Watch


@dataclass(frozen=True, eq=False)
class Client:
    """What clients know: the task as they run it, what they do to their updates, and the streams they draw from."""

    target: Target
    defense: Defense
    updates: Updates
    seed: int

    def cloned(self) -> "Client":
        """With a model of its own: while torch.func runs one, its parameters are exchanged for all threads."""
        return replace(self, target=_cloned(self.target))


@dataclass(frozen=True, eq=False)
class Attacker:
    """What the attacker knows: the task without what it was not told, what it was granted, and its method."""

    target: Target
    threat: ThreatModel
    attack: Attack
    seed: int

    def cloned(self) -> "Attacker":
        """With a model of its own, for another thread."""
        return replace(self, target=_cloned(self.target))

    def read(self, seen: list[Observation], watch: Watch | None = None) -> Reconstruction:
        """What the attack makes of what was seen."""
        return self.attack(self.target, seen, seed=self.seed, watch=watch)

    def guess(self, seen: list[Observation], watch: Watch | None = None) -> Reconstruction:
        """What it makes of nothing: the same attack without the update."""
        return self.attack.blind()(self.target, seen, seed=self.seed, watch=watch)


def resolve(
    audit: Audit, model: nn.Module, shape: Shape, batch: int, labels: Tensor | None = None, highest: int | None = None
) -> tuple[Client, Attacker]:
    """Both sides of an audit whose clients were sent this model, checked before any work.

    `labels` are those of one batch, `highest` is the highest label of all.
    """
    target = make_target(model, shape, audit, batch=batch, labels=labels, highest=highest)
    threat = audit.granted()
    _check_secrets(target, threat)
    attacker = Attacker(as_attacked(target, threat, batch), threat, audit.attack, audit.seed)
    return Client(target, audit.defense, audit.updates, audit.seed), attacker


def clipping(audit: Audit) -> Audit:
    """The audit in which clients clip, where their defense does."""
    bound = audit.defense.clips()
    if bound is None:
        return audit
    if isinstance(audit.step, clients.LocalTraining):
        return replace(audit, step=replace(audit.step, bound=bound, perturbed="steps"))
    if audit.step is not None:
        raise SettingError(f"The defense clips gradients and does not go with {audit.step!r}; use one of them.")
    return replace(audit, step=clients.ClippedGradient(bound=bound))


def _cloned(target: Target) -> Target:
    return replace(target, model=networks.clone_modules(target.model))


def _check_secrets(target: Target, threat: ThreatModel) -> None:
    """Refuse to reveal what a model draws for every image in every pass, where a client makes several.

    One gradient an example is one pass, and what a client draws for good, such as a key, is the same in all of them.
    """
    fresh = any(secret.scope == "image" for secret in target.secrets.values())
    several = target.step is not None and not isinstance(target.step, clients.ClippedGradient)
    if fresh and several and (threat.secrets or not isinstance(target.step, clients.LocalTraining)):
        raise SettingError(
            f"The defense draws new numbers inside the model in every pass, and {target.step!r} takes several, whose "
            "draws cannot be revealed or simulated; audit it on one gradient."
        )
