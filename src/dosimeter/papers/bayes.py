"""Bayesian Framework for Gradient Leakage (Balunovic, Dimitrov, Staab, Vechev 2022).

Attacks of 200 steps of Adam, each tuned; here on images of the attacker's own, where the paper tunes on the images that
it then attacks. Its PSNR is not clipped. Pruning is a random mask that its density is told.
"""

from dataclasses import replace
from itertools import product
from typing import Any

from dosimeter.papers import densities
from dosimeter.papers.claims import Claim, Higher, Stated
from dosimeter.papers.item import SMOKE, Case, Cut, Item
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
    return Case(name=name, trial=trial, tries=tries, published={"psnr_unclipped": published})


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


_WIDE = Cut(victims=1, steps=60, ours=False)
"""Of ConvNet-64, which takes a second for a few steps."""

SOTERIA = "dense.0.weight"
"""The tensor that Soteria changes, which the attack leaves out (Sec. 5)."""
ATS = {"ATS 7-4-15": "ats:policy=7-4-15", "ATS 21-13-3": "ats:policy=21-13-3", "ATS both": "ats:policy=21-13-3+7-4-15"}
STEPS, EPOCHS = (0, 10, 100, 500, 1000), (0, 1, 2, 5, 10)


def _along() -> tuple[Case, ...]:
    """After steps of training, or epochs; the figure prints no numbers."""
    words: dict[str, Any] = {"data": "cifar10", "victims": 8, "decoys": 0}
    found = []
    for epoch in EPOCHS:
        soteria = Trial(
            **words, model="convbig", defense="soteria:rate=0.8", attack=f"ig:tv=0.0004,leave={SOTERIA}", steps=4000,
            protocol="bayes:epochs=1,steps=none,rounds=10" if epoch else None, round=epoch or None,
        )  # fmt: skip
        found.append(Case(name=("Soteria", "epochs", str(epoch)), trial=soteria))
    for name, defense in ATS.items():
        for step in STEPS:
            ats = Trial(
                **words, model="convnet", defense=defense, attack="ig:tv=1e-05", steps=2000,
                protocol="bayes:rounds=100" if step else None, round=step // 10 or None,
            )  # fmt: skip
            found.append(Case(name=(name, "steps", str(step)), trial=ats))
    precode = Trial(**words, model="mlp-bayes", defense="precode", attack="analytic")
    return (*found, Case(name=("PRECODE", "steps", "0"), trial=precode))


def _pairs() -> tuple[Case, ...]:
    """Prior and density; the points are of a Gaussian and the noise is Laplace's."""
    return tuple(Case(name=pair, pair=pair) for pair in product(densities.PRIORS, densities.DENSITIES))


def _balls() -> tuple[Case, ...]:
    """Samples in the ball, over steps. Its radius of 9 is one of normalised images: 2.773 of pixels in [0, 1]."""
    return tuple(
        Case(
            name=(f"k = {k}", str(steps)),
            trial=Trial(
                model="cnn-bayes", data="mnist", defense="noise:sigma=0.1", victims=100, decoys=0, steps=steps,
                attack=f"bayes:density=gaussian,scale=0.1,delta=2.773,k={k}",
            ),
        )
        for k in (1, 4, 16)
        for steps in (25, 50, 100, 200)
    )  # fmt: skip


_TABLE: dict[str, Any] = {
    "paper": "bayes",
    "heading": ("data", "defense", "step", "attack"),
    "quantities": ("psnr_unclipped", "psnr", "ssim"),
    "laptop": Cut(victims=8, tries=2, panel=60),
    "smoke": replace(SMOKE, trained=True),
}

ITEMS = (
    Item(**_TABLE, name="table2", about="The right density against L2, L1 and cosine.", cases=_second()),
    Item(**_TABLE, name="table5", about="What a prior on the range of pixels adds, after 500 steps.", cases=_fifth()),
    Item(
        **_TABLE
        | {
            "heading": ("defense", "after", "number"),
            "laptop": Cut(
                victims=1,
                steps=100,
                batches=50,
                panel=20,
                within=tuple((name, _WIDE) for name in ATS),
            ),
            "smoke": replace(SMOKE, cases=1, ours=False),
        },
        name="fig2",
        about="Soteria, ATS and PRECODE along training, with an attack made for each.",
        cases=_along(),
        figure="lines",
    ),
    Item(
        **_TABLE | {"heading": ("prior", "density"), "quantities": ("distance",), "laptop": Cut()},
        name="fig4",
        about="Right and wrong priors and densities, on points of a Gaussian under Laplace noise.",
        cases=_pairs(),
        figure="series",
    ),
    Item(
        **_TABLE | {"heading": ("samples", "steps"), "laptop": Cut(victims=16, ours=False)},
        name="fig7",
        about="More samples in the ball around a candidate.",
        cases=_balls(),
        figure="lines",
    ),
)


def _higher(rows: tuple[str, ...], than: tuple[str, ...]) -> Higher:
    return Higher(rows=rows, than=than, quantity="psnr_unclipped")


CLAIMS = (
    Claim(
        name="bayes: defenses fail early in training",
        where="Sec. 6, Fig. 2",
        item="bayes/fig2",
        checks=tuple(Stated(rows=(name, "0"), quantity="ssim", above=0.5) for name in ("Soteria", "PRECODE", *ATS)),
    ),
    Claim(
        name="bayes: the right prior and density come nearest",
        where="Sec. 6, Fig. 4",
        item="bayes/fig4",
        checks=tuple(
            Higher(rows=pair, than=("Gaussian", "Laplace"), quantity="distance", exactly=True)
            for pair in (("Gaussian", "Gaussian"), ("Laplace", "Laplace"), ("Laplace", "Gaussian"))
        ),
    ),
    Claim(
        name="bayes: more samples in the ball converge faster",
        where="App. A.6, Fig. 7",
        item="bayes/fig7",
        checks=(_higher(("k = 16", "50"), ("k = 1", "50")),),
    ),
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
