"""A client: load the server's weights, train on images of its own, send the weights back."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import batch, make, train

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    model = make()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    client, clients = context.node_config["partition-id"], context.node_config["num-partitions"]
    told, here = message.content["config"], context.run_config
    images, labels = batch(client, clients, told["server-round"], here["images"])
    rule = torch.optim.SGD(model.parameters(), lr=told["lr"], momentum=here["momentum"])
    loss = train(model, rule, images, labels, here["local-epochs"], here["batch-size"])
    metrics = MetricRecord({"train-loss": loss, "num-examples": len(images), "partition-id": client})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
