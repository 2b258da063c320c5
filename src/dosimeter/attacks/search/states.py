"""What a search holds of its candidates: of those that still move, and of all once they have stopped."""

from typing import Any, NamedTuple

from torch import Tensor

from dosimeter.attacks.search import schedules
from dosimeter.attacks.search.stopping import Ends
from dosimeter.types import Outcome


class State(NamedTuple):
    """Candidates still in the batch, one a row."""

    x: Tensor  # (n, D) all unknowns; see `objective.Unknowns`
    labels: Tensor  # (n, B) given labels
    owner: Tensor  # (n,) which victim
    row: Tensor  # (n,) which candidate
    moments: Any  # the optimiser's own state
    schedule: schedules.State
    best: Tensor  # (n,) lowest loss so far
    best_match: Tensor  # (n,) the match there
    best_x: Tensor  # (n, D) where that was
    waited: Tensor  # (n,) steps since then
    ends: Ends


class Done(NamedTuple):
    """Results of all candidates, filled as they leave the batch."""

    x: Tensor  # (N, D)
    match: Tensor  # (N,)
    steps: Tensor  # (N,)
    why: list[Outcome]
