"""`dosimeter compare` and `dosimeter calibrate`: what defenses hide, and what they cost."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from dosimeter import data, defenses, files, fingerprint, spec
from dosimeter.attacks import presets
from dosimeter.auditing import Audit, Scoring
from dosimeter.cli.console import drawing, err, out, refusals
from dosimeter.cli.parts import place, safe
from dosimeter.cli.train import DATA, MODEL, PROTOCOL
from dosimeter.errors import SettingError
from dosimeter.federated import Federation
from dosimeter.federated.accounting import privacy_words
from dosimeter.federated.setup import Setup
from dosimeter.federated.tradeoff import Balance, Comparison, Tried, calibrate
from dosimeter.reports import charts, sections

BALANCES, PAGE, STRENGTHS = "compare.json", "compare.html", "calibrate.json"
HEAD = ("defense", "accuracy", "SSIM", "read", "best attack", "weights", "sent", "a round")

VICTIMS = typer.Option(min=1, help="How many updates to attack.")
STEPS = typer.Option(min=1, help="Steps of every search.")
TRAINED = typer.Option("--trained", help="Attack the trained model instead of the untrained one, which leaks most.")


def compare_command(
    defense: Annotated[list[str], typer.Option(help="A defense, with settings. Repeat it for each.")],
    model: Annotated[str, MODEL] = "cnn",
    data_: Annotated[str, DATA] = "mnist-5k",
    protocol: Annotated[str, PROTOCOL] = "ppp:rounds=20",
    victims: Annotated[int, VICTIMS] = 8,
    steps: Annotated[int, STEPS] = 500,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each, for the spread of accuracy.")] = 1,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
    threshold: Annotated[float, typer.Option(help="SSIM from which an image counts as read.")] = 0.5,
    trained: Annotated[bool, TRAINED] = False,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder that keeps what is done; a run that was stopped goes on.")
    ] = None,
) -> None:
    """Train with each defense and have it meet all attacks made for it: accuracy against privacy."""
    with refusals():
        chosen = {words: spec.joined("defense", words, defenses.BY_NAME) for words in defense}
        folder = place(
            out_, "compare", model=model, data=data_, protocol=protocol, victims=victims, steps=steps, seeds=seeds,
            seed=seed, threshold=threshold, trained=trained,
        )  # fmt: skip
        comparison = _comparison(
            model, data_, protocol, victims=victims, steps=steps, seed=seed, seeds=seeds, threshold=threshold,
            trained=trained,
        )  # fmt: skip
        kept, found = files.Kept(folder / BALANCES, comparison.made), []
        try:
            for words, each in chosen.items():
                key = fingerprint.of(each)
                if key not in kept.read():
                    below = folder / safe({"defense": words, "is": key})
                    kept.add(key, comparison.balance(words, each, below)._asdict())
                found.append(Balance(**kept.read()[key])._replace(defense=words))
                err.print(escape(f"{words}: {found[-1].verdict}"), highlight=False, soft_wrap=True)
        except KeyboardInterrupt:
            err.print(f"Interrupted; the same command goes on from what is kept in {folder}.", highlight=False)
            raise typer.Exit(130) from None
        about = f"{spec.shown(model)} on {spec.shown(data_)}, {protocol}, {victims} victims, {steps} steps, "
        about += f"{seeds} seeds from {seed}, {'trained' if trained else 'untrained'}"
        head, cells = _table(found)
        table = Table(*head, box=None, pad_edge=False)
        for row in cells:
            table.add_row(*map(escape, row))
        out.print(table)
        with drawing(folder):
            _write_page(folder / PAGE, found, threshold, about=about)
    out.print(f"report  {folder / PAGE}", highlight=False, soft_wrap=True)


def calibrate_command(
    defense: Annotated[
        str, typer.Option(help="A defense, with settings: noise, cvb:kernel=3. Several are joined by |.")
    ],
    model: Annotated[str, MODEL] = "cnn",
    data_: Annotated[str, DATA] = "mnist-5k",
    protocol: Annotated[str, PROTOCOL] = "ppp:rounds=20",
    victims: Annotated[int, VICTIMS] = 8,
    steps: Annotated[int, STEPS] = 500,
    allow: Annotated[float, typer.Option(help="Share of images that may be read.")] = 0.0,
    vary: Annotated[str | None, typer.Option(help="The setting to turn up; the defense's usual one otherwise.")] = None,
    seed: Annotated[int, typer.Option(help="Names every random stream.")] = 0,
    threshold: Annotated[float, typer.Option(help="SSIM from which an image counts as read.")] = 0.5,
    out_: Annotated[
        Path | None, typer.Option("--out", help="Folder that keeps what is done; a run that was stopped goes on.")
    ] = None,
) -> None:
    """Find the weakest setting of a defense that stops all attacks made for it, and its accuracy."""
    with refusals():
        made = spec.joined("defense", defense, defenses.BY_NAME)
        folder = place(
            out_, "calibrate", defense=defense, model=model, data=data_, protocol=protocol, victims=victims,
            steps=steps, vary=vary, seed=seed, threshold=threshold,
        )  # fmt: skip
        comparison = _comparison(
            model, data_, protocol, victims=victims, steps=steps, seed=seed, seeds=1, threshold=threshold, trained=False
        )
        kept = files.Kept(folder / STRENGTHS, comparison.made | {"defense": fingerprint.named(made), "vary": vary})

        def keep(setting: str, tried: Tried) -> None:
            kept.add(repr(tried.value), tried.success)
            _tell(setting, tried)

        try:
            done = {float(value): success for value, success in kept.read().items()}
            found = calibrate(comparison, made, allowed=allow, vary=vary, kept=done, told=keep)
            part, setting, grid = found.strength
            if found.defense is None:
                raise SettingError(
                    f"Up to {setting}={grid[-1]:g} some attack reads more than {allow:.0%} of the images; "
                    "join the defense with another one (|) or allow more (--allow)."
                )
            words = spec.with_setting(defense, part, setting, f"{found.weakest:g}")
            balance = comparison.balance(words, found.defense, folder / safe({"defense": words}))
        except KeyboardInterrupt:
            err.print(f"Interrupted; the same command goes on from what is kept in {folder}.", highlight=False)
            raise typer.Exit(130) from None
    hit = balance.success
    out.print(
        f"The weakest that stops all attacks is {words}: {hit['hits']} of {hit['of']} images are read by the best of "
        f"them ({balance.attack}; at most {hit['high']:.1%} with 95 % confidence), SSIM {balance.ssim:.3f}. Trained "
        f"with it the model has an accuracy of {balance.accuracy:.2%}.",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip


def _comparison(
    model: str, data_: str, protocol: str, *, victims: int, steps: int, seed: int, seeds: int, threshold: float,
    trained: bool,
) -> Comparison:  # fmt: skip
    def federation(seed: int) -> Federation:
        return Setup(model=model, data=data_, protocol=protocol, seed=seed).federation()

    first = federation(seed)
    picked = data.pick(first.dataset, victims, seed=seed)
    return Comparison(
        federation=federation,
        whole=Audit(
            model=first.model,
            victims=picked,
            attack=presets.inverting_gradients(steps=steps),
            seed=seed,
            scoring=Scoring(threshold=threshold),
        ),
        steps=steps,
        seeds=seeds,
        trained=trained,
    )


def _tell(setting: str, tried: Tried) -> None:
    hit = tried.success
    verb = "stops all attacks" if tried.stopped else hit.get("unmeasured") or f"is read by {hit['attack']}"
    err.print(
        f"{setting}={tried.value:g} {verb}: {hit['hits']} of {hit['of']} images, SSIM {hit['ssim']:.3f}",
        highlight=False,
    )


def _table(found: list[Balance]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Head and rows; what DP-SGD costs in epsilon only where it is among them."""
    rows = [_cells(balance) for balance in found]
    spent = [privacy_words(balance.privacy or {}) for balance in found]
    if not any(spent):
        return HEAD, rows
    return (*HEAD, "epsilon"), [[*row, each] for row, each in zip(rows, spent, strict=True)]


def _cells(balance: Balance) -> list[str]:
    spread = f" ± {100 * balance.accuracy_spread:.2f}" if balance.accuracy_spread else ""
    return [
        balance.defense,
        f"{100 * balance.accuracy:.2f}{spread} %",
        f"{balance.ssim:.3f}",
        f"{balance.success['hits']} of {balance.success['of']}",
        balance.attack,
        f"+{balance.added:.1%}",
        f"{balance.bytes / 1024:,.0f} KiB",
        f"{balance.seconds:.1f} s",
    ]


def _write_page(path: Path, found: list[Balance], threshold: float, about: str) -> None:
    """The trade-off: accuracy to the right, what stays hidden upwards; the best defenses are at the top right."""
    found = [balance._replace(defense=spec.shown(balance.defense)) for balance in found]
    points: dict[str, list[charts.Point]] = {}
    for balance in found:  # files in different folders may share their name
        points.setdefault(balance.defense, []).append((balance.accuracy, 1 - balance.ssim))
    drawn = charts.scatter(points, x="accuracy", y="1 - SSIM", threshold=1 - threshold)
    words = "Accuracy is that of the lowest validation loss or else of the last round. Above the dashed line the "
    words += "strongest attack's mean SSIM is below the threshold. "
    verdicts = [[balance.defense, balance.verdict] for balance in found]
    charts.write_charts(
        path,
        "Utility and privacy",
        about,
        [
            (
                "The trade-off",
                charts.side_by_side(
                    sections.drawing(drawn, "Accuracy against 1 - SSIM.", words, charts.legend(list(points)))
                ),
            ),
            ("Costs", charts.table(*_table(found))),
            ("Verdicts", charts.table(("defense", "what was tried"), verdicts)),
        ],
    )
