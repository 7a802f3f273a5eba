"""Federated posterior averaging.  Al-Shedivat et al., ICLR 2021, Algorithms 1–3; Hasan 2023, §2.2.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Point, as_samples
from consilience.errors import InputError
from consilience.inference import Inference, Sampler
from consilience.inference.optimisers import Descent, Optimiser
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import About, Method, ReplyKind, Stepped, Summable
from consilience.method.settings import added
from consilience.task import Task
from consilience.tree import Params


class Recent(NamedTuple):
    """The samples a client remembers.

    Attributes:
        samples: As vectors, the newest last, [M, P].
        filled: How many of them were drawn; what stands before those is empty.
    """

    samples: Tensor
    filled: Tensor


@dataclass(frozen=True)
class FedPA(Summable, Method):
    """Find the mean of the product of Gaussian posteriors, as a fixed point of federated optimisation.

    for each round
        for each client k, in parallel
    1       draw θₖ¹ … θₖˢ from p(θ | Dₖ), started at θ;  μ̂ₖ their mean, Ŝₖ their covariance
            (with a memory, of the newest M of all rounds)
    2       Σ̂ₖ ← r I + (1 − r) Ŝₖ,   r = 1 / (1 + (S − 1) ρ)
    3       Δₖ ← Σ̂ₖ⁻¹ (θ − μ̂ₖ), and send it
    4   θ ← a step of the server's optimiser along Σₖ (nₖ / n) Δₖ

    Attributes:
        inference: How a client samples.
        rho: ρ: how little the covariance is shrunk towards the identity.
        optimiser: The server's step.
        remembered: M, the newest samples of all rounds that a client takes together, as the released program of Hasan
            2023 does; 0: those of this round alone.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.FedPA(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(sends="one vector as long as its weights", reply=ReplyKind.MEAN)

    inference: Inference = Sampler()
    rho: float = 0.4
    optimiser: Optimiser = Descent(rate=1.0)
    remembered: int = added(0)

    def __post_init__(self) -> None:
        if self.remembered < 0:
            raise InputError(f"remembered={self.remembered}: give a number of samples, or 0 for those of one round.")

    def init(self, task: Task, server: Server) -> Stepped:
        start = task.init(server.key)
        return Stepped(start, self.optimiser.init(tree.ravel(start.params)))

    def memory(self, message: Point) -> Recent | tuple[()]:
        if not self.remembered:
            return ()
        theta = tree.ravel(message.params)
        return Recent(theta.new_zeros(self.remembered, len(theta)), theta.new_zeros((), dtype=torch.int64))

    def local(self, task: Task, message: Point, client: Client) -> Reply:
        samples = tree.ravel(as_samples(self.inference(task, message, client)).params, batch_dims=1)  # 1
        theta = tree.ravel(message.params)
        if not self.remembered:
            step = delta(theta, samples, self.rho)  # 2, 3
            return Reply(tree.unravel(step, message.params), client.data.size)
        recent = remember(client.memory, samples)
        drawn = torch.arange(self.remembered, device=theta.device) >= self.remembered - recent.filled
        step = delta(theta, recent.samples, self.rho, drawn)
        return Reply(tree.unravel(step, message.params), client.data.size, keep=recent)

    def aggregate(self, task: Task, state: Stepped, replies: Sequence[Received], server: Server) -> Stepped:
        before: Params = state.posterior.params
        gradient = tree.ravel(tree.mean(payloads(replies), weights(replies)))
        theta, optimiser = self.optimiser.step(tree.ravel(before), gradient, state.optimiser, self.optimiser.rate)  # 4
        return Stepped(Point(tree.unravel(theta, before)), optimiser)


def remember(recent: Recent, samples: Tensor) -> Recent:
    """Put new samples behind the old and drop the oldest.

    Args:
        samples: The draws of this round, [S, P].

    Returns:
        The newest, as many as before.
    """
    most = len(recent.samples)
    filled = (recent.filled + len(samples)).clamp(max=most)
    return Recent(torch.cat([recent.samples, samples])[-most:], filled)


def delta(theta: Tensor, samples: Tensor, rho: float, drawn: Tensor | None = None) -> Tensor:
    """Compute Σ̂⁻¹(θ − μ̂) exactly, by Woodbury's identity: one S × S system instead of a P × P one.

    Args:
        theta: θ, [P].
        samples: The draws, [S, P].
        rho: ρ, how little the covariance is shrunk towards the identity.
        drawn: Which of the samples count, [S]; None: all.

    Returns:
        The client's Δ, [P].
    """
    if drawn is None:
        drawn = torch.ones(len(samples), device=samples.device)
    drawn = drawn.to(samples)
    count = drawn.sum()
    mean = drawn @ samples / count
    offset = theta - mean
    spread = drawn.unsqueeze(1) * (samples - mean)
    deviations = spread.double()
    eye = torch.eye(len(samples), dtype=torch.float64, device=samples.device)
    system = rho * deviations @ deviations.T + eye
    solution, _ = torch.linalg.solve_ex(system, rho * (deviations @ offset.double()))  # the engine finds what overflows
    step: Tensor = (offset - spread.T @ solution.to(theta)) * (1 + (count - 1) * rho)  # r (S − 1) / (1 − r) is 1 / ρ
    return step
