"""FedKL: Gradient Leakage Defense with Key-Lock Module for Federated Learning (Ren, Deng, Xie, Ma, Ma 2023).

Its "MSE" is a root mean square on 0-255 images and its PSNR 10 log10(255^2 / that), so that a true PSNR is twice the
printed one less 48.1 dB. Three clients; accuracies are means over clients of each one's best round.
"""

from typing import Any

from dosimeter.papers.claims import Claim, Kept, Stated
from dosimeter.papers.item import Case, Cut, Item
from dosimeter.papers.published import read
from dosimeter.sweeps import Course, Trial

DATA = {"MNIST": "mnist", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "ILSVRC": "imagenet_samples_224"}
MODELS = {
    "LeNet": "lenet-bn",
    "ResNet-20": "resnet20",
    "ResNet-32": "resnet32",
    "ResNet-18": "resnet18-imagenet",
    "ResNet-34": "resnet34",
    "VGG-16": "vgg16-bn",
}
LARGE = ("ResNet-18", "ResNet-34", "VGG-16")
TRAININGS = {"centralized": "fedkl-central", "federated": "fedkl"}
ATTACKS = {"DLG": "dlg", "GRNN": "grnn", "IG": "ig:tv=0.01", "GGL": "ggl"}
STEPS = {"DLG": 300, "GRNN": 1000, "IG": 24_000, "GGL": 500}
LOCK = "fedkl"
DAYS = "days of training at 224x224 on these cores; name a machine with --on"


def _words(model: str, data: str, lock: str) -> dict[str, Any]:
    words: dict[str, Any] = {"model": MODELS[model], "data": DATA[data], "defense": LOCK if lock == "with" else "none"}
    if model == "LeNet":
        words["size"] = 32
    return words


def _accuracies() -> tuple[Case, ...]:
    found = []
    for line in read("fedkl-1", 3):
        training, model, data = line.words.values()
        for lock, value in line.numbers.items():
            course = Course(**_words(model, data, lock), protocol=TRAININGS[training])
            name = (training, model, data, lock)
            needs = DAYS if model in LARGE else ""
            found.append(Case(name=name, course=course, published={"accuracy": value}, needs=needs))
    return tuple(found)


def _attacked() -> tuple[Case, ...]:
    found = []
    for line in read("fedkl-6", 4):
        attack, model, data, lock = line.words.values()
        more: dict[str, Any] = {"batch_norm": "running" if attack == "IG" else "batch"}
        trial = Trial(
            **_words(model, data, lock), attack=ATTACKS[attack], steps=STEPS[attack], victims=8, decoys=0, lpips=True,
            **more,
        )  # fmt: skip
        needs = "images of 256x256 and a generator for them" if model in LARGE else ""
        found.append(Case(name=(attack, model, data, lock), trial=trial, published=line.numbers, needs=needs))
    return tuple(found)


_TABLE: dict[str, Any] = {"paper": "fedkl"}

ITEMS = (
    Item(
        **_TABLE,
        name="table1",
        about="Accuracy with and without the lock.",
        heading=("training", "model", "data", "lock"),
        quantities=("accuracy",),
        cases=_accuracies(),
        laptop=Cut(rounds=3),
    ),
    Item(
        **_TABLE,
        name="table6",
        about="Attacks on models with and without the lock, in the paper's own units.",
        heading=("attack", "model", "data", "lock"),
        quantities=("rmse_bytes", "psnr_bytes", "lpips_vgg", "lpips", "ssim"),
        cases=_attacked(),
        laptop=Cut(victims=4, steps=500),
    ),
)

CLAIMS = (
    Claim(
        name="fedkl: the lock costs little accuracy",
        where="Table I",
        item="fedkl/table1",
        checks=(Kept(rows=("with",), against=("without",), within=3.0),),
    ),
    Claim(
        name="fedkl: with the lock images are not read",
        where="Table VI",
        item="fedkl/table6",
        checks=(Stated(rows=("with",), quantity="ssim", below=0.5),),
    ),
)
