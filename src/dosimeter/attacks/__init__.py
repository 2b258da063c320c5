"""Attacks: from the update that a server sees to the images behind it.

base         what every attack is: needs, check, cost, blind, run
search/      the search, put together from parts: likelihood, prior, start, optimiser, ...
solve/       attacks that solve instead: `Analytic`, `Eliminate` where noise is drawn inside, `Features`, `SolveLock`
around/      attacks around another: `GuessSteps`, `AverageOrders`, `AverageRounds`, `LeaveOut`, `RecoverKey`, `Undo`
labels       where labels come from (counts, last_layer); `LabelsOnly` recovers them and no images
generators/  images that a generator makes           presets/  the papers' attacks with their printed settings

Nothing here can see the truth or a score.
"""

from dosimeter.attacks import labels, presets
from dosimeter.attacks.around.guess import GuessSteps
from dosimeter.attacks.around.key import RecoverKey
from dosimeter.attacks.around.leave_out import LeaveOut
from dosimeter.attacks.around.orders import AverageOrders
from dosimeter.attacks.around.rounds import AverageRounds
from dosimeter.attacks.around.undo import Undo
from dosimeter.attacks.base import Around, Attack, Cost, Found
from dosimeter.attacks.labels_only import LabelsOnly
from dosimeter.attacks.search import (
    degraded,
    likelihoods,
    masks,
    moves,
    optimisers,
    priors,
    sampling,
    schedules,
    spaces,
    starts,
    treatments,
)
from dosimeter.attacks.search.search import Search, searching
from dosimeter.attacks.search.stopping import AUTO, Steps, Stop
from dosimeter.attacks.solve.analytic import Analytic, Eliminate
from dosimeter.attacks.solve.deep import Deep
from dosimeter.attacks.solve.features import Features
from dosimeter.attacks.solve.unlock import SolveLock

__all__ = [
    "AUTO",
    "Analytic",
    "Around",
    "Attack",
    "AverageOrders",
    "AverageRounds",
    "Cost",
    "Deep",
    "Eliminate",
    "Features",
    "Found",
    "GuessSteps",
    "LabelsOnly",
    "LeaveOut",
    "RecoverKey",
    "Search",
    "SolveLock",
    "Steps",
    "Stop",
    "Undo",
    "degraded",
    "labels",
    "likelihoods",
    "masks",
    "moves",
    "optimisers",
    "presets",
    "priors",
    "sampling",
    "schedules",
    "searching",
    "spaces",
    "starts",
    "treatments",
]
