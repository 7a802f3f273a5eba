"""A method of your own: two pure functions, what a site does and what the server does."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

import consilience as co
from consilience.distributions.posterior import Point
from consilience.inference import Inference
from consilience.messages import Client, Received, Reply, Server
from consilience.method import State


@dataclass(frozen=True)
class Trimmed(co.Method):
    """Average the weights, leaving out the largest and the smallest of each coordinate (Yin et al. 2018, option II).

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's data, started at θ
    2   θ ← for each coordinate, the mean of θ₁ … θ_K without the `cut` largest and smallest
    """

    inference: Inference = co.SGD()  # how a client trains
    cut: int = 1  # how many to leave out at either end

    def local(self, task: co.Task, message: Point, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: co.Task, state: State, replies: Sequence[Received], server: Server) -> State:
        every = [reply.payload.params for reply in replies]
        kept = slice(self.cut, len(every) - self.cut)
        params = {name: torch.stack([p[name] for p in every]).sort(0).values[kept].mean(0) for name in every[0]}  # 2
        return State(Point(params))


sites = co.datasets.digits().split(co.splits.dirichlet(0.5), sites=7, seed=0)
task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(32,)))

for method in (Trimmed(co.SGD(epochs=2)), co.methods.FedAvg(co.SGD(epochs=2))):
    result = co.run(method, task, sites, rounds=5, seed=0)
    shown = {name: round(result.metrics[name], 3) for name in ("accuracy", "nll")}
    print(type(method).__name__, shown, f"{result.report['ledger']['up_bytes'] / 1e6:.1f} MB sent")
