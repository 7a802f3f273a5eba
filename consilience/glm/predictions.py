"""Predictions of a linear layer on fixed features: averaged over draws, or for numbers in closed form."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from consilience import tree
from consilience.distributions.likelihood import LOG_NOISE, GaussianNoise
from consilience.distributions.posterior import Dense, Posterior, Samples, centre, draw, members
from consilience.distributions.predictive import Distribution, Normal, Predictive, student_variance
from consilience.glm.fitting import Head
from consilience.glm.heads import Classes
from consilience.glm.linear_model import layer_of
from consilience.glm.noisy import Noisy
from consilience.glm.spectrum import Spectrum
from consilience.glm.sums import in_parts
from consilience.key import Key
from consilience.models.maps import feature_map
from consilience.models.remembered import remember
from consilience.task import Task
from consilience.tree import Params

PAIRS = 32  # of draws from a Gaussian, behind a prediction


def predict_on_features(task: Task, posterior: Posterior) -> Predictive:
    """Average over a posterior of a linear layer, computing the features of a row once for all its members.

    Args:
        task: A task whose model ends in a linear layer.
        posterior: What is known about its weights; a Gaussian is drawn from in pairs, so that its mean is kept.

    Returns:
        A function from inputs to their predictive distribution.
    """
    features = feature_map(task.model)
    weights = _members_of(posterior, task)

    def outcome(x: Tensor) -> Distribution:
        phi = features(x)
        layers = [[params[name] for name in task.uncertain] for params in weights]
        return task.likelihood.outcome(torch.stack([linear(phi, *layer) for layer in layers]), weights)

    @torch.no_grad()
    def predict(x: Tensor) -> Distribution:
        whole: Distribution = tree.concatenate(outcome(part) for part in in_parts(x))
        return whole

    known = (predict_on_features, task.model, task.likelihood, *tree.leaves(posterior))
    return lambda x: remember(lambda: predict(x), *known, x)


def predict_head(task: Task, head: Head | Noisy, fit: Spectrum | Classes) -> Predictive:
    """Predict with a head that was fitted to sums.

    Args:
        task: A task whose model ends in a linear layer, in whose place the head stands.

    Returns:
        The model, in chunks of rows.
    """
    features = feature_map(task.model)

    @torch.no_grad()
    def predict(x: Tensor) -> Distribution:
        whole: Distribution = tree.concatenate(head.predict(fit, features(part)) for part in in_parts(x))
        typed: Distribution = tree.map(lambda leaf: leaf.to(x.dtype), whole)
        return typed

    return lambda x: remember(lambda: predict(x), predict_head, head, task.model, *tree.leaves(fit), x)


def predict_with(task: Task, head: Head | Noisy, fit: Spectrum | Classes | tuple[()], start: Posterior) -> Predictive:
    """Predict with a head that was fitted to sums; with the weights it started from before any round."""
    if isinstance(fit, tuple) and not fit:
        return task.predictive(start)
    return predict_head(task, head, fit)


def _members_of(posterior: Posterior, task: Task) -> list[Params]:
    """Sets of weights that stand for a posterior; draws from a Gaussian with their reflections at its mean."""
    if not isinstance(posterior, Dense):
        return members(posterior, Key(0), task.draws, task.like)
    drawn = draw(posterior, Key(0), PAIRS, task.like)
    mean = centre(posterior, task.like).params
    pairs = {name: torch.cat([leaf, 2 * mean[name] - leaf]) for name, leaf in drawn.params.items()}
    return members(Samples(pairs), Key(0), task.draws, task.like)


def predict_numbers(task: Task, posterior: Dense) -> Predictive:
    """Predict numbers in closed form.

    Args:
        task: A regression whose model ends in a linear layer.
        posterior: Of its weights, and of the log-noise where it is learned.

    Returns:
        N(φᵀm, φᵀSφ), and the noise; where that is learned, with the variance of Student's t.
    """
    assert isinstance(task.likelihood, GaussianNoise)
    layer = layer_of(task)
    count = sum(leaf.numel() for leaf in layer.values())
    var = torch.cholesky_inverse(torch.linalg.cholesky(posterior.precision[:count, :count]))
    params = tree.unravel(posterior.mean[:count], layer)
    features = feature_map(task.model)
    learned = {LOG_NOISE: posterior.mean[count:]}
    widening = student_variance(degrees_of_freedom(posterior, count))

    @torch.no_grad()
    def predict(x: Tensor) -> Distribution:
        whole: Distribution = tree.concatenate(outcome(part) for part in in_parts(x))
        return whole

    def outcome(x: Tensor) -> Distribution:
        phi = features(x).double()
        means = linear(phi, *[params[name] for name in layer])
        rows = jacobian(phi, layer)
        latent = torch.einsum("nmp,pq,nmq->nm", rows, var, rows).clamp(min=0)
        p = task.likelihood.outcome(means.unsqueeze(0), [learned])
        assert isinstance(p, Normal)
        noisy = Normal(p.mean, widening * (p.var + latent.reshape(p.mean.shape)), widening * p.noise)
        return Normal(*(leaf.to(x.dtype) for leaf in noisy))

    return predict


def degrees_of_freedom(posterior: Dense, count: int) -> Tensor:
    """Find the degrees of freedom behind a learned noise.

    Args:
        posterior: Of the weights, and of the log-noise where it is learned.
        count: How many weights there are.

    Returns:
        ν, twice the precision of the log-noise; infinite where the noise is known.
    """
    if len(posterior.mean) == count:
        return torch.tensor(torch.inf, dtype=torch.float64)
    return 2 * posterior.precision[-1, -1].double()


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
