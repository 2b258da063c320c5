"""Our clients as a ClientApp: each of Flower's nodes is the client of its partition."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dosimeter.errors import SettingError
from dosimeter.federated.client import fit
from dosimeter.federated.federation import Federation, State
from dosimeter.federated.server import evaluate, validate
from dosimeter.federated.setup import DEFAULT, Setup

Figures = dict[str, int | float | list[int] | list[float]]

PARTITION = "partition-id"
"""Where a node's configuration says which client it is."""


def client_app(setup: Setup = DEFAULT) -> ClientApp:
    """A ClientApp whose nodes train as `federated.train` has its clients do, told by `setup` and by the run_config."""
    app = ClientApp()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        client = _client(context, setup.told(context.run_config).federation())
        return Message(RecordDict({"client": MetricRecord({PARTITION: client})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        federation = setup.told(context.run_config).federation()
        client, state, round_ = _client(context, federation), _arrays(message), _round(message)
        done = fit(federation, state, client, round_, _own(context, "private"), _own(context, "optimiser"))
        # Flower gives this state to the node's next round and to nobody else.
        for name, tensors in (("private", done.private), ("optimiser", done.optimiser)):
            if tensors:
                context.state[name] = ArrayRecord(tensors)
        figures: Figures = {"num-examples": done.examples, "train-loss": done.loss, "steps": done.steps}
        metrics = MetricRecord(figures | {PARTITION: client})
        return Message(RecordDict({"arrays": ArrayRecord(done.sent), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def test(message: Message, context: Context) -> Message:
        told = setup.told(context.run_config)
        federation = told.federation()
        client, state, private = _client(context, federation), _arrays(message), _own(context, "private")
        metrics: Figures = {"num-examples": 1}  # each counts as any other
        if told.tested:
            metrics |= evaluate(federation, state, client, private)._asdict()
        valid = validate(federation, state, client, private)
        metrics["validation-loss"] = float("nan") if valid is None else valid.loss
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def _client(context: Context, federation: Federation) -> int:
    clients = federation.protocol.clients
    found = context.node_config.get(PARTITION)
    if not isinstance(found, int) or not 0 <= found < clients:
        raise SettingError(
            f"Expected a {PARTITION} from 0 to {clients - 1} in the node's configuration, one for each client of the "
            f"protocol, got {found!r}; start as many nodes as the protocol has clients."
        )
    return found


def _arrays(message: Message) -> State:
    return dict(message.content.array_records["arrays"].to_torch_state_dict())


def _round(message: Message) -> int:
    """Counted from 0; Flower counts from 1."""
    return int(message.content.config_records["config"]["server-round"]) - 1  # type: ignore[arg-type]


def _own(context: Context, name: str) -> State | None:
    record = context.state.array_records.get(name)
    return None if record is None else dict(record.to_torch_state_dict())
