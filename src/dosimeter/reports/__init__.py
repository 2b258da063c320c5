"""What people see of a result: tables on a terminal, one page, a folder.

table      a result on a terminal
page       the report, one HTML file; its parts in opening, sections, gallery, figures, traces, dosed and provenance
captured   the page's parts for a captured update, told in the sentences of standing; survey those for a federation
several    one page over several audits
kept       pages over trainings, comparisons, sweeps, reproductions and doses; kinds, rounds, dosed and drawn what
           each of them shows
words      sentences and rows that terminal and page share; evidence its bar
charts     figures over several results     plot   axes and lines in SVG     pictures   images in a page
markup     HTML     style   page.css and page.js     pdf   a page in print     pipelines   what gates say
"""

from pathlib import Path

from dosimeter.auditing import Outcome
from dosimeter.drafts import reserve
from dosimeter.reports import charts
from dosimeter.reports.page import PAGE, TITLE, write_page, write_pages
from dosimeter.reports.several import write_comparison
from dosimeter.reports.table import print_line, print_result, print_several
from dosimeter.store import write_run


def report(result: Outcome, folder: str | Path, *, overwrite: bool = False, title: str = TITLE) -> Path:
    """Write a result's run folder, all of it or nothing, then its page into it, and say where that is."""
    folder = Path(folder)
    with reserve(folder, overwrite=overwrite) as draft:
        write_run(result, draft.place)
    return write_pages(result, folder, title=title)


__all__ = [
    "PAGE",
    "charts",
    "print_line",
    "print_result",
    "print_several",
    "report",
    "write_comparison",
    "write_page",
    "write_pages",
]
