"""What one site's rows say about its own weights, with the prior taken out; and how far sites differ, in words."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.likelihood import LOG_NOISE, GaussianNoise
from consilience.distributions.posterior import Dense, Gaussian, Natural, Point, Posterior, natural
from consilience.glm.hierarchy import Belief, Hierarchy, as_dense, deviations, divide
from consilience.glm.linear_model import classes_of, layer_of, priors_of, weight_prior
from consilience.glm.mixed import factor_of, fit_variances, groups_of
from consilience.glm.sums import Sums
from consilience.task import Task

SMALLEST = 1e-4  # variance between sites that a search for a mode is given
KNOWN = 1e8  # the precision of a log-noise that counts as known
NEGATIVE = 1e-4  # of a precision's largest eigenvalue, which rounding may take away where rows say nothing
NOTHING = 1e-6  # of it: where rounding shows, smaller ones are taken for nothing


def prior_of(task: Task, message: Point | Gaussian) -> Dense:
    """Find the prior of a client's weights.

    Args:
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

    Returns:
        Λₖ and hₖ, in the task's precision.
    """
    assert isinstance(posterior, Dense)
    like = next(iter(task.like.values()))
    said = divide(posterior, prior)
    return Natural(said.linear.to(like), said.precision.to(like))


def posterior_of(factor: Natural, prior: Dense) -> Dense:
    """Put the prior back into what a client's rows say.

    Args:
        prior: The prior that was taken out.

    Returns:
        The client's posterior, in double precision.
    """
    known = prior.precision.double()
    precision = factor.precision.double() + known
    linear = factor.linear.double() + known @ prior.mean.double()
    return Dense(torch.linalg.solve(precision, linear), precision)


def as_factor(task: Task, said: Any, log_noise: Tensor | tuple[()]) -> Natural:
    """Read what a client's rows say about its weights.

    Args:
        said: As it was sent, or kept.
        log_noise: The log-variance of an observation; () for classes.

    Returns:
        Λₖ and hₖ in double precision.
    """
    if isinstance(said, Sums):
        assert isinstance(log_noise, Tensor)
        return factor_of(said, layer_of(task), log_noise)
    return _without_rounding(Natural(said.linear.double(), said.precision.double()), weight_prior(task))


def _without_rounding(factor: Natural, prior: Dense) -> Natural:
    """Let rows say nothing, and not less, where rounding took more than a wide prior knows."""
    if int(torch.linalg.cholesky_ex(factor.precision + prior.precision.double()).info) == 0:
        return factor
    values, vectors = torch.linalg.eigh(factor.precision)
    if values[0] < -NEGATIVE * max(1.0, float(values[-1])):
        return factor  # no rows say this
    told = values > NOTHING * values[-1]
    precision = (vectors[:, told] * values[told]) @ vectors[:, told].mT
    return Natural(vectors[:, told] @ (vectors[:, told].mT @ factor.linear), (precision + precision.mT) / 2)


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


def noise_of(task: Task, said: dict[str, Any], scales: Tensor) -> Tensor | tuple[()]:
    """Find the noise of numbers: as the task has it, or by the marginal likelihood.

    Args:
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


def shared_prior(task: Task, hierarchy: Hierarchy) -> Gaussian:
    """Write N(μ, T) by the weights' names.

    Returns:
        The means of μ and T, T no smaller than a search for a mode can bear.
    """
    layer = layer_of(task)
    mean = {name: leaf.to(layer[name]) for name, leaf in tree.unravel(hierarchy.centre, layer).items()}
    var = {name: leaf.to(layer[name]) for name, leaf in tree.unravel(hierarchy.typical, layer).items()}
    return Gaussian(mean, {name: leaf.clamp(min=SMALLEST) for name, leaf in var.items()})


def as_posterior(task: Task, belief: Belief, log_noise: Tensor | tuple[()]) -> Dense:
    """Write a belief about the layer as a posterior of the task.

    Args:
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


def spread_of(task: Task) -> float:
    """Say how many times wider what people read is than a weight.

    Returns:
        √2 for classes: log-odds are differences of two logits; 1 for numbers.
    """
    if classes_of(task) is None:
        return 1.0
    return math.sqrt(2)


def describe_spread(task: Task, hierarchy: Hierarchy) -> dict[str, Any]:
    """Say how much sites differ.

    Returns:
        τ of intercepts and slopes, in the units that people read: the median and a 95 % interval.
    """
    groups = groups_of(layer_of(task))
    quantiles = spread_of(task) * deviations(hierarchy)
    names = ("intercepts", "slopes")[-(int(groups.max()) + 1) :]
    found: dict[str, Any] = {}
    for group, name in enumerate(names):
        low, middle, high = quantiles[:, int((groups == group).nonzero()[0])].tolist()
        found |= {f"tau_{name}": middle, f"tau_{name}_interval": [low, high]}
    return found
