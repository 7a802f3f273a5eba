"""Bayesian committee machine, the product of predictive posteriors.  Tresp 2000; Hasan et al., AAAI 2024, eq. 1–3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from consilience.aggregation.distil import Distil, distil_pool
from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Distribution, Powers, Predictive, product
from consilience.inference import Inference, Sampler
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import ONE_SHOT, About, BatchNormed, Method, Multiplied, Pooled, Pooling, ReplyKind, State
from consilience.task import Task


@dataclass(frozen=True)
class BCM(Pooling, BatchNormed, Multiplied, Method):
    """One round; multiply the clients' predictions and divide by the prior's K − 1 times.

        for each client k of K, in parallel
    1       draw θₖ¹ … θₖˢ from p(θ | Dₖ) and send them
    2   pₖ(y|x) = (1/S) Σₛ p(y | x, θₖˢ)
    3   p(y|x) ∝ p(y|x)^(1−K) Πₖ pₖ(y|x)
    4   θ ← argmin of Σ KL(p(·|x) ‖ p(·|x, θ)) over the server's inputs, if distilled

    With `powers` βₖ(x) line 3 is p(y|x)^(1 − Σβₖ) Πₖ pₖ(y|x)^βₖ: the generalised product or the robust BCM.

    Attributes:
        inference: How a client samples.
        powers: None: all 1; `shared`: 1/K; `robust`: the entropy that a client's rows removed.
        distil: How the server trains one student; None: keep the ensemble.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> len(co.run(co.methods.BCM(), problem).replies)
        3
    """

    about = About(
        sends="samples of its posterior over the weights",
        rounds=ONE_SHOT,
        reply=ReplyKind.POSTERIOR,
    )

    inference: Inference = Sampler()
    powers: Powers | None = None
    distil: Distil | None = None

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Pooled:
        pooled = Pooled(state.posterior, payloads(replies), weights(replies))
        return distil_pool(self.distil, task, pooled, self.teacher(task, pooled), server)  # 4

    def teacher(self, task: Task, state: Pooled) -> Predictive:
        clients = [task.predictive(posterior) for posterior in state.posteriors]  # 2

        def pooled(x: Tensor) -> Distribution:
            p = [client(x) for client in clients]
            prior = task.prior_predictive(x)
            powers = None
            if self.powers:
                powers = self.powers(p, prior)
            return product(p, prior, state.weights, powers)  # 3

        return pooled
