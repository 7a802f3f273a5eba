"""FedProx.  Li et al., MLSys 2020, Algorithm 2; Hasan 2023, eq. 2.12."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consilience.aggregation.averages import Average
from consilience.aggregation.summands import Mean, Summation
from consilience.distributions.penalties import Tilt, proximal, proximal_norm
from consilience.distributions.posterior import Point, average
from consilience.inference import SGD, Inference
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import About, BatchNormed, Method, ReplyKind, State, Summable
from consilience.method.settings import added
from consilience.task import Task


@dataclass(frozen=True)
class FedProx(Summable, BatchNormed, Method):
    """Federated averaging with a penalty on the distance from where the round began.

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's loss + (μ/2)‖θₖ − θ‖², started at θ
    2   θ ← Σₖ (nₖ / n) θₖ

    Attributes:
        inference: How a client trains.
        mu: μ, the strength of the penalty.
        squared: Whether the distance is squared; False: μ‖θₖ − θ‖, as Hasan 2023 prints it.
        rule: How weights become one: `average`; `pooled_variance`, for a learned noise that is not too small; or
            `median` or `trimmed`, which no single client decides.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedProx(mu=0.1), problem, rounds=2).metrics["accuracy"] > 0.7
        True
    """

    about = About(tasks=("classification", "regression", "counts"), reply=ReplyKind.WEIGHTS)

    inference: Inference = SGD()
    mu: float = 0.01
    squared: bool = True
    rule: Average = added(average)

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        penalty: Tilt = proximal(message.params, self.mu)
        if not self.squared:
            penalty = proximal_norm(message.params, self.mu)
        return Reply(self.inference(task.tilted(penalty), message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        return State(self.rule(payloads(replies), weights(replies)))  # 2

    def summation(self) -> Summation | None:
        if self.rule is average:
            return Mean()
        return None
