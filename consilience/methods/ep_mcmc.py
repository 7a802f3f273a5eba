"""Embarrassingly parallel MCMC.  Neiswanger et al., UAI 2014, §3.1, §3.2; Hasan 2023, eq. 2.13."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import InputError
from consilience.inference import Inference, Sampler
from consilience.key import Key
from consilience.method import Method, State
from consilience.parties import Client, Received, Reply, Server, payloads
from consilience.posterior import Dense, Gaussian, Posterior, Samples, draw, moments, multiply, samples_of
from consilience.predictive import positive
from consilience.task import Task


@dataclass(frozen=True)
class EPMCMC(Method):
    """One round; multiply approximations of the clients' posteriors over the weights: Gaussians, or kernel densities.

        for each client k of K, in parallel
    1       draw θₖ¹ … θₖˢ from p(θ | Dₖ) and send them
    2   Nₖ ← the Gaussian with their mean and variance (`moments`) or covariance (`dense_moments`)
    3   p(θ | D) ∝ p(θ)^(1−K) Πₖ Nₖ(θ)
    4   draw θ¹ … θᴹ from it

    With kernels line 2 is a mixture of Gaussians, one at every θₖˢ, and the product in line 3 a mixture of Sᴷ. Line 4
    then draws which sample each client contributes, by so many sweeps of Metropolis within Gibbs over the clients
    (Algorithm 1 of Neiswanger et al.), and a weight vector from that component. Only for models of a few weights: a
    density over many cannot be told from a few samples.

    Attributes:
        inference: How a client samples.
        fit: `moments`: diagonal, for networks; `dense_moments`: full covariances, for small models.
        draws: M, the members that predict.
        sweeps: How many sweeps precede a draw from the product of kernel densities; 0: Gaussians, by `fit`.
    """

    name: ClassVar[str] = "ep_mcmc"
    sends: ClassVar[str] = "samples of its posterior over the weights"
    one_shot: ClassVar[bool] = True
    shares: ClassVar[bool] = True
    multiplies: ClassVar[bool] = True

    inference: Inference = Sampler()
    fit: Callable[[Samples], Any] = moments
    draws: int = 10
    sweeps: int = field(default=0, metadata={"added": True})

    def __post_init__(self) -> None:
        if self.sweeps < 0:
            raise InputError(f"sweeps={self.sweeps} is not a number of sweeps: give 0 for Gaussians, or 10 or more.")
        if self.sweeps and self.fit is not moments:
            raise InputError("Kernel densities have no `fit`: leave fit out, or set sweeps=0.")

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        if self.sweeps:
            clients = [samples_of(p) for p in payloads(replies)]
            chosen = multiply_kernels(clients, task.prior.gaussian(task.like), self.draws, self.sweeps, server.key)
            return State(Samples(tree.unravel(chosen, task.like)))
        factors: Any = [self.fit(samples_of(p)) for p in payloads(replies)]  # 2
        prior: Any = task.prior.gaussian
        if isinstance(factors[0], Dense):
            prior = task.prior.dense
        product: Gaussian | Dense = multiply(factors, prior(task.like))  # 3
        return State(draw(product, server.key, self.draws, task.like))  # 4


def multiply_kernels(clients: Sequence[Samples], prior: Gaussian, draws: int, sweeps: int, key: Key) -> Tensor:
    """Draw from the product of the clients' kernel densities, over the prior to the power K − 1.

    A client's kernels have the deviation of its samples, weight by weight, times S^(−1/(4 + d)), Scott's rule.

    Args:
        clients: The samples of each client.
        prior: p(θ).
        draws: How many, each at the end of a chain of its own.
        sweeps: How often a chain asks every client for another sample.
        key: The randomness.

    Returns:
        The draws, [draws, d].
    """
    samples = [tree.ravel(client.params, batch_dims=1) for client in clients]
    spread = [
        tree.ravel(moments(client).var) * len(s) ** (-2 / (4 + s.shape[1]))
        for client, s in zip(clients, samples, strict=True)
    ]
    spare, wide = len(samples) - 1, tree.ravel(prior.var)
    precision = positive(sum((1 / v for v in spread), -spare / wide), 1e-3 / wide)
    linear = [s / v for s, v in zip(samples, spread, strict=True)]
    squares = [(s * s / v).sum(1) for s, v in zip(samples, spread, strict=True)]
    at = [_pick(len(s), draws, key.fold(k)) for k, s in enumerate(samples)]
    total = sum((a[i] for a, i in zip(linear, at, strict=True)), -spare * tree.ravel(prior.mean) / wide)
    for step in range(sweeps * len(samples)):
        k, now = step % len(samples), key.fold(len(samples) + step)
        other = _pick(len(samples[k]), draws, now.fold(0))
        moved = total - linear[k][at[k]] + linear[k][other]
        gain = ((moved**2 - total**2) / precision).sum(1) - squares[k][other] + squares[k][at[k]]  # 2 log of the ratio
        accepted = now.fold(1).uniform(draws, total).log() < gain / 2
        at[k] = torch.where(accepted, other, at[k])
        total = torch.where(accepted.unsqueeze(1), moved, total)
    return total / precision + key.fold(-1).normal_like(total) * precision.rsqrt()


def _pick(number: int, draws: int, key: Key) -> Tensor:
    """Row numbers below `number`, each as likely as any other."""
    return (key.uniform(draws) * number).long().clamp(max=number - 1)
