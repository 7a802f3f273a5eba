"""Server optimisers: the clients' average step taken as a gradient.  Reddi et al., ICLR 2021; Hsu et al., 2019."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consilience import tree
from consilience.aggregation.averages import Average
from consilience.aggregation.summands import Mean, Summation
from consilience.distributions.posterior import Point, average
from consilience.inference import SGD, Inference
from consilience.inference.optimisers import Descent, FederatedAdam, Yogi
from consilience.messages import Client, Received, Reply, Server
from consilience.method import About, BatchNormed, Method, ReplyKind, Stepped, Summable, server_step
from consilience.method.settings import added
from consilience.task import Task


@dataclass(frozen=True)
class FedAdam(Summable, BatchNormed, Method):
    """Take the clients' average step as a gradient for Adam at the server.

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's data, started at θ
    2   Δ ← Σₖ (nₖ / n) (θₖ − θ)
    3   m ← β₁ m + (1 − β₁) Δ;   v ← β₂ v + (1 − β₂) Δ²
    4   θ ← θ + η m / (√v + τ)

    Attributes:
        inference: How a client trains.
        rate: η, the server's step.
        beta1: β₁, the memory of m.
        beta2: β₂, the memory of v.
        tau: τ, the adaptivity.
        rule: How weights become one: `average`; `pooled_variance`, for a learned noise that is not too small; or
            `median` or `trimmed`, which no single client decides.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedAdam(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(
        paper="FedAdam.  Reddi et al., ICLR 2021, Algorithm 2.",
        reply=ReplyKind.POSTERIOR,
    )

    inference: Inference = SGD()
    rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-2
    rule: Average = added(average)

    def init(self, task: Task, server: Server) -> Stepped:
        start = task.init(server.key)
        return Stepped(start, self.adam.init(tree.ravel(start.params)))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: Stepped, replies: Sequence[Received], server: Server) -> Stepped:
        return server_step(task, state, self.adam, replies, self.rule)  # 2, 3, 4

    def summation(self) -> Summation | None:
        if self.rule is average:
            return Mean()
        return None

    @property
    def adam(self) -> FederatedAdam:
        """The server's optimiser."""
        return FederatedAdam(self.rate, self.beta1, self.beta2, self.tau)


@dataclass(frozen=True)
class FedAvgM(Summable, BatchNormed, Method):
    """Take the clients' average step as a gradient for momentum descent at the server.

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's data, started at θ
    2   v ← m v + Σₖ (nₖ / n) (θ − θₖ)
    3   θ ← θ − η v

    Attributes:
        inference: How a client trains.
        rate: η, the server's step.
        momentum: m, how much of the last step is kept.
        rule: How weights become one: `average`; `pooled_variance`, for a learned noise that is not too small; or
            `median` or `trimmed`, which no single client decides.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedAvgM(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(
        paper="FedAvgM, server momentum.  Hsu et al., 2019; Chen and Chao, ICLR 2021, §5.",
        reply=ReplyKind.POSTERIOR,
    )

    inference: Inference = SGD()
    rate: float = 1.0
    momentum: float = 0.9
    rule: Average = added(average)

    def init(self, task: Task, server: Server) -> Stepped:
        start = task.init(server.key)
        return Stepped(start, self.descent.init(tree.ravel(start.params)))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: Stepped, replies: Sequence[Received], server: Server) -> Stepped:
        return server_step(task, state, self.descent, replies, self.rule)  # 2, 3

    def summation(self) -> Summation | None:
        if self.rule is average:
            return Mean()
        return None

    @property
    def descent(self) -> Descent:
        """The server's optimiser."""
        return Descent(self.rate, self.momentum)


@dataclass(frozen=True)
class FedYogi(Summable, BatchNormed, Method):
    """Take the clients' average step as a gradient for an adaptive optimiser at the server.

    for each round
        for each client k, in parallel
    1       θₖ ← SGD on client k's data, started at θ
    2   Δ ← Σₖ (nₖ / n) (θₖ − θ)
    3   m ← β₁ m + (1 − β₁) Δ;   v ← v − (1 − β₂) Δ² sign(v − Δ²)
    4   θ ← θ + η m / (√v + τ)

    Attributes:
        inference: How a client trains.
        rate: η, the server's step.
        beta1: β₁, the memory of m.
        beta2: β₂, the memory of v.
        tau: τ, the adaptivity.
        rule: How weights become one: `average`; `pooled_variance`, for a learned noise that is not too small; or
            `median` or `trimmed`, which no single client decides.
        start: Where v starts; None: at τ², as in the paper. The released program of Hasan 2023 starts at 0.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedYogi(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(
        paper="FedYogi, called AdaptFL in Hasan 2023.  Reddi et al., ICLR 2021, Algorithm 2.",
        reply=ReplyKind.POSTERIOR,
    )

    inference: Inference = SGD()
    rate: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-2
    rule: Average = added(average)
    start: float | None = added(None)

    def init(self, task: Task, server: Server) -> Stepped:
        start = task.init(server.key)
        return Stepped(start, self.yogi.init(tree.ravel(start.params)))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: Stepped, replies: Sequence[Received], server: Server) -> Stepped:
        return server_step(task, state, self.yogi, replies, self.rule)  # 2, 3, 4

    def summation(self) -> Summation | None:
        if self.rule is average:
            return Mean()
        return None

    @property
    def yogi(self) -> Yogi:
        """The server's optimiser."""
        return Yogi(self.rate, self.beta1, self.beta2, self.tau, self.start)
