"""FedAvgM, server momentum.  Hsu et al., 2019; Chen and Chao, ICLR 2021, §5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from consilience import tree
from consilience.inference import SGD, Inference
from consilience.method import Method, Stepped, server_step
from consilience.parties import Client, Received, Reply, Server
from consilience.posterior import Point
from consilience.task import Task
from consilience.training.optimisers import Descent


@dataclass(frozen=True)
class FedAvgM(Method):
    """Take the clients' average step as a gradient for momentum descent at the server.

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's data, started at θ
    2   v ← m v + Σₖ (nₖ / n) (θ − θₖ)
    3   θ ← θ − η v
    """

    shares: ClassVar[bool] = True
    moves_statistics: ClassVar[bool] = True

    inference: Inference = SGD()  # how a client trains
    rate: float = 1.0  # η, the server's step
    momentum: float = 0.9  # m, how much of the last step is kept

    def init(self, task: Task, server: Server) -> Stepped:
        start = task.init(server.key)
        return Stepped(start, self.descent.init(tree.ravel(start.params)))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: Stepped, replies: Sequence[Received], server: Server) -> Stepped:
        return server_step(task, state, self.descent, replies)  # 2, 3

    @property
    def averages(self) -> bool:
        return True

    @property
    def descent(self) -> Descent:
        return Descent(self.rate, self.momentum)
