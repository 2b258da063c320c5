"""`dosimeter dose`: how much of each private image its update determines, without running any attack."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log10
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from dosimeter import checks, data, files, spec, store
from dosimeter.auditing import Audit, Resources, Result, Updates, part
from dosimeter.cli import options
from dosimeter.cli.config import write_config
from dosimeter.cli.console import err, out
from dosimeter.cli.parts import finish, pick, place, planned
from dosimeter.doses import (
    Aggregation,
    Doses,
    ImageDose,
    Images,
    Level,
    Show,
    White,
    beside,
    dose,
    over_noise,
    plan_of,
    wanted_of,
)
from dosimeter.doses.aggregation import UPDATES, Picture
from dosimeter.errors import DosimeterError, SettingError, unknown
from dosimeter.lines import Grid, say
from dosimeter.rng import numpy_stream
from dosimeter.task import Task, load_task
from dosimeter.types import Victims

PRIORS, TENSORS = ("images", "none", "white"), ("all", "none", "worst")
HEAD = ("image", "determined", "of", "bits", "reader", "here", "unbiased", "secrets", "time")

MOST_LEVELS = 100
"""Deviations of noise, each of which takes as long as a dose."""
THEN = "dosimeter audit --attack auto shows what is read"


def run(asked: options.Dose) -> None:
    """Measure, write the folder, and print a table and a sentence."""
    for what, given, known in (("prior", asked.prior, PRIORS), ("tensors", asked.tensors, TENSORS)):
        if given not in known:
            raise SettingError(unknown(what, given, known))
    checks.positive("A dose", "a --budget in GiB", asked.budget)
    wanted = None if asked.plan is None else wanted_of(asked.plan)
    others = spec.make("others", asked.others, OTHERS)
    parts = {kind: part(kind, getattr(asked, kind)) for kind in ("defense", "step", "server", "loss")}
    task = load_task(
        asked.model, asked.data, seed=asked.seed, size=asked.size, channels=asked.channels, weights=asked.weights
    )
    victims = pick(asked, task.dataset)
    folder = place(asked, "dose", holds="dose.json")
    if asked.dry_run:
        planned(_what(task, victims, asked))
        return
    how: dict[str, Any] = parts | {
        "prior": _prior(asked, task.dataset, victims),
        "seed": asked.seed,
        "updates": Updates(batch_norm=asked.batch_norm.value, rounds=asked.rounds),
        "resources": Resources(dtype=torch.float64, budget=max(1, round(asked.budget * 2**30))),
    }
    if asked.clients > 1 or (wanted is not None and wanted.by == "clients"):
        how["aggregation"] = _aggregation(asked, task.dataset, victims, *others)
    if asked.noise is not None:
        levels = over_noise(task.model, victims, levels=_levels(asked.noise), **how)
        _write_levels(asked, folder, levels, task.names)
        return
    if wanted is not None:
        found = plan_of(task.model, victims, share=wanted.share, by=wanted.by, **how)
    else:
        found = dose(task.model, victims, show=Show(asked.tensors), **how)  # type: ignore[arg-type]
    write_config(folder)
    _write(asked, folder, found, task.names)


def _what(task: Task, victims: Victims, asked: options.Dose) -> dict[str, str]:
    return {
        "model": f"{type(task.model).__name__}, {sum(p.numel() for p in task.model.parameters()):,} parameters",
        "data": f"{task.dataset.name}, {'x'.join(map(str, task.dataset.shape))}",
        "victims": f"{len(victims.ids)} updates of {victims.batch} image(s)",
        "defense": asked.defense,
        "step": asked.step,
        "clients": str(asked.clients) + ("" if asked.clients == 1 else f", of the others {asked.others}"),
        "prior": asked.prior,
        "unknowns": f"{victims.images[0].numel():,} pixels an update, and what is drawn inside the model",
    }


def _prior(asked: options.Dose, dataset: data.Dataset, victims: Victims) -> White | Images | None:
    """What the reader knows."""
    if asked.prior != "images":
        return White() if asked.prior == "white" else None
    return public(dataset, victims, asked.split, asked.seed, asked.public)


def _images() -> tuple[Picture, int]:
    return "images", UPDATES


def _levels(text: str) -> tuple[float, ...]:
    """Deviations of noise, each once."""
    found = spec.several("--noise", text, float)
    checks.count("A dose", "a number of deviations (--noise)", len(found), most=MOST_LEVELS)
    if len(set(found)) < len(found):
        raise SettingError(f"Expected every deviation of --noise once, got {text}.")
    return found


def _noise(*, updates: int = UPDATES) -> tuple[Picture, int]:
    checks.count("The others", "public updates", updates, least=2)
    return "noise", updates


OTHERS = {"images": _images, "noise": _noise}


def _aggregation(
    asked: options.Dose, dataset: data.Dataset, victims: Victims, picture: Picture, updates: int
) -> Aggregation:
    """All clients, of which the others hold images of the train split that are no victims."""
    places = _public(dataset, victims, asked.split, asked.seed)[: max(updates, asked.clients) * asked.batch]
    labels = torch.as_tensor(dataset.labels("train")[places])
    return Aggregation(
        clients=asked.clients, images=dataset.images("train", places), labels=labels, others=picture, updates=updates
    )


def public(dataset: data.Dataset, victims: Victims, split: str, seed: int, many: int = 12_000) -> Images:
    """The prior of so many images of the train split that are no victims."""
    return Images(images=dataset.images("train", _public(dataset, victims, split, seed)[:many]))


def _public(dataset: data.Dataset, victims: Victims, split: str, seed: int) -> list[int]:
    """Places of the train split that are no victims, in an order that was drawn."""
    order = numpy_stream(seed, "public").permutation(dataset.count("train"))
    taken = set(victims.indices.flatten().tolist()) if split == "train" else set()
    return [at for at in order.tolist() if at not in taken]


def beside_attacks(asked: options.Audit, task: Task, audit: Audit, result: Result, folder: Path) -> Result:
    """The result of an audit with the dose of its victims, which is kept in the run folder; without one if refused."""
    victims = audit.victims
    assert victims is not None
    try:
        found = dose(
            task.model, victims, defense=audit.defense, server=audit.server, loss=audit.loss, step=audit.step,
            prior=public(task.dataset, victims, asked.split, asked.seed), seed=audit.seed, updates=audit.updates,
            resources=audit.resources, show=Show("none", 0),
        )  # fmt: skip
    except DosimeterError as reason:  # what was attacked is not to be lost by it
        say(err, f"No dose: {reason}")
        return result
    against = beside(found, result)
    document = {"command": "audit"} | found.document()
    document |= {} if against is None else {"attacks": against.document()}
    files.replace_json(folder / "dose.json", document)
    return replace(result, dosed=against)


def dose_of(audit: Audit) -> dict[str, Any]:
    """The mean dose of an audit's victims, with the white prior."""
    assert audit.victims is not None
    found = dose(
        audit.model, audit.victims, defense=audit.defense, server=audit.server, loss=audit.loss, step=audit.step,
        seed=audit.seed, updates=audit.updates, show=Show("none", 0),
    )  # fmt: skip
    return {"dose": {key: found.mean(key) for key in ("determined", "share", "bits", "psnr")}}


def _write(asked: options.Dose, folder: Path, found: Doses, names: Mapping[str, Any]) -> None:
    document = {"command": "dose"} | dict(names) | found.document()
    files.check_writable(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files.replace_json(folder / "dose.json", document)
    shown = _pictures(folder, found)
    rows = [_row(each) for each in found.images]
    table = Grid(*HEAD)
    for row in rows[:16]:
        table.add_row(*row)
    if not asked.json:
        say(out, found.sentence(), "bold")
        for line in _lines(found):
            say(out, line, hang=2)
        out.print()
    worst = found.worst
    tensors = [[name, str(t.alone), str(t.without)] for name, t in worst.tensors.items()]
    about = f"{names['model']}, {names['data']}, defense {asked.defense}"
    page: dict[str, Any] = {
        "head": HEAD, "rows": rows, "pictures": shown, "tensors": tensors,
        "tensor_head": ("tensor", "determined by it alone", f"without it, of {worst.determined} by all"),
    }  # fmt: skip
    if tensors and not asked.json:
        _tensor_table(worst).print(out)
        out.print()
    finish(asked, folder, document, table, "dose", about=about, then=THEN, **page)


def _write_levels(asked: options.Dose, folder: Path, levels: Sequence[Level], names: Mapping[str, Any]) -> None:
    """The means over images at every strength, as a table and as curves."""
    strengths = sorted({each.sigma for each in levels})
    means: dict[float, tuple[float, float, float, float | None, float | None]] = {}
    for sigma in strengths:
        here = [each for each in levels if each.sigma == sigma]
        shares = [each.determined / each.dimensions for each in here]
        told = [
            [value for value in found if value is not None]
            for found in zip(*((e.bits, e.psnr) for e in here), strict=True)
        ]
        bits, psnr = (mean(found) if found else None for found in told)
        many = [each.determined for each in here]
        means[sigma] = (mean(many), stdev(many) if len(many) > 1 else 0.0, max(shares), bits, psnr)
    head = ("noise", "determined", "share", "most exposed", "bits", "reader")
    size = levels[0].dimensions
    rows = [
        [f"{sigma:g}", f"{many:,.0f} +- {off:,.0f}", f"{many / size:.1%}", f"{most:.1%}",
         "-" if bits is None else f"{bits:,.0f}", "-" if psnr is None else f"{psnr:.1f} dB"]
        for sigma, (many, off, most, bits, psnr) in means.items()
    ]  # fmt: skip
    table = Grid(*head)
    for row in rows:
        table.add_row(*row)
    document = {"command": "dose", "prior": asked.prior, "defense": asked.defense} | dict(names)
    document |= {"levels": [each._asdict() for each in levels]}
    folder.mkdir(parents=True, exist_ok=True)
    files.replace_json(folder / "dose.json", document)
    write_config(folder)
    curves = {"share": [(log10(s), many / size) for s, (many, *_) in means.items()]}
    curves |= {"reader": [(log10(s), psnr) for s, (*_, psnr) in means.items() if psnr is not None]}
    about = f"{names['model']}, {names['data']}, defense {asked.defense}, prior {asked.prior}, over Gaussian noise."
    page: dict[str, Any] = {
        "head": head,
        "rows": rows,
        "pictures": {},
        "tensors": [],
        "tensor_head": (),
        "curves": curves,
    }
    finish(asked, folder, document, table, "dose", about=about, then=THEN, **page)


def _lines(found: Doses) -> list[str]:
    """What else is to be said of it."""
    lines = [f"channel: {found.channel}"]
    lines += [f"note: {note}" for note in found.notes]
    lines += [f"bound: {each.words()}" for each in found.bounds]
    if found.plan is not None:
        lines.append(found.plan["sentence"])
    return lines


def _row(each: ImageDose) -> list[str]:
    def figure(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    secrets = sum(s.determined for s in each.secrets.values()), sum(s.numbers for s in each.secrets.values())
    return [
        f"{each.number}" + (f" ({each.place + 1})" if each.place else ""),
        f"{each.determined:,}{_off(each, 'determined')} ({each.share:.0%})",
        f"{each.dimensions:,}",
        figure(each.bits, ",.0f") + _off(each, "bits"),
        "-" if each.psnr is None else f"{each.psnr:.1f} dB",
        "-" if each.here is None else f"{each.here:.1f} dB",
        "-" if each.unbiased is None else f"{each.unbiased:.1f} dB",
        f"{secrets[0]} of {secrets[1]}" if secrets[1] else "-",
        f"{each.seconds:.1f} s",
    ]


def _off(each: ImageDose, figure: str) -> str:
    """How far an estimated figure may be off."""
    return f" +- {each.error[figure]:,.0f}" if figure in each.error else ""


def _tensor_table(worst: ImageDose) -> Grid:
    table = Grid("tensor", "determined by it alone", "without it")
    for name, told in worst.tensors.items():
        table.add_row(name, f"{told.alone:,}", f"{told.without:,}")
    return table


def _pictures(folder: Path, found: Doses) -> dict[str, dict[str, str]]:
    """Write all pictures and say which file shows what."""
    shown: dict[str, dict[str, str]] = {}
    place_ = folder / "pictures"
    for number, (name, pictures) in enumerate(found.pictures.items()):
        place_.mkdir(exist_ok=True)
        shown[name] = {}
        for what, image in pictures.items():
            file = f"image-{number:03d}-{what.replace(' ', '-')}.png"
            store.picture(image).save(place_ / file)
            shown[name][what] = file
    return shown
