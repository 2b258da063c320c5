"""What auditing very many updates would cost on many machines, by the model of `sweeps.costs`: `dosimeter bench scale`.

    node-seconds = updates * core-seconds an update / cores of a node
    updates a second of one writer = victims of a trial / seconds to keep a trial

Nothing is audited but for the first steps that are counted.
"""

from typing import Any, NamedTuple

from dosimeter.sweeps import Trial
from dosimeter.sweeps.costs import Prices, Span
from dosimeter.sweeps.planning import costs_of

SETTINGS = {
    "cnn, MNIST, one attack": Trial(attack="ig", victims=64),
    "lenet, CIFAR-10, noise, panel": Trial(model="lenet", data="cifar10", defense="noise:sigma=0.01", victims=32),
    "resnet18, CIFAR-10, one attack": Trial(model="resnet18", data="cifar10", attack="ig", victims=8),
}


class Scaled(NamedTuple):
    """One setting."""

    update: Span  # core-seconds of an update
    held: int  # bytes of a worker
    sent: int  # bytes of an update
    victims: int  # of a trial
    kept: float  # seconds that a writer takes for a trial

    def days(self, updates: float, cores: float) -> Span:
        return self.update.map(lambda each: updates * each / cores / 86_400)

    def rate(self, cores: float) -> float:
        """Bytes a second of updates that so many cores take in."""
        return self.sent * cores / self.update.likely

    def writer(self, cores: float) -> float:
        """Nodes of so many cores whose results one writer keeps up with."""
        return self.victims * self.update.likely / cores / self.kept

    def lost(self, updates: float, cores: float, hours: float) -> float:
        """Core-hours that are done again where a node of so many cores fails once in so many hours.

        Of every core half a trial is lost.
        """
        node_hours = updates * self.update.likely / cores / 3600
        return node_hours / hours * cores * self.update.likely * self.victims / 2 / 3600


def scaled(trial: Trial, priced: Prices) -> Scaled:
    prepared = trial.prepare()
    costs = costs_of(prepared, priced, threads=1)
    kept = priced.keeping(trial.victims * trial.batch)
    whole = Span.total([each.seconds for each in costs]).map(lambda each: each + priced.trial + kept)
    sent = sum(each.numel() * each.element_size() for each in prepared.audit.model.parameters())
    return Scaled(
        update=whole.map(lambda each: each / trial.victims),
        held=priced.resident + max(each.bytes for each in costs),
        sent=sent,
        victims=trial.victims,
        kept=kept,
    )


def table(priced: Prices, *, updates: float, cores: int, nodes: int, hours: float) -> list[dict[str, Any]]:
    """A row a setting, as plain values."""
    rows = []
    for name, trial in SETTINGS.items():
        each = scaled(trial, priced)
        rows.append(
            {
                "setting": name,
                "core_seconds": each.update._asdict(),
                "days": each.days(updates, cores * nodes)._asdict(),
                "bytes_a_core": each.held,
                "bytes_an_update": each.sent,
                "bytes_a_second_a_node": each.rate(cores),
                "nodes_of_one_writer": each.writer(cores),
                "core_hours_lost": each.lost(updates, cores, hours),
            }
        )
    return rows
