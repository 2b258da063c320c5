"""Many audits as one, never the same work twice.

trial     one audit in words, its digest, and the training that it shares with others
versions  which of our sources a result depends on
store     trials and what came of them, in a folder that several processes may write to
run       the trials that are missing, run
table     all of them as rows and as a grid
"""

from dosimeter.sweeps.run import Progress, sweep
from dosimeter.sweeps.store import Entry, Status, Store
from dosimeter.sweeps.table import Table
from dosimeter.sweeps.trial import Prepared, Trial, product_of

__all__ = ["Entry", "Prepared", "Progress", "Status", "Store", "Table", "Trial", "product_of", "sweep"]
