"""Local only: no federation, the lower bound; in simulation only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from consilience.errors import InputError
from consilience.inference import CyclicalSGHMC, Inference
from consilience.method import Method, Pooled, State
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.posterior import Posterior
from consilience.predictive import Predictive
from consilience.task import Task


@dataclass(frozen=True)
class LocalOnly(Method):
    """Every client keeps to itself; scores are each client's own, and their average.

        for each client k, in parallel
    1       p(θ | Dₖ), by any inference
    """

    name: ClassVar[str] = "local_only"
    sends: ClassVar[str] = "nothing outside a simulation"
    one_shot: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    bound: ClassVar[bool] = True
    everyone: ClassVar[bool] = True
    moves_statistics: ClassVar[bool] = True

    inference: Inference = CyclicalSGHMC()  # how a client infers

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Pooled:
        return Pooled(state.posterior, payloads(replies), weights(replies))

    def predictive(self, task: Task, state: Pooled) -> Predictive:
        raise InputError("local_only has a model for each site and none for all: use a method that pools, or mixture.")

    def personal(self, task: Task, state: Pooled) -> Sequence[Predictive]:
        return [task.predictive(posterior) for posterior in state.posteriors]
