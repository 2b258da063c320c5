"""Where to begin to look for the weakest strength of a defense: where its noise leaves an image little by the dose."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from dosimeter.auditing.panel.contenders import contenders
from dosimeter.channel import Facts, Noise
from dosimeter.defenses import Defense
from dosimeter.doses.case import case_of
from dosimeter.doses.plan import noise_enough
from dosimeter.errors import SettingError
from dosimeter.types import Victims

ALIKE = 1e-6
"""The relative difference up to which two factors are one."""


def strength_enough(
    model: nn.Module,
    victims: Victims,
    *,
    make: Callable[[float], Defense],
    strengths: Sequence[float],
    share: float,
    **how: Any,
) -> float:
    """The strength at which a defense adds the noise that leaves less than a share of any image determined.

    That noise is as much stronger as the panel of the defense averages rounds, each with noise of its own.
    Refused where its noise is not in proportion to that strength, Gaussian or Laplace, on all entries.

    Args:
        make: the defense at a strength.
        strengths: from weak to strong.
        how: as for `dose`.
    """
    ends = strengths[0], strengths[-1]
    cases = [case_of(model, victims, defense=make(value), **how) for value in ends]
    scales = [_scale(case.stated) / value for case, value in zip(cases, ends, strict=True)]
    if abs(scales[0] - scales[1]) > ALIKE * scales[0]:
        raise SettingError("The dose plans noise that grows with the strength of the defense, which this one does not.")
    averaged = max(one.rounds for one in contenders(cases[0].channel, steps=1))  # which its panel takes the mean of
    return noise_enough(model, victims, share=share, defense=make(ends[0]), **how) / scales[0] * math.sqrt(averaged)


def _scale(facts: Facts) -> float:
    """Of the one noise among facts; of Laplace noise its scale counts as a deviation does."""
    noises = [fact for fact in facts if isinstance(fact, Noise)]
    if len(noises) != 1 or noises[0].on is not None:
        raise SettingError("The dose plans one noise on all entries, which this defense does not add.")
    return noises[0].scale
