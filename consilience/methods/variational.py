"""Federated variational averaging (FVBA, FVBWA).  Özer et al. 2022, Algorithms 1 and 2, eq. 4–8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience.aggregation.merging import Released, Rule, aalv, as_gaussian, clamp, merge, population, ppa, spread
from consilience.aggregation.summands import Summation, merging
from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Predictive
from consilience.errors import InputError, unknown_name
from consilience.inference import Inference, MeanField
from consilience.inference.capabilities import Floored
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import About, BatchNormed, Diagnosed, Method, ReplyKind, Summable
from consilience.task import Task

VARIANTS = ("printed", "ozer2022")


class Merged(NamedTuple):
    """The state of variational averaging.

    Attributes:
        posterior: The merged Gaussian.
        floored: How many of the clients' variances lay at the inference's floor in the last round.
    """

    posterior: Posterior
    floored: Tensor


@dataclass(frozen=True)
class VariationalAveraging(Summable, Diagnosed, BatchNormed, Method):
    """Average distributions over the weights: every client fits a Gaussian, the server merges them weight by weight.

    for each round
        for each client k, in parallel
    1       N(μₖ, σₖ²) ← the client's posterior, started at N(μ, σ²)
    2   βₖ ← nₖ / n (FVBWA), or 1 / K (FVBA)
    3   μ, σ² ← the rule applied to μₖ, σₖ², βₖ: EAA, GAA, AALV, PPA or CF

    Attributes:
        inference: How a client fits; any inference that gives a Gaussian or samples.
        rule: How Gaussians are merged: `eaa`, `gaa`, `aalv`, `ppa` or `cf`.
        equal: Whether every client counts the same (FVBA).
        population: Draws of the population of eq. 7, with the rule `ppa`; 0: its exact moments.
        variant: `printed`, or `ozer2022`: the released program's clamped sums.

    Example:
        >>> import consilience as co
        >>> network = co.models.variational(co.models.mlp(2, 2, hidden=(5,)))
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model=network)
        >>> co.run(co.methods.VariationalAveraging(), problem, rounds=2).report["rounds"]
        2
    """

    about = About(
        name="variational",
        sends="a mean and a variance for every weight",
        reply=ReplyKind.MEAN,
    )

    inference: Inference = MeanField()
    rule: Rule = aalv
    equal: bool = False
    population: int = 0
    variant: str = "printed"

    def init(self, task: Task, server: Server) -> Merged:
        if self.variant not in VARIANTS:
            raise unknown_name("variant", self.variant, VARIANTS)
        if self.population and self.rule is not ppa:
            raise InputError("A population belongs to the rule ppa: set `rule=ppa`, or `population=0`.")
        return Merged(task.init(server.key), torch.zeros((), dtype=torch.int64))

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(as_gaussian(self.inference(task, message, client), task.uncertain), client.data.size)  # 1

    def aggregate(self, task: Task, state: Merged, replies: Sequence[Received], server: Server) -> Merged:
        gaussians = [as_gaussian(payload, task.uncertain) for payload in payloads(replies)]
        shares = weights(replies)  # 2
        if self.equal:
            shares = torch.full((len(replies),), 1 / len(replies))
        rule = self.rule
        if self.population:
            rule = population(server.key, self.population)
        if self.variant == "ozer2022":
            rule = Released(rule)
        merged = merge(gaussians, shares, rule, [r.client for r in replies])  # 3
        lowest = -torch.inf
        if isinstance(self.inference, Floored):
            lowest = self.inference.floor
        floor = torch.tensor(lowest).exp() * 1.001
        floored = torch.stack([(var <= floor).sum() for gaussian in gaussians for var in gaussian.var.values()])
        return Merged(merged, floored.sum())

    def summation(self) -> Summation | None:
        if self.population or self.variant == "ozer2022":
            return None
        return merging(self.rule, self.equal)

    def predictive(self, task: Task, state: Merged) -> Predictive:
        if self.variant == "ozer2022":
            return task.predictive(clamp(state.posterior))
        return task.predictive(state.posterior)

    def diagnose(self, task: Task, state: Merged, x: Tensor) -> dict[str, Any]:
        """The degree of spread, and how many client variances had reached the floor."""
        return {"spread": spread(as_gaussian(state.posterior, task.uncertain)), "floored": int(state.floored)}
