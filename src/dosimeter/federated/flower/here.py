"""Both apps of a Flower program in this process, one message after another, without Ray and without a network."""

import copy
from collections.abc import Iterable, Mapping
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfigValue
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

CLIENT_FAILED = 3
"""Flower's code for a ClientApp that raised."""


class Here(Grid):
    """A Grid whose nodes are calls of one ClientApp, each with a context of its own; what raises is an error reply."""

    def __init__(self, app: ClientApp, nodes: int, config: Mapping[str, UserConfigValue] | None = None) -> None:
        self._app = app
        self._run = Run.create_empty(run_id=1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.contexts = {
            # Ids that are no partition ids, as anywhere in Flower.
            1000 + place: Context(
                1, 1000 + place, {"partition-id": place, "num-partitions": nodes}, RecordDict(), dict(config or {})
            )
            for place in range(nodes)
        }
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the clients; their replies wait to be pulled."""
        return [self._deliver(message) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(each) for each in message_ids if each in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))

    def _deliver(self, message: Message) -> str:
        # A client gets a copy, as over a network, and cannot change what the server holds.
        twin = copy.deepcopy(message)
        name = str(uuid4())
        twin.metadata.__dict__["_message_id"] = name
        try:
            reply = self._app(twin, self.contexts[twin.metadata.dst_node_id])
        except Exception as reason:  # what a client raises is the client's own; the server hears that it failed
            reply = Message(Error(CLIENT_FAILED, f"{type(reason).__name__}: {reason}"), reply_to=twin)
        self._replies[name] = reply
        return name


def run_here(
    server: ServerApp, client: ClientApp, *, nodes: int, config: Mapping[str, UserConfigValue] | None = None
) -> Here:
    """Run a Flower program to its end in this process; the grid that it ran on.

    Args:
        nodes: how many clients there are.
        config: the run_config of both apps.
    """
    grid = Here(client, nodes, config)
    server(grid, Context(1, 1, {}, RecordDict(), dict(config or {})))
    return grid
