"""SCAFFOLD.  Karimireddy et al., ICML 2020, Algorithm 1 with option II."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from consilience import tree
from consilience.aggregation.summands import Mean, Summation
from consilience.distributions.penalties import linear
from consilience.distributions.posterior import Point, average
from consilience.inference import SGD
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import About, BatchNormed, Method, ReplyKind, Summable, with_statistics
from consilience.task import Task
from consilience.tree import Params


class Controlled(NamedTuple):
    """The state of SCAFFOLD, and its message.

    Attributes:
        posterior: The weights θ.
        control: c, the server's control variate.
    """

    posterior: Point
    control: Params


@dataclass(frozen=True)
class Scaffold(Summable, BatchNormed, Method):
    """Correct every local gradient by the difference between the server's and the client's control variate.

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's data with gradients g − cₖ + c, started at θ
    2       cₖ⁺ ← cₖ − c + (θ − θₖ) / (steps · ε), or the sum of the ε where they differ
    3       send θₖ and cₖ⁺ − cₖ; keep cₖ⁺
    4   θ ← θ + η · mean of (θₖ − θ)
    5   c ← c + (replies / clients) · mean of (cₖ⁺ − cₖ)

    Attributes:
        inference: How a client trains; momentum m widens its steps by 1 / (1 − m).
        rate: η, the server's step.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.Scaffold(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(sends="its weights and the change of its control variate", reply=ReplyKind.MEAN)

    inference: SGD = SGD(momentum=0.0)
    rate: float = 1.0

    def init(self, task: Task, server: Server) -> Controlled:
        start = task.init(server.key)
        return Controlled(start, tree.zeros_like(start.params))

    def broadcast(self, state: Controlled) -> Controlled:
        return state

    def memory(self, message: Controlled) -> Params:
        return tree.map(torch.zeros_like, message.control)  # type: ignore[no-any-return]

    def local(self, task: Task, message: Controlled, client: Client) -> Reply:
        theta, c, c_k = message.posterior, message.control, client.memory
        point = self.inference(task.tilted(linear(tree.sub(c, c_k))), theta, client)  # 1
        drift = tree.scale(tree.sub(theta.params, point.params), 1 / self.inference.length(client))
        new = tree.add(tree.sub(c_k, c), drift)  # 2
        return Reply((point, tree.sub(new, c_k)), client.data.size, keep=new)  # 3

    def aggregate(self, task: Task, state: Controlled, replies: Sequence[Received], server: Server) -> Controlled:
        points, changes = zip(*payloads(replies), strict=True)
        equal = torch.ones(len(replies))
        mean = average(points, equal)
        stepped = tree.add(state.posterior, tree.scale(tree.sub(mean, state.posterior), self.rate))
        control = tree.scale(tree.mean(changes, equal), len(replies) / server.clients)
        return Controlled(
            with_statistics(task, stepped, mean),  # 4
            tree.add(state.control, control),  # 5
        )

    def summation(self) -> Summation:
        return Mean(equal=True)
