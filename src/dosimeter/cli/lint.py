"""`dosimeter lint`: what of a model leaks by its structure."""

import ast
from dataclasses import replace
from pathlib import Path

import typer
from torch import nn

from dosimeter import files, spec
from dosimeter.auditing.linting.findings import Level, Linted
from dosimeter.auditing.linting.lint import lint
from dosimeter.cli import options
from dosimeter.cli.captured import shape_of
from dosimeter.cli.config import given
from dosimeter.cli.console import err, hint, out
from dosimeter.cli.parts import print_json
from dosimeter.errors import SettingError
from dosimeter.lines import Grid, say, shell
from dosimeter.reports import pipelines
from dosimeter.task import load_shaped, load_task
from dosimeter.types import Shape

AT_HAND, SIDE, CLASSES = "mnist-5k", 28, 10
"""The data that commands name where none was given: digits, which come with the installation."""
YOURS = "YOURS.npz"
"""What they name where the model cannot take digits."""


def run(asked: options.Lint) -> None:
    """Lint the model, print and write what was found."""
    if asked.sarif is not None:
        files.check_writable(asked.sarif.parent, instead="--sarif")
    model, shape, classes = _load(asked)
    found = lint(
        model,
        shape,
        defense=asked.defense,
        batch=asked.batch,
        step=None if asked.step == "gradient" else asked.step,
        batch_norm=asked.batch_norm.value,
        seed=asked.seed,
    )
    found = replace(found, options=_options(asked, shape, classes))
    if asked.sarif is not None:
        pipelines.write_lint(asked.sarif, found, _source(asked.model))
    if asked.json:
        print_json({"model": asked.model, "shape": shape} | found.document())
    else:
        _print(found, explain=asked.explain)
    if asked.fail_on is not None and (bad := found.from_level(Level[asked.fail_on.value.upper()])):
        err.print(f"{len(bad)} of level {asked.fail_on.value} or worse.", highlight=False)
        raise typer.Exit(1)


def _load(asked: options.Lint) -> tuple[nn.Module, Shape, int]:
    """The model, and the form of its images: of data, or as it was said."""
    if asked.data is None:
        shape = shape_of(asked.shape)
        model = load_shaped(asked.model, shape, classes=asked.classes, seed=asked.seed, weights=asked.weights)
        return model, shape, asked.classes
    if clash := [said for name, said in given().items() if name in ("shape", "classes")]:
        raise SettingError(f"The form of images is that of --data, beside which {', '.join(clash)} says it again.")
    task = load_task(asked.model, asked.data, seed=asked.seed, weights=asked.weights)
    return task.model, task.dataset.shape, task.dataset.classes or 0


def _options(asked: options.Lint, shape: Shape, classes: int) -> dict[str, str]:
    """Of a command that audits the same model; those that an audit has by itself are left out."""
    channels, height, width = shape
    said = {"--model": asked.model}
    if asked.weights is not None:
        said["--weights"] = str(asked.weights)
    if asked.data is not None:
        said["--data"] = asked.data
    elif height == width and channels in (1, 3) and classes >= CLASSES:
        said |= {"--data": AT_HAND, "--size": str(height)} | ({"--channels": "3"} if channels == 3 else {})
    else:
        said["--data"] = YOURS
    usual = {"--batch": ("1", str(asked.batch)), "--defense": ("none", asked.defense)}
    usual |= {"--step": ("gradient", asked.step), "--batch-norm": ("running", asked.batch_norm.value)}
    usual |= {"--seed": ("0", str(asked.seed))}
    return said | {option: value for option, (default, value) in usual.items() if value != default}


def _print(found: Linted, *, explain: bool) -> None:
    """A table, and beneath it of each leak the command that shows it and what removes it."""
    if found.leaks:
        table = Grid("level", "leak", "where", "what")
        for leak in found.leaks:
            table.add_row(leak.level.word, leak.rule, leak.where or "model", leak.what)
        table.print(out)
    for leak in found.leaks:
        out.print(f"\n{leak.rule}", highlight=False)
        first, *rest = shell(found.command(leak), out.width - 14)
        say(out, [f"  shown by    {first}", *(f"              {line}" for line in rest)])
        say(out, f"  removed by  {leak.remedy}", hang=14)
    if explain:
        _explain(found)
    say(out, f"\n{found.summary()}" if found.leaks or explain else found.summary())
    hint("run the first of these commands" if found.leaks else "dosimeter audit --attack auto, with the model's data")


def _explain(found: Linted) -> None:
    table = Grid("weight", "shape", "places", "numbers in", "fixed at most")
    for layer in found.layers:
        size = "x".join(map(str, layer.shape))
        shown = (layer.name, size, f"{layer.places:,}", f"{layer.numbers:,}", f"{layer.rank:,} ({layer.share:.0%})")
        table.add_row(*shown)
    out.print()
    table.print(out)
    say(out, f"\nwhat becomes of updates: {found.channel}", hang=4)
    for attack, reason in found.refused.items():
        say(out, f"{attack} does not fit: {reason}", hang=4)


def _source(words: str) -> pipelines.Source | None:
    """Where the user's own model is defined."""
    if not spec.is_own(words):
        return None
    place, _, rest = words.partition(".py:")
    path, name = Path(f"{place}.py"), rest.partition(":")[0]
    kinds = ast.FunctionDef | ast.ClassDef
    found = (node for node in ast.parse(path.read_text()).body if isinstance(node, kinds) and node.name == name)
    return pipelines.Source(path.as_posix(), next((node.lineno for node in found), 1))
