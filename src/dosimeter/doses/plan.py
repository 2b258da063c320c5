"""The smallest noise at which fewer than a wanted share of an image's dimensions is determined.

The derivatives do not depend on the noise, so each image is differentiated once and the noise is found by bisection.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from dosimeter import checks, spec
from dosimeter.channel import Noise
from dosimeter.doses import algebra, channels
from dosimeter.doses.case import Case, case_of
from dosimeter.doses.measure import dose
from dosimeter.doses.result import Doses
from dosimeter.doses.slopes import Network
from dosimeter.doses.updates import alone, determining, measured
from dosimeter.errors import SettingError
from dosimeter.progress import bar
from dosimeter.types import Victims

LEAST, MOST, NEAR = 1e-6, 1e4, 1.02
"""Deviations between which noise is looked for, and the factor to which it is found."""


def wanted_of(words: str) -> float:
    """The share of `share=0.05`."""
    share: float = spec.make("plan", f"plan:{words}", {"plan": _plan})
    checks.share("A plan", "a share of dimensions", share, zero=False)
    return share


def _plan(*, share: float = 0.05) -> float:
    return share


def plan_of(model: nn.Module, victims: Victims, *, share: float, **how: Any) -> Doses:
    """The dose with the settings given, and the noise that would leave less than a share for the most exposed image.

    It is Gaussian, the same on every entry, in place of any noise that the defense adds; clipping and draws stay.
    """
    found = dose(model, victims, tensors="none", **how)
    case = _silenced(case_of(model, victims, **how))
    sigma = LEAST
    for v in range(len(victims.ids)):
        sigma = _enough(case, victims, v, share, sigma)
    many = f"{len(found.images)} image{'s' if len(found.images) > 1 else ''}"
    said = f"At Gaussian noise of {sigma:.3g} on every entry fewer than {share:.1%} of the dimensions of the most "
    said += f"exposed of {many} are determined; confirm it by attacks: dosimeter audit --attack auto --defense "
    said += f"noise:sigma={sigma:.3g}"
    plan = {"share": share, "sigma": sigma, "sentence": said}
    return replace(found, plan=plan)


def _silenced(case: Case) -> Case:
    kept = tuple(fact for fact in case.channel.facts if not isinstance(fact, Noise))
    strange = [fact for fact in kept if type(fact).__name__ in ("Mask", "Rounding")]
    if strange:
        raise SettingError("A plan is made for noise; leave masks and rounding out of the defense.")
    if case.updates.rounds > 1:
        raise SettingError("A plan is made for one update; leave --rounds out.")
    return replace(case, channel=case.channel._replace(facts=kept))


class Level(NamedTuple):
    """The dose of one image at one strength of noise."""

    sigma: float
    id: str
    place: int
    dimensions: int
    determined: int
    bits: float | None
    psnr: float | None


def over_noise(model: nn.Module, victims: Victims, *, levels: Sequence[float], **how: Any) -> tuple[Level, ...]:
    """The dose of every image at every strength of Gaussian noise, in place of any that the defense adds."""
    for sigma in levels:
        checks.positive("Noise", "a standard deviation", sigma)
    case = _silenced(case_of(model, victims, **how))
    found = []
    with bar("dose", len(victims.ids), show=None) as advance:
        for v, name in enumerate(victims.ids):
            network, unit = _unit(case, victims, v)
            for sigma in levels:
                matrix = measured(network, unit / sigma**2)
                for b in range(victims.batch):
                    own, prior = alone(case, matrix, b, victims.batch), case.prior
                    many = algebra.above(own - case.known.precision)
                    behind = None if prior is None else algebra.posterior(own, prior.precision, prior.log_precision)
                    told = (None, None) if behind is None else (behind.bits, algebra.psnr(behind.error))
                    found.append(Level(sigma, name, b, len(own), many, *told))
            advance(v + 1)
    return tuple(found)


def _unit(case: Case, victims: Victims, v: int) -> tuple[Network, Tensor]:
    """The information of an update whose every entry has noise of 1."""
    network, parts, how = determining(case, victims, v)
    loud = replace(how, variance=dict.fromkeys(how.variance, 1.0), plain=frozenset())
    return network, channels.joined(parts, loud)


def _enough(case: Case, victims: Victims, v: int, share: float, least: float) -> float:
    """The smallest deviation from `least` on that is enough for all images of an update."""
    network, unit = _unit(case, victims, v)

    def leaves(sigma: float) -> bool:
        matrix = measured(network, unit / sigma**2)
        most = share * (len(matrix) // victims.batch)
        precision = case.known.precision
        return all(
            algebra.above(alone(case, matrix, b, victims.batch) - precision) < most for b in range(victims.batch)
        )

    if leaves(least):
        return least
    low, high = least, least * 10
    while not leaves(high):
        low, high = high, high * 10
        if high > MOST:
            raise SettingError(f"Even noise of {MOST:g} leaves more than {share:.1%} determined; check the model.")
    while high / low > NEAR:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if leaves(middle) else (middle, high)
    return high
