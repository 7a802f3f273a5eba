"""Mixture of predictive posteriors.  Hasan et al., AAAI 2024, eq. 4–6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from consilience.aggregation.distil import Distil, distil_pool
from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Predictive, mixture
from consilience.inference import Inference, Sampler
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import ONE_SHOT, About, BatchNormed, Method, Pooled, Pooling, ReplyKind, State
from consilience.task import Task


@dataclass(frozen=True)
class Mixture(Pooling, BatchNormed, Method):
    """One round; average the clients' predictions, each counted by its number of examples.

        for each client k of K, in parallel
    1       draw θₖ¹ … θₖˢ from p(θ | Dₖ) and send them
    2   pₖ(y|x) = (1/S) Σₛ p(y | x, θₖˢ)
    3   p(y|x) = Σₖ (nₖ/n) pₖ(y|x)
    4   θ ← argmin of Σ KL(p(·|x) ‖ p(·|x, θ)) over the server's inputs, if distilled

    Attributes:
        inference: How a client samples.
        distil: How the server trains one student; None: keep the ensemble.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> result = co.run(co.methods.Mixture(), problem)
        >>> len(result.state.posteriors), result.metrics["accuracy"] > 0.7
        (3, True)
    """

    about = About(
        sends="samples of its posterior over the weights",
        tasks=("classification", "regression", "counts"),
        rounds=ONE_SHOT,
        reply=ReplyKind.POSTERIOR,
    )
    by_site = False

    inference: Inference = Sampler()
    distil: Distil | None = None

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Pooled:
        pooled = Pooled(state.posterior, payloads(replies), weights(replies))
        return distil_pool(self.distil, task, pooled, self.teacher(task, pooled), server)  # 4

    def without_names(self) -> Mixture:
        return Mixture()

    def teacher(self, task: Task, state: Pooled) -> Predictive:
        clients = [task.predictive(posterior) for posterior in state.posteriors]  # 2
        return lambda x: mixture([p(x) for p in clients], state.weights)  # 3
