"""CVB: Federated Learning with Convolutional Variational Bottlenecks (Scheliga, Mäder, Seeland 2023).

Attacks of Sec. V-B on 128 untrained victims, one image an update; accuracies of ten clients after up to 300 rounds, as
the mean of three trainings. Scores are taken after every image is scaled to fill [0, 1], LPIPS by VGG, as its program
does; gray images are fed as three channels. Victims with such a SSIM of 0.5 and more count as read (ASR).
"""

from dataclasses import replace
from fractions import Fraction
from typing import Any

from dosimeter.papers.claims import Claim, Higher, Kept, Stated
from dosimeter.papers.item import Case, Cut, Item
from dosimeter.papers.published import Line, read
from dosimeter.sweeps import Course, Trial

DATA = {
    "MNIST": "mnist",
    "CIFAR-10": "cifar10",
    "Pneumonia": "pneumoniamnist",
    "Derma": "dermamnist",
    "Retina": "retinamnist",
    "Blood": "bloodmnist",
}
MODELS = {"CNN": "cnn", "ResNet-18": "resnet18", "ViT": "vit-released"}
GREY = ("MNIST", "Pneumonia")
MEDICAL = {
    "Pneumonia": "cvb:kernel=5,beta=0.001",
    "Derma": "cvb:kernel=3",
    "Retina": "cvb:kernel=3,beta=0.001",
    "Blood": "cvb",
}
"""k_E and beta of each set (Sec. VI-E)."""
ATTACKS = {"iDLG": "idlg:variant=cvb", "CPL": "cpl:variant=cvb", "IG": "ig-cvb:variant=released"}
STEPS = {"iDLG": 2000, "CPL": 2000, "IG": 20_000}
LEFT_OUT = {
    "3": {"D": "classifier.bottleneck.decoder", "4": "classifier.layer"},
    "2": {"D": "features.4.bottleneck.decoder", "3": "features.4.layer", "4": "classifier"},
}
"""By the bottleneck's position: its decoder, and the layers by their numbers."""
SIZES = {"1": 8, "2": 16, "3": 32}
"""K of PRECODE by its position, half of the channels there (Sec. IV)."""
IGNORE = "ignore:variant=released"
SCORES = ("ssim_minmax", "asr", "psnr_minmax", "mse_minmax", "lpips_vgg")


def _case(
    line: Line,
    *,
    data: str = "CIFAR-10",
    model: str = "CNN",
    defense: str = "none",
    attack: str = "IG",
    train: bool = True,
) -> Case:
    """A row; drawn noise meets the attack that ignores what it touches."""
    drawn = defense.startswith(("cvb", "precode"))
    words: dict[str, Any] = {"model": MODELS[model], "data": DATA[data], "defense": defense}
    words["channels"] = 3 if data in GREY else None
    by = ATTACKS[attack]
    if drawn:
        by = IGNORE if attack == "IG" else f"{by},ignore=noise"
    trial = Trial(**words, attack=by, steps=STEPS[attack], victims=128, decoys=0, lpips=True)
    course = Course(**words, protocol="cvb") if train else None
    return Case(name=tuple(line.words.values()), trial=trial, course=course, published=line.numbers)


def _defense(name: str) -> str:
    """In the words of the command line: None, DP 0.01, GC 0.9, PRECODE 32 or CVB."""
    kind, _, number = name.partition(" ")
    return {
        "None": "none",
        "CVB": "cvb",
        "DP": f"dp-sgd:clip=20,sigma={number}",
        "GC": f"prune:ratio={number}",
        "PRECODE": f"precode:k={number},beta=0.01,bias=false,position=1",
    }[kind]


def _precode(at: str) -> str:
    return f"precode:k={SIZES[at]},beta=0.01,bias=false,position={at}"


def _left_out() -> tuple[Case, ...]:
    """Which tensors the attack leaves out, with PRECODE at a position (counted by convolutions)."""
    found = []
    for line in read("cvb-1", 2):
        at, left = line.words["position"], line.words["left out"]
        if at == "none":
            case = _case(line, train=False)
        else:
            case = _case(line, defense=_precode(at), train=False)
            assert case.trial is not None
            behind = {"D+4": "3", "D+3+4": "2"}.get(left) == at
            names = "+".join(LEFT_OUT[at][each] for each in left.split("+")) if left != "nothing" else ""
            own = IGNORE if behind else ATTACKS["IG"] + (f",leave={names}" if names else "")
            case = replace(case, trial=replace(case.trial, attack=own))
        found.append(case)
    return tuple(found)


def _positions() -> tuple[Case, ...]:
    lines = read("cvb-2", 1)
    where = {"none": "none"} | {at: _precode(at) for at in SIZES}
    return tuple(_case(line, defense=where[line.words["position"]]) for line in lines)


def _attacks() -> tuple[Case, ...]:
    return tuple(
        _case(
            line,
            data=line.words["data"],
            attack=line.words["attack"],
            defense=_defense(line.words["defense"]),
            train=False,
        )
        for line in read("cvb-9", 3)
    )


def _defenses() -> tuple[Case, ...]:
    return tuple(
        _case(line, data=line.words["data"], defense=_defense(line.words["defense"])) for line in read("cvb-10", 2)
    )


def _models() -> tuple[Case, ...]:
    ours = {"CNN": "cvb", "ResNet-18": "cvb:beta=5e-05", "ViT": "cvb:kernel=3"}
    return tuple(
        _case(
            line,
            data=line.words["data"],
            model=(model := line.words["model"]),
            defense="none" if line.words["defense"] == "None" else ours[model],
        )
        for line in read("cvb-11", 3)
    )


def _medical() -> tuple[Case, ...]:
    found = []
    for line in read("cvb-12", 2):
        data, bare = line.words["data"], line.words["defense"] == "None"
        found.append(_case(line, data=data, defense="none" if bare else MEDICAL[data]))
    return tuple(found)


def _settings(of: str = "") -> tuple[Case, ...]:
    """Position, kernel, scale and weight of the bottleneck; those of one alone, beside none."""
    found = []
    for line in read("cvb-8", 1):
        name, _, value = line.words["setting"].partition("=")
        if of and name not in ("None", of):
            continue
        at = "+".join(value.strip("()").split())
        defense = {
            "None": "none",
            "P": f"cvb:kernel=1,position={at}",
            "k": f"cvb:kernel={value}",
            "s": f"cvb:scale={float(Fraction(value)) if name == 's' else 0:g}",
            "beta": f"cvb:beta={value}",
        }[name]
        found.append(_case(line, defense=defense))
    return tuple(found)


def _traces() -> tuple[Case, ...]:
    """The attack on all gradients of the CNN without a defense, with PRECODE and with CVB, tensor by tensor."""
    settings = (
        ("None", "none", ATTACKS["IG"]),
        ("PRECODE", _precode("3"), ATTACKS["IG"]),
        ("CVB", "cvb", ATTACKS["IG"]),
        ("CVB, Ignore", "cvb", IGNORE),
    )
    found = []
    for name, defense, attack in settings:
        trial = Trial(data="cifar10", defense=defense, attack=f"{attack},trace=true", steps=20_000, victims=1, decoys=0)
        found.append(Case(name=(name,), trial=trial, ours=False))
    return tuple(found)


_LAPTOP = Cut(victims=8, steps=1000, rounds=5, batches=16, seeds=1, panel=300)
_MANY = replace(_LAPTOP, victims=4, steps=400, rounds=3, batches=8, panel=60)
"""Of tables of dozens of rows."""
_OTHERS = (
    ("ViT", Cut(victims=1, steps=100, trainings=False, panel=15)),
    ("ResNet-18", Cut(victims=1, steps=30, trainings=False, panel=8)),
    ("iDLG", replace(_MANY, steps=40)),
    ("CPL", replace(_MANY, steps=40)),
)
"""Networks of which little fits, and attacks of 20 iterations a step."""
_SHORT = "Accuracies are those of a training that ends long before the paper's does."
_READS = "The attack that ignores what PRECODE's noise touches reads more here than in the paper: why was not found."
_TABLE: dict[str, Any] = {
    "paper": "cvb",
    "differs": f"{_SHORT} {_READS}",
    "seeds": 3,
    "laptop": _LAPTOP,
    "judged": "ssim_minmax",
}
_SHORTER = {"laptop": replace(_MANY, within=_OTHERS)}

ITEMS = (
    Item(
        **_TABLE | {"differs": _READS},
        name="table1",
        about="PRECODE behind the third and the second convolution, by the tensors that the attack leaves out.",
        heading=("position", "left out"),
        quantities=("asr",),
        cases=_left_out(),
    ),
    Item(
        **_TABLE,
        name="table2",
        about="PRECODE at three positions, under the attack that ignores what it touches.",
        heading=("position",),
        quantities=("ssim_minmax", "asr", "accuracy", "parameters"),
        cases=_positions(),
    ),
    Item(
        **_TABLE | _SHORTER | {"differs": ""},
        name="table3",
        about="Three attacks on the CNN without a defense and with CVB; with Table IX's scores.",
        heading=("data", "attack", "defense"),
        quantities=SCORES,
        cases=_attacks(),
    ),
    Item(
        **_TABLE,
        name="table4",
        about="Defenses of the CNN: DP-SGD, pruning, PRECODE and CVB; with Table X's scores.",
        heading=("data", "defense"),
        quantities=(*SCORES, "accuracy", "parameters"),
        cases=_defenses(),
    ),
    Item(
        **_TABLE | _SHORTER,
        name="table5",
        about="CNN, ResNet-18 and ViT without a defense and with CVB; with Table XI's scores.",
        heading=("data", "model", "defense"),
        quantities=(*SCORES, "accuracy"),
        cases=_models(),
    ),
    Item(
        **_TABLE,
        name="table6",
        about="Four sets of medical images; with Table XII's scores.",
        heading=("data", "defense"),
        quantities=(*SCORES, "accuracy"),
        cases=_medical(),
    ),
    Item(
        **_TABLE | _SHORTER,
        name="table8",
        about="CVB's position, kernel, scale and weight.",
        heading=("setting",),
        quantities=(*SCORES, "accuracy"),
        cases=_settings(),
    ),
    Item(
        **_TABLE | {"laptop": Cut(steps=1000)},
        name="fig5",
        about="Cosine and norm of every tensor over the attack's steps, and two entries of each (Fig. 6).",
        heading=("defense",),
        quantities=("ssim_minmax", "psnr_minmax", "steps"),
        cases=_traces(),
        figure="series",
    ),
    Item(
        **_TABLE | _SHORTER,
        name="fig9",
        about="SSIM and accuracy over CVB's settings.",
        heading=("setting",),
        quantities=("ssim_minmax", "accuracy"),
        cases=_settings(),
        figure="bars",
    ),
    Item(
        **_TABLE | _SHORTER,
        name="fig11",
        about="Accuracy against privacy over models and sets.",
        heading=("data", "model", "defense"),
        quantities=("accuracy", "ssim_minmax"),
        cases=_models(),
        figure="tradeoff",
    ),
)

CLAIMS = (
    Claim(
        name="cvb: no image of CIFAR-10 is read under CVB",
        where="Tables III and IV",
        item="cvb/table4",
        checks=(Stated(rows=("CIFAR-10", "CVB"), quantity="asr", below=0.5),),
    ),
    Claim(
        name="cvb: images of CIFAR-10 are read without a defense",
        where="Tables III and IV",
        item="cvb/table4",
        checks=(Stated(rows=("CIFAR-10", "None"), quantity="asr", above=50.0),),
    ),
    Claim(
        name="cvb: of three attacks Inverting Gradients reads most",
        where="Table III",
        item="cvb/table3",
        checks=tuple(
            Higher(rows=(data, "IG", "None"), than=(data, other, "None"), quantity="ssim_minmax")
            for data in ("MNIST", "CIFAR-10")
            for other in ("iDLG", "CPL")
        ),
    ),
    Claim(
        name="cvb: noise that hides images costs accuracy",
        where="Table IV",
        item="cvb/table4",
        checks=(
            Stated(rows=("CIFAR-10", "DP 0.1"), quantity="asr", below=0.5),
            Higher(rows=("CIFAR-10", "None"), than=("CIFAR-10", "DP 0.1"), quantity="accuracy"),
        ),
    ),
    Claim(
        name="cvb: PRECODE with a wide bottleneck protects nothing",
        where="Table IV",
        item="cvb/table4",
        checks=(Stated(rows=("PRECODE 512",), quantity="asr", above=50.0),),
    ),
    Claim(
        name="cvb: CVB holds on every model",
        where="Table V",
        item="cvb/table5",
        checks=(Stated(rows=("CVB",), quantity="ssim_minmax", below=0.5),),
    ),
    Claim(
        name="cvb: CVB gains accuracy",
        where="Table IV",
        item="cvb/table4",
        checks=(Kept(rows=("CVB",), against=("None",)),),
    ),
    Claim(
        name="cvb: CVB holds on medical images",
        where="Table VI",
        item="cvb/table6",
        checks=(Stated(rows=("CVB",), quantity="ssim_minmax", below=0.5),),
    ),
    Claim(
        name="cvb: ignoring what PRECODE touches reads images behind it",
        where="Table I",
        item="cvb/table1",
        checks=(Stated(rows=("3", "D+4"), quantity="asr", above=50.0),),
    ),
    Claim(
        name="cvb: PRECODE early in the network needs many parameters",
        where="Table II",
        item="cvb/table2",
        checks=(Higher(rows=("1",), than=("none",), quantity="parameters", by=2.0),),
    ),
    Claim(
        name="cvb: CVB needs fewer parameters than PRECODE at the same place",
        where="Sec. IV",
        item="cvb/table4",
        checks=(Higher(rows=("CIFAR-10", "PRECODE 8"), than=("CIFAR-10", "CVB"), quantity="parameters"),),
    ),
)
