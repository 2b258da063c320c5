"""What rules look at: a model as clients run it, and what becomes of its updates."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dosimeter import rng
from dosimeter.attacks import Attack
from dosimeter.attacks.solve.first_layer import in_double
from dosimeter.channel import Channel, Clip, Fact, Hides, Mask, Noise, Rounding, Transforms, words
from dosimeter.errors import ModelError, SettingError
from dosimeter.networks.trace import Trace
from dosimeter.types import BatchNorm, Summed, Target

ALONE = (("--batch", "1"),)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model under a defense, in batches of so many images."""

    target: Target
    channel: Channel
    batch: int
    statistics: BatchNorm

    @cached_property
    def exact(self) -> Target:
        """In float64."""
        return in_double(self.target)

    @cached_property
    def image(self) -> Tensor:
        """(1, C, H, W): noise, an image of the auditor's own."""
        return torch.rand(1, *self.target.shape, generator=rng.stream(0, "lint")).to(self.target.mean)

    @cached_property
    def label(self) -> Tensor:
        """(1,)"""
        return torch.zeros(1, dtype=torch.long, device=self.target.mean.device)

    @cached_property
    def trace(self) -> Trace:
        """One run on that image, of which every tensor that leaks was seen; refused where one was not.

        A part that runs elsewhere, such as a script or a compiled program, might leak and nobody would see how.
        """
        trace = Trace(self.target.model, self.image)
        seen = {id(tensor) for call in trace.calls for tensor in call.inputs}
        unseen = [name for name, p in self.target.model.named_parameters() if p.requires_grad and id(p) not in seen]
        gradient = self.target.gradient(self.image, self.label) if unseen else {}
        hidden = [name for name in unseen if gradient[name].any()]
        if hidden:
            raise ModelError(
                f"The model cannot be traced: no call of torch was seen that takes {hidden[0]!r} "
                f"({len(hidden)} of {len(gradient)} tensors), as in scripts and compiled programs; lint its plain "
                "module, or audit it (--attack auto)."
            )
        return trace

    def refusal(self, attack: Attack, batch: int) -> str | None:
        """Why an attack does not fit, None where it does."""
        try:
            attack.check(self.target, batch)
        except SettingError as reason:
            return str(reason)
        return None

    def blurs(self, tensors: frozenset[str] | None) -> list[str]:
        """What keeps equations from being exact that these tensors of the update are part of; None for all of them."""
        found = [words(fact) for fact in self.channel.facts if _blurs(fact, tensors)]
        step = self.target.step
        if step is not None and not (isinstance(step, Summed) and step.sums) and not self._clips:
            found.append("a step that sends no sum of gradients")
        return found

    @property
    def transforms(self) -> bool:
        """Whether clients train on changed images."""
        return any(isinstance(fact, Transforms) for fact in self.channel.facts)

    @property
    def _clips(self) -> bool:
        """Whether examples are clipped, which scales one image's update."""
        return any(isinstance(fact, Clip) and fact.of == "example" for fact in self.channel.facts)


def _blurs(fact: Fact, tensors: frozenset[str] | None) -> bool:
    if isinstance(fact, Clip):
        return fact.of == "tensor"
    if not isinstance(fact, Noise | Mask | Rounding | Hides):
        return False
    return fact.on is None or tensors is None or bool(fact.on & tensors)
