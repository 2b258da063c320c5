"""The form of an optimiser: how all candidates of a search move at once."""

from typing import Generic, Protocol, TypeVar

from torch import Tensor

S = TypeVar("S")


class Evaluate(Protocol):
    """Loss (n,) and slope (n, ...) of the candidates `who` (n,) if they stood at x (n, ...).

    Without `slopes`, which saves the passes that they take, those are 0.
    """

    def __call__(self, x: Tensor, who: Tensor, *, slopes: bool = True) -> tuple[Tensor, Tensor]: ...


class Optimiser(Generic[S]):
    """State is a NamedTuple of per-candidate tensors, so that candidates can leave the batch."""

    alone = False
    """Whether each victim is searched by itself."""
    population = 1
    """Points that are evaluated at once for each candidate."""
    varies: tuple[str, ...] = ()
    """Numbers that candidates of one batch may have of their own; see `together`."""

    def init(self, x: Tensor) -> S:
        raise NotImplementedError

    def step(
        self, x: Tensor, slope: Tensor, scale: Tensor, state: S, *, loss: Tensor, evaluate: Evaluate
    ) -> tuple[Tensor, S]:
        """Move N candidates.

        Args:
            x: (N, ...) where they stand.
            slope: (N, ...) of the loss there.
            scale: (N,) multiplies the learning rate of each.
            state: what earlier steps left.
            loss: (N,) where they stand.
            evaluate: loss and slope elsewhere, for steps that try several places.
        """
        raise NotImplementedError


def per_row(numbers: Tensor, x: Tensor) -> Tensor:
    """One number a candidate (N,), to be multiplied with (N, ...)."""
    return numbers.reshape(-1, *[1] * (x.ndim - 1))
