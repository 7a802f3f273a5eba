"""β-Predictive Bayes.  Hasan et al., AAAI 2024, Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import Tensor

from consilience.aggregation.distil import Distil, distil_pool
from consilience.aggregation.interpolation import CHOICES
from consilience.distributions.posterior import Posterior
from consilience.distributions.predictive import Distribution, Predictive, geometric, mixture, precise, product
from consilience.errors import unknown_name
from consilience.inference import Inference, Sampler
from consilience.messages import Client, Received, Reply, Server, payloads, weights
from consilience.method import (
    ONE_SHOT,
    About,
    BatchNormed,
    Diagnosed,
    Knob,
    Method,
    Needs,
    Pooling,
    Releasable,
    ReplyKind,
    State,
    Tunable,
    keep_fields,
)
from consilience.method.settings import added
from consilience.methods.mixture import Mixture
from consilience.task import Task
from consilience.tree import Tree

BETAS = tuple(i / 20 for i in range(21))


class Interpolated(NamedTuple):
    """The state of β-Predictive Bayes.

    Attributes:
        posterior: What the round started from, or the student.
        posteriors: One for each client that replied.
        weights: nₖ / n.
        beta: β, from the mixture (0) to the product (1).
    """

    posterior: Posterior
    posteriors: tuple[Posterior, ...]
    weights: Tensor
    beta: float


@dataclass(frozen=True)
class BetaPredictiveBayes(Pooling, Tunable, Releasable, Diagnosed, BatchNormed, Method):
    """One round; pool the clients' predictions, not their weights.

        for each client k of K, in parallel
    1       draw θₖ¹ … θₖˢ from p(θ | Dₖ) and send them
    2   pₖ(y|x) = (1/S) Σₛ p(y | x, θₖˢ)
    3   p_β(y|x) ∝ [p(y|x)^(1−K) Πₖ pₖ(y|x)]^β · [Σₖ (nₖ/n) pₖ(y|x)]^(1−β)
    4   β ← argmax of Σ log p_β(y|x) over the calibration rows, 0 ≤ β ≤ 1; without any, 0: the mixture;
            less λβ where fewer than five of them are outside their most frequent class (not in the paper)
    5   θ ← argmin of Σ KL(p_β(·|x) ‖ p(·|x, θ)) over the server's inputs, if distilled

    Attributes:
        inference: How a client samples.
        distil: How the server trains one student; None: keep the ensemble.
        fit: How β is chosen: "optimum"; or "adam", ten passes of Adam from ½ as in the authors' program, which on a
            few hundred rows end near where they begin.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> 0 <= co.run(co.methods.BetaPredictiveBayes(), problem).state.beta <= 1
        True
    """

    about = About(
        name="beta",
        sends="samples of its posterior over the weights",
        needs=Needs.LABELS,
        rounds=ONE_SHOT,
        reply=ReplyKind.POSTERIOR,
    )

    inference: Inference = Sampler()
    distil: Distil | None = None
    fit: str = added("optimum")

    def __post_init__(self) -> None:
        if self.fit not in CHOICES:
            raise unknown_name("way to choose beta", self.fit, CHOICES)

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        return Reply(self.inference(task, message, client), client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> Interpolated:
        pooled = Interpolated(state.posterior, payloads(replies), weights(replies), 0.0)
        rows = server.calibration
        if rows is not None:
            both = self.pools(task, pooled, rows.x)
            pooled = pooled._replace(beta=CHOICES[self.fit](*both, rows.y, server.key))  # 4
        return distil_pool(self.distil, task, pooled, self.teacher(task, pooled), server)  # 5

    def diagnose(self, task: Task, state: Interpolated, x: Tensor) -> dict[str, Any]:
        return {"beta": state.beta}

    def knob(self, state: Interpolated) -> Knob | None:
        if not state.posteriors:
            return None
        return Knob("beta", "β", BETAS, float(state.beta))

    def turn(self, state: Interpolated, value: float) -> tuple[Self, Interpolated]:
        return self, state._replace(beta=value)

    def sweep(self, task: Task, state: Interpolated, x: Tensor) -> list[Distribution]:
        if not state.posteriors:
            return [self.predictive(task, state)(x)]
        both = [precise(p) for p in self.pools(task, state, x)]  # once for all β
        return [geometric(beta, *both) for beta in BETAS]

    def hand_out(self, state: Interpolated, ensemble: bool) -> Tree:
        if ensemble:
            return state
        return keep_fields(state, ("posterior", "beta"))

    def without_names(self) -> Mixture:
        return Mixture()

    def remarks(self, state: Interpolated, hand_out: str, labelled: bool) -> list[str]:
        if hand_out == "mixture":
            return ["The study releases a mixture without names, from which β cannot be chosen: this is it (β = 0)."]
        if labelled:
            return [f"β = {float(state.beta):.2f}, fitted on the coordinator's own labelled rows."]
        if hand_out == "ensemble":
            return ["β has not been chosen by statistics of the sites, so this is the mixture (β = 0)."]
        return ["Nothing has chosen β, so the student was taught by the mixture (β = 0)."]

    def teacher(self, task: Task, state: Interpolated) -> Predictive:
        return lambda x: geometric(state.beta, *self.pools(task, state, x))  # 3

    def pools(self, task: Task, state: Interpolated, x: Tensor) -> tuple[Distribution, Distribution]:
        """Return the product and the mixture of the clients' predictions for inputs, between which β lies."""
        p = [task.predictive(posterior)(x) for posterior in state.posteriors]  # 2
        return product(p, task.prior_predictive(x), state.weights), mixture(p, state.weights)  # 3
