"""L-BFGS in a batch: every candidate's path is its own, and it is that of the outside references."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, rosen
from torch import Tensor

from dosimeter import trees
from dosimeter.attacks.search.optimisers import LBFGS
from dosimeter.errors import SettingError

Loss = Callable[[Tensor, Tensor], Tensor]  # positions (n, D) of the rows `who` (n,) -> (n,)


def bowls(n: int = 12, d: int = 15) -> tuple[Tensor, Tensor]:
    """Random convex quadratics x A x / 2 - b x."""
    random = torch.Generator().manual_seed(0)
    a = torch.randn(n, d, d, generator=random, dtype=torch.float64)
    b = torch.randn(n, d, generator=random, dtype=torch.float64)
    return a @ a.mT / d + 0.05 * torch.eye(d, dtype=torch.float64), b


def quadratic(a: Tensor, b: Tensor) -> Loss:
    return lambda x, who: 0.5 * torch.einsum("ni,nij,nj->n", x, a[who], x) - (b[who] * x).sum(1)


def valley(x: Tensor, who: Tensor) -> Tensor:
    """Rosenbrock's function, steeper in later rows."""
    steep = 20.0 * (1 + who)[:, None]
    return (steep * (x[:, 1:] - x[:, :-1].square()).square() + (1 - x[:, :-1]).square()).sum(1)


def descend(optimiser: LBFGS, x: Tensor, function: Loss, steps: int, who: Tensor | None = None) -> Tensor:
    """Steps of rows `who` of a problem, all at once."""
    who = torch.arange(len(x)) if who is None else who

    def evaluate(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            loss = function(x, who[rows])
            return loss.detach(), torch.autograd.grad(loss.sum(), x)[0]

    state = optimiser.init(x)
    for _ in range(steps):
        loss, slope = evaluate(x, torch.arange(len(x)))
        x, state = optimiser.step(x, slope, torch.ones(len(x), dtype=x.dtype), state, loss=loss, evaluate=evaluate)
    return x


def starts(n: int, d: int, seed: int = 1) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("history", [3, 100])
@pytest.mark.parametrize("inner", [1, 20])
def test_without_a_line_search_every_row_is_torchs(inner: int, history: int) -> None:
    a, b = bowls()
    x, function, steps = starts(12, 15), quadratic(a, b), 40 // inner
    found = descend(LBFGS(lr=0.5, inner=inner, history=history), x, function, steps)
    for row in range(12):
        alone = x[row].clone().requires_grad_()
        theirs = torch.optim.LBFGS([alone], lr=0.5, max_iter=inner, history_size=history)

        def closure(alone: Tensor = alone, row: int = row) -> Tensor:
            alone.grad = None
            loss = function(alone[None], torch.tensor([row]))[0]
            loss.backward()
            return loss

        for _ in range(steps):
            theirs.step(closure)  # type: ignore[no-untyped-call]
        assert torch.allclose(found[row], alone.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("line", ["none", "wolfe"])
def test_every_convex_quadratic_is_solved_as_scipy_solves_it(line: str) -> None:
    a, b = bowls()
    found = descend(LBFGS(line=line), starts(12, 15), quadratic(a, b), 10)  # type: ignore[arg-type]
    assert torch.allclose(found, torch.linalg.solve(a, b), atol=1e-4)
    for row in range(12):
        m, v = a[row].numpy(), b[row].numpy()
        scipys = minimize(lambda x, m=m, v=v: x @ m @ x / 2 - v @ x, np.zeros(15), method="L-BFGS-B").fun
        here = float(quadratic(a, b)(found[row : row + 1], torch.tensor([row])))
        assert here == pytest.approx(scipys, abs=1e-6)


def test_every_rosenbrock_valley_is_followed_to_its_end() -> None:
    found = descend(LBFGS(line="wolfe", history=10), starts(6, 4) / 2, valley, 20)
    value = valley(found, torch.arange(6))
    assert ((value < 1e-8) | ((value > 1) & (value < 6))).all()  # the second is the local minimum at x_1 = -1
    assert (value < 1e-8).sum() >= 4
    assert rosen(np.ones(4)) == float(valley(torch.ones(1, 4), torch.tensor([4]))) == 0


@pytest.mark.parametrize("line", ["none", "wolfe"])
def test_a_row_of_a_batch_equals_the_row_alone(line: str) -> None:
    optimiser = LBFGS(line=line, inner=7, history=5, lr=0.3)  # type: ignore[arg-type]
    a, b = bowls()
    for function, x in ((quadratic(a, b), starts(12, 15)), (valley, 0.3 * starts(12, 6))):
        together = descend(optimiser, x, function, 12)
        for row in (0, 7, 11):
            alone = descend(optimiser, x[row : row + 1], function, 12, who=torch.tensor([row]))
            assert torch.allclose(together[row], alone[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("line", ["none", "wolfe"])
def test_a_row_that_is_not_a_number_or_runs_away_leaves_the_others_alone(line: str) -> None:
    a, b = bowls()
    plain = quadratic(a, b)

    def broken(x: Tensor, who: Tensor) -> Tensor:
        loss = plain(x, who) + torch.where(who == 3, x[:, 0] - 100, 1.0).sqrt() - 1  # row 3 is never a number
        return torch.where(who == 5, -(x**3).sum(1), loss)  # no lower end

    optimiser = LBFGS(line=line)  # type: ignore[arg-type]
    clean, dirty = (descend(optimiser, starts(12, 15), f, 6) for f in (plain, broken))
    others = [row for row in range(12) if row not in (3, 5)]
    assert torch.allclose(clean[others], dirty[others], atol=1e-9)
    assert torch.equal(dirty[3], starts(12, 15)[3])


def test_rows_leave_with_their_history() -> None:
    a, b = bowls()
    function, optimiser = quadratic(a, b), LBFGS(inner=2, history=4, lr=0.5)
    who = torch.arange(12)
    kept = torch.tensor([1, 7, 8])
    x = starts(12, 15)
    state = optimiser.init(x)
    for step in range(8):
        if step == 4:
            x, state, who = trees.rows((x, state, who), kept)

        def evaluate(x: Tensor, rows: Tensor, who: Tensor = who) -> tuple[Tensor, Tensor]:
            return function(x, who[rows]), torch.einsum("nij,nj->ni", a[who[rows]], x) - b[who[rows]]

        loss, slope = evaluate(x, torch.arange(len(x)))
        x, state = optimiser.step(x, slope, torch.ones(len(x)).double(), state, loss=loss, evaluate=evaluate)
    assert torch.allclose(x, descend(optimiser, starts(12, 15), function, 8)[kept], atol=1e-10)


def test_a_step_leaves_the_state_it_was_given_as_it_was() -> None:
    a, b = bowls()
    optimiser, x = LBFGS(), starts(12, 15)
    state = optimiser.init(x)
    before = [part.clone() for part in state]
    slope = torch.einsum("nij,nj->ni", a, x) - b
    optimiser.step(
        x,
        slope,
        torch.ones(12).double(),
        state,
        loss=quadratic(a, b)(x, torch.arange(12)),
        evaluate=lambda x, who: (quadratic(a, b)(x, who), torch.einsum("nij,nj->ni", a[who], x) - b[who]),
    )
    assert all(torch.equal(old, new) for old, new in zip(before, state, strict=True))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SettingError, match="at least 1"):
        LBFGS(inner=0)
    with pytest.raises(SettingError, match="line search"):
        LBFGS(line="wolf")  # type: ignore[arg-type]
