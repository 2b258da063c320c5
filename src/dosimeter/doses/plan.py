"""The smallest noise, or number of clients, at which fewer than a wanted share of an image's dimensions is determined.

The derivatives do not depend on the noise, so each image is differentiated once and the noise is found by bisection.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from dosimeter import checks, spec
from dosimeter.auditing.setting import Resources
from dosimeter.channel import Noise
from dosimeter.doses import algebra, channels
from dosimeter.doses.aggregation import Aggregation
from dosimeter.doses.case import Case, case_of
from dosimeter.doses.information import needs
from dosimeter.doses.measure import Show, dose
from dosimeter.doses.result import Doses
from dosimeter.doses.slopes import Network
from dosimeter.doses.updates import alone, determining, first_network, measured, measured_update, resolvable
from dosimeter.errors import SettingError
from dosimeter.progress import bar
from dosimeter.types import Victims

LEAST, MOST, NEAR = 1e-6, 1e4, 1.02
"""Deviations between which noise is looked for, and the factor to which it is found."""
CLIENTS = 1_000_000
"""Clients up to which a number of them is looked for."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The share of dimensions that may be determined, and by what that is to be reached."""

    share: float = 0.05
    by: Literal["noise", "clients"] = "noise"

    def __post_init__(self) -> None:
        checks.share("A plan", "a share of dimensions", self.share, zero=False)


def wanted_of(words: str) -> Wanted:
    """What `share=0.05,by=clients` says."""
    return spec.make("plan", f"plan:{words}", {"plan": Wanted})


def plan_of(
    model: nn.Module, victims: Victims, *, share: float, by: Literal["noise", "clients"] = "noise", **how: Any
) -> Doses:
    """The dose with the settings given, and what would leave less than a share for the most exposed image.

    By noise: Gaussian, the same on every entry, in place of any noise that the defense adds; clipping and draws stay.
    By clients: whose mean alone the server sees, each with all that the defense does (`aggregation` says of whom).
    """
    found = dose(model, victims, show=Show("none"), **how)
    many = f"{len(found.images)} image{'s' if len(found.images) > 1 else ''}"
    few = f"fewer than {share:.1%} of the dimensions of the most exposed of {many} are determined"
    plan: dict[str, Any] = {"share": share, "by": by}
    if by == "clients":
        plan["clients"] = least = clients_enough(model, victims, share=share, **how)
        said = f"Of the mean of {least:,} clients {few}; an attack on it is one on a batch: dosimeter audit --batch "
        return replace(found, plan=plan | {"sentence": f"{said}{least * victims.batch}"})
    plan["sigma"] = sigma = noise_enough(model, victims, share=share, **how)
    said = f"At Gaussian noise of {sigma:.3g} on every entry {few}; confirm it by attacks: dosimeter audit --attack "
    return replace(found, plan=plan | {"sentence": f"{said}auto --defense noise:sigma={sigma:.3g}"})


def noise_enough(model: nn.Module, victims: Victims, *, share: float, **how: Any) -> float:
    """The smallest deviation of Gaussian noise that leaves less than a share of any image."""
    case, sigma = _silenced(case_of(model, victims, **how)), LEAST
    for v in range(len(victims.ids)):
        sigma = _enough(case, victims, v, share, sigma)
    return sigma


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
            network, seen, batch = _over(case, victims, v)
            for sigma in levels:
                matrix = measured(network, seen(sigma))
                for b in range(victims.batch):
                    own, prior = alone(case, matrix, b, batch), case.prior
                    many = algebra.above(own - case.known.precision)
                    behind = None if prior is None else algebra.posterior(own, prior.precision, prior.log_precision)
                    told = (None, None) if behind is None else (behind.bits, algebra.psnr(behind.error))
                    found.append(Level(sigma, name, b, len(own), many, *told))
            advance(v + 1)
    return tuple(found)


def _over(case: Case, victims: Victims, v: int) -> tuple[Network, Callable[[float], Tensor], int]:
    """The information of an update by the noise on its every entry, on so many images."""
    whole, n = case.gathered(victims), case.clients
    network, parts, how = determining(case, whole, v)
    if how.others is not None:  # beside whom noise is not all that hides
        return network, lambda sigma: channels.joined(parts, _noisy(how, n * sigma**2)), whole.batch
    unit = channels.joined(parts, _noisy(how, 1 / n))
    return network, lambda sigma: unit / sigma**2, whole.batch


def _noisy(how: channels.Seen, variance: float) -> channels.Seen:
    return replace(how, variance=dict.fromkeys(how.variance, variance), plain=frozenset())


def _enough(case: Case, victims: Victims, v: int, share: float, least: float) -> float:
    """The smallest deviation from `least` on that is enough for all images of an update."""
    network, seen, batch = _over(case, victims, v)

    def leaves(sigma: float) -> bool:
        return _leaves(case, measured(network, seen(sigma)), victims.batch, batch, share)

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


def _leaves(case: Case, matrix: Tensor, own: int, batch: int, share: float) -> bool:
    """Whether less than a share is determined of the first, own, images of all."""
    most, precision = share * (len(matrix) // batch), case.known.precision
    return all(algebra.above(alone(case, matrix, b, batch) - precision) < most for b in range(own))


def clients_enough(
    model: nn.Module,
    victims: Victims,
    *,
    share: float,
    aggregation: Aggregation | None = None,
    resources: Resources = Resources(dtype=torch.float64),
    **how: Any,
) -> int:
    """The smallest number of clients whose mean leaves less than a share of any image."""
    if aggregation is None:
        raise SettingError("A plan by clients needs to know what others send; give an aggregation with public images.")

    def case(n: int) -> Case:
        told = replace(aggregation, clients=n)
        return case_of(model, victims, resources=resources, aggregation=told, **how)

    if (several := case(2)).updates.rounds > 1:
        raise SettingError("A plan is made for one update; leave --rounds out.")
    least = 1
    for v in range(len(victims.ids)):
        if several.public is None:
            leaves = _by_images(case, victims, v, share, resources.budget)
        else:
            leaves = _by_noise(several, victims, v, share)
        least = _least(leaves, least, share)
    return least


def _by_images(
    case: Callable[[int], Case], victims: Victims, v: int, share: float, budget: int
) -> Callable[[int], bool]:
    """Whether so many clients are enough for an update, the images of all being unknown."""

    def leaves(n: int) -> bool:
        among = case(n)
        whole = among.gathered(victims)
        if needs(first_network(among, whole, v)) > budget:
            raise SettingError(
                f"The matrices of the images of {n:,} clients, which are not enough or not known to be, do not fit; "
                "allow more memory (--budget) or count the others' updates as noise (--others noise)."
            )
        matrix = measured_update(among, whole, v).matrix
        return _leaves(among, matrix, victims.batch, whole.batch, share)

    return leaves


def _by_noise(case: Case, victims: Victims, v: int, share: float) -> Callable[[int], bool]:
    """The same, the updates of others being noise; derivatives do not depend on how many there are."""
    network, parts, among = determining(case, victims, v)
    own = {name: variance / case.clients for name, variance in among.variance.items()}

    def leaves(n: int) -> bool:
        assert among.others is not None
        others = among.others._replace(factor=among.others.factor / (case.clients - 1) * (n - 1))
        how = channels.among(replace(among, variance=own), others, n)
        matrix = measured(network, resolvable(network, parts, how)[1])
        return _leaves(case, matrix, victims.batch, victims.batch, share)

    return leaves


def _least(leaves: Callable[[int], bool], least: int, share: float) -> int:
    """The smallest number from `least` on that is enough, by doubling and halving."""
    if leaves(least):
        return least
    low, high = least, 2 * least
    while not leaves(high):
        low, high = high, 2 * high
        if high > CLIENTS:
            raise SettingError(
                f"Even the mean of {low:,} clients leaves more than {share:.1%} determined, by the covariance of so "
                "few public updates; give more of them (--others noise:updates=...), or add noise."
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if leaves(middle) else (middle, high)
    return high
