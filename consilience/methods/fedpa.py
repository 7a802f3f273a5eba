"""Federated posterior averaging.  Al-Shedivat et al., ICLR 2021, Algorithms 1–3; Hasan 2023, §2.2.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.inference import Inference, Sampler
from consilience.method import Method, Stepped
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.posterior import Point, samples_of
from consilience.task import Task
from consilience.training.optimisers import Descent, Optimiser
from consilience.tree import Params


@dataclass(frozen=True)
class FedPA(Method):
    """Find the mean of the product of Gaussian posteriors, as a fixed point of federated optimisation.

    for each round
        for each client k, in parallel
    1       draw θₖ¹ … θₖˢ from p(θ | Dₖ), started at θ;  μ̂ₖ their mean, Ŝₖ their covariance
    2       Σ̂ₖ ← r I + (1 − r) Ŝₖ,   r = 1 / (1 + (S − 1) ρ)
    3       Δₖ ← Σ̂ₖ⁻¹ (θ − μ̂ₖ), and send it
    4   θ ← a step of the server's optimiser along Σₖ (nₖ / n) Δₖ

    Attributes:
        inference: How a client samples.
        rho: ρ: how little the covariance is shrunk towards the identity.
        optimiser: The server's step.
    """

    sends: ClassVar[str] = "one vector as long as its weights"
    sums: ClassVar[bool] = True

    inference: Inference = Sampler()
    rho: float = 0.4
    optimiser: Optimiser = Descent(rate=1.0)

    def init(self, task: Task, server: Server) -> Stepped:
        start = task.init(server.key)
        return Stepped(start, self.optimiser.init(tree.ravel(start.params)))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        samples = tree.ravel(samples_of(self.inference(task, message, client)).params, batch_dims=1)  # 1
        step = delta(tree.ravel(message.params), samples, self.rho)  # 2, 3
        return Reply(tree.unravel(step, message.params), client.data.size)

    def aggregate(self, task: Task, state: Stepped, replies: Sequence[Received], server: Server) -> Stepped:
        before: Params = state.posterior.params
        gradient = tree.ravel(tree.mean(payloads(replies), weights(replies)))
        theta, optimiser = self.optimiser.step(tree.ravel(before), gradient, state.optimiser, self.optimiser.rate)  # 4
        return Stepped(Point(tree.unravel(theta, before)), optimiser)

    @property
    def averages(self) -> bool:
        return True


def delta(theta: Tensor, samples: Tensor, rho: float) -> Tensor:
    """Compute Σ̂⁻¹(θ − μ̂) exactly, by Woodbury's identity: one S × S system instead of a P × P one.

    Args:
        theta: θ, [P].
        samples: The draws, [S, P].
        rho: ρ, how little the covariance is shrunk towards the identity.

    Returns:
        The client's Δ, [P].
    """
    count = len(samples)
    mean = samples.mean(0)
    offset = theta - mean
    spread = samples - mean
    r = 1 / (1 + (count - 1) * rho)
    if count == 1 or r == 1:
        return offset
    deviations = spread.double()
    system = deviations @ deviations.T + r * (count - 1) / (1 - r) * torch.eye(count, dtype=torch.float64)
    solution, _ = torch.linalg.solve_ex(system, deviations @ offset.double())  # what overflows is found by the engine
    step: Tensor = (offset - spread.T @ solution.to(theta)) / r
    return step
