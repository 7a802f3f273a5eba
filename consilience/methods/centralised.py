"""Centralised: all data in one place, the upper bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from consilience.inference import CyclicalSGHMC, Inference
from consilience.method import Method, State
from consilience.parties import Client, Received, Reply, Server
from consilience.posterior import Posterior
from consilience.task import Task


@dataclass(frozen=True)
class Centralised(Method):
    """Train on the pooled rows, as nobody here may.

    1   p(θ | D₁ ∪ … ∪ D_K), by any inference
    """

    sends: ClassVar[str] = "everything: this is the bound that federated learning avoids"
    one_shot: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    pooled: ClassVar[bool] = True
    everyone: ClassVar[bool] = True
    moves_statistics: ClassVar[bool] = True

    inference: Inference = CyclicalSGHMC()  # how the one client infers

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        (only,) = replies
        return State(only.payload)
