"""Federated variational averaging (FVBA, FVBWA).  Özer et al. 2022, Algorithms 1 and 2, eq. 4–8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from consilience.errors import InputError, unknown_name
from consilience.inference import Inference, MeanField
from consilience.method import Method
from consilience.parties import Client, Received, Reply, Server, payloads, weights
from consilience.pooling.merging import Released, Rule, aalv, as_gaussian, clamp, merge, population, ppa, spread
from consilience.posterior import Posterior
from consilience.predictive import Predictive
from consilience.task import Task

VARIANTS = ("printed", "ozer2022")


class Merged(NamedTuple):
    posterior: Posterior
    floored: Tensor  # how many of the clients' variances lay at the inference's floor in the last round


@dataclass(frozen=True)
class VariationalAveraging(Method):
    """Average distributions over the weights: every client fits a Gaussian, the server merges them weight by weight.

    for each round
        for each client k, in parallel
    1       N(μₖ, σₖ²) ← the client's posterior, started at N(μ, σ²)
    2   βₖ ← nₖ / n (FVBWA), or 1 / K (FVBA)
    3   μ, σ² ← the rule applied to μₖ, σₖ², βₖ: EAA, GAA, AALV, PPA or CF
    """

    name: ClassVar[str] = "variational"
    moves_statistics: ClassVar[bool] = True
    sends: ClassVar[str] = "a mean and a variance for every weight"

    inference: Inference = MeanField()  # how a client fits; any inference that gives a Gaussian or samples
    rule: Rule = aalv  # eaa, gaa, aalv, ppa or cf
    equal: bool = False  # count every client the same (FVBA)
    population: int = 0  # of eq. 7, with the rule ppa: so many draws; 0: their exact moments
    variant: str = "printed"  # 'ozer2022': the released program's clamped sums

    def init(self, task: Task, server: Server) -> Merged:
        if self.variant not in VARIANTS:
            raise unknown_name("variant", self.variant, VARIANTS)
        if self.population and self.rule is not ppa:
            raise InputError("A population belongs to the rule ppa: set rule=ppa, or population=0.")
        return Merged(task.init(server.key), torch.zeros((), dtype=torch.int64))

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(as_gaussian(self.inference(task, message, client), task.uncertain), client.data.size)  # 1

    def aggregate(self, task: Task, state: Merged, replies: Sequence[Received], server: Server) -> Merged:
        gaussians = [as_gaussian(payload, task.uncertain) for payload in payloads(replies)]
        shares = torch.full((len(replies),), 1 / len(replies)) if self.equal else weights(replies)  # 2
        rule = population(server.key, self.population) if self.population else self.rule
        rule = Released(rule) if self.variant == "ozer2022" else rule
        merged = merge(gaussians, shares, rule, [r.client for r in replies])  # 3
        floor = torch.tensor(getattr(self.inference, "floor", -torch.inf)).exp() * 1.001
        return Merged(merged, torch.stack([(v <= floor).sum() for g in gaussians for v in g.var.values()]).sum())

    def predictive(self, task: Task, state: Merged) -> Predictive:
        return task.predictive(clamp(state.posterior) if self.variant == "ozer2022" else state.posterior)

    def diagnose(self, task: Task, state: Merged, x: Tensor) -> dict[str, Any]:
        """The degree of spread, and how many client variances had reached the floor."""
        return {"spread": spread(as_gaussian(state.posterior, task.uncertain)), "floored": int(state.floored)}
