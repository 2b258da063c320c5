"""Commands that are good and quick, to each of which one hostile word is added."""

from typing import NamedTuple


class Base(NamedTuple):
    """A good command, and what its options may be."""

    words: tuple[str, ...]
    without: tuple[str, ...] = ()
    """Options that are left alone: those under which a good command takes long or waits for people."""
    any: tuple[str, ...] = ()
    """Options that take any words."""
    sane: tuple[tuple[str, str], ...] = ()
    """Values that may be accepted besides."""
    arguments: tuple[str, ...] = ()


MODEL = ("--model", "{files}/models.py:good")
DATA = ("--data", "{files}/data.npz")
TASK = (*MODEL, *DATA)
ONE = ("--victims", "1")
SHORT = (*TASK, *ONE, "--steps", "2")
DRY = ("--dry-run",)
ROUNDS = ("--protocol", "ppp:rounds=1,clients=2")

NAMES = ("=", "+", "nan", "-1", "99999999999999999999", "1e308+nan")
TUNED = (*(("name", each) for each in NAMES), ("victims", "0"))
"""Words that name a tuned attack as well as others, and to compare it on no victims."""

BASES: dict[str, tuple[Base, ...]] = {
    "audit": (
        Base(("audit", *SHORT, "--decoys", "3", *DRY), any=("out",)),
        Base(("audit", *SHORT, "--decoys", "3")),
    ),
    "dose": (Base(("dose", *TASK, *ONE, "--public", "20"), sane=(("plan", ""),)),),
    "captured": (
        Base(("captured", *MODEL, "--weights", "{files}/weights.safetensors", "--shape", "1,8,8", "--steps", "2",
              "--update", "{files}/update.safetensors")),
    ),
    "report": (Base(("report", "{files}/run", "--out", "page.html")),),
    "score": (Base(("score", "{files}/run")),),
    "check": (Base(("check", *TASK, "--weights", "{files}/weights.safetensors")),),
    "lint": (Base(("lint", *MODEL, "--shape", "1,8,8")),),
    "study": (Base(("study", "nosuch")),),
    "reproduce": (Base(("reproduce", "bayes/fig4", "--scale", "smoke", *DRY)),),
    "train": (Base(("train", *TASK, *ROUNDS)), Base(("train", *TASK, *ROUNDS, *DRY))),
    "follow": (Base(("follow", *SHORT, *ROUNDS, "--at", "0", *DRY), sane=(("at", "0"),)),),
    "compare": (Base(("compare", *SHORT, *ROUNDS, "--defense", "none", *DRY)),),
    "calibrate": (Base(("calibrate", *SHORT, *ROUNDS, "--defense", "noise:sigma=0.01", *DRY), sane=(("plan", ""),)),),
    "sweep": (Base(("sweep", *SHORT, "--attack", "ig", *DRY), any=("show",)),),
    "tune": (Base(("tune", *SHORT, "--attack", "ig", "--trials", "2", "--shadows", "1", *DRY), sane=TUNED),),
    "train-generator": (
        Base(("train-generator", *DATA, "--epochs", "1", "--latent", "2", "--width", "1", "--images", "4")),
    ),
    "search-policies": (
        Base(("search-policies", *TASK, "--candidates", "1", "--images", "2", "--epochs", "1")),
    ),
    "store list": (Base(("store", "list", "{files}/store")),),
    "store export": (Base(("store", "export", "{files}/store", "trials.csv")),),
}  # fmt: skip
"""By command. The explorer waits for browsers, and other benchmarks take minutes by their nature."""

SETTINGS: dict[str, tuple[str, ...]] = {
    "attack": ("audit", *TASK, *ONE, *DRY),
    "defense": ("audit", *SHORT, *DRY),
    "server": ("audit", *SHORT, *DRY),
    "step": ("audit", *SHORT, *DRY),
    "protocol": ("train", *TASK, *DRY),
    "model": ("audit", *DATA, *ONE, "--steps", "2", *DRY),
}
"""Commands under which the settings of parts of each kind are tried."""
