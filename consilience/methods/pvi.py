"""Partitioned variational inference.  Ashman et al. 2022 (Bui et al. 2018), Algorithm 1, synchronous with damping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.aggregation.merging import as_gaussian
from consilience.aggregation.summands import Each, Mean, Summation
from consilience.distributions.posterior import Dense, Natural, Posterior, centre, from_natural, natural
from consilience.distributions.prior import Believed
from consilience.inference import Inference, MeanField
from consilience.inference.capabilities import Partial
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import About, BatchNormed, Method, ReplyKind, Summable, Validated
from consilience.task import Task
from consilience.tree import Params

ROUNDING = 1e-4  # of a precision that was subtracted and is added again, relative


class Partitioned(NamedTuple):
    """The state of partitioned variational inference, and its message.

    Attributes:
        posterior: The posterior q.
        natural: Natural parameters of q(θ) = p(θ) Πₖ tₖ(θ).
        damping: ρ, how much of a change is sent.
    """

    posterior: Posterior
    natural: Natural
    damping: Tensor


@dataclass(frozen=True)
class PVI(Summable, Validated, BatchNormed, Method):
    """Each client refines its own factor of one posterior, with what the others believe for its prior.

    q(θ) ← p(θ), and tₖ(θ) ← 1 at every client
    for each round
        for each client k, in parallel
    1       cavity ← q / tₖ
    2       qₖ ← the client's posterior with the cavity for a prior, started at q
    3       Δₖ ← (qₖ / cavity / tₖ)^ρ;  tₖ ← tₖ Δₖ stays, Δₖ is sent
    4   q ← q Πₖ Δₖ

    Attributes:
        inference: How a client fits.
        damping: ρ; None: 1 / number of clients, which is safe; 1 is exact on conjugate models.
        dense: Whether to send full covariances, with an inference that gives them.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> co.run(co.methods.PVI(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(
        name="pvi",
        sends="the change of its factor: two numbers for every weight",
        reply=ReplyKind.SUM,
    )

    inference: Inference = MeanField()
    damping: float | None = None
    dense: bool = False

    def init(self, task: Task, server: Server) -> Partitioned:
        names = task.uncertain
        if isinstance(self.inference, Partial):
            names = self.inference.uncertain(task)
        uncertain = {k: task.like[k] for k in names}
        prior: Any = task.prior.gaussian
        if self.dense:
            prior = task.prior.dense
        rho = self.damping
        if rho is None:
            rho = 1 / server.clients
        damping = torch.tensor(rho, dtype=torch.float64)
        return Partitioned(task.init(server.key), natural(prior(uncertain)), damping)

    def broadcast(self, state: Partitioned) -> Partitioned:
        return state

    def memory(self, message: Partitioned) -> Natural:
        return tree.zeros_like(message.natural)  # type: ignore[no-any-return]

    def local(self, task: Task, message: Partitioned, client: Client) -> Reply:
        start: Params = centre(message.posterior, task.like).params
        cavity = tree.sub(message.natural, client.memory)  # 1
        believing = task.with_prior(Believed(cavity, start, task.prior))
        posterior = self.inference(believing, message.posterior, client)  # 2
        points: Params = {}
        if not isinstance(posterior, Dense):
            posterior = as_gaussian(posterior, task.uncertain)
            points = {k: v for k, v in posterior.mean.items() if k not in posterior.var}
        change = tree.sub(tree.sub(natural(posterior), cavity), client.memory)
        change = tree.map(lambda leaf: leaf * message.damping.to(leaf), change)
        return Reply((change, points), client.data.size, keep=tree.add(client.memory, change))  # 3

    def doubt(self, task: Task, message: Partitioned, send: Any) -> str | None:
        before = tree.scale(message.natural.precision, float(message.damping))
        damped = tree.add(before, send[0].precision)  # ρ times the precision of qₖ, which is a Gaussian
        if isinstance(damped, Tensor):
            damped = torch.linalg.eigvalsh(damped.double())
        least = min(float(leaf.min()) for leaf in tree.leaves(damped))
        if least < -ROUNDING * max(float(leaf.abs().max()) for leaf in tree.leaves(before)):
            return "it takes more certainty away than q has: no posterior has a negative precision."
        return None

    def implied(self, task: Task, message: Partitioned, send: Any) -> Posterior:
        change = tree.scale(send[0], 1 / float(message.damping))
        return from_natural(tree.add(message.natural, change), send[1], 1e-3)  # qₖ, as cavity · tₖ is q

    def aggregate(self, task: Task, state: Partitioned, replies: Sequence[Received], server: Server) -> Partitioned:
        changes, points = zip(*payloads(replies), strict=True)
        total: Any = state.natural
        for change in changes:
            total = tree.add(total, change)  # 4
        like = {**centre(state.posterior, task.like).params, **tree.mean(points, weights(replies))}
        return Partitioned(from_natural(total, like, 1e-3), total, state.damping)

    def summation(self) -> Summation:
        return Each((Mean(equal=True), Mean()))
