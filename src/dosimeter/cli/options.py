"""What every command takes: each option once, in groups. A command is a frozen value of its options.

Nothing here waits for torch.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import typer

from dosimeter import checks
from dosimeter.cli.config import read_config
from dosimeter.cli.console import refusals
from dosimeter.errors import SettingError


def _under(panel: str | None) -> Callable[..., Any]:
    """Options under one heading of the help, each by its sentence, its names and what else typer takes."""

    def option(text: str, *names: str, **more: Any) -> Any:
        return typer.Option(*names, help=text, rich_help_panel=panel, **more)

    return option


def _of(option: Any, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"option": option})


_PANELS = ("Model and data", "Victims", "Attack and defense", "Scores", "Machine", "Output", "Training")
_task, _whom, _how, _score, _machine, _output, _train = map(_under, _PANELS)
_captured, _kept, _plain = _under("A captured update"), _under("A federation's kept updates"), _under(None)
_tuned = _under("Tuning")


class HowMuch(StrEnum):
    """How much of a paper's table is run."""

    smoke, laptop, paper = "smoke", "laptop", "paper"


class Precision(StrEnum):
    float32, float64 = "float32", "float64"


class Norm(StrEnum):
    running, batch, sent = "running", "batch", "sent"


class Pick(StrEnum):
    random, largest, smallest = "random", "largest-gradient", "smallest-gradient"


class Severity(StrEnum):
    error, warning, note = "error", "warning", "note"


class Format(StrEnum):
    html, pdf = "html", "pdf"


class Kind(StrEnum):
    models, data, attacks, defenses = "models", "data", "attacks", "defenses"
    steps, servers, protocols, studies = "steps", "servers", "protocols", "studies"


MODEL = _task("A model, with settings: convnet:width=32. Or path/to/file.py:function, yours.")
DATA = _task("A data set's name, an .npz file or a folder of images.")
SIZE = _task("Resize images to this height and width.")
CHANNELS = _task("Repeat grey images to 3 channels, or make colours grey with 1.")
SEED = _task("Names every random stream.")
SPLIT = _whom("The split that images come from: train or test.")
BATCH = _whom("Images in every update.")
ATTACK = _how("An attack, with settings: ig:tv=0.01,restarts=2. Or auto: all for the defense.")
DEFENSE = _how("A defense, with settings: noise:sigma=0.01. Several are joined by |.")


def _steps(given: object) -> int | str:
    """A number of steps, which a file has as one, or the word for as many as it takes."""
    word = str(given)
    if word == "auto":
        return word
    if not word.isdecimal() or not 1 <= int(word[:20]) <= checks.MOST_STEPS:
        with refusals():
            most = f"{checks.MOST_STEPS:,}"
            raise SettingError(f"A search needs steps of at least 1, or auto, and at most {most}, got {word[:20]}.")
    return int(word)


_STEPS = {"parser": _steps, "metavar": "INTEGER|auto"}
STEPS = _how("Steps of every search, or auto: until it no longer improves. Else a paper's own, or auto.", **_STEPS)
THRESHOLD = _score("SSIM from which an image counts as read.")
DELTA = _score("Distance (L2) beyond which an image was missed; adds the risk R(f).")
METRIC = _score("A score of your own: path/to/file.py:NAME. May be repeated.")
PROTOCOL = _train("How a federation trains, with settings: ppp:rounds=20,clients=5.")
SEEDS = _train("Trainings that differ in their random numbers.", min=1, max=1000)
MINUTES = _machine("Time for all attacks of an audit; what is not done by then counts as not told.")
UNTIL_READ = _machine("End a panel (--attack auto) once its attacks have read every image.")
WORKERS = _machine("Threads, or clients at once; one a core otherwise.")
ON = _machine(
    "Where trials run: here, in turn; local:2, two processes of one thread each; or on Ray: ray (on this machine), "
    "ray:HOST:6379 (a cluster that it is part of), ray://HOST:10001 (any other)."
)
OVERWRITE = _output("Replace an older run.")
JSON = _output("Print the records, and nothing else.", "--json")
EXPLAIN = _output("Print reasons, too: why attacks were refused, what rates mean, all scores.", "--explain")
RUN = typer.Argument(metavar="RUN", help="The folder of a run.")
RUNS = typer.Argument(metavar="RUN...", help="The folder of a run, or several of audits to compare.")
FILE = _output("The file to write.")


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model and data."""

    model: str = _of(MODEL, "cnn")
    weights: Path | None = _of(_task("The model's weights: a state_dict as .safetensors, .npz, .pt or .pth."), None)
    data: str = _of(DATA, "mnist-5k")
    size: int | None = _of(SIZE, None)
    channels: int | None = _of(CHANNELS, None)
    loss: str | None = _of(_task("path/to/file.py:function (output, labels) -> number."), None)
    batch_norm: Norm = _of(_task("Statistics: running ones, or of the private batch; these may be sent."), Norm.running)
    seed: int = _of(SEED, 0)


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where private images are."""

    split: str = _of(SPLIT, "train")
    indices: str | None = _of(_whom("These images, instead of drawn ones: 3+17+203."), None)


@dataclass(frozen=True, kw_only=True)
class Victims(Places):
    """Who is attacked."""

    victims: int = _of(_whom("How many updates to attack."), 8)
    batch: int = _of(BATCH, 1)
    distinct: bool = _of(_whom("Only different classes in every update.", "--distinct"), False)


@dataclass(frozen=True, kw_only=True)
class Search:
    """The attack, the defense and what clients send."""

    attack: str = _of(ATTACK, "ig")
    steps: Any = _of(STEPS, None)
    defense: str = _of(DEFENSE, "none")
    step: str = _of(_how("What clients send: gradient, local:steps=5,lr=1e-4 (FedAvg), clipped:bound=1."), "gradient")
    guess_local_steps: str | None = _of(_how("Do not tell the attacker the local steps; it tries these: 1+2+5."), None)
    guess_local_lr: str | None = _of(_how("Do not tell it the local learning rate; it tries these: 0.1+0.01."), None)
    average_orders: int | None = _of(_how("Simulate clients that shuffle by the mean over so many orders."), None)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How images are judged."""

    threshold: float = _of(THRESHOLD, 0.5)
    delta: float | None = _of(DELTA, None)
    decoys: int = _of(_score("Other images in the identification test."), 99)
    lpips: list[Path] | None = _of(_score("LPIPS weights, Alex, VGG or both; lpips_alex.pth is found."), None)
    metric: list[str] | None = _of(METRIC, None)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What it runs on."""

    device: str = _of(_machine("cpu or cuda."), "cpu")
    dtype: Precision = _of(_machine("Precision of the attack."), Precision.float32)
    budget: float = _of(_machine("GiB that the victims attacked at once may take."), 4.0)
    workers: int | None = _of(WORKERS, None)
    minutes: float | None = _of(MINUTES, None)
    until_read: bool = _of(UNTIL_READ, False)


_CONFIG = _output("A TOML file of options, such as a run's run.toml.", is_eager=True, callback=read_config)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is printed and written."""

    config: Path | None = _of(_CONFIG, None)
    out: Path | None = _of(_output("Run folder; a new one under runs/ otherwise. Training goes on from it."), None)
    json: bool = _of(JSON, False)


@dataclass(frozen=True, kw_only=True)
class Planned(Output):
    """The same, of what can be planned."""

    dry_run: bool = _of(_output("Say what would run and how long; nothing is written."), False)


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What a server kept of its clients."""

    kept: Path | None = _of(_kept("Audit what flower.Keep wrote in this folder, by client and round."), None)
    at: str | None = _of(_kept("Only updates of these rounds: 1+10+50."), None)
    most: int = _of(_kept("Search for the images of updates of at most so many.", min=0), 16)
    shape: str | None = _of(_kept("Instead of --data: channels, height, width, as 3,32,32."), None)
    shadows: int = _of(_kept("Updates of images of --data that each round is compared with.", min=0), 8)
    truth: Path | None = _of(_kept("A folder with round-1/node-123.npz (images, labels), for scores alone."), None)
    pool: str | None = _of(_kept("Images that may be in the updates: a data set, an .npz file or a folder."), None)


@dataclass(frozen=True, kw_only=True)
class Audit(Planned, Machine, Scores, Search, Federation, Victims, Task):
    """Attack a model's updates and report what could be read out of them."""

    server: str = _of(_how("A server that changes the model: permuted-rows, first-layer+separate-weights."), "honest")
    pick: Pick = _of(_whom("Victims at random, or those of 256 updates with the largest gradients."), Pick.random)
    rounds: int = _of(_whom("Updates of the same batch that the server sees."), 1)
    same_client: int = _of(_whom("Victims in a row that are updates of one client."), 1)
    fail_above: str | None = _of(
        _score("A gate: 0.05, or read=0.05,identified=0.1. Exit with 1 when more leaks, 3 when that cannot be told."),
        None,
    )
    dose: bool = _of(_output("Measure the dose of every image beside the attacks.", "--dose"), False)
    explain: bool = _of(EXPLAIN, False)
    quiet: bool = _of(_output("Print the verdict in one line.", "--quiet"), False)
    overwrite: bool = _of(OVERWRITE, False)
    update: str | None = _of(_plain("A captured update.", hidden=True), None)
    after: str | None = _of(_plain("A captured update.", hidden=True), None)


@dataclass(frozen=True, kw_only=True)
class Dose(Planned, Victims, Task):
    """Measure how much of each private image its update determines, without running any attack."""

    defense: str = _of(DEFENSE, "none")
    step: str = _of(_how("What clients send: gradient, local:steps=5,lr=1e-4 (FedAvg), clipped:bound=1."), "gradient")
    server: str = _of(_how("A server that changes the model."), "honest")
    rounds: int = _of(_whom("Updates of the same batch that the server sees; their information adds up."), 1)
    clients: int = _of(_whom("Clients whose mean alone the server sees (secure aggregation).", min=1), 1)
    others: str = _of(
        _how("What other clients hold: images (unknown too), or noise:updates=1000 (covariance of public updates)."),
        "images",
    )
    prior: str = _of(
        _how("What is known of images: images (covariance of public ones, those of the train split), white or none."),
        "images",
    )
    public: int = _of(_how("How many public images the prior is made of.", min=20), 12_000)
    plan: str | None = _of(
        _how("share=0.05: the smallest noise, or by=clients their number, that leaves no image as much determined."),
        None,
    )
    noise: str | None = _of(_how("Draw the dose over these strengths of Gaussian noise: 1e-4+1e-2+1."), None)
    tensors: str = _of(_output("What each tensor tells, of the worst image, of all or of none."), "worst")
    budget: float = _of(_machine("GiB that the exact matrices may take."), 4.0)


@dataclass(frozen=True, kw_only=True)
class Captured(Output, Machine, Scores, Search, Task):
    """Audit one captured update, of whose images nothing is known."""

    batch: int = _of(BATCH, 1)
    split: str = _of(SPLIT, "train")
    update: Path | None = _of(_captured("The update: .safetensors, .npz, .pt or .pth."), None)
    after: Path | None = _of(_captured("Or the weights after training; the update is before minus after."), None)
    labels: str | None = _of(_captured("Grant the attacker the labels: 3,5."), None)
    truth: Path | None = _of(_captured("An .npz file with images and labels, for scores alone."), None)
    shape: str | None = _of(_captured("Instead of --data: channels, height, width, as 3,32,32."), None)
    shadows: int = _of(_captured("Updates of images of --data to compare with."), 8)
    perturbed: str = _of(_captured("What its defense acts on: update (the change of weights) or steps."), "update")
    gate: bool = _of(_score("Exit with 1 when the update leaks, 3 when that cannot be told."), False)
    explain: bool = _of(EXPLAIN, False)
    overwrite: bool = _of(OVERWRITE, False)


@dataclass(frozen=True, kw_only=True)
class Train(Planned, Places, Task):
    """Train a federation in this process and report its accuracy, round by round."""

    protocol: str = _of(PROTOCOL, "ppp:rounds=20")
    defense: str = _of(DEFENSE, "none")
    seeds: int = _of(SEEDS, 1)
    workers: int | None = _of(WORKERS, None)


@dataclass(frozen=True, kw_only=True)
class Follow(Planned, Victims, Task):
    """Train, and attack the same victims at chosen rounds: leakage and accuracy over training."""

    protocol: str = _of(PROTOCOL, "bayes:steps=1,rounds=100")
    at: str = _of(_train("Rounds after which the victims are attacked: 0+10+20+50."), "0+10+20+50+100")
    attack: str = _of(ATTACK, "ig")
    steps: Any = _of(STEPS, None)
    defense: str = _of(DEFENSE, "none")
    server: list[str] | None = _of(_how("A server: honest, permuted-rows (flips labels). May be repeated."), None)
    threshold: float = _of(THRESHOLD, 0.5)
    workers: int | None = _of(WORKERS, None)
    minutes: float | None = _of(MINUTES, None)
    dose: bool = _of(_output("Measure the dose of every image, too, by the white prior.", "--dose"), False)
    on: str = _of(ON, "here")


@dataclass(frozen=True, kw_only=True)
class Tradeoff(Planned, Victims, Task):
    """Training and attacks beside each other."""

    protocol: str = _of(PROTOCOL, "ppp:rounds=20")
    steps: Any = _of(STEPS, "auto")
    minutes: float | None = _of(MINUTES, None)
    threshold: float = _of(THRESHOLD, 0.5)


@dataclass(frozen=True, kw_only=True)
class Compare(Tradeoff):
    """Train with each defense and have it meet all attacks made for it: accuracy against privacy."""

    defense: list[str] = _of(_how("A defense, with settings. Repeat it for each."))
    seeds: int = _of(SEEDS, 1)
    explain: bool = _of(_output("Print what each verdict rests on.", "--explain"), False)
    trained: bool = _of(_how("Attack the trained model, not the untrained one, which leaks most.", "--trained"), False)
    on: str = _of(ON, "here")


@dataclass(frozen=True, kw_only=True)
class Calibrate(Tradeoff):
    """Find the weakest setting of a defense that stops all attacks made for it, and its accuracy."""

    defense: str = _of(DEFENSE)
    allow: float = _of(_how("Share of images that may be read.", min=0, max=1), 0.0)
    vary: str | None = _of(_how("The setting to turn up; the defense's usual one otherwise."), None)
    plan: str = _of(_how("Begin with noise that leaves this share determined by the dose, or none."), "share=0.05")


@dataclass(frozen=True, kw_only=True)
class Sweep(Planned):
    """Run many audits as one: every combination of what is repeated. What is kept in its folder is not run again."""

    model: list[str] = _of(_task("A model, with settings. May be repeated."), ("cnn",))
    data: list[str] = _of(_task("A data set. May be repeated."), ("mnist-5k",))
    size: int | None = _of(SIZE, None)
    channels: int | None = _of(CHANNELS, None)
    weights: Path | None = _of(_task("The models' weights."), None)
    seed: int = _of(SEED, 0)
    seeds: int = _of(_task("Repeat all with so many seeds.", min=1, max=1000), 1)
    victims: int = _of(_whom("How many updates to attack."), 8)
    batch: list[int] = _of(_whom("Images in every update. May be repeated."), (1,))
    split: str = _of(SPLIT, "train")
    attack: list[str] = _of(_how("An attack, or auto: all for the defense. May be repeated."), ("auto",))
    steps: Any = _of(STEPS, None)
    defense: list[str] = _of(_how("A defense; noise:sigma=0.01+0.1 is two. May be repeated."), ("none",))
    step: list[str] = _of(_how("What clients send. May be repeated."), ("gradient",))
    server: list[str] = _of(_how("A server. May be repeated."), ("honest",))
    protocol: list[str] | None = _of(_train("Train before, with the defense. May be repeated."), None)
    threshold: float = _of(THRESHOLD, 0.5)
    until_read: bool = _of(UNTIL_READ, False)
    rows: str = _of(_output("What the table has a row for."), "defense")
    columns: str = _of(_output("What it has a column for."), "model")
    show: str = _of(_output("What stands in its cells: ssim, read, verdict, accuracy, ..."), "ssim")
    retry_failed: bool = _of(_output("Run those again that failed."), False)
    on: str = _of(ON, "here")
    shards: int = _of(
        _machine("Attack the victims of each trial in so many parts side by side, with the same results.", min=1), 1
    )


@dataclass(frozen=True, kw_only=True)
class Tune(Planned):
    """Choose an attack's settings on images of the attacker's own, and keep them as the preset tuned:NAME."""

    model: str = _of(MODEL, "cnn")
    weights: Path | None = _of(_task("The model's weights."), None)
    data: str = _of(DATA, "mnist-5k")
    size: int | None = _of(SIZE, None)
    channels: int | None = _of(CHANNELS, None)
    seed: int = _of(SEED, 0)
    split: str = _of(SPLIT, "train")
    victims: int = _of(
        _whom("Updates on which the untuned and the tuned attack are compared at last; 0: none.", min=0), 8
    )
    batch: int = _of(BATCH, 1)
    attack: str = _of(_how("A search, with the settings that are not tuned: bayes:density=laplace."), "bayes")
    steps: Any = _of(STEPS, None)
    defense: str = _of(DEFENSE, "none")
    step: str = _of(_how("What clients send: gradient, local:steps=5,lr=1e-4 (FedAvg)."), "gradient")
    server: str = _of(_how("A server that changes the model."), "honest")
    protocol: str | None = _of(_train("Train before, with the defense."), None)
    threshold: float = _of(THRESHOLD, 0.5)
    space: str = _of(_tuned("Settings to choose from: default, bayes-480 or bayes-540."), "default")
    set: list[str] | None = _of(_tuned("Or yours: lr=0.01..1:log, decay=steps,cosine. May be repeated."), None)
    trials: int | None = _of(_tuned("Settings to try; a grid's all otherwise, or 64.", min=2), None)
    budget: int | None = _of(_tuned("Or image-steps that they may take together.", min=1), None)
    sampler: str | None = _of(
        _tuned("Who proposes them: tpe, random, grid (which bayes-480 is), qmc, gp, cmaes."), None
    )
    prune: str | None = _of(_tuned("Stop poor ones early: halving, median or none, which a grid does."), None)
    points: int = _of(_tuned("Values of a range in a grid.", min=2), 4)
    shadows: int = _of(_tuned("Updates of the attacker's own images.", min=1), 8)
    by: str = _of(_tuned("The score that counts on them: psnr or ssim."), "psnr")
    at_once: int = _of(_tuned("Settings that are proposed and tried together.", min=1, max=1024), 16)
    name: str | None = _of(_tuned("Of the preset; the attack, model and defense otherwise."), None)
    workers: int | None = _of(WORKERS, None)
    overwrite: bool = _of(_output("Replace a preset of that name."), False)


@dataclass(frozen=True, kw_only=True)
class TuneBench:
    """Tune on a grid and by Optuna's samplers at equal cost, seed by seed, and time many settings beside one."""

    model: str = _of(MODEL, "cnn")
    data: str = _of(DATA, "mnist-5k")
    defense: str = _of(DEFENSE, "noise:sigma=0.01")
    attack: str = _of(ATTACK, "bayes:density=gaussian,scale=0.01")
    steps: int = _of(_how("Steps of every search."), 100)
    space: str = _of(_tuned("The grid's: default, of values of every range, bayes-480 or bayes-540."), "default")
    set: list[str] = _of(
        _tuned("What is tuned. May be repeated."), ("lr=0.05..2:log", "tv=0.01..100:log", "decay=0.92..1.0")
    )
    points: int = _of(_tuned("Values of a range in the grid.", min=2), 4)
    sampler: list[str] = _of(_tuned("Beside the grid. May be repeated."), ("random", "tpe"))
    shadows: int = _of(_tuned("Updates of the attacker's own images.", min=1), 8)
    victims: int = _of(_whom("Updates on which what was found is compared.", min=1), 16)
    seed: int = _of(SEED, 0)
    seeds: int = _of(_task("Repeat all with so many seeds.", min=1, max=1000), 3)
    out: Path = _of(_output("Folder; a run that was stopped goes on from it."), Path("runs/bench-tune"))
    json: bool = _of(JSON, False)


STORE = typer.Argument(metavar="STORE", help="The folder of a sweep.")


@dataclass(frozen=True, kw_only=True)
class StoreList:
    """List the trials of a store."""

    store: Path = _of(STORE)
    status: str | None = _of(_plain("Only those that are done, running or failed."), None)


@dataclass(frozen=True, kw_only=True)
class StoreShow:
    """Show one trial: its words, numbers and records, or why it failed."""

    store: Path = _of(STORE)
    trial: str = _of(typer.Argument(metavar="TRIAL", help="Its digest, or the beginning of it."))


@dataclass(frozen=True, kw_only=True)
class StoreExport:
    """Write all done trials, or all of their records, to a file: .csv, .jsonl or .parquet (needs pyarrow)."""

    store: Path = _of(STORE)
    file: Path = _of(typer.Argument(metavar="FILE", help="What to write; its ending says how."))
    records: bool = _of(_plain("A row for every image, not for every trial.", "--records"), False)


@dataclass(frozen=True, kw_only=True)
class StoreMerge:
    """Take over all done trials of other stores that are missing in the first one."""

    store: Path = _of(STORE)
    others: list[Path] = _of(typer.Argument(metavar="OTHER...", help="Stores to take from; they stay as they are."))


@dataclass(frozen=True, kw_only=True)
class App:
    """Explore a store of trials in the browser: filter, compare, look at pictures, start audits."""

    store: Path | None = _of(_plain("The folder of a sweep; otherwise the newest one under runs/."), None)
    host: str = _of(_plain("The address to listen on; one that others reach needs a --token."), "127.0.0.1")
    port: int = _of(_plain("The port; 0 takes one that is free.", min=0, max=65535), 8050)
    token: str | None = _of(
        _plain(
            "What browsers must know, of 16 letters or more; better given as $DOSIMETER_TOKEN.",
            envvar="DOSIMETER_TOKEN",
        ),
        None,
    )


@dataclass(frozen=True, kw_only=True)
class StorePrune:
    """Forget trials and remove their folders: failed ones, or those of a program that has changed since."""

    store: Path = _of(STORE)
    failed: bool = _of(_plain("Those that failed.", "--failed"), False)
    stale: bool = _of(_plain("Those that would have another digest today.", "--stale"), False)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Make the page of a run anew from its folder: an audit's, a panel's, a captured update's, a training's, ...

    Of several folders of audits it makes one page that compares them.
    """

    runs: list[Path] = _of(RUNS)
    out: Path | None = _of(_output("The file to write; in the run's folder otherwise, or comparison.html."), None)
    redact: bool = _of(_output("Leave out originals and reconstructions, and say so."), False)
    format: Format = _of(_output("A page, or a PDF of it, for which Chromium is needed."), Format.html)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score the images of a run again, without attacking: what an audit with these options would have said."""

    run: Path = _of(RUN)
    threshold: float | None = _of(_score("SSIM from which an image counts as read; else the run's own."), None)
    delta: float | None = _of(DELTA, None)
    lpips: list[Path] | None = _of(_score("LPIPS weights, AlexNet, VGG-16 or both."), None)
    metric: list[str] | None = _of(METRIC, None)
    out: Path | None = _of(_output("Run folder; RUN-scored-1 otherwise."), None)
    explain: bool = _of(EXPLAIN, False)
    overwrite: bool = _of(OVERWRITE, False)
    json: bool = _of(JSON, False)


@dataclass(frozen=True, kw_only=True)
class Lint:
    """Say what of a model leaks by its structure, in a second and without data, and which attack shows it."""

    model: str = _of(MODEL, "cnn")
    weights: Path | None = _of(_task("The model's weights; structure hardly depends on them."), None)
    shape: str = _of(_task("Channels, height and width of images."), "3,32,32")
    classes: int = _of(_task("Classes of a model of the list.", min=2, max=1_000_000), 10)
    data: str | None = _of(_task("Data whose form and classes to take instead, and that commands then name."), None)
    batch_norm: Norm = _of(_task("Statistics: running ones, or of the private batch; these may be sent."), Norm.running)
    seed: int = _of(SEED, 0)
    batch: int = _of(BATCH, 1)
    defense: str = _of(DEFENSE, "none")
    step: str = _of(_how("What clients send: gradient, local:steps=5,lr=1e-4 (FedAvg), clipped:bound=1."), "gradient")
    explain: bool = _of(_output("Say what every layer determines at most, and why attacks do not fit."), False)
    json: bool = _of(_output("Print what was found as JSON, and nothing else.", "--json"), False)
    sarif: Path | None = _of(_output("Write what was found as SARIF, for pipelines."), None)
    fail_on: Severity | None = _of(_output("Exit with 1 when something of this level or a worse one was found."), None)


@dataclass(frozen=True, kw_only=True)
class Check:
    """Check a model that a server sent; ends with 1 when something was noticed."""

    model: str = _of(MODEL, "cnn")
    weights: Path | None = _of(_task("The weights that the server sent."), None)
    sent: str | None = _of(_task("path/to/file.py:function of the program that the server sent; it is run."), None)
    before: list[Path] | None = _of(_task("Weights of an earlier round; repeat it, the last round last."), None)
    data: str = _of(DATA, "mnist-5k")
    size: int | None = _of(SIZE, None)
    channels: int | None = _of(CHANNELS, None)
    batch: int = _of(_task("Images of the client's step.", min=2), 4)


@dataclass(frozen=True, kw_only=True)
class List:
    """Show the models, data sets, attacks, defenses, steps, servers, protocols or studies that go by name."""

    kind: Kind = _of(typer.Argument(help="What to list."))


@dataclass(frozen=True, kw_only=True)
class Study:
    """Run a study and print its table in Markdown; what is kept in its folder is not run again."""

    name: str = _of(typer.Argument(help="One of `dosimeter list studies`."))
    out: Path | None = _of(_output("Folder that keeps all trials, for other studies too; a stopped run goes on."), None)
    only: list[str] | None = _of(_plain("Only rows of this model. May be repeated."), None)
    victims: int | None = _of(_plain("Images to attack in every row.", min=1), None)
    steps: Any = _of(_plain("Steps of the attack in every row, or auto.", **_STEPS), None)
    data: str | None = _of(_plain("Another data set for every row."), None)
    threshold: float | None = _of(_plain("SSIM from which an image counts as read; by default its paper's."), None)
    metric: list[str] | None = _of(METRIC, None)
    on: str = _of(ON, "here")


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Run a table or figure of the five papers and print what it gives beside what the paper prints."""

    name: str | None = _of(
        typer.Argument(
            metavar="PAPER/ITEM", help="One of --list, all, or map: every defense under every attack made for it."
        ),
        None,
    )
    list: bool = _of(_plain("List all tables and figures.", "--list"), False)
    claims: bool = _of(_plain("Judge every claim by what --out keeps, or files of --results.", "--claims"), False)
    scale: HowMuch = _of(_plain("smoke: does it run; laptop: an hour at most; paper: as published."), HowMuch.laptop)
    ours: bool = _of(_plain("Also set every attack made for a defense on the same victims.", "--ours/--own-only"), True)
    out: Path = _of(
        _output("Folder that keeps all trials, for all tables; a stopped run goes on."), Path("runs/papers")
    )
    results: Path | None = _of(_output("Also write table, numbers and figures into this folder, as small files."), None)
    redact: bool = _of(_output("Leave out pictures of data among these files, to publish them."), False)
    dry_run: bool = _of(_output("Say how many trials are left and how long they take; nothing is written."), False)
    on: str = _of(ON, "here")


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Train a small generator for the attack ggl, on images that are not attacked: a variational autoencoder."""

    data: str = _of(DATA, "mnist-5k")
    split: str = _of(_task("The split to learn from; victims should come from the other."), "test")
    size: int | None = _of(SIZE, None)
    channels: int | None = _of(CHANNELS, None)
    images: int | None = _of(_plain("Learn from so many images; all otherwise.", min=1), None)
    latent: int = _of(_plain("Numbers of the latent."), 128)
    width: int = _of(_plain("Channels before the last block."), 8)
    epochs: int = _of(_plain("Passes over the images."), 10)
    seed: int = _of(SEED, 0)
    out: Path = _of(FILE, Path("generator.safetensors"))
    overwrite: bool = _of(OVERWRITE, False)


@dataclass(frozen=True, kw_only=True)
class Policies:
    """Search transformations for the defense ats: of those that cost little accuracy the ones that leak least."""

    model: str = _of(MODEL, "cnn")
    data: str = _of(DATA, "mnist-5k")
    candidates: int = _of(_plain("Policies to try.", min=1, max=100_000), 50)
    length: int = _of(_plain("Operations in each.", min=1, max=100), 3)
    keep: float = _of(_plain("The share of them that passes, by the score for accuracy."), 0.5)
    variant: str = _of(_plain("What places stand for: released, the program's list, or autoaugment."), "released")
    images: int = _of(_plain("Images of the train split that they are scored on.", min=2), 32)
    epochs: int = _of(_plain("Passes over a tenth of the data before leakage is scored.", min=1, max=10_000), 10)
    seed: int = _of(SEED, 0)
    out: Path = _of(FILE, Path("policies.json"))
    overwrite: bool = _of(OVERWRITE, False)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Run one attack by the engine and by the usual way, and say how far apart the images' SSIM end."""

    data: str = _of(DATA, "mnist-5k")
    model: str = _of(MODEL, "cnn")
    victims: int = _of(_plain("Images to attack."), 32)
    steps: int = _of(_plain("Steps of Inverting Gradients."), 1000)
    seed: int = _of(SEED, 0)


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Time the engine beside the usual way of matching gradients, all of them in turn in one run."""

    quick: bool = _of(_plain("Tiny bursts and few victims, to see that all works."), False)
    out: Path = _of(_plain("Folder for bench.json and bench.svg."), Path("runs/bench"))
    only: list[str] | None = _of(_plain("Only this: a case, imagenet, victims, batch or width. May be repeated."), None)
    seconds: float | None = _of(_plain("About how long a burst of one way takes."), None)
    rounds: int | None = _of(_plain("How often all ways run a burst in turn.", min=1), None)
    cores: int | None = _of(_plain("Cores at once, all by default; one core is measured in any case."), None)
    breaching: Path | None = _of(_plain("The python of an environment that has breaching, to measure it too."), None)


@dataclass(frozen=True, kw_only=True)
class Paces:
    """Time the training of a federation beside Flower's simulation of it and beside a plain loop of PyTorch."""

    data: str = _of(DATA, "mnist-5k")
    model: str = _of(MODEL, "cnn")
    protocol: str = _of(_plain("Clients and their training, without rounds."), "ppp:clients=4")
    rounds: int = _of(_plain("Rounds that count; one more is run before them."), 3)
    turns: int = _of(_plain("How often all ways are measured in turn."), 3)
    workers: int = _of(_plain("Clients at once, each on one core."), 2)
    flower: bool = _of(_plain("Measure Flower's simulation as well."), True)


@dataclass(frozen=True, kw_only=True)
class Swept:
    """Time what a sweep adds to its trials here, in processes and on Ray, and how much two workers gain over one."""

    trials: int = _of(_plain("Trials of every sweep."), 8)
    steps: int = _of(_plain("Steps of a long trial; short ones have one."), 1500)
    model: str = _of(MODEL, "cnn")
    victims: int = _of(_plain("Images that each attacks."), 8)
    turns: int = _of(_plain("How often all places are measured in turn."), 1)
    ray: bool = _of(_plain("Measure Ray as well, where it is installed."), True)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Say what auditing very many updates would cost on many machines, by what work costs on this one."""

    updates: int = _of(_plain("Updates that are audited.", min=1), 1_000_000)
    nodes: int = _of(_plain("Machines.", min=1), 10)
    cores: int = _of(_plain("Cores of each.", min=1), 32)
    hours: float = _of(_plain("After which one of them fails on average."), 1000.0)
    json: bool = _of(_plain("Print the numbers as JSON.", "--json"), False)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Say what audits were planned to take of memory beside what they took at most, each in a process of its own."""

    only: str | None = _of(_plain("Only settings in whose words this stands: resnet18, batch, rounds."), None)
    figure: Path | None = _of(_plain("Also draw both into this SVG."), None)
    json: bool = _of(_plain("Print the numbers as JSON.", "--json"), False)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Fit what work costs on this machine, for `sweep --dry-run`, and check that on two audits not among its cases."""

    out: Path | None = _of(_plain("Write prices there; by default where sweeps on this machine find them."), None)
    quick: bool = _of(_plain("Few cases and no audits, to see that all works; nothing is written."), False)


@dataclass(frozen=True, kw_only=True)
class LintBench:
    """Time lint on every model of the list, each in a process of its own, beside loading torch."""

    only: list[str] | None = _of(_plain("Time only this model. May be repeated."), None)
    turns: int = _of(_plain("How often each is run; the fastest counts.", min=1), 3)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Show where the time of the engine's step goes, operation by operation, on one tile and one thread."""

    only: list[str] | None = _of(_plain("Profile only this case. May be repeated."), None)
    lines: int = _of(_plain("Operations to show, the costliest first.", min=1), 20)
    quick: bool = _of(_plain("Few victims of small models, to see that all works."), False)
