"""`dosimeter search-policies`: transformations for the defense `ats`, found for a model and its data."""

import copy
import shlex

import typer

from dosimeter import defenses, federated, files
from dosimeter.cli import options
from dosimeter.cli.console import err, hint, out
from dosimeter.defenses.ats import Scored
from dosimeter.defenses.operations import VARIANTS
from dosimeter.errors import OutputError, SettingError, unknown
from dosimeter.federated.setup import Setup
from dosimeter.lines import Grid, say, shell
from dosimeter.progress import bar
from dosimeter.rng import numpy_stream, stream

SHOWN = 5


def run(asked: options.Policies) -> None:
    """Score policies and write the best."""
    if asked.out.is_dir() or (asked.out.exists() and not asked.overwrite):
        raise OutputError(f"{str(asked.out)!r} is there already; replace it with --overwrite or choose another --out.")
    files.check_writable(asked.out.parent)
    if asked.variant not in VARIANTS:
        raise SettingError(unknown("variant of ATS", asked.variant, VARIANTS))
    if not 0 < asked.keep <= 1:
        raise SettingError(f"The share of policies to keep is above 0 and at most 1, got --keep {asked.keep:g}.")
    # One of ten clients takes part in the only round, which leaves the model trained on a tenth of the data.
    protocol = f"ppp:rounds=1,clients=10,share=0.1,epochs={asked.epochs}"
    task = Setup(model=asked.model, data=asked.data, protocol=protocol, seed=asked.seed).federation()
    if task.dataset.classes is None:
        raise SettingError(f"Policies are searched for classes, and {task.dataset.name} has none; use other data.")
    places = numpy_stream(asked.seed, "policies").permutation(task.dataset.count("train"))[: asked.images]
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
                candidates=asked.candidates,
                length=asked.length,
                keep=asked.keep,
                variant=asked.variant,  # type: ignore[arg-type]
                rng=stream(asked.seed, "policies"),
                advance=advance,
            )
    except KeyboardInterrupt:
        err.print("Interrupted; no policies were written.")
        raise typer.Exit(130) from None
    said = {key: value for key, value in vars(asked).items() if key not in ("out", "overwrite")}
    said |= {"images": len(places)}
    listed = [{"policy": one.words, "leakage": one.leakage, "accuracy": one.accuracy} for one in found]
    files.replace_json(asked.out, {"program": "dosimeter", "said": said, "policies": listed})
    _best(found, VARIANTS[asked.variant].operations).print(out)
    out.print()
    best = "+".join(one.words for one in found[:2])
    own = "" if asked.variant == defenses.Ats().variant else f",variant={asked.variant}"
    use = shlex.join(
        ["dosimeter", "audit", "--model", asked.model, "--data", asked.data, "--defense", f"ats:policy={best}{own}"]
    )
    say(out, f"{asked.out}: {len(found)} of {asked.candidates} policies")
    hint("use the best, or several of them joined by +:")
    say(out, [f"  {line}" for line in shell(use, out.width - 2)])


def _best(found: list[Scored], operations: tuple[tuple[str, int], ...]) -> Grid:
    table = Grid("policy", "leakage", "accuracy score", "operations")
    for one in found[:SHOWN]:
        done = ", ".join("{} {}".format(*operations[place]) for place in one.policy)
        table.add_row(one.words, f"{one.leakage:.3f}", f"{one.accuracy:.3g}", done)
    return table
