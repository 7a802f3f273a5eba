"""MIME and MimeLite.  Karimireddy et al., NeurIPS 2021, Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from consilience import tree
from consilience.distributions.posterior import Point, average
from consilience.inference.chain import chain
from consilience.inference.gradient import full_gradient
from consilience.inference.kernels import Held
from consilience.inference.optimisers import Descent, Optimiser
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import About, BatchNormed, Method, ReplyKind, Rounds, Stepped, Summable
from consilience.task import Task
from consilience.tree import Params, Tree


class Mimed(NamedTuple):
    """The state of MIME, and from its second round on its message.

    Attributes:
        posterior: The weights θ.
        optimiser: s, the optimiser's memory.
        gradient: c; () until the clients have been asked.
    """

    posterior: Point
    optimiser: Tree
    gradient: Params | tuple[()]


@dataclass(frozen=True)
class Mime(Summable, BatchNormed, Method):
    """Make every local step what a step on all clients' rows would be; one of the paper's rounds is two of ours.

    for each round
        for each client k, in parallel
    1       gₖ ← ∇fₖ(θ) over all of the client's rows, and send it
    2   c ← Σₖ (nₖ / n) gₖ
        for each client k, in parallel
    3       θₖ ← steps of the optimiser along ∇fₖ(θₖ; B) − ∇fₖ(θ; B) + c, its memory s held, started at θ
    4   s ← the optimiser's memory after c at θ
    5   θ ← Σₖ (nₖ / n) θₖ

    Attributes:
        optimiser: Whose steps the clients mimic.
        epochs: Passes over the client's rows.
        batch: Rows a step.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.Mime(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(
        paper="MIME.  Karimireddy et al., NeurIPS 2021, Algorithm 1; d'Hondt et al. 2024, §5.1.",
        sends="its gradient where the round began, then its weights",
        rounds=Rounds(20),
        reply=ReplyKind.MEAN,
    )

    optimiser: Optimiser = Descent(rate=0.01, momentum=0.9)
    epochs: int = 10
    batch: int = 50

    def init(self, task: Task, server: Server) -> Mimed:
        start = task.init(server.key)
        return Mimed(start, self.optimiser.init(tree.ravel(start.params)), ())

    def broadcast(self, state: Mimed) -> Point | Mimed:
        if state.gradient:
            return state
        return state.posterior

    def local(self, task: Task, message: Point | Mimed, client: Client) -> Reply:
        if isinstance(message, Point):
            return Reply(full_gradient(task, message.params, client.data, self.batch), client.data.size)  # 1
        theta = message.posterior
        optimiser = Held(self.optimiser, message.optimiser)
        common = task.anchored(theta.params, message.gradient)  # type: ignore[arg-type]
        trace = chain(common, theta, client, optimiser, self.epochs, self.batch)
        return Reply(Point(tree.unravel(trace.vector, theta.params)), client.data.size)  # 3

    def aggregate(self, task: Task, state: Mimed, replies: Sequence[Received], server: Server) -> Mimed:
        mean = tree.mean(payloads(replies), weights(replies))
        if not state.gradient:
            return state._replace(gradient=mean)  # 2
        theta = tree.ravel(state.posterior.params)
        gradient = tree.ravel(state.gradient)
        _, memory = self.optimiser.step(theta, gradient, state.optimiser, self.optimiser.rate)  # 4
        return Mimed(mean, memory, ())  # 5


@dataclass(frozen=True)
class MimeLite(Summable, BatchNormed, Method):
    """Take every local step with the memory of the server's optimiser, which stays as it is while the clients train.

    for each round
        for each client k, in parallel
    1       θₖ ← steps of the optimiser along ∇fₖ(θₖ; B) on batches B, its memory s held, started at θ
    2       gₖ ← ∇fₖ(θ) over all of the client's rows;  send θₖ and gₖ
    3   s ← the optimiser's memory after Σₖ (nₖ / n) gₖ at θ
    4   θ ← Σₖ (nₖ / n) θₖ

    Attributes:
        optimiser: Whose steps the clients mimic.
        epochs: Passes over the client's rows.
        batch: Rows a step.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.MimeLite(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(
        name="mimelite",
        paper="MimeLite.  Karimireddy et al., NeurIPS 2021, Algorithm 1 without the correction.",
        sends="its weights and its gradient where the round began",
        reply=ReplyKind.MEAN,
    )

    optimiser: Optimiser = Descent(rate=0.01, momentum=0.9)
    epochs: int = 10
    batch: int = 50

    def init(self, task: Task, server: Server) -> Stepped:
        start = task.init(server.key)
        return Stepped(start, self.optimiser.init(tree.ravel(start.params)))

    def broadcast(self, state: Stepped) -> Stepped:
        return state

    def local(self, task: Task, message: Stepped, client: Client) -> Reply:
        theta = message.posterior
        optimiser = Held(self.optimiser, message.optimiser)
        trace = chain(task, theta, client, optimiser, self.epochs, self.batch)
        point = Point(tree.unravel(trace.vector, theta.params))  # 1
        return Reply((point, full_gradient(task, theta.params, client.data, self.batch)), client.data.size)  # 2

    def aggregate(self, task: Task, state: Stepped, replies: Sequence[Received], server: Server) -> Stepped:
        points, gradients = zip(*payloads(replies), strict=True)
        theta = tree.ravel(state.posterior.params)
        gradient = tree.ravel(tree.mean(gradients, weights(replies)))
        _, memory = self.optimiser.step(theta, gradient, state.optimiser, self.optimiser.rate)  # 3
        return Stepped(average(points, weights(replies)), memory)  # 4
