"""Product of Gaussian posteriors.  Liu et al. 2021 (federated online Laplace)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.aggregation.averages import cap_evidence
from consilience.aggregation.merging import as_gaussian
from consilience.aggregation.summands import PRODUCT, Summation, Total
from consilience.distributions.posterior import Dense, Posterior, multiply
from consilience.errors import InputError
from consilience.glm.linear_model import check_proper
from consilience.glm.private_numbers import check_private_numbers, multiply_private, release_moments
from consilience.glm.too_sure import Known, warn_of_one_class, warn_of_strong_effects
from consilience.inference import Inference, Laplace, MultipleImputation
from consilience.inference.capabilities import Whole
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import (
    ONE_SHOT,
    About,
    BatchNormed,
    Imputable,
    Method,
    OnColumns,
    Private,
    ReplyKind,
    State,
    Summable,
)
from consilience.method.settings import abridge, added
from consilience.privacy.dp.mechanisms import Privacy, Released
from consilience.task import Task

KNOWN = Known(1.4, "90 % of log odds ratios of 1, and 85 % of 2")  # in 100 and 40 worlds; 92 % of 0.5 in 160


@dataclass(frozen=True)
class GaussianProduct(OnColumns, Summable, Private, Imputable, BatchNormed, Method):
    """One round; multiply the clients' Gaussian posteriors and divide by the prior that all but one counted too often.

        for each client k of K, in parallel
    1       N(μₖ, Σₖ) ← the client's posterior p(θ | Dₖ)
    2   p(θ | D) ∝ p(θ)^(1−K) Πₖ N(θ; μₖ, Σₖ)

    With `privacy`, numbers on fixed features alone: the natural parameters of a client's likelihood are its moments,
    which are released with noise, and the posterior knows of it: private.md.

    Attributes:
        inference: How a client fits; Laplace(dense=True) sends full precisions.
        cap: How many times the median client's claim a client may claim to know, above which its likelihood is
            tempered; 0: no cap.
        privacy: Differential privacy of all that is sent, on bounded features; None: none.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=3, split="iid", model="linear")
        >>> result = co.run(co.methods.GaussianProduct(), problem)
        >>> type(result.state.posterior).__name__, result.metrics["accuracy"] > 0.7
        ('Gaussian', True)
    """

    about = About(
        name="gaussian_product",
        sends="a Gaussian over its weights: variances, or a whole precision matrix",
        tasks=("classification", "regression", "counts", "survival"),
        rounds=ONE_SHOT,
        reply=ReplyKind.SUM,
        types=(Released,),
    )
    on_linear = ("inference.mode=Newton", "inference.dense=True")

    inference: Inference = Laplace()
    cap: float = added(0.0)
    privacy: Privacy | None = added(None)

    def init(self, task: Task, server: Server) -> State:
        if self.cap and not self.cap >= 1:
            raise InputError(f"cap={self.cap:g} would temper the median client too: give 1 or more, or 0 for no cap.")
        if isinstance(self.inference, Whole) and self.inference.dense:
            check_proper(task)
        if self.privacy is not None:
            check_private_numbers(task, self.privacy, server)
            if abridge(self.inference) != abridge(Laplace()) or self.cap:  # a rehearsal has abridged it
                raise InputError(
                    "Under noise moments are released, whatever a site infers: leave inference and cap out."
                )
        return State(task.init(server.key))

    def local(self, task: Task, message: Posterior, client: Client) -> Reply:
        if self.privacy is not None:
            return release_moments(task, self.privacy, client.data)
        posterior = self.inference(task, message, client)
        if not isinstance(posterior, Dense):
            posterior = as_gaussian(posterior, task.uncertain)
        return Reply(posterior, client.data.size)  # 1

    def aggregate(self, task: Task, state: State, replies: Sequence[Received], server: Server) -> State:
        if self.privacy is not None:
            return State(multiply_private(task, self.privacy, replies))
        factors: Any = payloads(replies)
        prior: Any = task.prior.gaussian(task.like)
        if isinstance(factors[0], Dense):
            prior = task.prior.dense(task.like)
            warn_of_one_class(task, replies)
        if self.cap:
            factors = cap_evidence(factors, prior, self.cap)
        posterior = multiply(factors, prior)  # 2
        if isinstance(posterior, Dense):
            warn_of_strong_effects(task, replies, posterior.mean, KNOWN)
        return State(posterior)

    def imputed(self, marks: str, tables: int) -> GaussianProduct:
        if isinstance(self.inference, MultipleImputation):
            return self
        return replace(self, inference=MultipleImputation(self.inference, marks, tables))

    def summation(self) -> Summation | None:
        if self.privacy is not None:
            return Total()
        if self.cap:
            return None
        return PRODUCT
