"""MimeLite.  Karimireddy et al., NeurIPS 2021, Algorithm 1 without the correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from consilience import tree
from consilience.method import Method, Stepped
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.posterior import Point, average
from consilience.task import Task
from consilience.training.chain import chain
from consilience.training.gradient import full_gradient
from consilience.training.kernels import Held
from consilience.training.optimisers import Descent, Optimiser


@dataclass(frozen=True)
class MimeLite(Method):
    """Take every local step with the memory of the server's optimiser, which stays as it is while the clients train.

    for each round
        for each client k, in parallel
    1       θₖ ← steps of the optimiser along ∇fₖ(θₖ; B) on batches B, its memory s held, started at θ
    2       gₖ ← ∇fₖ(θ) over all of the client's rows;  send θₖ and gₖ
    3   s ← the optimiser's memory after Σₖ (nₖ / n) gₖ at θ
    4   θ ← Σₖ (nₖ / n) θₖ
    """

    name: ClassVar[str] = "mimelite"
    sends: ClassVar[str] = "its weights and its gradient where the round began"
    moves_statistics: ClassVar[bool] = True

    optimiser: Optimiser = Descent(rate=0.01, momentum=0.9)  # whose steps the clients mimic
    epochs: int = 10  # passes over the client's rows
    batch: int = 50  # rows a step

    def init(self, task: Task, server: Server) -> Stepped:
        start = task.init(server.key)
        return Stepped(start, self.optimiser.init(tree.ravel(start.params)))

    def broadcast(self, state: Stepped) -> Stepped:
        return state

    def local(self, task: Task, message: Stepped, client: Client) -> Reply:
        theta, held = message.posterior, Held(self.optimiser, message.optimiser)
        trace = chain(task, theta, client, held, self.epochs, self.batch)
        point = Point(tree.unravel(trace.vector, theta.params))  # 1
        return Reply((point, full_gradient(task, theta.params, client.data, self.batch)), client.data.size)  # 2

    def aggregate(self, task: Task, state: Stepped, replies: Sequence[Received], server: Server) -> Stepped:
        points, gradients = zip(*payloads(replies), strict=True)
        theta, gradient = tree.ravel(state.posterior.params), tree.ravel(tree.mean(gradients, weights(replies)))
        _, memory = self.optimiser.step(theta, gradient, state.optimiser, self.optimiser.rate)  # 3
        return Stepped(average(points, weights(replies)), memory)  # 4
