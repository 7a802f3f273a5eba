"""FedAvg rounds in pfl: the MNIST MLP, 600 examples a client, one epoch, batch 100; run by its own environment."""

import json
import statistics
import sys
import time

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

LAYERS, ROWS, BATCH, RATE = (784, 100, 100, 10), 600, 100, 0.05


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        a, b, c, d = LAYERS
        parts = [torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, c), torch.nn.ReLU(), torch.nn.Linear(c, d)]
        self.layers = torch.nn.Sequential(*parts)

    def loss(self, x, y, is_eval=False):
        return torch.nn.functional.cross_entropy(self.layers(x), y)

    def metrics(self, x, y, is_eval=True):
        return {}


class Clock(TrainingProcessCallback):
    """The time of every round."""

    def __init__(self):
        self.marks = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.marks.append(time.perf_counter())
        return False, Metrics()


def main(clients, repeats):
    torch.manual_seed(0)
    rows = {k: (torch.randn(ROWS, LAYERS[0]), torch.randint(0, LAYERS[-1], (ROWS,))) for k in range(clients)}
    network, clock = Network(), Clock()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    data = FederatedDataset(lambda k: Dataset(rows[k], user_id=str(k)), get_user_sampler("minimize_reuse", list(rows)))
    FederatedAveraging().run(
        NNAlgorithmParams(repeats + 1, 10**9, clients, None),
        SimulatedBackend(data, None),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    seconds = [b - a for a, b in zip(clock.marks[:-1], clock.marks[1:], strict=True)]
    print(json.dumps({"seconds": statistics.median(seconds[1:])}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
