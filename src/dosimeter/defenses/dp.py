"""DP-SGD: clip every example's gradient, add noise to their sum (Abadi et al. 2016), by Opacus."""

import copy
import math
import re
import warnings
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from dosimeter import checks
from dosimeter.channel import Clip, Facts, Noise
from dosimeter.defenses.base import Defense
from dosimeter.errors import SettingError
from dosimeter.types import Gradient, Moment, Shape, Target


@dataclass(frozen=True, kw_only=True)
class DpSgd(Defense):
    """Every example's gradient is clipped to norm `clip`; noise of deviation `sigma` * `clip` is added to their sum,
    which is divided by the number of examples (CVB, Sec. VI-C: clip 20, sigma from 0.001 to 1).

    Clients run Opacus: its per-example gradients, its clipping, its noise. `steps` of training in which every batch is
    a share `rate` of all examples cost (epsilon, `delta`), which Opacus' accountant of Renyi divergences computes.
    """

    clip: float = 1.0
    sigma: float = 1.0
    rate: float = 0.01
    steps: int = 1000
    delta: float = 1e-5

    def __post_init__(self) -> None:
        checks.positive("DP-SGD", "a clipping norm clip", self.clip)
        checks.at_least("DP-SGD", "a noise multiplier sigma", self.sigma, 0)
        checks.share("DP-SGD's accountant", "a sampling rate", self.rate, zero=False)
        checks.share("DP-SGD's accountant", "a delta", self.delta, zero=False, one=False)
        checks.count("DP-SGD's accountant", "steps", self.steps)

    @property
    def recomputes(self) -> bool:
        """Opacus starts from the batch."""
        return True

    def on_model(self, model: nn.Module, shape: Shape) -> nn.Module:
        self.check(model, shape)
        return model

    def check(self, model: nn.Module, shape: Shape) -> None:
        """Refuse batch norm, and whatever Opacus does not take."""
        mixing = [name for name, m in model.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if mixing:
            raise SettingError(
                f"DP-SGD needs one gradient an example, but batch norm ({mixing[0]!r}) mixes the examples of a batch; "
                "use group norm instead, for instance --model resnet18-gn, and no defense that adds batch norm (fedkl)."
            )
        reason = _refusal(model, shape)
        if reason is not None:
            raise SettingError(
                f"DP-SGD is run by Opacus, which cannot take this model ({reason}); choose another, for instance "
                "--model cnn, or another defense."
            )

    def clips(self) -> float:
        return self.clip

    def on_gradient(self, gradient: Gradient, moment: Moment, rng: torch.Generator) -> Gradient:
        if moment.target is None or moment.images is None or moment.labels is None:
            raise SettingError("DP-SGD clips every example and needs the batch; give a Moment of it.")
        return private_gradient(moment.target, moment.images, moment.labels, self, rng)

    def channel(self, moment: Moment) -> Facts:
        clip = Clip(self.clip)
        return (clip, Noise("gaussian", self.sigma * self.clip / moment.batch)) if self.sigma else (clip,)

    def strengths(self) -> dict[str, tuple[float, ...]]:
        return {"sigma": (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0)}

    def spends(self, rate: float, steps: int) -> dict[str, float]:
        spent = replace(self, rate=rate, steps=steps).epsilon() if steps else 0.0
        return {"epsilon": spent, "delta": self.delta}

    def facts(self) -> dict[str, str]:
        spent = f"{self.epsilon():.3g}" if self.sigma else "infinite"
        share = f"{self.rate:g} of the examples"
        return {
            "differential privacy": f"epsilon {spent} at delta {self.delta:g} after {self.steps:,} steps of {share}"
        }

    def epsilon(self) -> float:
        """What the training costs at `delta`; infinite without noise."""
        if not self.sigma:
            return math.inf
        accountants = _opacus().accountants
        spent = self.steps * _one_step(self.sigma, self.rate)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on the range of orders, which does not change the bound's validity
            found = accountants.analysis.rdp.get_privacy_spent(
                orders=accountants.RDPAccountant.DEFAULT_ALPHAS, rdp=spent, delta=self.delta
            )
        return float(found[0])


@cache
def _one_step(sigma: float, rate: float) -> Any:
    """The Renyi divergences of one step at the accountant's orders; those of several steps are their sum."""
    accountants = _opacus().accountants
    return accountants.analysis.rdp.compute_rdp(
        q=rate, noise_multiplier=sigma, steps=1, orders=accountants.RDPAccountant.DEFAULT_ALPHAS
    )


def private_gradient(
    target: Target, images: Tensor, labels: Tensor, setting: DpSgd, rng: torch.Generator
) -> dict[str, Tensor]:
    """What Opacus makes of one batch."""
    opacus = _opacus()
    model = copy.deepcopy(target.model)
    buffers = dict(model.named_buffers())
    for name, value in target.drawn.items():
        _replace_buffer(model, name, value.to(buffers[name]))
    for layer in model.modules():  # Opacus notes what layers in training mode see; those with weights act alike in both
        layer.training = next(layer.parameters(recurse=False), None) is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of layers that Opacus would rather see in training
        wrapped = opacus.GradSampleModule(model, loss_reduction="mean")
        optimiser = opacus.optimizers.DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=1.0),
            noise_multiplier=setting.sigma,
            max_grad_norm=setting.clip,
            expected_batch_size=len(images),
            generator=rng,
        )
        # Images with a gradient of their own, or torch warns of hooks, which threads cannot silence for themselves.
        loss = target.loss(wrapped(images.detach().requires_grad_()), labels)
        extra = target.penalty(model)
        torch.autograd.backward(loss if extra is None else loss + extra.mean())
        optimiser.pre_step()
    found = dict(model.named_parameters())
    return {name: found[name].grad.detach().clone() for name in target.parameters}  # type: ignore[union-attr]


def _refusal(model: nn.Module, shape: Shape) -> str | None:
    """What Opacus says of a model that it cannot differentiate on two blank images, None where it can."""
    images = torch.full((2, *shape), 0.5).to(next(model.parameters()))
    blank = torch.zeros(shape[0], 1, 1).to(images)
    target = Target(
        copy.deepcopy(model).eval(), lambda output, _: output.flatten(1).sum(1).mean(), shape, blank, blank + 1
    )
    try:
        target.objective(target.parameters, images, images)
    except (RuntimeError, ValueError, TypeError, AttributeError):
        return None  # it takes no such images or gives no tensor, which is not for Opacus to say
    try:
        private_gradient(target, images, images, DpSgd(sigma=0.0), torch.Generator())
    except (RuntimeError, ValueError, TypeError, AttributeError) as reason:  # also what is not implemented
        said = reason.args[0][0] if isinstance(reason.args[0], list) else reason
        return re.split(r"\([\w.]*:|\n", str(said))[0].replace("buffersthat", "buffers that").strip(" .")
    return None


def _replace_buffer(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, last = name.rpartition(".")
    model.get_submodule(path).register_buffer(last, value, persistent=False)


def _opacus() -> Any:
    try:
        import opacus
        import opacus.accountants
        import opacus.optimizers
    except ImportError:
        raise SettingError(
            "DP-SGD is run by Opacus, which is not installed; run pip install 'dosimeter[dp]'."
        ) from None
    return opacus
