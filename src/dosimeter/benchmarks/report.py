"""A measurement on a terminal, as `bench.json` and as the plot `bench.svg`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dosimeter import files
from dosimeter.lines import Grid, say
from dosimeter.reports import plot
from dosimeter.reports.markup import Html, tag
from dosimeter.reports.plot import Frame

FILE, PLOT = "bench.json", "bench.svg"
COLOURS = {"usual": "#8a6d3b", "breaching": "#b8452b", "vmap": "#5b6573", "engine": "#2b7a84"}
STYLE = """
text { font: 13px sans-serif; fill: #5b6573; } .axis { stroke: #5b6573; } .grid { stroke: #e2dfd7; }
polyline { fill: none; stroke-width: 2.5; } circle { stroke: none; }
"""


def write(found: dict[str, Any], folder: Path) -> None:
    """Both files, each there as a whole or not at all; those of an older measurement give way."""
    drawn = draw(found)
    files.replace_json(folder / FILE, found)
    files.replace(folder / PLOT, drawn)


def show(found: dict[str, Any], console: Console) -> None:
    """Print tables: the ways, the engine beside the best of them and the machine, and the series."""
    if found["cases"]:
        _ways(found["cases"]).print(console)
        _engine(found["cases"]).print(console)
        notes = [*_breaching(found["cases"]), *_doubts(found["cases"]), *filter(None, map(_cut, found["cases"]))]
        for note in notes:
            say(console, note)
    for series in found["series"]:
        _sizes(series).print(console)
    say(console, _load([*found["cases"], *found["series"]], found["machine"]))


def _ways(cases: Sequence[dict[str, Any]]) -> Grid:
    table = Grid("case", "way", "image-steps/s", "min", "max", "of core", "steps")
    table.title = "One step of every way, median of the rounds"
    for case in cases:
        for n, (name, rate) in enumerate(case["ways"].items()):
            cells = [_rate(rate[key]) for key in ("median", "min", "max")]
            cells.append(_rate(rate["of_core"]["median"]) if "of_core" in rate else "")
            table.add_row(case["name"] if n == 0 else "", name, *cells, _steps(rate["steps"]))
    table.caption = "of core: by the time on its core, for ways on one thread; steps: of a burst, the fewest"
    return table


def _rate(value: float) -> str:
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def _steps(steps: Sequence[int]) -> str:
    return str(min(steps))


def _engine(cases: Sequence[dict[str, Any]]) -> Grid:
    table = Grid("case", "cores", "tile", "ratio", "floor", "verdict", "others", "MiB", "GFLOP/s", "peak")
    table.title = "The engine: ratio to the best of usual and breaching"
    for case in cases:
        memory = "?" if case["peak_bytes"] is None else f"{case['peak_bytes'] / 2**20:,.0f}"
        peaks = " / ".join(f"{rate['median']:.0f}" for rate in case["peak_gflops"].values())
        once = [_cores(case["load"]["others"]), memory, f"{case['gflops']:.1f}", peaks]
        for n, each in enumerate(case["ratios"]):
            tile = case["tile_alone" if each["cores"] == 1 else "tile"]
            floor = "" if each["floor"] is None else f"{each['floor']:g}"
            cells = [str(each["cores"]), str(tile), f"{each['ratio']:.1f}", floor, each["verdict"]]
            table.add_row("" if n else case["name"], *cells, *(once if n == 0 else []))
    table.caption = (
        "others: cores that other processes had; peak: products of 1024x1024 matrices on one thread / on all cores"
    )
    return table


def _doubts(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Why there is no verdict."""
    return [
        f"{case['name']} on {each['cores']} core{'' if each['cores'] == 1 else 's'}: too busy to tell, {each['doubt']}"
        for case in cases
        for each in case["ratios"]
        if each["doubt"] and each["verdict"] != "quick"
    ]


def _load(parts: Sequence[dict[str, Any]], machine: dict[str, Any]) -> str:
    """What others took while parts were measured."""
    loads = [part["load"] for part in parts]
    seconds = sum(load["seconds"] for load in loads)
    known = [load for load in loads if load["others"] is not None]
    others = sum(load["seconds"] * load["others"] for load in known) / seconds if len(known) == len(loads) else None
    average = loads[-1]["average"]
    last = "" if average is None else f"; load average of the last minute {average:.2f}"
    return f"Timed for {seconds:.0f} s; other processes had {_cores(others)} of {machine['cores_open']} core(s){last}"


def _cores(others: float | None) -> str:
    return "?" if others is None else f"{others:.2f}"


def _breaching(cases: Sequence[dict[str, Any]]) -> list[str]:
    """Its version or why it was not measured, with the names of the cases where they differ in it."""
    names: dict[str, list[str]] = {}
    for case in cases:
        names.setdefault(case["breaching"], []).append(case["name"])
    which = {said: f" ({', '.join(of)})" if len(names) > 1 else "" for said, of in names.items()}
    return [f"breaching{of}: {said}" for said, of in which.items()]


def _cut(case: dict[str, Any]) -> str:
    """What was measured on fewer victims than asked for."""
    asked = case["victims_asked"]
    cut = [f"{case['victims']} of {asked} victims" if case["victims"] < asked else ""]
    cut.append(f"vmap {case['victims_vmap']} at once" if case["victims_vmap"] < case["victims"] else "")
    cut = [part for part in cut if part]
    return f"{case['name']}: {', '.join(cut)}, as many as the memory budget holds" if cut else ""


def _sizes(series: dict[str, Any]) -> Grid:
    name = series["name"]
    table = Grid("size", "victims", "tile", "µs an image-step", "min", "max", "of the first", "steps")
    table.title = f"Cost of the engine by {name}, {series['model']}"
    for point in series["points"]:
        cells = (f"{point[key]:,.1f}" for key in ("median", "min", "max"))
        relative = f"{point['median'] / series['points'][0]['median']:.2f}"
        table.add_row(
            str(point["size"]), str(point["victims"]), str(point["tile"]), *cells, relative, _steps(point["steps"])
        )
    if limit := series.get("limit"):
        table.caption = (
            f"From {limit['from']} to {limit['to']} {name} the cost grows {limit['growth']:.2f} times, "
            f"at most {limit['most']:g} wanted: {limit['verdict']}"
        )
    return table


def draw(found: dict[str, Any]) -> Html:
    """Above, image-steps a second of every way and case with their lowest and highest round; below, the series."""
    parts = [_rates(found["cases"])] if found["cases"] else []
    parts += [_growth(found["series"])] if found["series"] else []
    height = plot.HEIGHT * len(parts)
    moved = (tag("g", part, transform=f"translate(0 {n * plot.HEIGHT})") for n, part in enumerate(parts))
    back = tag("rect", width=plot.WIDTH, height=height, fill="#ffffff")
    space = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {plot.WIDTH} {height}"}
    return tag("svg", tag("style", Html(STYLE)), back, *moved, **space)


def _rates(cases: Sequence[dict[str, Any]]) -> Html:
    frame = Frame(top=34)
    values = [rate[key] for case in cases for rate in case["ways"].values() for key in ("min", "max")]
    up, ticks = plot.logarithmic(values, frame.y)
    marks = []
    for n, case in enumerate(cases):
        for m, (name, rate) in enumerate(case["ways"].items()):
            x = frame.x((n + (m + 1) / (len(case["ways"]) + 1)) / len(cases))
            colour = COLOURS[name.partition(",")[0]]
            low, high = plot.at(up(rate["min"])), plot.at(up(rate["max"]))
            marks.append(tag("line", x1=plot.at(x), x2=plot.at(x), y1=low, y2=high, stroke=colour, stroke_width=2))
            marks.append(tag("circle", cx=plot.at(x), cy=plot.at(up(rate["median"])), r=4, fill=colour))
    shown = dict.fromkeys(name.partition(",")[0] for case in cases for name in case["ways"])
    below = [(frame.x((n + 0.5) / len(cases)), case["name"]) for n, case in enumerate(cases)]
    return tag("g", plot.axes(frame, ticks, below, x="", y="image-steps/s"), *marks, *_legend(frame, list(shown)))


def _growth(series: Sequence[dict[str, Any]]) -> Html:
    """Cost and size relative to the smallest size."""
    frame, colours = Frame(top=34), dict(zip((s["name"] for s in series), list(COLOURS.values())[::-1], strict=False))
    first = {s["name"]: s["points"][0] for s in series}
    sizes = [p["size"] / first[s["name"]]["size"] for s in series for p in s["points"]]
    costs = [p["median"] / first[s["name"]]["median"] for s in series for p in s["points"]]
    (across, below), (up, left) = plot.logarithmic(sizes, frame.x), plot.logarithmic(costs, frame.y)
    lines = []
    for s in series:
        base = first[s["name"]]
        places = [(across(p["size"] / base["size"]), up(p["median"] / base["median"])) for p in s["points"]]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(tag("polyline", points=points, stroke=colours[s["name"]]))
    names = "size, relative to the smallest", "cost of an image-step"
    return tag("g", plot.axes(frame, left, below, x=names[0], y=names[1]), *lines, *_legend(frame, colours))


def _legend(frame: Frame, names: Sequence[str] | dict[str, str]) -> list[Html]:
    colours = names if isinstance(names, dict) else COLOURS
    places = ((frame.left + 110 * n, name) for n, name in enumerate(names))
    return [tag("text", name, x=x, y=18, style=f"fill: {colours[name]}; font-weight: bold") for x, name in places]
