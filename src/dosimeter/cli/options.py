"""What every command takes: each option once, in groups, and the TOML file that may hold them instead.

A command is a frozen value of its options; nothing here waits for torch.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dosimeter.cli.config import read_config

_task, _whom, _how, _score, _machine, _output, _train = (
    partial(typer.Option, rich_help_panel=panel)
    for panel in ("Model and data", "Victims", "Attack and defense", "Scores", "Machine", "Output", "Training")
)


class Precision(StrEnum):
    float32 = "float32"
    float64 = "float64"


class Norm(StrEnum):
    running = "running"
    batch = "batch"
    sent = "sent"


class Kind(StrEnum):
    models = "models"
    data = "data"
    attacks = "attacks"
    defenses = "defenses"
    steps = "steps"
    servers = "servers"
    protocols = "protocols"
    studies = "studies"


Model = Annotated[str, _task(help="A model, with settings: convnet:width=32. Or path/to/file.py:function, yours.")]
Weights = Annotated[Path | None, _task(help="The model's weights: a state_dict as .safetensors, .npz, .pt or .pth.")]
Data = Annotated[str, _task(help="A data set's name, an .npz file or a folder of images.")]
Size = Annotated[int | None, _task(help="Resize images to this height and width.")]
Channels = Annotated[int | None, _task(help="Repeat grey images to 3 channels, or make colours grey with 1.")]
Seed = Annotated[int, _task(help="Names every random stream.")]
Split = Annotated[str, _whom(help="The split that images come from: train or test.")]
Batch = Annotated[int, _whom(help="Images in every update.")]
Attack = Annotated[str, _how(help="An attack, with settings: ig:tv=0.01,restarts=2. Or auto: all for the defense.")]
Defense = Annotated[str, _how(help="A defense, with settings: noise:sigma=0.01. Several are joined by |.")]
Steps = Annotated[int | None, _how(help="Steps of every search; an attack's own default otherwise.")]
Threshold = Annotated[float, _score(help="SSIM from which an image counts as read.")]
Delta = Annotated[float | None, _score(help="Distance (L2) beyond which an image was missed; adds the risk R(f).")]
Lpips = Annotated[
    list[Path] | None, _score(help="LPIPS weights, AlexNet, VGG-16 or both; else lpips_alex.pth in DOSIMETER_DATA.")
]
Metric = Annotated[list[str] | None, _score(help="A score of your own: path/to/file.py:NAME. May be repeated.")]
Protocol = Annotated[str, _train(help="How a federation trains, with settings: ppp:rounds=20,clients=5.")]
Seeds = Annotated[int, _train(min=1, help="Trainings that differ in their random numbers.")]
Workers = Annotated[int | None, _machine(help="Threads, or clients at once; one a core otherwise.")]
Out = Annotated[Path | None, _output(help="Run folder; a new one under runs/ otherwise. Training goes on from there.")]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")]
Overwrite = Annotated[bool, _output(help="Replace an older run.")]
Json = Annotated[bool, _output("--json", help="Print the records, and nothing else.")]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A model and data."""

    model: Model = "cnn"
    weights: Weights = None
    data: Data = "mnist-5k"
    size: Size = None
    channels: Channels = None
    loss: Annotated[str | None, _task(help="path/to/file.py:function (output, labels) -> number.")] = None
    batch_norm: Annotated[
        Norm, _task(help="Statistics: running ones, those of the private batch, or these sent with the update.")
    ] = Norm.running
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Places:
    """Where private images are."""

    split: Split = "train"
    indices: Annotated[str | None, _whom(help="These images, instead of drawn ones: 3+17+203.")] = None


@dataclass(frozen=True, kw_only=True)
class Victims(Places):
    """Who is attacked."""

    victims: Annotated[int, _whom(help="How many updates to attack.")] = 8
    batch: Batch = 1
    distinct: Annotated[bool, _whom("--distinct", help="Only different classes in every update.")] = False


@dataclass(frozen=True, kw_only=True)
class Search:
    """The attack, the defense and what clients send."""

    attack: Attack = "ig"
    steps: Steps = None
    defense: Defense = "none"
    step: Annotated[str, _how(help="What clients send: gradient, local:steps=5,lr=1e-4 (FedAvg), clipped:bound=1.")] = (
        "gradient"
    )
    guess_local_steps: Annotated[
        str | None, _how(help="Do not tell the attacker the local steps; it tries these: 1+2+5+10.")
    ] = None
    guess_local_lr: Annotated[
        str | None, _how(help="Do not tell it the local learning rate; it tries these: 1e-4+1e-3.")
    ] = None
    average_orders: Annotated[
        int | None, _how(help="Simulate clients that shuffle by the mean over so many orders.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How images are judged."""

    threshold: Threshold = 0.5
    delta: Delta = None
    decoys: Annotated[int, _score(help="Other images in the identification test.")] = 99
    lpips: Lpips = None
    metric: Metric = None


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What it runs on."""

    device: Annotated[str, _machine(help="cpu or cuda.")] = "cpu"
    dtype: Annotated[Precision, _machine(help="Precision of the attack.")] = Precision.float32
    budget: Annotated[float, _machine(help="GiB that the victims attacked at once may take.")] = 4.0
    workers: Workers = None


@dataclass(frozen=True, kw_only=True)
class Output:
    """What is printed and written."""

    config: Annotated[
        Path | None,
        _output(is_eager=True, callback=read_config, help="A TOML file of options, such as a run's run.toml."),
    ] = None
    out: Out = None
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Planned(Output):
    """The same, of what can be planned."""

    dry_run: Annotated[bool, _output(help="Say what would run and how long; nothing is written.")] = False


@dataclass(frozen=True, kw_only=True)
class Audit(Planned, Machine, Scores, Search, Victims, Task):
    """Attack a model's updates and report what could be read out of them."""

    server: Annotated[
        str, _how(help="A server that changes the model: permuted-rows, first-layer+separate-weights.")
    ] = "honest"
    rounds: Annotated[int, _whom(help="Updates of the same batch that the server sees.")] = 1
    same_client: Annotated[int, _whom(help="Victims in a row that are updates of one client.")] = 1
    fail_above: Annotated[
        float | None,
        _score(help="Exit with 1 when the success rate's interval reaches above this share, 3 when inconclusive."),
    ] = None
    explain: Annotated[bool, _output(help="Say which tensor is compared in which way and why.")] = False
    overwrite: Overwrite = False
    update: Annotated[str | None, typer.Option(hidden=True)] = None
    after: Annotated[str | None, typer.Option(hidden=True)] = None


_captured = partial(typer.Option, rich_help_panel="A captured update")


@dataclass(frozen=True, kw_only=True)
class Captured(Output, Machine, Scores, Search, Task):
    """Audit one captured update, of whose images nothing is known."""

    batch: Batch = 1
    split: Split = "train"
    update: Annotated[Path | None, _captured(help="The update: .safetensors, .npz, .pt or .pth.")] = None
    after: Annotated[
        Path | None, _captured(help="Or the weights after training; the update is before minus after.")
    ] = None
    labels: Annotated[str | None, _captured(help="Grant the attacker the labels: 3,5.")] = None
    truth: Annotated[Path | None, _captured(help="An .npz file with images and labels, for scores alone.")] = None
    shape: Annotated[str | None, _captured(help="Instead of --data: channels, height, width, as 3,32,32.")] = None
    shadows: Annotated[int, _captured(help="Updates of images of --data to compare with.")] = 8
    perturbed: Annotated[
        str, _captured(help="What its defense acts on: update (the change of weights) or steps (the gradient).")
    ] = "update"
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class Train(Planned, Places, Task):
    """Train a federation in this process and report its accuracy, round by round."""

    protocol: Protocol = "ppp:rounds=20"
    defense: Defense = "none"
    seeds: Seeds = 1
    workers: Workers = None


@dataclass(frozen=True, kw_only=True)
class Follow(Planned, Victims, Task):
    """Train, and attack the same victims at chosen rounds: leakage and accuracy over training."""

    protocol: Protocol = "bayes:steps=1,rounds=100"
    at: Annotated[str, _train(help="Rounds after which the victims are attacked: 0+10+20+50.")] = "0+10+20+50+100"
    attack: Attack = "ig"
    steps: Steps = None
    defense: Defense = "none"
    server: Annotated[
        list[str] | None, _how(help="A server: honest, permuted-rows (flips labels). May be repeated.")
    ] = None
    threshold: Threshold = 0.5
    workers: Workers = None


@dataclass(frozen=True, kw_only=True)
class _Tradeoff(Planned, Victims, Task):
    protocol: Protocol = "ppp:rounds=20"
    steps: Steps = 500
    threshold: Threshold = 0.5


@dataclass(frozen=True, kw_only=True)
class Compare(_Tradeoff):
    """Train with each defense and have it meet all attacks made for it: accuracy against privacy."""

    defense: Annotated[list[str], _how(help="A defense, with settings. Repeat it for each.")]
    seeds: Seeds = 1
    trained: Annotated[
        bool, _how("--trained", help="Attack the trained model instead of the untrained one, which leaks most.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Calibrate(_Tradeoff):
    """Find the weakest setting of a defense that stops all attacks made for it, and its accuracy."""

    defense: Defense
    allow: Annotated[float, _how(help="Share of images that may be read.")] = 0.0
    vary: Annotated[str | None, _how(help="The setting to turn up; the defense's usual one otherwise.")] = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Make the page of a run anew from its folder: an audit's, a panel's, a captured update's, a training's, ..."""

    run: Run


@dataclass(frozen=True, kw_only=True)
class Score:
    """Score the images of a run again, without attacking: what an audit with these options would have said."""

    run: Run
    threshold: Annotated[
        float | None, _score(help="SSIM from which an image counts as read; the run's own otherwise.")
    ] = None
    delta: Delta = None
    lpips: Annotated[list[Path] | None, _score(help="LPIPS weights, AlexNet, VGG-16 or both.")] = None
    metric: Metric = None
    out: Annotated[Path | None, _output(help="Run folder; RUN-scored-1 otherwise.")] = None
    overwrite: Overwrite = False
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Check:
    """Check a model that a server sent; ends with 1 when something was noticed."""

    model: Model = "cnn"
    weights: Annotated[Path | None, _task(help="The weights that the server sent.")] = None
    sent: Annotated[
        str | None, _task(help="path/to/file.py:function of the program that the server sent; it is run.")
    ] = None
    before: Annotated[list[Path] | None, _task(help="Weights of an earlier round; repeat it, the last round last.")] = (
        None
    )
    data: Data = "mnist-5k"
    size: Size = None
    channels: Channels = None
    batch: Annotated[int, _task(min=2, help="Images of the client's step.")] = 4


@dataclass(frozen=True, kw_only=True)
class List:
    """Show the models, data sets, attacks, defenses, steps, servers, protocols or studies that go by name."""

    kind: Annotated[Kind, typer.Argument(help="What to list.")]


@dataclass(frozen=True, kw_only=True)
class Study:
    """Run a study and print its table in Markdown; rows that are in its file already are not run again."""

    name: Annotated[str, typer.Argument(help="One of `dosimeter list studies`.")]
    out: Annotated[Path | None, _output(help="Folder for study.json; a run that was stopped goes on from it.")] = None
    only: Annotated[list[str] | None, typer.Option(help="Only rows of this model. May be repeated.")] = None
    victims: Annotated[int | None, typer.Option(min=1, help="Images to attack in every row.")] = None
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the attack in every row.")] = None
    data: Annotated[str | None, typer.Option(help="Another data set for every row.")] = None
    threshold: Annotated[
        float | None, typer.Option(help="SSIM from which an image counts as read; by default its paper's, or 0.5.")
    ] = None
    metric: Metric = None


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Train a small generator for the attack ggl, on images that are not attacked: a variational autoencoder."""

    data: Data = "mnist-5k"
    split: Annotated[str, _task(help="The split to learn from; victims should come from the other.")] = "test"
    size: Size = None
    channels: Channels = None
    images: Annotated[int | None, typer.Option(min=1, help="Learn from so many images; all otherwise.")] = None
    latent: Annotated[int, typer.Option(help="Numbers of the latent.")] = 128
    width: Annotated[int, typer.Option(help="Channels before the last block.")] = 8
    epochs: Annotated[int, typer.Option(help="Passes over the images.")] = 10
    seed: Seed = 0
    out: Annotated[Path, _output(help="The file to write.")] = Path("generator.safetensors")
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class Policies:
    """Search transformations for the defense ats: of those that cost little accuracy the ones that leak least."""

    model: Model = "cnn"
    data: Data = "mnist-5k"
    candidates: Annotated[int, typer.Option(min=1, help="Policies to try.")] = 50
    length: Annotated[int, typer.Option(min=1, help="Operations in each.")] = 3
    keep: Annotated[float, typer.Option(help="The share of them that passes, by the score for accuracy.")] = 0.5
    images: Annotated[int, typer.Option(min=2, help="Images of the train split that they are scored on.")] = 32
    epochs: Annotated[int, typer.Option(min=1, help="Passes over a tenth of the data before leakage is scored.")] = 10
    seed: Seed = 0
    out: Annotated[Path, _output(help="The file to write.")] = Path("policies.json")
    overwrite: Overwrite = False


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Run one attack by the engine and by the usual way, and say how far apart the images' SSIM end."""

    data: Data = "mnist-5k"
    model: Model = "cnn"
    victims: Annotated[int, typer.Option(help="Images to attack.")] = 32
    steps: Annotated[int, typer.Option(help="Steps of Inverting Gradients.")] = 1000
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Time the engine beside the usual way of matching gradients, all of them in turn in one run."""

    quick: Annotated[bool, typer.Option(help="Tiny bursts and few victims, to see that all works.")] = False
    out: Annotated[Path, typer.Option(help="Folder for bench.json and bench.svg.")] = Path("runs/bench")
    only: Annotated[
        list[str] | None, typer.Option(help="Measure only this: a case or victims, batch, width. May be repeated.")
    ] = None
    seconds: Annotated[float | None, typer.Option(help="About how long a burst of one way takes.")] = None
    breaching: Annotated[
        Path | None, typer.Option(help="The python of an environment that has breaching, to measure it as well.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Paces:
    """Time the training of a federation beside Flower's simulation of it and beside a plain loop of PyTorch."""

    data: Data = "mnist-5k"
    model: Model = "cnn"
    protocol: Annotated[str, typer.Option(help="Clients and their training, without rounds.")] = "ppp:clients=4"
    rounds: Annotated[int, typer.Option(help="Rounds that count; one more is run before them.")] = 3
    turns: Annotated[int, typer.Option(help="How often all ways are measured in turn.")] = 3
    workers: Annotated[int, typer.Option(help="Clients at once, each on one core.")] = 2
    flower: Annotated[bool, typer.Option(help="Measure Flower's simulation as well.")] = True


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Show where the time of the engine's step goes, operation by operation, on one tile and one thread."""

    only: Annotated[list[str] | None, typer.Option(help="Profile only this case. May be repeated.")] = None
    lines: Annotated[int, typer.Option(min=1, help="Operations to show, the costliest first.")] = 20
    quick: Annotated[bool, typer.Option(help="Few victims of small models, to see that all works.")] = False
