"""Federated averaging as Flower's own quickstart for PyTorch writes it: nothing of this library.

`pytorchexample` in Flower's repository: a network, a DataLoader, `train`, a ClientApp that loads its partition, and the
strategy FedAvg in a ServerApp. The download of CIFAR is replaced by MNIST partitions read from files; two pitfalls are
avoided (the start-up race, one actor by default), because this is about time.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 100), nn.Linear(100, 100), nn.Linear(100, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))  # type: ignore[no-any-return]


def load_data(folder: Path, partition: int, batch: int) -> DataLoader[Any]:
    found = numpy.load(folder / f"{partition}.npz")
    rows = TensorDataset(torch.from_numpy(found["x"]), torch.from_numpy(found["y"]))
    return DataLoader(rows, batch_size=batch, shuffle=True)


def train(net: nn.Module, loader: DataLoader[Any], epochs: int, rate: float) -> float:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / len(loader)


def run(folder: Path, clients: int, rounds: int, batch: int, rate: float, workers: int) -> list[float]:
    """The moments at which each round's average was there."""
    from flwr.simulation import run_simulation

    app, server, moments = ClientApp(), ServerApp(), list[float]()

    @app.train()
    def train_(msg: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        model = Net()
        model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
        loader = load_data(folder, int(context.node_config["partition-id"]), batch)
        loss = train(model, loader, 1, float(msg.content["config"]["lr"]))
        metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})  # type: ignore[arg-type]
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=msg)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < clients:
            time.sleep(0.05)

        def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
            moments.append(time.perf_counter())
            return MetricRecord()

        FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients).start(
            grid=grid,
            initial_arrays=ArrayRecord(Net().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"lr": rate}),
            evaluate_fn=evaluate,
            timeout=600,
        )

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": workers}}
    run_simulation(server, app, clients, backend_config=resources)  # type: ignore[arg-type]
    return moments[1:]  # the first is before any training
