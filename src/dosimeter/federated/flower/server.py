"""Our server as a ServerApp: Flower's FedAvg, with the clients and the sums that rounds in this process have."""

import copy
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from dosimeter.errors import ModelError
from dosimeter.federated.accounting import privacy
from dosimeter.federated.checkpoint import Checkpoint, write_checkpoint
from dosimeter.federated.federation import State
from dosimeter.federated.flower.client import PARTITION
from dosimeter.federated.flower.keep import Keep
from dosimeter.federated.server import chosen, evaluate
from dosimeter.federated.setup import DEFAULT, Setup
from dosimeter.federated.training import _samples, _stale


def server_app(setup: Setup = DEFAULT) -> ServerApp:
    """A ServerApp that trains what `federated.train` does, told by `setup` and by the run_config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        told = setup.told(context.run_config)
        rounds = Rounds(told)
        strategy: Strategy = Keep(rounds, told.keep) if told.keep else rounds
        strategy.start(
            grid,
            ArrayRecord(rounds.federation.initial()),
            num_rounds=rounds.federation.protocol.rounds,
            timeout=told.timeout,
            evaluate_fn=rounds.note,
        )

    return app


class Rounds(FedAvg):
    """FedAvg with the clients that `federated.chosen` names, summed in float64 in the order of their numbers."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(train_metrics_aggr_fn=_totals, evaluate_metrics_aggr_fn=_means)
        self.setup, self.federation = setup, setup.federation()
        self.history: list[dict[str, Any]] = []
        self._clients: dict[int, int] = {}  # by node
        self._before = ArrayRecord()
        self._trained, self._tested = MetricRecord(), MetricRecord()
        self._took_part: list[int] = []
        self._began = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to this round's clients; to none once the validation loss has been stale for long."""
        self._began, self._before = time.perf_counter(), arrays
        validated = [entry for entry in self.history if "validation_loss" in entry]
        if _stale(validated, self.federation.protocol.patience):
            return []
        nodes = self._present(grid, wait=server_round == 1)
        wanted = chosen(self.federation, server_round - 1)
        if len(wanted) < self.federation.protocol.clients:
            self._meet(grid, nodes)
            nodes = [node for node in nodes if self._clients.get(node) in wanted]
        return self._tell(server_round, arrays, config, nodes, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The mean of what came, in float64; counters, which are no floats, as the first client has them."""
        came = sorted(
            (reply for reply in replies if not reply.has_error()),
            key=_client_of,
        )
        self._took_part = [_client_of(reply) for reply in came]
        mean, metrics = super().aggregate_train(server_round, [_double(reply) for reply in came])
        self._trained = metrics or MetricRecord()
        if mean is None:
            return None, None
        first = came[0].content.array_records["arrays"].to_torch_state_dict()
        state: State = dict(self._before.to_torch_state_dict())
        for name, tensor in mean.to_torch_state_dict().items():
            state[name] = tensor.to(first[name].dtype) if first[name].is_floating_point() else first[name]
            if state[name].is_floating_point() and not state[name].isfinite().all():
                raise ModelError(
                    f"Training diverged: {name!r} is not finite after round {server_round}; use a smaller learning "
                    "rate or less noise."
                )
        return ArrayRecord(state), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Clients are asked what only they can tell, with weights, a key or validation images of their own."""
        own = self.setup.tested and self._own()
        if not (own or self.federation.protocol.validation) or not self._trained:
            return []
        return self._tell(server_round, arrays, config, self._present(grid), MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        found = super().aggregate_evaluate(server_round, list(replies))
        self._tested = found or MetricRecord()
        return found

    def note(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """One entry a round, as rounds in this process write them; the server's own test is made here."""
        if server_round == 0 or not self._trained:
            return None
        state: State = dict(arrays.to_torch_state_dict())
        entry: dict[str, Any] = {"round": server_round, **_plain(self._trained), **_plain(self._tested)}
        if self.setup.tested and self._own():
            entry["random_key"] = evaluate(self.federation, {**state, **self.federation.initial_private()}).accuracy
        elif self.setup.tested:
            entry |= evaluate(self.federation, state)._asdict()
        entry["samples"] = _samples(self.federation, self._took_part)
        entry |= privacy(self.federation, server_round)
        entry["seconds"] = time.perf_counter() - self._began
        self.history.append(entry)
        if self.setup.out:
            at = Checkpoint(server_round, state, {}, {}, self.history)
            write_checkpoint(Path(self.setup.out), self.federation, at)
        return MetricRecord({key: value for key, value in entry.items() if key in ("loss", "accuracy", "random_key")})

    def _own(self) -> bool:
        return bool(self.federation.private) or self.federation.keyed

    def _tell(
        self, round_: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Iterable[int], kind: str
    ) -> list[Message]:
        config["server-round"] = round_
        content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content, dst_node_id=node, message_type=kind) for node in nodes]

    def _present(self, grid: Grid, *, wait: bool = False) -> list[int]:
        """The nodes that are there.

        Args:
            wait: until there are as many as clients, or until the time of a round is over.
        """
        until = time.monotonic() + self.setup.timeout
        while True:
            nodes = list(grid.get_node_ids())
            if not wait or len(nodes) >= self.federation.protocol.clients or time.monotonic() >= until:
                return nodes
            time.sleep(0.2)

    def _meet(self, grid: Grid, nodes: list[int]) -> None:
        """Ask who is new which client it is, which only matters where some of them are chosen."""
        new = [node for node in nodes if node not in self._clients]
        ask = [Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY) for node in new]
        for reply in grid.send_and_receive(ask, timeout=self.setup.timeout) if ask else ():
            if not reply.has_error():
                self._clients[reply.metadata.src_node_id] = _plain(reply.content.metric_records["client"])[PARTITION]


def _client_of(reply: Message) -> int:
    return int(_plain(reply.content.metric_records["metrics"])[PARTITION])


def _double(reply: Message) -> Message:
    """A copy whose floats are float64, so that the order of clients does not show in their sum."""
    state = reply.content.array_records["arrays"].to_torch_state_dict()
    twin = copy.copy(reply)
    twin.__dict__["_content"] = RecordDict(
        {
            "arrays": ArrayRecord({name: t.double() if t.is_floating_point() else t for name, t in state.items()}),
            "metrics": reply.content.metric_records["metrics"],
        }
    )
    return twin


def _totals(records: list[RecordDict], weight: str) -> MetricRecord:
    each = [_plain(record.metric_records["metrics"]) for record in records]
    loss = sum(m["train-loss"] * m[weight] for m in each) / sum(m[weight] for m in each)
    return MetricRecord({"clients": len(each), "steps": max(m["steps"] for m in each), "train_loss": loss})


def _means(records: list[RecordDict], weight: str) -> MetricRecord:
    """Of the clients' figures, without those who have none."""
    each = [_plain(record.metric_records["metrics"]) for record in records]
    found = MetricRecord()
    for key in each[0]:
        values = [m[key] for m in each if not math.isnan(m[key])]
        if key != weight and values:
            found[key.replace("-", "_")] = sum(values) / len(values)
    return found


def _plain(record: MetricRecord) -> dict[str, Any]:
    return dict(record.items())
