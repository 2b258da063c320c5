"""Bayesian Framework for Gradient Leakage (Balunovic, Dimitrov, Staab, Vechev 2022).

Attacks of 200 steps of Adam, each tuned; here on images of the attacker's own, where the paper tunes on the images that
it then attacks. Its PSNR is not clipped. Pruning is a random mask that its density is told.
"""

from typing import Any

from dosimeter.papers.claims import Claim, Higher
from dosimeter.papers.item import Case, Cut, Item
from dosimeter.papers.published import read
from dosimeter.sweeps import Trial

DATA = {"MNIST": "mnist", "CIFAR-10": "cifar10"}
DEFENSES = {
    "Gaussian": "noise:sigma=0.1",
    "Laplacian": "laplace:scale=0.1",
    "Prune + Gauss": "noise:sigma=0.1|random-prune:rate=0.5",
    "Prune + Lap": "laplace:scale=0.1|random-prune:rate=0.5",
}
OWN = {
    "Gaussian": "gaussian",
    "Laplacian": "laplace",
    "Prune + Gauss": "known-mask",
    "Prune + Lap": "known-mask-laplace",
}
"""The density of each defense, with the mask granted as in its program."""
DENSITIES = {"L2": "l2", "L1": "l1", "cosine": "cosine"}
SCALES = {"cosine": 1e-5, "l2": 0.02, "l1": 0.3}
"""Weights of total variation beside losses that are not densities: r^2 is 0.02 of r^2 / (2 * 0.1^2)."""
VARIATIONS = {0: (0.03, 0.1, 0.3, 1.0, 3.0), 500: (0.3, 1.0, 3.0, 10.0, 30.0)}
DECAYS = ("0.94", "0.96", "0.99")
"""Of the rate a step, which the paper tunes too."""
TRAINED = "bayes:batch_size=1"


def _case(data: str, defense: str, step: int, by: str, published: float, *, pixels: float | None = None) -> Case:
    density = OWN[defense] if by == "Bayes" else DENSITIES[by]
    more = "" if pixels is None else f",pixels={pixels}"
    tries = tuple(
        f"bayes:density={density},tv={tv * SCALES.get(density, 1.0):g},lr=0.5,decay={decay}{more}"
        for tv in VARIATIONS[step]
        for decay in DECAYS
    )
    trial = Trial(
        model="cnn-bayes", data=DATA[data], defense=DEFENSES[defense], attack=tries[0], steps=200, victims=100,
        decoys=0, protocol=TRAINED if step else None,
    )  # fmt: skip
    name = (data, defense, str(step), by if pixels is None else "L2, range")
    needs = "the density of Laplace noise under a known mask" if density == "known-mask-laplace" else ""
    return Case(name=name, trial=trial, tries=tries, published={"psnr_unclipped": published}, needs=needs)


def _second() -> tuple[Case, ...]:
    found = []
    for line in read("bayes-2", 3):
        for by, value in line.numbers.items():
            assert isinstance(value, float)
            found.append(_case(line.words["data"], line.words["defense"], int(line.words["step"]), by, value))
    return tuple(found)


def _fifth() -> tuple[Case, ...]:
    found = []
    for line in read("bayes-5", 1):
        plain, ranged = line.numbers["plain"], line.numbers["range"]
        assert isinstance(plain, float)
        assert isinstance(ranged, float)
        found.append(_case("MNIST", line.words["defense"], 500, "L2", plain))
        found.append(_case("MNIST", line.words["defense"], 500, "L2", ranged, pixels=1.0))
    return tuple(found)


_TABLE: dict[str, Any] = {
    "paper": "bayes",
    "heading": ("data", "defense", "step", "attack"),
    "quantities": ("psnr_unclipped", "psnr", "ssim"),
    "laptop": Cut(victims=16),
}

ITEMS = (
    Item(**_TABLE, name="table2", about="The right density against L2, L1 and cosine.", cases=_second()),
    Item(**_TABLE, name="table5", about="What a prior on the range of pixels adds, after 500 steps.", cases=_fifth()),
)


def _higher(rows: tuple[str, ...], than: tuple[str, ...]) -> Higher:
    return Higher(rows=rows, than=than, quantity="psnr_unclipped")


CLAIMS = (
    Claim(
        name="bayes: with pruning the right density wins",
        where="Table 2",
        item="bayes/table2",
        checks=tuple(
            _higher((data, "Prune + Gauss", "0", "Bayes"), (data, "Prune + Gauss", "0", other))
            for data in DATA
            for other in DENSITIES
        ),
    ),
    Claim(
        name="bayes: networks leak less after 500 steps of training",
        where="Table 2",
        item="bayes/table2",
        checks=tuple(
            _higher((data, "Gaussian", "0", "Bayes"), (data, "Gaussian", "500", "Bayes")) for data in DATA
        ),
    ),
    Claim(
        name="bayes: the range of pixels is a useful prior",
        where="Table 5",
        item="bayes/table5",
        checks=tuple(
            _higher((name, "L2, range"), (name, "L2")) for name in DEFENSES
        ),
    ),
)  # fmt: skip
