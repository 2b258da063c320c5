"""Many audits as one, never the same work twice.

trial     an audit or a training in words, and its digest
versions  which of our sources a result depends on
store     trials and what came of them, in a folder that several processes may write to
places    where trials run: in this process or in several, or on a Ray cluster (cluster, packing)
run       the trials that are missing, run
table     all of them as rows and as a grid
tradeoff  defenses by what they hide and what they cost, and the weakest that holds
leakage   a training on its way
"""

from dosimeter.sweeps.run import Progress, run_all, sweep
from dosimeter.sweeps.store import Entry, Status, Store
from dosimeter.sweeps.table import Table
from dosimeter.sweeps.trial import Course, Prepared, Trial, product_of

__all__ = [
    "Course",
    "Entry",
    "Prepared",
    "Progress",
    "Status",
    "Store",
    "Table",
    "Trial",
    "product_of",
    "run_all",
    "sweep",
]
