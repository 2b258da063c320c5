"""Attacks: from the update that a server sees to the images behind it.

What every attack is stands in `base`. Most are a `Search` put together from parts, one file each:

    likelihoods  how well a simulated update explains the observed one
    priors       what images look like before any update is seen
    labels       where the labels come from
    starts       where the search begins
    optimisers   how it moves          schedules    how its step size shrinks
    masks        which tensors are matched
    treatments   what is supposed of numbers that clients draw inside the model
    spaces       where images are looked for          sampling     points around a candidate
    moves        what is done to candidates after every step

`Analytic` solves instead, where the first layer is fully connected or the network is straight, `Eliminate` where noise
is drawn inside it, `Features` where a later layer gives enough away; `LabelsOnly` recovers labels and no images.
`GuessSteps` is a search by an attacker who was not told how clients train locally, `AverageOrders` one that averages
over the orders of clients that shuffle, `AverageRounds` one that saw a batch several times, `LeaveOut` one that
mistrusts a tensor, `RecoverKey` one that was sent the gradient of a lock; `SolveLock` solves for the lock itself.
`presets` holds the papers' attacks with their printed settings.
Nothing here can see the truth or a score.
"""

from dosimeter.attacks import (
    degraded,
    labels,
    likelihoods,
    masks,
    moves,
    optimisers,
    presets,
    priors,
    sampling,
    schedules,
    spaces,
    starts,
    treatments,
)
from dosimeter.attacks.analytic import Analytic, Eliminate
from dosimeter.attacks.base import Around, Attack, Cost, Found
from dosimeter.attacks.features import Features
from dosimeter.attacks.guess import GuessSteps
from dosimeter.attacks.key import RecoverKey
from dosimeter.attacks.labels_only import LabelsOnly
from dosimeter.attacks.leave_out import LeaveOut
from dosimeter.attacks.orders import AverageOrders
from dosimeter.attacks.rounds import AverageRounds
from dosimeter.attacks.search import Search, Stop, searching
from dosimeter.attacks.unlock import SolveLock

__all__ = [
    "Analytic",
    "Around",
    "Attack",
    "AverageOrders",
    "AverageRounds",
    "Cost",
    "Eliminate",
    "Features",
    "Found",
    "GuessSteps",
    "LabelsOnly",
    "LeaveOut",
    "RecoverKey",
    "Search",
    "SolveLock",
    "Stop",
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
