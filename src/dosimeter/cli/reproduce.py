"""`dosimeter reproduce`: tables and figures of the five papers, measured beside published."""

from pathlib import Path

from dosimeter import files, papers
from dosimeter.cli import console, options
from dosimeter.cli.console import command, drawing, err, out
from dosimeter.cli.parts import going_on, live
from dosimeter.errors import SettingError
from dosimeter.lines import Grid
from dosimeter.reports import charts, kept
from dosimeter.reports.markup import Html
from dosimeter.sweeps.places import place_of
from dosimeter.sweeps.store import check_folder


def run(asked: options.Reproduce) -> None:
    """List items, judge claims, or run one item or all."""
    if asked.list:
        _list()
        return
    if not asked.claims and asked.name is None:
        raise SettingError("Expected the name of a table or figure, got none; see dosimeter reproduce --list.")
    files.check_writable(asked.out)
    check_folder(asked.out)
    place_of(asked.on)  # which refuses a place that is none
    names = list(papers.ITEMS) if asked.name == "all" else [papers.find(asked.name).key] if asked.name else []
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
            _write(item, found, text, asked.results, scale)
    console.page(where)
    console.hint("open the page; dosimeter reproduce --claims judges the papers")


def _bars(item: papers.Item, found: list[papers.Measured]) -> dict[str, float]:
    """The paper's SSIM of every row."""
    return {", ".join(row.name): row.values[item.judged].mean for row in found if item.judged in row.values}


def _figure(item: papers.Item, found: list[papers.Measured]) -> Html | None:
    """As the paper draws it: bars, or accuracy against what stays hidden; None where it is pictures."""
    if item.figure == "bars":
        return charts.bars(_bars(item, found), x=f"mean {item.judged}", threshold=item.threshold)
    if item.figure == "tradeoff":
        points: dict[str, list[tuple[float, float]]] = {}
        for row in found:
            accuracy, ssim = row.values.get("accuracy"), row.values.get(item.judged)
            if accuracy and ssim:
                points.setdefault(row.name[-1], []).append((accuracy.mean, 1 - ssim.mean))
        return charts.scatter(points, x="accuracy in %", y="1 - SSIM", threshold=1 - item.threshold)
    return None


def _write(item: papers.Item, found: list[papers.Measured], text: str, folder: Path, scale: papers.Scale) -> None:
    """The table with the command that makes it, its numbers, and its figure."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{item.paper}-{item.name}-{scale}"
    files.replace(folder / f"{name}.md", f"# {item.key}, {scale}\n\n    {command()}\n\n{text}\n")
    files.replace_json(folder / f"{name}.json", papers.document(item, found, scale))
    if (drawn := _figure(item, found)) is not None:
        charts.write_svg(folder / f"{name}.svg", drawn)
    err.print(f"table   {folder / name}.md", highlight=False, soft_wrap=True)


def _claims(asked: options.Reproduce) -> None:
    """Every claim before what is kept; nothing is run for it."""
    judged = papers.judge_all(asked.out, scale=asked.scale.value)
    console.markdown(papers.claims_table(judged))
    console.hint("dosimeter reproduce ITEM runs what is not tried yet; --list names all")
