"""FedProx.  Li et al., MLSys 2020, Algorithm 2; Hasan 2023, eq. 2.12."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from consilience.inference import SGD, Inference
from consilience.method import Method, State
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.posterior import Point, average
from consilience.task import Task
from consilience.tilt import proximal, proximal_norm


@dataclass(frozen=True)
class FedProx(Method):
    """Federated averaging with a penalty on the distance from where the round began.

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's loss + (μ/2)‖θₖ − θ‖², started at θ
    2   θ ← Σₖ (nₖ / n) θₖ
    """

    moves_statistics: ClassVar[bool] = True

    inference: Inference = SGD()  # how a client trains
    mu: float = 0.01  # strength of the penalty
    squared: bool = True  # False: μ‖θₖ − θ‖, as Hasan 2023 prints it

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        penalty = (proximal if self.squared else proximal_norm)(message.params, self.mu)
        return Reply(self.inference(task.tilted(penalty), message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        return State(average(payloads(replies), weights(replies)))  # 2

    @property
    def averages(self) -> bool:
        return True
