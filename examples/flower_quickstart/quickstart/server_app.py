"""The server: average what clients send, and test the result."""

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dosimeter.flower import Keep
from quickstart.task import accuracy, make

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = Keep(strategy, context.run_config["kept"], context.run_config)  # the one added line

    def test(_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = make()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    rounds, told = context.run_config["rounds"], ConfigRecord({"lr": context.run_config["lr"]})
    strategy.start(grid, ArrayRecord(make().state_dict()), num_rounds=rounds, train_config=told, evaluate_fn=test)
