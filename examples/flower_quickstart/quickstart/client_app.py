"""A client: load the server's weights, train on images of its own, send the weights back."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import batch, make, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    model = make()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    round_ = message.content["config"]["server-round"]
    images, labels = batch(client, clients, round_, context.run_config["images"])
    loss = train(model, images, labels, context.run_config["rate"])
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(images), "partition-id": client})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
