"""Inverting Gradients (Geiping, Bauermeister, Dröge, Moeller 2020).

Its PSNR is taken on normalised images with peak 1, which is about 12 dB below that of [0, 1] on CIFAR-10.
"""

from dataclasses import replace
from typing import Any

from dosimeter.papers.claims import Claim, Higher, Stated
from dosimeter.papers.item import SMOKE, Case, Cut, Item
from dosimeter.papers.published import read
from dosimeter.sweeps import Trial

A = "ig:tv=1e-08"
"""Setting A of Table 2, from one start; the paper's has 32."""
ABLATION = {
    "basic": A,
    "unsigned": f"{A},signed=false",
    "no total variation": "ig:tv=0",
    "descent": f"{A},by=descent",
    "no box": f"{A},box=false",
    "L-BFGS": f"{A},by=lbfgs",
    "L2": f"{A},distance=l2",
}
B = "ig-b:restarts=1"
TRAINED = "ig-10"


def _trial(model: str, attack: str, **more: Any) -> Trial:
    words: dict[str, Any] = {"data": "cifar10", "victims": 8, "decoys": 0, "steps": 4000} | more
    return Trial(model=model, attack=attack, **words)


def _ablation() -> tuple[Case, ...]:
    return tuple(
        Case(name=(name,), trial=_trial("convnet", ABLATION[name]), published=line.numbers)
        for line in read("ig-1", 1)
        for name in line.words.values()
    )


def _pooling() -> tuple[Case, ...]:
    return tuple(
        Case(name=(name,), trial=_trial(f"convnet:pooling={name}", A), published=line.numbers)
        for line in read("ig-pooling", 1)
        for name in line.words.values()
    )


def _widths() -> tuple[Case, ...]:
    """Channels of the first convolution; the figure prints no numbers."""
    nets = [Case(name=("ConvNet", str(n)), trial=_trial(f"convnet:width={n}", A)) for n in (4, 8, 16, 32, 64)]
    deep = [
        Case(name=("ResNet-20", str(16 * n)), trial=_trial(f"resnet20:width={n}", B, steps=12_000)) for n in (1, 2, 4)
    ]
    return (*nets, *deep)


def _depths() -> tuple[Case, ...]:
    """Setting C: after ten epochs of training."""
    return tuple(
        Case(name=(f"ResNet-{n}",), trial=_trial(f"resnet{n}", B, steps=12_000, protocol=TRAINED))
        for n in (18, 34, 50, 152)
    )


def _local() -> tuple[Case, ...]:
    settings = ((5, "0.0001"), (100, "0.0001"), (5, "0.01"), (5, "0.1"))
    return tuple(
        Case(name=(str(n), lr), trial=_trial("convnet", A, step=f"local:steps={n},lr={lr}")) for n, lr in settings
    )


def _batch() -> tuple[Case, ...]:
    trial = _trial("resnet32-10", B, data="cifar100", batch=100, victims=1, steps=24_000)
    return (Case(name=("100",), trial=trial),)


_WIDE = Cut(victims=4, steps=100, panel=10, within=(("L-BFGS", Cut(victims=4, steps=10, panel=10)),))
_ALONE = replace(SMOKE, cases=1, ours=False)
"""One row of networks that are slow by themselves."""
_TABLE: dict[str, Any] = {
    "paper": "ig",
    "quantities": ("psnr_normalised", "psnr", "ssim"),
    "laptop": _WIDE,
    "smoke": _ALONE,
}

ITEMS = (
    Item(
        **_TABLE, name="table1", about="What each part of the attack is worth.", heading=("setting",), cases=_ablation()
    ),
    Item(
        **_TABLE | {"smoke": SMOKE},
        name="fig3",
        about="Wider networks are read better.",
        heading=("model", "channels"),
        cases=_widths(),
        figure="bars",
    ),
    Item(
        **_TABLE | {"laptop": Cut(victims=1, steps=60, rounds=5, batches=2, ours=False)},
        name="fig4",
        about="ResNets of several depths after ten epochs (setting C).",
        heading=("model",),
        cases=_depths(),
        figure="pictures",
    ),
    Item(
        **_TABLE
        | {"laptop": Cut(victims=1, steps=60, ours=False, within=(("100", Cut(steps=8, victims=1, ours=False)),))},
        name="fig9",
        about="Several local steps, at several rates.",
        heading=("steps", "rate"),
        cases=_local(),
        figure="pictures",
    ),
    Item(
        **_TABLE | {"laptop": Cut(steps=6, ours=False)},
        name="fig10",
        about="A batch of 100 images of CIFAR-100.",
        heading=("images",),
        cases=_batch(),
        figure="pictures",
    ),
    Item(
        **_TABLE,
        name="fig14",
        about="Maximum against average pooling.",
        heading=("pooling",),
        cases=_pooling(),
        figure="pictures",
    ),
)


def _better(rows: tuple[str, ...], than: tuple[str, ...]) -> Higher:
    return Higher(rows=rows, than=than, quantity="psnr_normalised")


CLAIMS = (
    Claim(
        name="ig: cosine reads what squared distance does not",
        where="Table 1",
        item="ig/table1",
        checks=(_better(("basic",), ("L2",)),),
    ),
    Claim(
        name="ig: wider networks are read better",
        where="Sec. 4.2, Fig. 3",
        item="ig/fig3",
        checks=(_better(("ConvNet", "64"), ("ConvNet", "4")), _better(("ResNet-20", "64"), ("ResNet-20", "16"))),
    ),
    Claim(
        name="ig: average pooling gives away more than maximum pooling",
        where="Sec. 4.2, Fig. 14",
        item="ig/fig14",
        checks=(_better(("average",), ("max",)),),
    ),
    Claim(
        name="ig: depth does not protect",
        where="Sec. 4.2, Fig. 4",
        item="ig/fig4",
        checks=(Stated(rows=("ResNet-152",), quantity="ssim", above=0.5),),
    ),
    Claim(
        name="ig: many local steps do not protect",
        where="Sec. 6.1, Fig. 9",
        item="ig/fig9",
        checks=(Stated(rows=("100",), quantity="ssim", above=0.5),),
    ),
    Claim(
        name="ig: images leak from batches of 100",
        where="Sec. 6.2, Fig. 10",
        item="ig/fig10",
        checks=(Stated(rows=("100",), quantity="asr", above=0.0),),
    ),
)
