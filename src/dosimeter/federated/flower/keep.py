"""What a server sees, on disk as it comes. Names in messages become no paths: files have numbers.

round-1/before.safetensors       the weights that were sent out; node-123.before, where a node got others
round-1/node-123.safetensors     what came back from a node, by the names it has in the app; node-123.1 its next record
round-1/round.json               nodes, their files, numbers of examples, metrics, what they were told, and who failed;
                                 written last

Only their owner can read them. What cannot be kept is said in Flower's log, and training goes on.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from safetensors.torch import load, save

from dosimeter import files
from dosimeter.errors import UpdateError
from dosimeter.federated.facts import telling
from dosimeter.federated.kept import BEFORE, ROUND


class Keep(Strategy):
    """Any strategy of Flower's, which does what it did, with everything that passes through it kept in a folder.

    Args:
        strategy: the app's own.
        folder: where to.
        run_config: the app's (`context.run_config`), of which is kept what tells how clients train.
    """

    def __init__(self, strategy: Strategy, folder: str | Path, run_config: Mapping[str, Any] | None = None) -> None:
        self.strategy, self.folder, self.run_config = strategy, Path(folder).expanduser(), telling(run_config or {})
        self._told: dict[int, dict[str, Any]] = {}  # this round's, by node

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
        self._told = {}
        if messages:
            with _going_on(f"What round {server_round} begins with"):
                place = self._place(server_round)
                for old in (place / ROUND, *place.glob("node-*.safetensors")):  # of an earlier run
                    old.unlink(missing_ok=True)
                _write(place / BEFORE, _tensors("arrays", arrays))
                for message in messages:  # strategies may send a node something of its own
                    told = [_plain(record) for record in message.content.config_records.values()]
                    self._told[message.metadata.dst_node_id] = {
                        key: value for each in told for key, value in each.items()
                    }
                    for number, (name, record) in enumerate(message.content.array_records.items()):
                        if record is not arrays and record != arrays:
                            file = f"{_stem(message.metadata.dst_node_id, number)}.{BEFORE}"
                            _write(place / file, _tensors(name, record))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """What the strategy makes of the replies, which are kept before it can touch them."""
        came = list(replies)
        if came:
            with _going_on(f"What came back in round {server_round}"):
                numbers: Counter[int] = Counter()
                ordered = sorted(came, key=lambda reply: reply.metadata.src_node_id)
                entries = [self._reply(server_round, reply, numbers) for reply in ordered]
                head = {"program": "dosimeter", "round": server_round, "run_config": self.run_config}
                document = head | {"replies": entries}
                files.replace_json(self._place(server_round) / ROUND, document, instead="folder", mode=0o600)
        return self.strategy.aggregate_train(server_round, came)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.strategy.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.strategy.summary()

    def _place(self, round_: int) -> Path:
        return self.folder / f"round-{round_}"

    def _reply(self, round_: int, reply: Message, numbers: Counter[int]) -> dict[str, Any]:
        """One node's entry, once its tensors are on disk."""
        node = reply.metadata.src_node_id
        failed = {"node": node, "files": []}
        if reply.has_error():
            return failed | {"error": reply.error.reason or f"code {reply.error.code}"}
        try:
            contents = [_tensors(name, record) for name, record in reply.content.array_records.items()]
            if not contents:
                raise UpdateError("it has no arrays")
        except Exception as reason:  # whatever somebody else's program sends
            log(WARNING, "The reply of node %s in round %s is not kept: %.200r", node, round_, reason)
            return failed | {"error": f"not kept: {reason!r:.200}"}
        named = []
        for content in contents:
            named.append(f"{_stem(node, numbers[node])}.safetensors")
            numbers[node] += 1
            _write(self._place(round_) / named[-1], content)
        metrics = {key: value for record in reply.content.metric_records.values() for key, value in record.items()}
        examples = metrics.get(getattr(self.strategy, "weighted_by_key", "num-examples"))
        told = self._told.get(node, {})
        return {"node": node, "files": named, "examples": examples, "metrics": metrics, "config": told}


@contextmanager
def _going_on(what: str) -> Iterator[None]:
    """Training is not ours to stop, whatever keeps this from being kept."""
    try:
        yield
    except Exception as reason:
        log(WARNING, "%s is not kept: %s", what, reason)


def _plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and words of a record, which JSON can hold."""
    return {key: value for key, value in record.items() if isinstance(value, bool | int | float | str)}


def _stem(node: int, number: int) -> str:
    return f"node-{node:d}.{number}" if number else f"node-{node:d}"


def _write(path: Path, content: bytes) -> None:
    files.replace(path, content, instead="folder", mode=0o600)


def _tensors(name: str, record: ArrayRecord) -> bytes:
    """A file that can be read back, which some names would prevent."""
    tensors = {key: tensor.contiguous() for key, tensor in record.to_torch_state_dict().items()}
    content = save(tensors, {"record": name})
    load(content)
    return content
