"""Embarrassingly parallel MCMC.  Neiswanger et al., UAI 2014, §3.1; Hasan 2023, eq. 2.13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from consilience.inference import Inference, Sampler
from consilience.method import Method, State
from consilience.parties import Client, Received, Reply, Server, payloads
from consilience.posterior import Dense, Gaussian, Posterior, Samples, draw, moments, multiply, samples_of
from consilience.task import Task


@dataclass(frozen=True)
class EPMCMC(Method):
    """One round; multiply Gaussian approximations of the clients' posteriors over the weights.

        for each client k of K, in parallel
    1       draw θₖ¹ … θₖˢ from p(θ | Dₖ) and send them
    2   Nₖ ← the Gaussian with their mean and variance (`moments`) or covariance (`dense_moments`)
    3   p(θ | D) ∝ p(θ)^(1−K) Πₖ Nₖ(θ)
    4   draw θ¹ … θᴹ from it

    Attributes:
        inference: How a client samples.
        fit: `moments`: diagonal, for networks; `dense_moments`: full covariances, for small models.
        draws: M, the members that predict.
    """

    name: ClassVar[str] = "ep_mcmc"
    sends: ClassVar[str] = "samples of its posterior over the weights"
    one_shot: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    multiplies: ClassVar[bool] = True

    inference: Inference = Sampler()
    fit: Callable[[Samples], Any] = moments
    draws: int = 10

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        factors: Any = [self.fit(samples_of(p)) for p in payloads(replies)]  # 2
        prior: Any = task.prior.gaussian
        if isinstance(factors[0], Dense):
            prior = task.prior.dense
        product: Gaussian | Dense = multiply(factors, prior(task.like))  # 3
        return State(draw(product, server.key, self.draws, task.like))  # 4
