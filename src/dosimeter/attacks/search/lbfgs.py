"""L-BFGS for many candidates at once, each with its own history, curvature check and step length."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dosimeter import checks
from dosimeter.attacks.search.stepping import Evaluate, Optimiser
from dosimeter.errors import SettingError, unknown

CURVED = 1e-10
"""A pair is remembered when <move, turn> is above this, as in torch."""
FALL, FLATTEN = 1e-4, 0.9
"""The constants of Wolfe's two conditions (Nocedal and Wright, Sec. 3.1)."""


class Memory(NamedTuple):
    """Pairs of moves and turns (changes of the slope); pair number k of a candidate is in slot k mod m."""

    moves: Tensor  # (N, m, D)
    turns: Tensor  # (N, m, D)
    cross: Tensor  # (N, m, m) <move, turn> of every two pairs, 0 in slots without a pair
    bends: Tensor  # (N, m, m) <turn, turn>
    pairs: Tensor  # (N,) remembered so far
    size: Tensor  # (N,) <move, turn> / <turn, turn> of the last pair
    x: Tensor  # (N, D) where the last iteration began
    slope: Tensor  # (N, D) the slope there
    taken: Tensor  # (N,) iterations


class Point(NamedTuple):
    """Where candidates stand."""

    x: Tensor  # (n, D)
    loss: Tensor  # (n,)
    slope: Tensor  # (n, D)

    def put(self, who: Tensor, other: "Point") -> None:
        """Overwrite some candidates."""
        for mine, new in zip(self, other, strict=True):
            mine[who] = new

    def at(self, who: Tensor) -> "Point":
        return Point(self.x[who], self.loss[who], self.slope[who])


@dataclass(frozen=True, kw_only=True)
class LBFGS(Optimiser[Memory]):
    """Limited-memory BFGS (Liu and Nocedal 1989; Nocedal and Wright, Alg. 7.5).

    Without a line search every candidate's path is that of `torch.optim.LBFGS` run on it alone, whose tolerances and
    first step min(1, 1 / |slope|_1) are taken over. The line search finds a step that meets Wolfe's two conditions by
    doubling and halving (Lewis and Overton 2013, Alg. 2.6).

    Args:
        lr: length of a step, or of the first one tried by the line search.
        inner: iterations of one step.
        history: pairs remembered for each candidate.
        line: whether to search for the length of each step.
        trials: places that a line search tries at most; where none will do, the candidate stays.
        flat: a candidate rests for the remainder of a step once no entry of its slope is above this.
        still: or once its loss or position changes by less than this.
    """

    lr: float = 1.0
    inner: int = 20
    history: int = 100
    line: Literal["none", "wolfe"] = "none"
    trials: int = 25
    flat: float = 1e-7
    still: float = 1e-9
    alone = True
    """Each victim is searched by itself: how a sum is rounded depends on the batch, and every step multiplies it."""

    def __post_init__(self) -> None:
        for key in ("inner", "history", "trials"):
            checks.count("L-BFGS", key, getattr(self, key))
        checks.positive("L-BFGS", "a learning rate lr", self.lr)
        checks.at_least("L-BFGS", "flat", self.flat, 0)
        checks.at_least("L-BFGS", "still", self.still, 0)
        if self.line not in ("none", "wolfe"):
            raise SettingError(unknown("line search", self.line, ("none", "wolfe")))

    def init(self, x: Tensor) -> Memory:
        x = x.flatten(1)
        n, d = x.shape
        counts = torch.zeros(n, dtype=torch.long, device=x.device)
        pairs = x.new_zeros(n, self.history, d)
        cross = x.new_zeros(n, self.history, self.history)
        slope = torch.zeros_like(x)
        return Memory(
            moves=pairs,
            turns=pairs.clone(),
            cross=cross,
            bends=cross.clone(),
            pairs=counts,
            size=x.new_ones(n),
            x=x.clone(),
            slope=slope,
            taken=counts.clone(),
        )

    def step(
        self, x: Tensor, slope: Tensor, scale: Tensor, state: Memory, *, loss: Tensor, evaluate: Evaluate
    ) -> tuple[Tensor, Memory]:
        shape = x.shape[1:]

        def look(flat: Tensor, who: Tensor) -> Point:
            found, tilt = evaluate(flat.reshape(-1, *shape), who)
            return Point(flat, found, tilt.flatten(1))

        here = Point(x.flatten(1).clone(), loss.clone(), slope.flatten(1).clone())
        memory = Memory(*(part.clone() for part in state))
        who = (here.slope.abs().amax(1) > self.flat).nonzero().squeeze(1)  # candidates that do not rest
        for iteration in range(self.inner):
            if not len(who):
                break
            _remember(memory, who, here)
            who, direction = self._downhill(memory, who, here)
            length = self.lr * scale[who]
            first = (1 / here.slope[who].abs().sum(1)).clamp_max(1)
            length = torch.where(memory.taken[who] == 1, first * length, length)
            before = here.at(who)
            if self.line == "wolfe":
                after = _wolfe(before, direction, length, who, look, self.trials)
            else:
                moved = before.x + length[:, None] * direction
                last = iteration + 1 == self.inner  # whoever takes the next step evaluates it
                after = Point(moved, before.loss, before.slope) if last else look(moved, who)
            here.put(who, after)
            who = who[self._moving(before, after)]
        return here.x.reshape(-1, *shape), memory

    def _downhill(self, memory: Memory, who: Tensor, here: Point) -> tuple[Tensor, Tensor]:
        """Those of the candidates that have a way down, and the way."""
        direction = _direction(memory, who, here.slope[who])
        descent = (direction * here.slope[who]).sum(1)
        down = (descent <= -self.still) & direction.isfinite().all(1)
        return who[down], direction[down]

    def _moving(self, before: Point, after: Point) -> Tensor:
        """Which candidates go on after a move; one whose loss is not finite rests and is the search's to judge."""
        steep = after.slope.abs().amax(1) > self.flat
        moved = (after.x - before.x).abs().amax(1) > self.still
        changed = (after.loss - before.loss).abs() >= self.still
        return steep & moved & changed & after.loss.isfinite() & after.slope.isfinite().all(1)


def _remember(memory: Memory, who: Tensor, here: Point) -> None:
    """Learn from the candidates' last moves, as they really were after rounding and clamping."""
    move, turn = here.x[who] - memory.x[who], here.slope[who] - memory.slope[who]
    curved = (move * turn).sum(1)
    new = (memory.taken[who] > 0) & (curved > CURVED)
    rows, move, turn, curved = who[new], move[new], turn[new], curved[new]
    slot = memory.pairs[rows] % memory.moves.shape[1]
    memory.moves[rows, slot], memory.turns[rows, slot] = move, turn
    memory.size[rows] = curved / turn.square().sum(1)
    memory.pairs[rows] += 1
    used = _used(memory, rows)
    moves, turns = (_rows(pairs, rows, used) for pairs in (memory.moves, memory.turns))
    memory.cross[rows, slot, :used] = _along(turns, move)
    memory.cross[rows, :used, slot] = _along(moves, turn)
    memory.bends[rows, slot, :used] = memory.bends[rows, :used, slot] = _along(turns, turn)
    memory.x[who], memory.slope[who] = here.x[who], here.slope[who]
    memory.taken[who] += 1


def _direction(memory: Memory, who: Tensor, slope: Tensor) -> Tensor:
    """The direction -H slope of each candidate in the compact form (Nocedal and Wright, Eq. 7.24).

    It is what the two loops of Alg. 7.4 give, in a few products of matrices instead of hundreds of vectors. With moves
    S and turns Y as columns, D and R the diagonal and upper triangle (in order of time) of S^T Y, and a = R^-1 S^T g:

        H g = size g + S R^-T ((D + size Y^T Y) a - size Y^T g) - size Y a
    """
    used, size = _used(memory, who), memory.size[who][:, None]
    if not used:
        return -slope
    moves, turns = (_rows(pairs, who, used) for pairs in (memory.moves, memory.turns))
    age = (memory.pairs[who][:, None] - 1 - torch.arange(used, device=who.device)) % memory.moves.shape[1]
    age = torch.where(age < memory.pairs[who][:, None], age, -1)  # (n, used), 0 the newest, -1 an empty slot
    order = age.argsort(1, descending=True)  # slots, the oldest first and empty ones last
    undo = order.argsort(1)
    cross, bends = (_sorted(part[who][:, :used, :used], order) for part in (memory.cross, memory.bends))
    u, v = (_along(pairs, slope).double().gather(1, order) for pairs in (moves, turns))
    diagonal = cross.diagonal(dim1=1, dim2=2)
    upper = cross.triu() + torch.diag_embed((diagonal == 0).double())  # empty slots: nothing but a 1
    a = torch.linalg.solve_triangular(upper, u[:, :, None], upper=True)[:, :, 0]
    rest = diagonal * a + size * (_along(bends, a) - v)
    p = torch.linalg.solve_triangular(upper.mT, rest[:, :, None], upper=False)[:, :, 0]
    a, p = (part.gather(1, undo).to(slope) for part in (a, p))
    return -(size * slope + _along(moves.mT, p) - size * _along(turns.mT, a))


def _used(memory: Memory, who: Tensor) -> int:
    """Slots that any of the candidates has filled."""
    return min(memory.moves.shape[1], int(memory.pairs[who].max()) if len(who) else 0)


def _rows(pairs: Tensor, who: Tensor, used: int) -> Tensor:
    """The filled slots of some candidates, not copied where those are all."""
    return pairs[:, :used] if len(who) == len(pairs) else pairs[who, :used]


def _along(pairs: Tensor, vector: Tensor) -> Tensor:
    """(n, a, b) times (n, b) -> (n, a), from the left: with the vector as a row it is ten times faster."""
    return (vector[:, None] @ pairs.mT)[:, 0]


def _sorted(square: Tensor, order: Tensor) -> Tensor:
    """Rows and columns of (n, m, m) in the order (n, m), in double precision."""
    n = torch.arange(len(order), device=order.device)[:, None, None]
    return square[n, order[:, :, None], order[:, None, :]].double()


def _wolfe(
    before: Point, direction: Tensor, length: Tensor, who: Tensor, look: Callable[[Tensor, Tensor], Point], trials: int
) -> Point:
    """For each candidate a step that lowers the loss and flattens the slope enough, or the last that lowered it."""
    after, length = Point(*(part.clone() for part in before)), length.clone()
    low, high = torch.zeros_like(length), torch.full_like(length, torch.inf)
    descent = (before.slope * direction).sum(1)
    open_ = torch.arange(len(who), device=who.device)  # candidates without a step yet
    for _ in range(trials):
        if not len(open_):
            break
        t = length[open_]
        trial = look(before.x[open_] + t[:, None] * direction[open_], who[open_])
        fell = trial.loss <= before.loss[open_] + FALL * t * descent[open_]  # False where it is not a number
        fell &= trial.slope.isfinite().all(1) & trial.loss.isfinite()
        flat = (trial.slope * direction[open_]).sum(1) >= FLATTEN * descent[open_]
        after.put(open_[fell], trial.at(fell))
        low[open_], high[open_] = torch.where(fell, t, low[open_]), torch.where(fell, high[open_], t)
        middle = (low[open_] + high[open_]) / 2
        length[open_] = torch.where(high[open_].isinf(), 2 * t, middle)
        open_ = open_[~(fell & flat)]
    return after
