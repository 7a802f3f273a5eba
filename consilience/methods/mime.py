"""MIME.  Karimireddy et al., NeurIPS 2021, Algorithm 1; d'Hondt et al. 2024, §5.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from consilience import tree
from consilience.method import Method
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.posterior import Point
from consilience.task import Task
from consilience.training.chain import chain
from consilience.training.gradient import full_gradient
from consilience.training.kernels import Held
from consilience.training.optimisers import Descent, Optimiser
from consilience.tree import Params, Tree


class Mimed(NamedTuple):
    posterior: Point
    optimiser: Tree  # its memory s
    gradient: Params | tuple[()]  # c; () until the clients have been asked


@dataclass(frozen=True)
class Mime(Method):
    """Make every local step what a step on all clients' rows would be; one of the paper's rounds is two of ours.

    for each round
        for each client k, in parallel
    1       gₖ ← ∇fₖ(θ) over all of the client's rows, and send it
    2   c ← Σₖ (nₖ / n) gₖ
        for each client k, in parallel
    3       θₖ ← steps of the optimiser along ∇fₖ(θₖ; B) − ∇fₖ(θ; B) + c, its memory s held, started at θ
    4   s ← the optimiser's memory after c at θ
    5   θ ← Σₖ (nₖ / n) θₖ
    """

    sends: ClassVar[str] = "its gradient where the round began, then its weights"
    usual_rounds: ClassVar[int] = 20
    moves_statistics: ClassVar[bool] = True

    optimiser: Optimiser = Descent(rate=0.01, momentum=0.9)  # whose steps the clients mimic
    epochs: int = 10  # passes over the client's rows
    batch: int = 50  # rows a step

    def init(self, task: Task, server: Server) -> Mimed:
        start = task.init(server.key)
        return Mimed(start, self.optimiser.init(tree.ravel(start.params)), ())

    def broadcast(self, state: Mimed) -> Point | Mimed:
        return state if state.gradient else state.posterior

    def local(self, task: Task, message: Point | Mimed, client: Client) -> Reply:
        if isinstance(message, Point):
            return Reply(full_gradient(task, message.params, client.data, self.batch), client.data.size)  # 1
        theta, held = message.posterior, Held(self.optimiser, message.optimiser)
        common = task.anchored(theta.params, message.gradient)  # type: ignore[arg-type]
        trace = chain(common, theta, client, held, self.epochs, self.batch)
        return Reply(Point(tree.unravel(trace.vector, theta.params)), client.data.size)  # 3

    def aggregate(self, task: Task, state: Mimed, replies: Sequence[Received], server: Server) -> Mimed:
        mean = tree.mean(payloads(replies), weights(replies))
        if not state.gradient:
            return state._replace(gradient=mean)  # 2
        theta, gradient = tree.ravel(state.posterior.params), tree.ravel(state.gradient)
        _, memory = self.optimiser.step(theta, gradient, state.optimiser, self.optimiser.rate)  # 4
        return Mimed(mean, memory, ())  # 5
