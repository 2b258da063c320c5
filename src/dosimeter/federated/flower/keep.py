"""What a server sees, on disk as it comes.

round-1/before.safetensors       the weights that were sent out
round-1/node-123.safetensors     what came back from a node, by the names it has in the app
round-1/round.json               nodes, numbers of examples, metrics, and who failed; written last
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from safetensors.torch import save

from dosimeter import files

BEFORE, ROUND = "before.safetensors", "round.json"


class Keep(Strategy):
    """Any strategy of Flower's, which does what it did, with everything that passes through it kept in a folder."""

    def __init__(self, strategy: Strategy, folder: str | Path) -> None:
        self.strategy, self.folder = strategy, Path(folder)

    def __getattr__(self, name: str) -> Any:
        """What this wrapper does not have is the strategy's own."""
        if name == "strategy":  # not there yet, as while a copy is made
            raise AttributeError(name)
        return getattr(self.strategy, name)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The strategy's messages, and the weights in them."""
        messages = list(self.strategy.configure_train(server_round, arrays, config, grid))
        if messages:
            self._write(server_round, BEFORE, _tensors(arrays))
        for message in messages:  # strategies may send a node something of its own
            for name, record in message.content.array_records.items():
                if record is not arrays and record != arrays:
                    file = f"node-{message.metadata.dst_node_id}.{name}.{BEFORE}"
                    self._write(server_round, file, _tensors(record))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the replies, which are kept before it can touch them."""
        came = list(replies)
        if came:
            entries = [self._reply(server_round, reply) for reply in sorted(came, key=lambda r: r.metadata.src_node_id)]
            document = {"program": "dosimeter", "round": server_round, "replies": entries}
            files.replace_json(self.folder / f"round-{server_round}" / ROUND, document, instead="folder")
        return self.strategy.aggregate_train(server_round, came)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def _reply(self, round_: int, reply: Message) -> dict[str, Any]:
        """One node's entry, once its tensors are on disk."""
        node = reply.metadata.src_node_id
        if reply.has_error():
            return {"node": node, "files": [], "error": reply.error.reason or f"code {reply.error.code}"}
        records = reply.content.array_records
        named = {f"node-{node}.safetensors" if len(records) == 1 else f"node-{node}.{k}.safetensors": r
                 for k, r in records.items()}  # fmt: skip
        for file, record in named.items():
            self._write(round_, file, _tensors(record))
        metrics = {key: value for record in reply.content.metric_records.values() for key, value in record.items()}
        examples = metrics.get(getattr(self.strategy, "weighted_by_key", "num-examples"))
        return {"node": node, "files": list(named), "examples": examples, "metrics": metrics}

    def _write(self, round_: int, name: str, content: bytes) -> None:
        files.replace(self.folder / f"round-{round_}" / name, content, instead="folder")


def _tensors(record: ArrayRecord) -> bytes:
    return save({name: tensor.contiguous() for name, tensor in record.to_torch_state_dict().items()})
