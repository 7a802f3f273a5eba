"""Federated averaging.  McMahan et al., AISTATS 2017, Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from consilience.aggregation.averages import Average
from consilience.aggregation.summands import Mean, Summation
from consilience.distributions.posterior import Posterior, average
from consilience.inference import SGD, Inference
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import About, BatchNormed, Method, ReplyKind, State, Summable
from consilience.method.settings import added
from consilience.task import Task


@dataclass(frozen=True)
class FedAvg(Summable, BatchNormed, Method):
    """Average the clients' weights, each counted by its number of examples.

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's data, started at θ
    2   θ ← Σₖ (nₖ / n) θₖ, or the plain mean (FED: Özer et al. 2022, App. 6.1)

    Attributes:
        inference: How a client trains.
        equal: Whether every client counts the same.
        rule: How weights become one: `average`; `pooled_variance`, for a learned noise that is not too small; or
            `median` or `trimmed`, which no single client decides.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedAvg(), problem, rounds=2).metrics["accuracy"] > 0.7
        True
    """

    about = About(tasks=("classification", "regression", "counts"), reply=ReplyKind.POSTERIOR)

    inference: Inference = SGD()
    equal: bool = False
    rule: Average = added(average)

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        shares = weights(replies)
        if self.equal:
            shares = torch.ones(len(replies))
        return State(self.rule(payloads(replies), shares))  # 2

    def summation(self) -> Summation | None:
        if self.rule is average:
            return Mean(self.equal)
        return None
