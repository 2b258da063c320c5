"""How many victims run at once: a function of model, settings and budget, never of what memory happens to be free."""

from typing import NamedTuple

from torch import Tensor

from dosimeter.errors import SettingError
from dosimeter.types import Shape, Target

DEFAULT_BUDGET = 4 * 2**30  # bytes


class Plan(NamedTuple):
    """Victims a chunk and the memory that a chunk is expected to take."""

    victims: int
    bytes: int


def plan(target: Target, *, victims: int, batch: int, restarts: int, budget: int = DEFAULT_BUDGET) -> Plan:
    """Cut victims into chunks that fit the budget.

    A candidate holds its gradient about four times (simulated, its derivative and two products of them) and its
    activations about six times (forward, backward and the backward pass through both); an observation once.
    """
    size = next(iter(target.parameters.values())).element_size()
    weights = sum(p.numel() for p in target.parameters.values())
    candidate = 4 * weights + 6 * batch * _activations(target)
    each = size * (restarts * candidate + weights)
    if each > budget:
        raise SettingError(
            f"One victim with {restarts} restart(s) needs about {each / 2**30:.2f} GiB, more than the budget of "
            f"{budget / 2**30:.2f} GiB; raise the budget or lower restarts or batch."
        )
    together = min(victims, budget // each)
    return Plan(together, together * each)


def _activations(target: Target) -> int:
    """Numbers that one image leaves in the outputs of the model's layers."""
    import torch

    count = 0

    def add(_module: object, _inputs: object, output: object) -> None:
        nonlocal count
        count += output.numel() if isinstance(output, Tensor) else 0

    leaves = [m for m in target.model.modules() if not list(m.children())]
    hooks = [m.register_forward_hook(add) for m in leaves]
    shape: Shape = target.shape
    with torch.no_grad():
        target.model(torch.zeros(1, *shape, dtype=target.mean.dtype, device=target.mean.device))
    for hook in hooks:
        hook.remove()
    return count
