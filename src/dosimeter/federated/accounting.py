"""What training under DP-SGD has cost its clients so far."""

import math
from collections import Counter
from typing import Any

from dosimeter.federated.federation import Federation
from dosimeter.federated.server import chosen


def privacy(federation: Federation, rounds: int) -> dict[str, Any]:
    """The (epsilon, delta) of the client that has spent most after so many rounds, by Opacus' accountant of Renyi
    divergences (Mironov 2017); None for an infinite epsilon, nothing at all without DP-SGD.

    A client's rate is batch size over images, its steps are those of the rounds that chose it.

    Deviations: the accountant assumes that every batch is a Poisson sample, while epochs here are shuffled and cut into
    batches, whose true epsilon may be larger (Chua et al. 2024, arXiv:2403.17673).
    """
    took_part = Counter(client for round_ in range(rounds) for client in chosen(federation, round_))
    spent = {_rate_and_steps(federation, client, times) for client, times in took_part.items()}
    costs = [federation.defense.spends(rate, steps) for rate, steps in spent or {(1.0, 0)}]
    most = max(costs, key=lambda cost: cost.get("epsilon", 0.0))
    return most | {"epsilon": most["epsilon"] if math.isfinite(most["epsilon"]) else None} if most else {}


def privacy_words(figures: dict[str, Any]) -> str:
    """The cost among the figures of a round or of a training, as it is printed."""
    return f"{epsilon_words(figures)} at delta {figures['delta']:g}" if "epsilon" in figures else ""


def epsilon_words(figures: dict[str, Any]) -> str:
    spent = figures.get("epsilon", 0.0)
    return "infinite" if spent is None else f"{spent:.3g}"


def _rate_and_steps(federation: Federation, client: int, rounds: int) -> tuple[float, int]:
    protocol, (size, many) = federation.protocol, federation.batches[client]
    steps = protocol.steps if protocol.epochs is None else protocol.epochs * many
    assert steps is not None
    return size / len(federation.holdings[client].train), rounds * steps
