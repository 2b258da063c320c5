"""`dosimeter reproduce`: tables and figures of the five papers, measured beside published."""

from collections.abc import Iterable

from dosimeter import files, papers
from dosimeter.cli import console, options, reproduced
from dosimeter.cli.console import command, drawing, out
from dosimeter.cli.parts import going_on, live
from dosimeter.errors import SettingError
from dosimeter.lines import Grid
from dosimeter.papers import atlas, field
from dosimeter.reports import charts, kept
from dosimeter.reports.raster import write_png
from dosimeter.sweeps.costs import machine
from dosimeter.sweeps.places import place_of
from dosimeter.sweeps.store import check_folder

MAP = "map"


def run(asked: options.Reproduce) -> None:
    """List items, judge claims, or run one item or all."""
    if asked.list:
        _list()
        return
    if not asked.claims and asked.name is None:
        raise SettingError("Expected the name of a table or figure, got none; see dosimeter reproduce --list.")
    files.check_writable(asked.out)
    if asked.results is not None:
        files.check_writable(asked.results, instead="--results")
    check_folder(asked.out)
    place_of(asked.on)  # which refuses a place that is none
    if asked.name == MAP:
        _map_left(asked) if asked.dry_run else _map(asked)
        return
    names = list(papers.ITEMS) if asked.name == "all" else [papers.find(asked.name).key] if asked.name else []
    if asked.dry_run:
        _estimates([papers.ITEMS[name] for name in names], asked)
        return
    for name in names:
        _one(papers.ITEMS[name], asked)
    if asked.claims:
        _claims(asked)


def _list() -> None:
    table = Grid("item", "what it shows", "rows")
    for key, item in papers.ITEMS.items():
        table.add_row(key, item.about, str(len(item.cases)))
    table.print(out)
    out.print()
    console.hint("dosimeter reproduce cvb/table4 --scale smoke, or another item")


def _estimates(items: list[papers.Item], asked: options.Reproduce) -> None:
    """What is left of items and how long it takes; trials that several share count for each."""
    scale: papers.Scale = asked.scale.value
    _print_left(
        (
            papers.estimate(item, asked.out, scale=scale, ours=asked.ours, on=asked.on),
            "; ".join(papers.missing(item, scale)),
        )
        for item in items
    )


def _map_left(asked: options.Reproduce) -> None:
    scale: papers.Scale = asked.scale.value
    _print_left([(field.left(asked.out, scale=scale, on=asked.on), field.cut_of(scale))])


def _print_left(found: Iterable[tuple[papers.Estimate, str]]) -> None:
    table = Grid("item", "trials", "kept", "core-minutes", "at most", "cut")
    for each, cut in found:
        minutes = [f"{seconds / 60:.1f}" for seconds in (each.seconds.likely, each.seconds.most)]
        table.add_row(each.item, str(each.left), str(each.kept), *minutes, cut)
    table.print(out)
    console.hint("the same without --dry-run")


def _one(item: papers.Item, asked: options.Reproduce) -> None:
    scale: papers.Scale = asked.scale.value
    with going_on(asked.out), live() as tell:
        found = papers.reproduce(item, asked.out, scale=scale, ours=asked.ours, on=asked.on, told=tell)
    text = papers.markdown(item, found, scale)
    out.print(f"{item.key}, {scale}\n", highlight=False)
    console.markdown(text)
    pictures = [[", ".join(row.name), row.digest] for row in found if row.digest]
    head, rows = papers.head(item), papers.cells(item, found, marked=scale != "smoke")
    with drawing(asked.out):
        shown = {"head": head, "rows": rows, "pictures": pictures} | papers.page(item, found, scale)
        where = kept.write(asked.out, "reproduction", about=f"{item.key}, {scale}", command=command(), **shown)
        if asked.results:
            reproduced.write(item, found, text, asked.results, scale, store=asked.out, redact=asked.redact)
    console.page(where)
    console.hint("open the page; dosimeter reproduce --claims judges the papers")


def _map(asked: options.Reproduce) -> None:
    """The map of the field, and its page and figure where a folder is given for them."""
    scale: papers.Scale = asked.scale.value
    with going_on(asked.out), live() as tell:
        places = field.chart(asked.out, scale=scale, on=asked.on, told=tell)
    text = atlas.page(places, scale, command=command(), machine=machine(), figure=f"{MAP}.svg")
    console.markdown(text)
    if asked.results:
        asked.results.mkdir(parents=True, exist_ok=True)
        drawn = reproduced.heat_of(places)
        files.replace(asked.results / f"{MAP}.md", text)
        charts.write_svg(asked.results / f"{MAP}.svg", drawn)
        write_png(asked.results / f"{MAP}.png", drawn)


def _claims(asked: options.Reproduce) -> None:
    """Every claim before what is kept; nothing is run for it."""
    judged = papers.judge_all(asked.out, scale=asked.scale.value, results=asked.results)
    table = papers.claims_table(judged)
    console.markdown(table)
    if asked.results:
        reproduced.write_claims(table, asked.results, asked.scale.value)
    console.hint("dosimeter reproduce ITEM runs what is not tried yet; --list names all")
