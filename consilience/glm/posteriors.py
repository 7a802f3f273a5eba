"""What a client adds up for a generalised linear model, by its likelihood, and the posterior of all rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.cox import Cox
from consilience.distributions.likelihood import LOG_NOISE, GaussianNoise
from consilience.distributions.poisson import Poisson, read_counts
from consilience.distributions.posterior import Point, Posterior
from consilience.distributions.softmax import log_softmax
from consilience.glm.derivatives import (
    Derivatives,
    Search,
    differentiate,
    hessian,
    laplace,
    pack,
    unpack,
    with_gauge,
    with_one,
)
from consilience.glm.event_sums import HALF, differentiate_counts, differentiate_times, weigh_at_risk
from consilience.glm.linear_model import classes_of, layer_of, priors_of
from consilience.glm.regression import line_hessian, regress
from consilience.glm.sums import Sums, summarise, targets
from consilience.models.maps import feature_map, last_layer
from consilience.task import Task
from consilience.tree import Tree


def first_sums(task: Task, data: Data) -> Sums | Derivatives:
    """Add up what a client sends in the first round.

    Args:
        task: A task whose model ends in a linear layer.

    Returns:
        Sums of products of features and targets; for counts and times to an event, derivatives.
    """
    features = feature_map(task.model)
    bias = last_layer(task.model).bias is not None
    if isinstance(task.likelihood, Poisson):
        return differentiate_counts(features, data, None, bias)
    if isinstance(task.likelihood, Cox):
        return differentiate_times(features, data, None)
    return summarise(features, data, classes_of(task))


def differentiate_at(task: Task, data: Data, weights: Tensor, hessian: bool) -> Derivatives:
    """Differentiate a client's log-likelihood.

    Args:
        task: A task whose model ends in a linear layer.
        weights: Where, B [C, K].
        hessian: Whether to send the whole Hessian.

    Returns:
        The sums over its rows.
    """
    features = feature_map(task.model)
    if isinstance(task.likelihood, Poisson):
        return differentiate_counts(features, data, weights)
    if isinstance(task.likelihood, Cox):
        return differentiate_times(features, data, weights)
    return differentiate(features, data, weights, hessian)


class Weighing(NamedTuple):
    """How much each row counts in a client's derivatives.

    Attributes:
        products: Of its φφᵀ, one column for each weighted sum of such [N, P].
        lines: Of its φ, one column for each sum of such that is known by then [N, L].
    """

    products: Tensor
    lines: Tensor


def weigh_rows(task: Task, data: Data, message: Tree, whole: bool) -> Weighing | None:
    """Say how much each row counts in what `first_sums` or `differentiate_at` adds up.

    Args:
        task: A task whose model ends in a linear layer.
        message: Where derivatives are asked for; () in the first round.
        whole: Whether the whole Hessian is sent.

    Returns:
        The weights; None where all rows count alike.
    """
    weights = None
    if isinstance(message, Point):
        weights = pack(message.params)
    found = _weigh_rows(task, data, weights)
    if found is None or whole:
        return found
    return found._replace(products=found.products[:, :0])  # sent without features


def _weigh_rows(task: Task, data: Data, weights: Tensor | None) -> Weighing | None:
    phi = feature_map(task.model)(data.x)
    if isinstance(task.likelihood, Poisson):
        count, log_exposure = read_counts(data.y, phi.double())
        products = lines = count + HALF
        if weights is not None:
            products = ((with_one(phi, weights) @ weights.mT).squeeze(1) + log_exposure).exp()
            lines = products - count
        return Weighing(products.unsqueeze(1), lines.unsqueeze(1))
    if isinstance(task.likelihood, Cox):
        products, lines = weigh_at_risk(phi, data, weights)
        _, before = weigh_at_risk(phi, data, None)
        return Weighing(products.unsqueeze(1), torch.stack([before, lines], 1))
    if weights is None or classes_of(task) is None:
        return None
    p = log_softmax(with_one(phi, weights) @ weights.mT).exp()
    known = torch.cat([targets(data.y, len(weights)), p], 1)
    return Weighing((p * (1 - p))[:, len(weights) == 2 :], known)


def class_posterior(task: Task, search: Search, whole: bool) -> Posterior:
    """Approximate the posterior of a softmax by Laplace's method.

    Args:
        search: Where the search for the mode stands.
        whole: Whether there is a Hessian.

    Returns:
        A Gaussian with the Hessian as its precision; the mode alone where there is none.
    """
    prior, _ = priors_of(task)
    if whole:
        return laplace(search.next, with_gauge(hessian(search, prior), prior), layer_of(task))
    return _as_point(task, search.next)


def number_posterior(task: Task, totals: Sums, whole: bool) -> Posterior:
    """Find the posterior of a linear regression; with a learned noise, Laplace's approximation of it.

    Args:
        whole: Whether there are few enough weights for a precision matrix.

    Returns:
        A Gaussian, or the mode alone.
    """
    prior, noise_prior = priors_of(task)
    assert isinstance(task.likelihood, GaussianNoise)
    fixed = torch.tensor(math.log(task.likelihood.noise or 1.0), dtype=torch.float64)
    line = regress(totals, prior, noise_prior or fixed)
    if whole:
        matrix = line_hessian(line, totals, prior, noise_prior)
        return laplace(line.weights, matrix, layer_of(task), line.log_noise)
    return _as_point(task, line.weights, line.log_noise)


def _as_point(task: Task, weights: Tensor, log_noise: Tensor | None = None) -> Point:
    """B [C, K] by the task's names, in its precision."""
    params = unpack(weights, layer_of(task))
    if LOG_NOISE in task.like and log_noise is not None:
        params[LOG_NOISE] = log_noise.reshape(1)
    return Point({name: params[name].to(leaf) for name, leaf in task.like.items()})
