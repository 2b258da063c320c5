"""Predicted against reached: the dose of private images over strengths of noise, and what attacks make of the same.

How far an attack goes is compared in the update's own measure. Of all readers the posterior mean has the least expected

    e^T M e,    which is  tr M (P + M)^-1,    about 1 for each direction that is determined

whatever the error e is in directions that stay hidden: there images differ in how well any fill suits them, and an
average of decibels favours another fill than an average of squared errors does. `excess` is the ratio of the two in dB.
Below 0 on average, beyond its spread, one of attack and dose is wrong.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dosimeter.auditing import Result, audit
from dosimeter.doses import algebra, channels
from dosimeter.doses.case import Case, case_of
from dosimeter.doses.figures import here_of
from dosimeter.doses.priors import STD, Prior
from dosimeter.doses.updates import determining, measured
from dosimeter.errors import DosimeterError
from dosimeter.types import Victims

QUIET = 1e-5
"""Deviation of the noise that the dose counts with where the client adds none, in place of the rounding of float32."""


class Compared(NamedTuple):
    """One image at one strength of noise."""

    model: str
    defense: str
    sigma: float  # of Gaussian noise on the update; 0 for none
    image: str
    dimensions: int
    white: int  # directions known to better than a deviation of 0.25
    bits: float
    psnr: float  # of the posterior mean over images of the prior
    here: float  # on this image
    attack: str  # that came nearest to it, of those that were tried
    reached: float | None
    excess: float | None  # dB, see above; None where the client adds no noise, since then the dose supposes some


def compared(
    model: nn.Module,
    victims: Victims,
    *,
    name: str,
    defense: str,
    sigmas: Sequence[float],
    attacks: Sequence[str],
    prior: Prior,
    steps: int = 300,
    seed: int = 0,
) -> Iterator[Compared]:
    """The dose of every image (one an update) at every strength, and the nearest that attacks came to it.

    Args:
        name: of the model, for the table.
        defense: without noise, which is added to it.
        sigmas: strengths of noise, 0 for none.
        attacks: to be tried; `SIGMA` and `STEPS` in their words stand for these, and those that know the noise are
            tried where there is some. One that refuses a setting is left out.
        steps: of those that search.
    """
    reached = {sigma: _tried(model, victims, defense, sigma, attacks, steps, seed) for sigma in sigmas}
    case = case_of(model, victims, defense=defense, prior=prior, seed=seed)
    for v, image in enumerate(victims.ids):
        network, parts, how = determining(case, victims, v)
        unit = channels.joined(parts, replace(how, variance=dict.fromkeys(how.variance, 1.0), plain=frozenset()))
        for sigma in sigmas:
            matrix = measured(network, unit / (sigma or QUIET) ** 2)
            read = {attack: found.images[v, 0] for attack, found in reached[sigma].items()}
            yield Compared(
                name, defense, sigma, image, len(matrix), *_figures(case, victims.images[v, 0], matrix, read, sigma)
            )


def forced(matrix: Tensor, precision: Tensor, covariance: Tensor) -> float:
    """tr M C for C = (P + M)^-1: the least expected e^T M e of any reader."""
    return len(matrix) - float((precision * covariance).sum())


def excess_of(error: Tensor, matrix: Tensor, least: float) -> float:
    """e^T M e of an error (n,) over the least that is expected of any reader, in dB."""
    return 10 * math.log10(max(float(error @ (matrix @ error)), 1e-300) / least)


def _figures(
    case: Case, image: Tensor, matrix: Tensor, read: dict[str, Tensor], sigma: float
) -> tuple[int, float, float, float, str, float | None, float | None]:
    prior = case.known
    behind = algebra.posterior(matrix, prior.precision, prior.log_precision)
    white = algebra.above(matrix - torch.eye(len(matrix), dtype=matrix.dtype) / STD**2)
    truth = image.flatten().double()
    off = {attack: found.flatten().double() - truth for attack, found in read.items()}
    best = min(off, key=lambda attack: float(off[attack].square().sum()), default="")
    told = (white, behind.bits, algebra.psnr(behind.error), here_of(image, matrix, prior, behind))
    if not best:
        return *told, "", None, None
    reached = algebra.psnr(float(off[best].square().mean()))
    least = forced(matrix, prior.precision, behind.covariance)
    return *told, best, reached, excess_of(off[best], matrix, least) if sigma else None


def _tried(
    model: nn.Module, victims: Victims, defense: str, sigma: float, attacks: Sequence[str], steps: int, seed: int
) -> dict[str, Result]:
    """What every attack makes of the updates, of those that take on this setting."""
    found: dict[str, Result] = {}
    whole = f"{defense}|noise:sigma={sigma:g}" if sigma else defense
    for words in attacks:
        if "SIGMA" in words and not sigma:
            continue
        attack = words.replace("SIGMA", f"{sigma:g}").replace("STEPS", str(steps))
        try:
            found[attack] = audit(model, victims, attack=attack, defense=whole.removeprefix("none|"), seed=seed)
        except DosimeterError:
            continue
    return found
