"""`dosimeter compare` and `dosimeter calibrate`: what defenses hide, and what they cost."""

from dataclasses import replace
from functools import partial

from rich.markup import escape
from rich.table import Table

from dosimeter import files, fingerprint, spec
from dosimeter.attacks import AUTO, presets
from dosimeter.auditing import estimate, part
from dosimeter.auditing.evidence import tally
from dosimeter.auditing.verdict import Kind
from dosimeter.cli import options
from dosimeter.cli.config import write_config
from dosimeter.cli.console import err, out
from dosimeter.cli.parts import finish, going_on, place, planned, print_json, safe, taking
from dosimeter.cli.train import about, audit_of, federation
from dosimeter.defenses import Defense
from dosimeter.errors import SettingError
from dosimeter.federated.accounting import privacy_words
from dosimeter.federated.tradeoff import Balance, Calibration, Comparison, Tried, calibrate, strength_of
from dosimeter.federated.training import estimate_training
from dosimeter.progress import duration

BALANCES, STRENGTHS = "compare.json", "calibrate.json"
HEAD = ("defense", "accuracy", "verdict", "SSIM", "read", "best attack", "weights", "sent", "a round")


def run_compare(asked: options.Compare) -> None:
    """Train with each defense, attack it, and write and print both sides."""
    chosen = {words: part("defense", words) for words in asked.defense}
    folder = place(asked, "compare", apart=("defense",))
    comparison = _comparison(asked, seeds=asked.seeds, trained=asked.trained)
    if asked.dry_run:
        _plan(comparison, chosen)
        return
    write_config(folder)
    kept, found = files.Kept(folder / BALANCES, comparison.made), []
    with going_on(folder):
        for words, each in chosen.items():
            key = fingerprint.of(each)
            if key not in kept.read():
                below = folder / safe({"defense": words}, [words, key])
                kept.add(key, comparison.balance(words, each, below)._asdict())
            found.append(Balance(**kept.read()[key])._replace(defense=words))
            err.print(escape(f"{words}: {found[-1].verdict}"), highlight=False, soft_wrap=True)
    head, cells = _table(found)
    table = Table(*head, box=None, pad_edge=False)
    for row in cells:
        table.add_row(*map(escape, row))
    said = f"{about(asked, 'of each row')}, {asked.victims} victims, steps {asked.steps}, {asked.seeds} seeds from "
    said += f"{asked.seed}, {'trained' if asked.trained else 'untrained'}"
    page = {
        "threshold": asked.threshold,
        "points": [(_shown(each), each.accuracy, each.ssim) for each in found],
        "head": head,
        "rows": [[spec.shown(row[0]), *row[1:]] for row in cells],
        "verdicts": [[spec.shown(each.defense), tally(each.evidence), each.verdict] for each in found],
    }
    document = {"command": "compare", "balances": [balance._asdict() for balance in found]}
    finish(asked, folder, document, table, "compare", about=said, **page)


def run_calibrate(asked: options.Calibrate) -> None:
    """Try strengths of a defense until the weakest that holds is found, then train with it."""
    made = part("defense", asked.defense)
    folder = place(asked, "calibrate", apart=("allow",))
    strength_of(made, asked.vary)  # which refuses a defense without one
    comparison = _comparison(asked)
    if asked.dry_run:
        _plan(comparison, {asked.defense: made})
        return
    write_config(folder)
    kept = files.Kept(folder / STRENGTHS, comparison.made | {"defense": fingerprint.named(made), "vary": asked.vary})

    def keep(setting: str, tried: Tried) -> None:
        kept.add(repr(tried.value), tried.success)
        _tell(setting, tried)

    with going_on(folder):
        done = {float(value): success for value, success in kept.read().items()}
        found = calibrate(comparison, made, allowed=asked.allow, vary=asked.vary, kept=done, told=keep)
        part_, setting, _ = found.strength
        if found.defense is None:
            raise SettingError(_never(found, asked.allow))
        words = spec.with_setting(asked.defense, part_, setting, f"{found.weakest:g}")
        balance = comparison.balance(words, found.defense, folder / safe({"defense": words}))
    if asked.json:
        tried = [each._asdict() for each in found.tried]
        print_json({"command": "calibrate", "weakest": words, "tried": tried, "balance": balance._asdict()})
        return
    hit = balance.success
    out.print(
        f"The weakest that stops all attacks is {words}: {hit['hits']} of {hit['of']} images are read by the best of "
        f"them ({balance.attack}; at most {hit['high']:.1%} with 95 % confidence), SSIM {balance.ssim:.3f}. Trained "
        f"with it the model has an accuracy of {balance.accuracy:.2%}.",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip


def _comparison(asked: options.Compare | options.Calibrate, *, seeds: int = 1, trained: bool = False) -> Comparison:
    first, steps = federation(asked, asked.seed), asked.steps or AUTO
    return Comparison(
        federation=partial(federation, asked),
        whole=audit_of(asked, first, presets.inverting_gradients(steps=steps)),
        steps=steps,
        seeds=seeds,
        trained=trained,
    )


def _plan(comparison: Comparison, chosen: dict[str, Defense]) -> None:
    """What would be trained and attacked with each defense; a panel has more attacks than the one that is timed."""
    rows = {}
    for words, defense in chosen.items():
        task = replace(comparison.federation(comparison.whole.seed), defense=defense)
        training = duration(estimate_training(task) * comparison.seeds)
        attack = taking(estimate(replace(comparison.whole, defense=defense)))
        rows[words] = (
            f"{comparison.seeds} training(s), about {training}; the plain attack {attack}, all others beside it"
        )
    out.print(planned(rows))


def _tell(setting: str, tried: Tried) -> None:
    hit = tried.success
    if tried.stopped:
        verb = "stops all attacks"
    elif hit["hits"] and not hit["doubt"]:
        verb = f"is read by {hit['attack']}"
    else:
        verb = f"cannot be told, for {hit['doubt']}"
    told = f"{hit['hits']} of {hit['of']} images, SSIM {hit['ssim']:.3f}"
    err.print(f"{setting}={tried.value:g} {verb}: {told} ({tally(hit['evidence'])})", highlight=False, soft_wrap=True)


def _never(found: Calibration, allowed: float) -> str:
    """Why no strength was found that stops all attacks."""
    _, setting, grid = found.strength
    last = max(found.tried, key=lambda tried: tried.value if grid[-1] > grid[0] else -tried.value)
    if last.success["rate"] <= allowed:
        why = f"it cannot be told whether attacks are stopped, for {last.success['doubt']}"
        return f"Up to {setting}={grid[-1]:g} {why}."
    return (
        f"Up to {setting}={grid[-1]:g} some attack reads more than {allowed:.0%} of the images; "
        "join the defense with another one (|) or allow more (--allow)."
    )


def _shown(balance: Balance) -> str:
    """The defense, with a word where what stays hidden of it is no evidence."""
    return spec.shown(balance.defense) + (" (cannot tell)" if balance.kind == Kind.INCONCLUSIVE else "")


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
        balance.kind,
        f"{balance.ssim:.3f}" + ("" if balance.originals is None else f" ({balance.originals:.3f} originals)"),
        f"{balance.success['hits']} of {balance.success['of']}",
        balance.attack,
        f"+{balance.added:.1%}",
        f"{balance.bytes / 1024:,.0f} KiB",
        f"{balance.seconds:.1f} s",
    ]
