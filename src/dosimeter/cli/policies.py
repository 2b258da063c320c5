"""`dosimeter search-policies`: transformations for the defense `ats`, found for a model and its data."""

import copy
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dosimeter import defenses, federated, files
from dosimeter.cli.console import err, out, refusals
from dosimeter.cli.train import DATA, MODEL
from dosimeter.defenses.ats import OPERATIONS, Scored
from dosimeter.errors import OutputError, SettingError
from dosimeter.federated.setup import Setup
from dosimeter.progress import bar
from dosimeter.rng import numpy_stream, stream

SHOWN = 5


def policies_command(
    model: Annotated[str, MODEL] = "cnn",
    data_: Annotated[str, DATA] = "mnist-5k",
    candidates: Annotated[int, typer.Option(min=1, help="Policies to try.")] = 50,
    length: Annotated[int, typer.Option(min=1, help="Operations in each.")] = 3,
    keep: Annotated[float, typer.Option(help="The share of them that passes, by the score for accuracy.")] = 0.5,
    images: Annotated[int, typer.Option(min=2, help="Images of the train split that they are scored on.")] = 32,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over a tenth of the data before leakage is scored.")] = 10,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
    out_: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("policies.json"),
    overwrite: Annotated[bool, typer.Option(help="Replace an older file.")] = False,
) -> None:
    """Search transformations for the defense ats: of those that cost little accuracy the ones that leak least."""
    with refusals():
        if out_.is_dir() or (out_.exists() and not overwrite):
            raise OutputError(f"{str(out_)!r} is there already; replace it with --overwrite or choose another --out.")
        files.check_writable(out_.parent)
        if not 0 < keep <= 1:
            raise SettingError(f"The share of policies to keep is above 0 and at most 1, got --keep {keep:g}.")
        # One of ten clients takes part in the only round, which leaves the model trained on a tenth of the data.
        protocol = f"ppp:rounds=1,clients=10,share=0.1,epochs={epochs}"
        task = Setup(model=model, data=data_, protocol=protocol, seed=seed).federation()
        if task.dataset.classes is None:
            raise SettingError(f"Policies are searched for classes, and {task.dataset.name} has none; use other data.")
        places = numpy_stream(seed, "policies").permutation(task.dataset.count("train"))[:images]
        untrained = copy.deepcopy(task.model).eval()
        half_trained = copy.deepcopy(untrained)
        try:
            half_trained.load_state_dict(federated.train(task, tested=()).state)
            with bar("leakage of policies", None) as advance:
                found = defenses.search_policies(
                    half_trained,
                    untrained,
                    task.images("train", places),
                    task.labels("train", places),
                    candidates=candidates,
                    length=length,
                    keep=keep,
                    rng=stream(seed, "policies"),
                    advance=advance,
                )
        except KeyboardInterrupt:
            err.print("Interrupted; no policies were written.")
            raise typer.Exit(130) from None
        said = {"model": model, "data": data_, "candidates": candidates, "length": length, "keep": keep}
        said |= {"images": len(places), "epochs": epochs, "seed": seed}
        listed = [{"policy": one.words, "leakage": one.leakage, "accuracy": one.accuracy} for one in found]
        files.replace_json(out_, {"program": "dosimeter", "said": said, "policies": listed})
    out.print(_best(found))
    best = "+".join(one.words for one in found[:2])
    use = shlex.join(["dosimeter", "audit", "--model", model, "--data", data_, "--defense", f"ats:policy={best}"])
    out.print(f"{escape(str(out_))}: {len(found)} of {candidates} policies", soft_wrap=True, highlight=False)
    out.print(f"use the best, or several of them joined by +: {escape(use)}", soft_wrap=True, highlight=False)


def _best(found: list[Scored]) -> Table:
    table = Table("policy", "leakage", "accuracy score", "operations", box=None, pad_edge=False)
    for one in found[:SHOWN]:
        operations = ", ".join("{} {}".format(*OPERATIONS[place]) for place in one.policy)
        table.add_row(one.words, f"{one.leakage:.3f}", f"{one.accuracy:.3g}", operations)
    return table
