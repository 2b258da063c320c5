"""Our server as a ServerApp: Flower's FedAvg, with the clients and the sums that rounds in this process have."""

import math
import statistics
import time
from collections.abc import Callable, Iterable
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy

from dosimeter import files
from dosimeter.errors import UpdateError
from dosimeter.federated.accounting import privacy
from dosimeter.federated.checkpoint import Checkpoint, write_checkpoint
from dosimeter.federated.federation import State
from dosimeter.federated.flower.client import PARTITION, Figures
from dosimeter.federated.flower.keep import Keep
from dosimeter.federated.server import Score, average, chosen, evaluate
from dosimeter.federated.setup import DEFAULT, Setup
from dosimeter.federated.training import _check_finite, _samples, _stale

T = TypeVar("T")


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
    """FedAvg with the clients that `federated.chosen` names, and the server's own sums in the order of their numbers.

    A reply that says something else than ours do is left out of its round, and the log tells.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.setup, self.federation = setup, setup.federation()
        self._out = Path(setup.out).expanduser() if setup.out else None
        if self._out:
            files.check_writable(self._out, instead="out")
        self.history: list[dict[str, Any]] = []
        self._clients: dict[int, int] = {}  # by node
        self._before: State = {}
        self._trained: Figures = {}
        self._tested: Figures = {}
        self._took_part: list[int] = []
        self._have_trained: set[int] = set()  # nodes
        self._began = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to this round's clients; to none once the validation loss has been stale for long."""
        self._began, self._before = time.perf_counter(), dict(arrays.to_torch_state_dict())
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
        """The mean of what came."""
        came = sorted(_read(replies, self._update), key=lambda each: each.client)
        self._took_part, self._trained = [each.client for each in came], {}
        self._have_trained |= {each.node for each in came}
        if not came:
            return None, None
        state = {**self._before, **average([each.state for each in came], [each.examples for each in came])}
        _check_finite(state, server_round - 1)
        loss = sum(each.loss * each.examples for each in came) / sum(each.examples for each in came)
        self._trained = {"clients": len(came), "steps": max(each.steps for each in came), "train_loss": loss}
        return ArrayRecord(state), MetricRecord(self._trained)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Clients are asked what only they can tell, with weights, a key or validation images of their own."""
        own = self.setup.tested and self.federation.own
        if not (own or self.federation.protocol.validation) or not self._trained:
            return []
        nodes = [node for node in self._present(grid) if node in self._have_trained or not self.federation.own]
        return self._tell(server_round, arrays, config, nodes, MessageType.EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The means of the clients' figures, without those who have none."""
        keys = ("validation-loss", *(Score._fields if self.setup.tested else ()))
        each = _read(replies, lambda reply: {key: float(_plain(reply, "metrics")[key]) for key in keys})
        known = {key: [found[key] for found in each if not math.isnan(found[key])] for key in keys}
        self._tested = {key.replace("-", "_"): statistics.fmean(values) for key, values in known.items() if values}
        return MetricRecord(self._tested)

    def note(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """One entry a round, as rounds in this process write them; the server's own test is made here."""
        if server_round == 0 or not self._trained:
            return None
        state: State = dict(arrays.to_torch_state_dict())
        entry: dict[str, Any] = {"round": server_round, **self._trained, **self._tested}
        if self.setup.tested and self.federation.own:
            entry["random_key"] = evaluate(self.federation, {**state, **self.federation.initial_private()}).accuracy
        elif self.setup.tested:
            entry |= evaluate(self.federation, state)._asdict()
        entry["samples"] = _samples(self.federation, self._took_part)
        entry |= {"left_out": self.federation.left_out} if self.federation.left_out else {}
        entry |= privacy(self.federation, server_round)
        entry["seconds"] = time.perf_counter() - self._began
        self.history.append(entry)
        if self._out:
            at = Checkpoint(server_round, state, {}, {}, self.history)
            write_checkpoint(self._out, self.federation, at)
        return MetricRecord({key: value for key, value in entry.items() if key in ("loss", "accuracy", "random_key")})

    def _tell(
        self, round_: int, arrays: ArrayRecord, config: ConfigRecord, nodes: Iterable[int], kind: str
    ) -> list[Message]:
        config["server-round"] = round_
        if kind == MessageType.TRAIN:  # clients know it; who audits what `Keep` kept does not
            protocol = self.federation.protocol
            config["lr"], config["optimizer"] = protocol.rate(round_ - 1), protocol.optimiser
            config["batch-size"], config["momentum"] = protocol.batch_size, protocol.momentum
            config["weight-decay"], config["nesterov"] = protocol.weight_decay, protocol.nesterov
            config["local-steps" if protocol.epochs is None else "local-epochs"] = (
                protocol.steps or protocol.epochs or 1
            )
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
        came = grid.send_and_receive(ask, timeout=self.setup.timeout) if ask else ()
        self._clients |= _read(came, lambda reply: (reply.metadata.src_node_id, self._client(_plain(reply, "client"))))

    def _client(self, figures: dict[str, Any]) -> int:
        client = int(figures[PARTITION])
        if client not in range(self.federation.protocol.clients):
            raise UpdateError(f"there is no client {client}")
        return client

    def _update(self, reply: Message) -> "_Update":
        figures, arrays = _plain(reply, "metrics"), reply.content.array_records["arrays"]
        state: State = dict(arrays.to_torch_state_dict())
        wanted = {name: t.shape for name, t in self._before.items() if name not in self.federation.private}
        if {name: t.shape for name, t in state.items()} != wanted:
            raise UpdateError("its tensors are not those of the model")
        steps, loss, examples = int(figures["steps"]), float(figures["train-loss"]), int(figures["num-examples"])
        if examples < 1:
            raise UpdateError(f"it is of {examples} images")
        return _Update(reply.metadata.src_node_id, self._client(figures), state, examples, steps, loss)


class _Update(NamedTuple):
    """What a client of ours says after its round."""

    node: int
    client: int
    state: State
    examples: int
    steps: int
    loss: float


def _read(replies: Iterable[Message], what: Callable[[Message], T]) -> list[T]:
    """What replies say."""
    found = []
    for reply in replies:
        try:
            if reply.has_error():
                raise UpdateError(reply.error.reason)
            found.append(what(reply))
        except Exception as reason:  # whatever somebody else's program sends
            log(WARNING, "The reply of node %s is left out: %.200r", reply.metadata.src_node_id, reason)
    return found


def _plain(reply: Message, name: str) -> dict[str, Any]:
    return dict(reply.content.metric_records[name].items())
