"""Secure aggregation on Flower: what a server can read out of one masked update, and what out of the sum.

Four clients take one step on one digit each. Flower's SecAgg+ runs in this process, and all that reaches the server is
recorded on the way.
"""

import sys
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import nn

import dosimeter as dm

try:
    from flwr.app import Context, Message, RecordDict
    from flwr.client import ClientApp, NumPyClient
    from flwr.client.mod import secaggplus_mod
    from flwr.common import bytes_to_ndarray, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.common.secure_aggregation.quantization import dequantize
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
except ImportError:
    sys.exit("This example needs Flower; run pip install 'dosimeter[flower]'.")

from dosimeter.flower import Here

CLIENTS, RATE, CLIP, LEVELS = 4, 1.0, 4.0, 2**22
victims = dm.pick(dm.load("mnist-5k"), CLIENTS, seed=1)


def make() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.Sigmoid(), nn.Linear(64, 10))


class Client(NumPyClient):
    """One plain step on one image."""

    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters, config):
        model = make()
        model.load_state_dict(named(parameters))
        F.cross_entropy(model(victims.images[self.number]), victims.labels[self.number]).backward()
        torch.optim.SGD(model.parameters(), lr=RATE).step()
        return [tensor.numpy() for tensor in model.state_dict().values()], 1, {}


class Recorded(Here):
    """A grid that keeps the replies of the stage in which clients send their masked weights."""

    def __init__(self, app: ClientApp, nodes: int) -> None:
        super().__init__(app, nodes)
        self.masked = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        for reply in replies:
            for record in reply.content.config_records.values():
                if "masked_params" in record:
                    numbers = [bytes_to_ndarray(part) for part in record["masked_params"]]
                    client = self.contexts[reply.metadata.src_node_id].node_config["partition-id"]
                    self.masked[client] = dequantize(numbers[1:], CLIP, LEVELS)  # the first is the client's weight
        return replies


class Average(FedAvg):
    """FedAvg that remembers what it ended with."""

    def aggregate_fit(self, server_round, results, failures):
        self.mean, metrics = super().aggregate_fit(server_round, results, failures)
        return self.mean, metrics


def start():
    """The weights before the round, as Flower's older clients get them."""
    return [tensor.numpy() for tensor in make().state_dict().values()]


def named(arrays):
    return {name: torch.as_tensor(a).float() for name, a in zip(make().state_dict(), arrays, strict=True)}


def read(after, truth: torch.Tensor) -> torch.Tensor:
    """SSIM of what an attack makes of the change from the first weights to these, image by image."""
    before = make().state_dict()
    update = {name: (before[name] - tensor) / RATE for name, tensor in named(after).items()}
    attack = dm.presets.inverting_gradients(steps=300, tv=1e-4, labels="counts")
    found = dm.reconstruct(make(), dm.Capture(update, (1, 28, 28), batch=len(truth)), attack=attack).images[0]
    return dm.metrics.ssim(found[dm.metrics.match_batch(found, truth)], truth)


def say(what: str, scores: torch.Tensor) -> None:
    listed = ", ".join(f"{score:.2f}" for score in scores.tolist())
    print(f"{what}: {int((scores > 0.5).sum())} of {len(scores)} images read (SSIM {listed})")  # noqa: T201


app = ClientApp(lambda context: Client(context.node_config["partition-id"]).to_client(), mods=[secaggplus_mod])
grid = Recorded(app, CLIENTS)
strategy = Average(initial_parameters=ndarrays_to_parameters(start()), fraction_evaluate=0.0)
context = LegacyContext(Context(1, 1, {}, RecordDict(), {}), ServerConfig(num_rounds=1), strategy)
# A client's weight is its number of images; with the usual max_weight of 1,000 one image would drown in rounding.
secure = SecAggPlusWorkflow(CLIENTS, 3, max_weight=1.0, clipping_range=CLIP, quantization_range=LEVELS)
DefaultWorkflow(fit_workflow=secure)(grid, context)

truth = victims.images[:, 0]  # of one image a client
plain = [Client(number).fit(start(), {})[0] for number in range(CLIENTS)]
say("one update, not masked", torch.cat([read(after, truth[n : n + 1]) for n, after in enumerate(plain)]))
say("one update, as the server sees it", torch.cat([read(m, truth[n : n + 1]) for n, m in grid.masked.items()]))
say("the mean of all four", read(parameters_to_ndarrays(strategy.mean), truth))
