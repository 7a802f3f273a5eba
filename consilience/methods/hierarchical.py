"""Partial pooling: a mixed model from one round of Gaussians.  This project, after DerSimonian and Laird 1986."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from consilience import tree
from consilience.errors import InputError
from consilience.inference import Inference, Laplace, MultipleImputation, Newton
from consilience.likelihood import LOG_NOISE, GaussianNoise, Softmax
from consilience.method import Method, keep_fields
from consilience.methods.exact import classes_of, warn_of_few_rows
from consilience.methods.glm import layer_of, predict_on_features, priors_of
from consilience.models.maps import feature_map, last_layer
from consilience.parties import Client, Received, Reply, Server
from consilience.pooling.hierarchy import (
    Belief,
    Hierarchy,
    as_dense,
    at_one,
    deviations,
    divide,
    newcomer,
    pool,
    site_posterior,
)
from consilience.pooling.mixed import factor_of, fit_variances, groups_of
from consilience.pooling.sums import CHUNK, Sums, doubt, summarise
from consilience.posterior import Dense, Gaussian, Natural, Point, Posterior, centre, natural
from consilience.predictive import Distribution, Normal, Predictive
from consilience.prior import Believed
from consilience.settings import added
from consilience.task import Task
from consilience.tree import Params, Tree

SMALLEST = 1e-4  # variance between sites that a search for a mode is given
KNOWN = 1e8  # the precision of a log-noise that counts as known
NEGATIVE = 1e-4  # of a precision's largest eigenvalue, which rounding may take away where rows say nothing


class HierarchicalState(NamedTuple):
    """The state of partial pooling.

    Attributes:
        posterior: What is known of a newcomer's weights, or of a site's own, at home; random before the first round.
        shared: N(μ, T) at its centre, the prior of the next round's clients; () before the first round.
        hierarchy: What all sites say of T and μ; () before the first round.
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
class Hierarchical(Method):
    """Sites have weights of their own, θₖ ~ N(μ, T): each learns from all as far as they are alike.

        for each client k of K, in parallel
    1       N(m, S) ← the client's posterior p(θₖ | Dₖ), by Laplace; in later rounds N(μ, T) is its prior
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
    """

    name: ClassVar[str] = "hierarchical"
    sends: ClassVar[str] = "a Gaussian over its weights without the prior: a whole precision matrix"
    usual_rounds: ClassVar[int] = 1
    heads: ClassVar[bool] = True
    carries: ClassVar[tuple[type, ...]] = (Sums, Hierarchy)

    mode: Inference = Newton()
    scale: float = 0.5
    tau: float | None = None
    largest: int = 1500
    marks: str = added("")
    tables: int = added(20)

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
        return HierarchicalState(posterior, shared, hierarchy, log_noise, said, torch.tensor(server.clients))

    def at_home(self, task: Task, state: HierarchicalState, memory: Tree) -> HierarchicalState:
        if not isinstance(state.hierarchy, Hierarchy) or memory == ():
            return state
        belief = site_posterior(state.hierarchy, as_factor(task, memory, state.log_noise))  # 5
        return state._replace(posterior=as_posterior(task, belief, state.log_noise))

    def personal(self, task: Task, state: HierarchicalState) -> Sequence[Predictive] | None:
        if not isinstance(state.factors, dict) or not isinstance(state.clients, Tensor):
            return None
        said = [state.factors.get(str(k), ()) for k in range(int(state.clients))]
        return [self.predictive(task, self.at_home(task, state, factor)) for factor in said]

    def predictive(self, task: Task, state: HierarchicalState) -> Predictive:
        if classes_of(task) is None and isinstance(state.posterior, Dense):
            return predict_numbers(task, state.posterior)
        return predict_on_features(task, state.posterior)

    def diagnose(self, task: Task, state: HierarchicalState, x: Tensor) -> dict[str, Any]:
        return describe_spread(task, state)

    def doubt(self, task: Task, message: Point | Gaussian, send: Natural | Sums) -> str | None:
        if isinstance(send, Sums):
            return doubt(send)
        return doubt_factor(send)

    def imputed(self, marks: str, tables: int) -> Hierarchical:
        return replace(self, marks=marks, tables=tables)

    def hand_out(self, state: HierarchicalState, ensemble: bool) -> Tree:
        return keep_fields(state, ("posterior", "hierarchy", "log_noise"))

    def scales(self, task: Task) -> Tensor:
        """Return the scale of τ's prior for each group of weights, in units of the weights."""
        groups = groups_of(layer_of(task))
        return torch.full((int(groups.max()) + 1,), self.scale / spread_of(task), dtype=torch.float64)


def check_problem(method: Hierarchical, task: Task) -> None:
    """Refuse a task or settings that partial pooling cannot work with.

    Args:
        method: The settings.
        task: The statistical problem.

    Raises:
        InputError: The model is not one linear layer on fixed features, too large, or a setting makes no sense.
    """
    last_layer(task.model)
    if not isinstance(task.likelihood, (Softmax, GaussianNoise)):
        raise InputError(
            "hierarchical learns classes, or numbers with one noise for all rows: use heteroscedastic=False."
        )
    if method.marks and classes_of(task) is None:
        raise InputError(
            "hierarchical sends sums for numbers, and multiple imputation combines Gaussians: use gaussian_product, or "
            "let gaps be filled by means."
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


def spread_of(task: Task) -> float:
    """Tell how many times wider what people read is than a weight.

    Args:
        task: The statistical problem.

    Returns:
        √2 for classes: log-odds are differences of two logits; 1 for numbers.
    """
    if classes_of(task) is None:
        return 1.0
    return math.sqrt(2)


def shared_prior(task: Task, hierarchy: Hierarchy) -> Gaussian:
    """Write N(μ, T) by the weights' names.

    Args:
        task: The statistical problem.
        hierarchy: What all sites say.

    Returns:
        The means of μ and T, T no smaller than a search for a mode can bear.
    """
    layer = layer_of(task)
    mean = {name: leaf.to(layer[name]) for name, leaf in tree.unravel(hierarchy.centre, layer).items()}
    var = {name: leaf.to(layer[name]) for name, leaf in tree.unravel(hierarchy.typical, layer).items()}
    return Gaussian(mean, {name: leaf.clamp(min=SMALLEST) for name, leaf in var.items()})


def weight_prior(task: Task) -> Dense:
    """Write the task's prior over the linear layer, in double precision.

    Args:
        task: The statistical problem.

    Returns:
        The prior of μ.
    """
    return task.prior.dense({name: leaf.double() for name, leaf in layer_of(task).items()})


def prior_of(task: Task, message: Point | Gaussian) -> Dense:
    """Find the prior of a client's weights.

    Args:
        task: The statistical problem.
        message: What the server sent.

    Returns:
        The task's own in the first round, then N(μ, T).
    """
    if isinstance(message, Gaussian):
        return Dense(tree.ravel(message.mean), torch.diag(1 / tree.ravel(message.var)))
    return task.prior.dense(layer_of(task))


def likelihood_of(posterior: Posterior, prior: Dense, task: Task) -> Natural:
    """Take the prior out of a client's posterior.

    Args:
        posterior: As the inference found it.
        prior: The prior it was found with.
        task: The statistical problem.

    Returns:
        Λₖ and hₖ, in the task's precision.
    """
    assert isinstance(posterior, Dense)
    like = next(iter(task.like.values()))
    said = divide(posterior, prior)
    return Natural(said.linear.to(like), said.precision.to(like))


def as_factor(task: Task, said: Any, log_noise: Tensor | tuple[()]) -> Natural:
    """Read what a client's rows say about its weights.

    Args:
        task: The statistical problem.
        said: As it was sent, or kept.
        log_noise: The log-variance of an observation; () for classes.

    Returns:
        Λₖ and hₖ in double precision.
    """
    if isinstance(said, Sums):
        assert isinstance(log_noise, Tensor)
        return factor_of(said, layer_of(task), log_noise)
    return Natural(said.linear.double(), said.precision.double())


def noise_of(task: Task, said: dict[str, Any], scales: Tensor) -> Tensor | tuple[()]:
    """Find the noise of numbers: as the task has it, or by the marginal likelihood.

    Args:
        task: The statistical problem.
        said: What each client sent.
        scales: Of the priors of τ.

    Returns:
        The log-variance of an observation; () for classes.
    """
    if not isinstance(task.likelihood, GaussianNoise):
        return ()
    if task.likelihood.noise is not None:
        return torch.tensor(math.log(task.likelihood.noise), dtype=torch.float64)
    _, noise_prior = priors_of(task)
    prior = natural(weight_prior(task))
    return fit_variances(list(said.values()), layer_of(task), prior, scales, noise_prior).log_noise


def as_posterior(task: Task, belief: Belief, log_noise: Tensor | tuple[()]) -> Dense:
    """Write a belief about the layer as a posterior of the task.

    Args:
        task: The statistical problem.
        belief: About the layer's weights.
        log_noise: The log-variance of an observation; () for classes.

    Returns:
        The Gaussian; a learned noise stands last in it, as if it were known.
    """
    mean, precision = as_dense(belief)
    if isinstance(log_noise, Tensor) and LOG_NOISE in task.like:
        mean = torch.cat([mean, log_noise.reshape(1)])
        precision = torch.block_diag(precision, torch.full((1, 1), KNOWN, dtype=precision.dtype))
    return Dense(mean, precision)


def predict_numbers(task: Task, posterior: Dense) -> Predictive:
    """Predict numbers in closed form.

    Args:
        task: A regression whose model ends in a linear layer.
        posterior: Of its weights, and of the log-noise where it is learned.

    Returns:
        N(φᵀm, φᵀSφ), and the noise.
    """
    assert isinstance(task.likelihood, GaussianNoise)
    layer = layer_of(task)
    count = sum(leaf.numel() for leaf in layer.values())
    var = torch.cholesky_inverse(torch.linalg.cholesky(posterior.precision[:count, :count]))
    params = tree.unravel(posterior.mean[:count], layer)
    features = feature_map(task.model)
    learned = {LOG_NOISE: posterior.mean[count:]}

    @torch.no_grad()
    def predict(x: Tensor) -> Distribution:
        whole: Distribution = tree.concatenate(outcome(part) for part in x.split(CHUNK))
        return whole

    def outcome(x: Tensor) -> Distribution:
        phi = features(x).double()
        means = linear(phi, *[params[name] for name in layer])
        rows = jacobian(phi, layer)
        latent = torch.einsum("nmp,pq,nmq->nm", rows, var, rows).clamp(min=0)
        p = task.likelihood.outcome(means.unsqueeze(0), [learned])
        assert isinstance(p, Normal)
        noisy = Normal(p.mean, p.var + latent.reshape(p.mean.shape), p.noise)
        return Normal(*(leaf.to(x.dtype) for leaf in noisy))

    return predict


def jacobian(phi: Tensor, layer: Params) -> Tensor:
    """Differentiate the outputs of a linear layer by its weights.

    Args:
        phi: Features [N, D].
        layer: Names and shapes of its weights.

    Returns:
        [N, outputs, P], in the order of `tree.ravel`.
    """
    outputs = next(leaf for leaf in layer.values() if leaf.ndim > 1).shape[0]
    eye = torch.eye(outputs, dtype=phi.dtype)
    parts = []
    for leaf in layer.values():
        if leaf.ndim > 1:
            parts.append((eye.unsqueeze(-1) * phi.unsqueeze(1).unsqueeze(1)).flatten(2))
        else:
            parts.append(eye.expand(len(phi), outputs, outputs))
    return torch.cat(parts, -1)


def describe_spread(task: Task, state: HierarchicalState) -> dict[str, Any]:
    """Say how much sites differ.

    Args:
        task: The statistical problem.
        state: The server's state.

    Returns:
        τ of intercepts and slopes, in the units that people read: the median and a 95 % interval.
    """
    if not isinstance(state.hierarchy, Hierarchy):
        return {}
    groups = groups_of(layer_of(task))
    quantiles = spread_of(task) * deviations(state.hierarchy)
    names = ("intercepts", "slopes")[-(int(groups.max()) + 1) :]
    found: dict[str, Any] = {}
    for group, name in enumerate(names):
        low, middle, high = quantiles[:, int((groups == group).nonzero()[0])].tolist()
        found |= {f"tau_{name}": middle, f"tau_{name}_interval": [low, high]}
    return found


def doubt_factor(factor: Natural) -> str | None:
    """Say why no rows can say this.

    Args:
        factor: As a client sent it.

    Returns:
        A sentence about the reply, as "it"; None where there is nothing to say.
    """
    precision = factor.precision.double()
    if float((precision - precision.mT).abs().max()) > NEGATIVE * float(precision.abs().max()):
        return "its precision is not symmetric."
    values = torch.linalg.eigvalsh(precision)
    if float(values[0]) < -NEGATIVE * max(1.0, float(values[-1])):
        return "its precision is not positive semi-definite, as the curvature of a likelihood is."
    return None
