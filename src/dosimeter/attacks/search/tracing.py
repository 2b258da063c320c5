"""What becomes of every tensor of the simulated update on a search's way (PPP, Figs. 3 and 4; CVB, Figs. 5 and 6)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dosimeter.attacks.search.objective import Draws, Objective
from dosimeter.attacks.search.states import State
from dosimeter.types import TRACED

if TYPE_CHECKING:
    from collections.abc import Mapping

TINY = 1e-24


class Tracer:
    """Looks at the candidates' updates now and then: norm, cosine and two entries of every tensor (`TRACED`).

    The two entries are those that are largest in the observed tensor. A look costs one simulated update and moves
    nothing.
    """

    def __init__(self, objective: Objective, candidates: int) -> None:
        self._objective = objective
        names, like = list(objective.target.parameters), objective.target.mean
        self._names = names
        self._latest = torch.full((candidates, len(names), len(TRACED)), torch.nan).to(like)
        self._points: list[Tensor] = []

    def look(self, state: State, draws: Draws) -> None:
        """One more point; candidates that have stopped keep their last."""
        if len(state.row):
            seen = self._objective.compared(state.x, state.labels, state.owner, draws, _facts)
            self._latest[state.row] = seen.to(self._latest)
        self._points.append(self._latest.clone())

    def of(self, rows: Tensor) -> "Mapping[str, Tensor]":
        """{tensor: (V, T, len(TRACED))} of these candidates."""
        whole = torch.stack([each[rows] for each in self._points], 1)  # (V, T, P, facts)
        return {name: whole[:, :, at].contiguous() for at, name in enumerate(self._names)}


def _facts(simulated: Tensor, observed: Tensor) -> Tensor:
    """(n, len(TRACED)) of one tensor's entries (n, entries)."""
    mine, theirs = simulated.norm(dim=1), observed.norm(dim=1)
    cosine = (simulated * observed).sum(1) / (mine * theirs).clamp_min(TINY)
    largest = observed.abs().topk(min(2, observed.shape[1]), dim=1).indices
    largest = torch.cat([largest, largest], 1)[:, :2]  # a tensor of one number has it twice
    entries: Sequence[Tensor] = [each.gather(1, largest) for each in (simulated, observed)]
    return torch.cat([mine[:, None], cosine[:, None], entries[0], theirs[:, None], entries[1]], 1).detach()
