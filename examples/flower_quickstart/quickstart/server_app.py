"""The server: average what clients send, and test the result."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from dosimeter.flower import Keep
from quickstart.task import accuracy, make

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(fraction_evaluate=0.0)
    strategy = Keep(strategy, context.run_config["kept"])  # the one added line

    def test(_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = make()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model)})

    strategy.start(grid, ArrayRecord(make().state_dict()), num_rounds=context.run_config["rounds"], evaluate_fn=test)
