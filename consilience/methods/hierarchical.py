"""Partial pooling: a mixed model from one round of Gaussians.  This project, after DerSimonian and Laird 1986."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience.distributions.likelihood import GaussianNoise, Softmax
from consilience.distributions.posterior import Dense, Gaussian, Natural, Point, Posterior, centre, natural
from consilience.distributions.predictive import Predictive
from consilience.distributions.prior import Believed
from consilience.errors import InputError
from consilience.glm.hierarchy import Hierarchy, at_one, likely_sites, mean_site, newcomer, pool, site_posterior
from consilience.glm.linear_model import check_proper, classes_of, layer_of, warn_of_few_rows, weight_prior
from consilience.glm.mixed import groups_of
from consilience.glm.predictions import predict_numbers, predict_on_features
from consilience.glm.site_factors import (
    as_factor,
    as_posterior,
    describe_spread,
    doubt_factor,
    likelihood_of,
    noise_of,
    posterior_of,
    prior_of,
    shared_prior,
    spread_of,
)
from consilience.glm.sums import Sums, doubt, summarise
from consilience.glm.too_sure import Known, warn_of_strong_effects
from consilience.inference import Inference, Laplace, MultipleImputation, Newton, VariationalGaussian
from consilience.messages import Client, Received, Reply, Server
from consilience.method import (
    About,
    Diagnosed,
    Imputable,
    Method,
    OnFeatures,
    Personal,
    Releasable,
    Rounds,
    Validated,
    keep_fields,
)
from consilience.method.settings import added
from consilience.models.maps import feature_map, last_layer
from consilience.task import Task
from consilience.tree import Tree

KNOWN = Known(3.0, "83 to 87 % of sites' slopes, of 2")  # docs/partial-pooling.md, and ten more worlds


class HierarchicalState(NamedTuple):
    """The state of partial pooling.

    Attributes:
        posterior: What is known of a newcomer's weights, or of a site's own, at home; random before the first round.
        shared: N(μ, T) at its centre, the prior of the next round's clients; () before the first round.
        hierarchy: What all sites say of T and μ; () before the first round, and in a site's own state.
        log_noise: The log-variance of an observation; () for classes.
        factors: What each site's rows say, by its number; the coordinator alone has them.
        clients: How many sites there are.
    """

    posterior: Posterior
    shared: Gaussian | tuple[()] = ()
    hierarchy: Hierarchy | tuple[()] = ()
    log_noise: Tensor | tuple[()] = ()
    factors: dict[str, Any] | tuple[()] = ()
    clients: Tensor | tuple[()] = ()


@dataclass(frozen=True)
class Hierarchical(OnFeatures, Personal, Validated, Releasable, Imputable, Diagnosed, Method):
    """Sites have weights of their own, θₖ ~ N(μ, T): each learns from all as far as they are alike.

        for each client k of K, in parallel
    1       N(m, S) ← the client's posterior p(θₖ | Dₖ), the Gaussian of least KL(N‖p); in later rounds N(μ, T) is its
            prior
    2       Λₖ, hₖ ← the prior divided out;  send both, and keep both
            (numbers: send Σ φφᵀ, Σ y φᵀ, Σ y² in their place; Λₖ and hₖ follow with the noise)
    3   p(T | D) ← half-normal priors × marginal likelihood, on a grid: one variance of intercepts, one of slopes
    4   p(μ | T, D) ∝ p(μ) Πₖ N(Λₖ⁻¹hₖ; μ, Λₖ⁻¹ + T)
        at each client k, at home, averaged over the grid
    5       p(θₖ | D) = N((T⁻¹ + Λₖ)⁻¹(hₖ + T⁻¹μ), (T⁻¹ + Λₖ)⁻¹), and the uncertainty of μ
        for a newcomer
    6       N(μ, T), and the uncertainty of μ

    Attributes:
        mode: How a client finds the mode of its posterior, for classes.
        scale: The standard deviation of the half-normal prior of τ: of log-odds for classes, of the target's scaled
            unit for numbers, for one standard deviation of a column.
        tau: √T, where it is not learned: 0 is the product of the clients' posteriors.
        largest: The most weights of which precisions are sent.
        marks: Which feature holds a column and which one marks its gaps, as `1:2,4:5`, where a client fills its gaps
            several times (`MultipleImputation`); for classes.
        tables: How many times.
        averaged: Whether a client's gradient and curvature are averages over its posterior, for classes: at the mode
            alone few rows are taken for more than they say, and sites for more alike than they are.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> result = co.run(co.methods.Hierarchical(tau=0.5), problem)
        >>> len(result.replies)
        3
    """

    about = About(
        name="hierarchical",
        sends="a Gaussian over its weights without the prior: a whole precision matrix",
        rounds=Rounds(1),
        types=(Sums, Hierarchy),
    )

    mode: Inference = Newton()
    scale: float = 0.5
    tau: float | None = None
    largest: int = 1500
    marks: str = added("")
    tables: int = added(20)
    averaged: bool = added(True, before=False)

    def init(self, task: Task, server: Server) -> HierarchicalState:
        check_problem(self, task)
        return HierarchicalState(task.init(server.key))

    def broadcast(self, state: HierarchicalState) -> Point | Gaussian:
        if isinstance(state.shared, Gaussian):
            return state.shared
        return centre(state.posterior)

    def local(self, task: Task, message: Point | Gaussian, client: Client) -> Reply:
        if classes_of(task) is None:
            sums = summarise(feature_map(task.model), client.data, None)
            return Reply(sums, client.data.size, keep=sums)
        prior = prior_of(task, message)
        believing = task.with_prior(Believed(natural(prior), task.like, task.prior))
        inference: Inference = Laplace(self.mode, dense=True)
        if self.averaged:
            inference = VariationalGaussian(self.mode)
        if self.marks:
            inference = MultipleImputation(inference, self.marks, self.tables)
        posterior = inference(believing, message, client)  # 1
        factor = likelihood_of(posterior, prior, task)  # 2
        return Reply(factor, client.data.size, keep=factor)

    def aggregate(
        self, task: Task, state: HierarchicalState, replies: Sequence[Received], server: Server
    ) -> HierarchicalState:
        if classes_of(task) is None:
            warn_of_few_rows(replies)
        said: dict[str, Any] = {**dict(state.factors), **{str(r.client): r.payload for r in replies}}
        log_noise = noise_of(task, said, self.scales(task))
        prior = natural(weight_prior(task))
        factors = [as_factor(task, said[k], log_noise) for k in sorted(said, key=int)]
        groups = groups_of(layer_of(task))
        if self.tau is None:
            hierarchy = pool(factors, prior, groups, self.scales(task))  # 3, 4
        else:
            hierarchy = at_one(factors, prior, (self.tau / spread_of(task)) ** 2 * torch.ones(len(groups)))
        posterior = as_posterior(task, newcomer(hierarchy), log_noise)  # 6
        shared = shared_prior(task, hierarchy)
        warn_of_strong_effects(task, replies, mean_site(hierarchy).mean, KNOWN)
        return HierarchicalState(posterior, shared, hierarchy, log_noise, said, torch.tensor(server.clients))

    def at_home(self, task: Task, state: HierarchicalState, memory: Tree) -> HierarchicalState:
        if not isinstance(state.hierarchy, Hierarchy) or memory == ():
            return state
        belief = site_posterior(state.hierarchy, as_factor(task, memory, state.log_noise))  # 5
        return state._replace(posterior=as_posterior(task, belief, state.log_noise), hierarchy=())

    def members(self, state: HierarchicalState) -> tuple[tuple[Posterior, ...], Tensor]:
        if not isinstance(state.hierarchy, Hierarchy) or not isinstance(state.posterior, Dense):
            return (state.posterior,), torch.ones(1)
        return could_be(state.hierarchy, state.posterior)

    def predictive(self, task: Task, state: HierarchicalState) -> Predictive:
        if classes_of(task) is None and isinstance(state.posterior, Dense):
            return predict_numbers(task, state.posterior)
        return predict_on_features(task, state.posterior)

    def diagnose(self, task: Task, state: HierarchicalState, x: Tensor) -> dict[str, Any]:
        if not isinstance(state.hierarchy, Hierarchy):
            return {}
        return describe_spread(task, state.hierarchy)

    def doubt(self, task: Task, message: Point | Gaussian, send: Natural | Sums) -> str | None:
        if isinstance(send, Sums):
            return doubt(send)
        return doubt_factor(send)

    def implied(self, task: Task, message: Point | Gaussian, send: Natural | Sums) -> Dense | tuple[()]:
        if isinstance(send, Sums):
            return ()
        return posterior_of(send, prior_of(task, message))

    def imputed(self, marks: str, tables: int) -> Hierarchical:
        return replace(self, marks=marks, tables=tables)

    def hand_out(self, state: HierarchicalState, ensemble: bool) -> Tree:
        return keep_fields(state, ("posterior", "hierarchy", "log_noise"))

    def scales(self, task: Task) -> Tensor:
        """Return the scale of τ's prior for each group of weights, in units of the weights."""
        groups = groups_of(layer_of(task))
        return torch.full((int(groups.max()) + 1,), self.scale / spread_of(task), dtype=torch.float64)


def could_be(hierarchy: Hierarchy, posterior: Dense) -> tuple[tuple[Posterior, ...], Tensor]:
    """List what a newcomer's weights could be: sites differ by T, and of each the uncertainty of μ is left.

    Args:
        posterior: Of a newcomer; a learned noise stands last in it.

    Returns:
        The posteriors of likely sites, and their weights.
    """
    places, spread = likely_sites(hierarchy)
    count = places.shape[1]
    precision = torch.block_diag(torch.linalg.inv(spread), posterior.precision[count:, count:])
    sites = tuple(Dense(torch.cat([place, posterior.mean[count:]]), precision) for place in places)
    return sites, torch.ones(len(sites))


def check_problem(method: Hierarchical, task: Task) -> None:
    """Refuse a task or settings that partial pooling cannot work with.

    Raises:
        InputError: The model is not one linear layer on fixed features, too large, or a setting makes no sense.
    """
    last_layer(task.model)
    if not isinstance(task.likelihood, (Softmax, GaussianNoise)):
        raise InputError(
            "hierarchical learns classes, or numbers with one noise for all rows: use heteroscedastic=False."
        )
    check_proper(task)
    if method.marks and classes_of(task) is None:
        raise InputError(
            "hierarchical sends sums for numbers, and multiple imputation combines Gaussians: use gaussian_product, or "
            "let missing values be filled by means."
        )
    weights = sum(leaf.numel() for leaf in layer_of(task).values())
    if weights > method.largest:
        raise InputError(
            f"hierarchical sends a matrix of {weights:,} × {weights:,} weights, more than largest={method.largest:,}: "
            "take fewer features."
        )
    if not method.scale > 0:
        raise InputError(f"scale={method.scale:g} is not the scale of a prior: give a positive number.")
    if method.tau is not None and not 0 <= method.tau < math.inf:
        raise InputError(f"tau={method.tau:g} is not a standard deviation: give 0 or more, or None to learn it.")
