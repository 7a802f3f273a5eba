"""Embarrassingly parallel MCMC.  Neiswanger et al., UAI 2014, §3.1, §3.2; Hasan 2023, eq. 2.13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from consilience import tree
from consilience.aggregation.kernel_densities import multiply_kernels
from consilience.distributions.posterior import Dense, Gaussian, Posterior, Samples, as_samples, draw, moments, multiply
from consilience.errors import InputError
from consilience.inference import Inference, Sampler
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import ONE_SHOT, About, Method, Multiplied, ReplyKind, State
from consilience.method.settings import added
from consilience.task import Task


@dataclass(frozen=True)
class EPMCMC(Multiplied, Method):
    """One round; multiply approximations of the clients' posteriors over the weights: Gaussians, or kernel densities.

        for each client k of K, in parallel
    1       draw θₖ¹ … θₖˢ from p(θ | Dₖ) and send them
    2   Nₖ ← the Gaussian with their mean and variance (`moments`) or covariance (`dense_moments`)
    3   p(θ | D) ∝ p(θ)^(1−K) Πₖ Nₖ(θ)
    4   draw θ¹ … θᴹ from it

    With `sweeps`, line 2 is a kernel density in place of a Gaussian, and line 4 draws from the product by Metropolis
    within Gibbs. Only for models of a few weights: a density over many cannot be told from a few samples.

    Attributes:
        inference: How a client samples.
        fit: `moments`: diagonal, for networks; `dense_moments`: full covariances, for small models.
        draws: M, the members that predict.
        sweeps: How many sweeps precede a draw from the product of kernel densities; 0: Gaussians, by `fit`.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> type(co.run(co.methods.EPMCMC(), problem).state.posterior).__name__
        'Samples'
    """

    about = About(
        name="ep_mcmc",
        sends="samples of its posterior over the weights",
        rounds=ONE_SHOT,
        reply=ReplyKind.POSTERIOR,
    )

    inference: Inference = Sampler()
    fit: Callable[[Samples], Any] = moments
    draws: int = 10
    sweeps: int = added(0)

    def __post_init__(self) -> None:
        if self.sweeps < 0:
            raise InputError(f"sweeps={self.sweeps} is not a number of sweeps: give 0 for Gaussians, or 10 or more.")
        if self.sweeps and self.fit is not moments:
            raise InputError("Kernel densities have no `fit`: leave fit out, or set sweeps=0.")

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        clients = [as_samples(p) for p in payloads(replies)]
        if self.sweeps:
            drawn = multiply_kernels(clients, task.prior.gaussian(task.like), self.draws, self.sweeps, server.key)
            return State(Samples(tree.unravel(drawn, task.like)))
        factors: Any = [self.fit(samples) for samples in clients]  # 2
        prior: Any = task.prior.gaussian
        if isinstance(factors[0], Dense):
            prior = task.prior.dense
        product: Gaussian | Dense = multiply(factors, prior(task.like))  # 3
        return State(draw(product, server.key, self.draws, task.like))  # 4
