"""What each site alone says of a linear layer's weights: its likelihood as a quadratic, without the prior."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.likelihood import GaussianNoise
from consilience.distributions.posterior import Dense, Natural, natural
from consilience.errors import InputError
from consilience.glm.centres import Given, plain_of
from consilience.glm.derivatives import pack
from consilience.glm.hierarchy import Hierarchy, mean_site, newcomer
from consilience.glm.own_fit import MOST, OwnFit, fit_alone, fits_alone, is_on_columns
from consilience.glm.site_factors import as_factor, as_posterior
from consilience.glm.spectrum import Spectrum
from consilience.glm.sums import Sums, decompress, square_matrix, summarise, whole_gram
from consilience.messages import Received
from consilience.models.maps import feature_map, last_layer
from consilience.task import Task
from consilience.tree import Params

SINGULAR = 1e-10  # of a Gram matrix's largest eigenvalue, below which rows say nothing
UNTOLD = 1e-4  # of a weight's prior precision, below which rows say nothing of it
NOT_PLAIN = (
    "Effects are those of a linear model on the columns themselves: use the model 'linear' without a feature map."
)
NO_GAUSSIAN = (
    "Effects need a Gaussian over all weights with their covariances, which this state lacks: use glm, or "
    "gaussian_product with --set inference=Laplace --set inference.dense=True."
)
NO_EFFECTS = "The head of this model has no likelihood whose weights are effects: for classes use glm."


def layer_of(task: Task) -> Params:
    """Name the weights of a linear model.

    Returns:
        Weight and bias by name.

    Raises:
        InputError: The model is no linear layer on the columns themselves.
    """
    if not is_on_columns(task.model):
        raise InputError(NOT_PLAIN)
    last_layer(task.model)
    return {name: task.like[name].double() for name in task.uncertain}


@runtime_checkable
class Fitted(Protocol):
    """A state that holds a fit to sums."""

    fit: Any


@runtime_checkable
class Compared(Protocol):
    """A state that holds the sites' own fits, by number."""

    alone: Any


@runtime_checkable
class Spread(Protocol):
    """A state that says how sites differ."""

    hierarchy: Any


@runtime_checkable
class PerSite(Protocol):
    """A state that holds a model in which every site has its own intercept."""

    given: Any


def given_in(state: Any) -> Given | None:
    """Find the model in which every site has its own intercept; None where all share one."""
    if isinstance(state, PerSite) and isinstance(state.given, Given):
        return state.given
    return None


def read_off(task: Task, state: Any, sites: Sequence[Natural], told: Tensor | None = None) -> dict[str, Any]:
    """Find what `effects.table_of` makes a table of, by the names of its arguments.

    Args:
        state: The server's state after the last round.
        sites: The sites' likelihoods; none where they are not known.
        told: What all rows say of the weights, by `told_by_rows`; None: it is read off as well.

    Raises:
        InputError: There is no Gaussian over the weights of a linear model.
    """
    given = given_in(state)
    found: dict[str, Any] = {"newcomer": newcomer_of(task, state)}
    if given is None:
        pooled = find_gaussian(task, state)
        if told is None:
            told = information_of(task, state, pooled, sites)
        return {**found, "pooled": pooled, "information": told}
    return {
        **found,
        "pooled": given.posterior,
        "information": given.information,
        "plain": find_gaussian(task, state),
        "tau": given.tau,
    }


def hierarchy_in(state: Any) -> Hierarchy | None:
    """Find what all sites say of how they differ; None where there is one model for all."""
    if isinstance(state, Spread) and isinstance(state.hierarchy, Hierarchy):
        return state.hierarchy
    return None


def find_gaussian(task: Task, state: Any) -> Dense:
    """Find the Gaussian over a linear model's weights in a server's state.

    Args:
        state: The state after the last round.

    Returns:
        The Gaussian in double precision, in the order of the task's weights; a learned log-noise comes last. Where
        sites have weights of their own it is that of their mean; where the weight of a prior was chosen for the sake
        of predictions, of least squares without it.

    Raises:
        InputError: There is none.
    """
    layer = layer_of(task)
    fit = state.fit if isinstance(state, Fitted) else None
    if isinstance(fit, Spectrum) and isinstance(task.likelihood, GaussianNoise):
        return _from_spectrum(fit.least_squares(), layer)
    if fit is not None and len(fit):
        raise InputError(NO_EFFECTS)
    hierarchy = hierarchy_in(state)
    if hierarchy is not None:
        return as_posterior(task, mean_site(hierarchy), state.log_noise)
    posterior = state.posterior
    if not isinstance(posterior, Dense):
        raise InputError(NO_GAUSSIAN)
    return Dense(posterior.mean.double().cpu(), posterior.precision.double().cpu())


def newcomer_of(task: Task, state: Any) -> Dense | None:
    """Find the Gaussian over a new site's weights, where sites have weights of their own.

    Args:
        state: The state after the last round.

    Returns:
        The Gaussian, as `find_gaussian` gives that of their mean; None where there is one model for all.
    """
    hierarchy = hierarchy_in(state)
    if hierarchy is None:
        return None
    return as_posterior(task, newcomer(hierarchy), state.log_noise)


def _from_spectrum(fit: Spectrum, layer: Params) -> Dense:
    """Linear regression: independent weights along the eigenvectors, and a level at the rows' centre."""
    width = pack(layer).shape[1]
    size = len(fit.mean)
    one = _spectrum_precision(fit, fit.shrunk[0], width)
    weight, bias = fit.linear()
    means = torch.cat([bias.unsqueeze(1), weight], 1)[:, size + 1 - width :]
    matrix = torch.block_diag(*(one / rest for rest in fit.rest))
    weights = _in_order(means, matrix, layer)
    if len(fit.rest) > 1:
        return weights
    known = torch.block_diag(weights.precision, (fit.freedom / 2).clamp(max=1e12).reshape(1, 1))
    return Dense(torch.cat([weights.mean, fit.rest.log()]), known)


def _spectrum_precision(fit: Spectrum, values: Tensor, width: int) -> Tensor:
    """The precision of one output's bias and weights, in units of the noise, with these eigenvalues [width, width]."""
    size = len(fit.mean)
    precision = fit.basis[0] @ torch.diag(values) @ fit.basis[0].T
    whole = torch.block_diag(fit.weight.reshape(1, 1), precision)
    change = torch.eye(size + 1, dtype=torch.float64)  # from bias and weights of features as they are
    change[0, 1:] = fit.mean + fit.scale * fit.centre[0]
    change[1:, 1:] = torch.diag(fit.scale)
    matrix: Tensor = change.T @ whole @ change
    return matrix[size + 1 - width :, size + 1 - width :]


def _places(layer: Params) -> Tensor:
    """Where the numbers of B [C, K] stand among a task's weights."""
    count = sum(leaf.numel() for leaf in layer.values())
    return pack(tree.unravel(torch.arange(count), layer)).long()


def _in_order(means: Tensor, matrix: Tensor, layer: Params) -> Dense:
    """A Gaussian over B [C, K], a row after another, in the order of a task's weights."""
    places = _places(layer).flatten()
    mean = torch.empty(len(places), dtype=torch.float64)
    precision = torch.empty(len(places), len(places), dtype=torch.float64)
    mean[places] = means.flatten()
    precision[places.unsqueeze(1), places] = matrix
    return Dense(mean, precision)


def from_replies(task: Task, state: Any, replies: Sequence[Received]) -> list[Natural] | None:
    """Read the sites' likelihoods off what they sent.

    Args:
        state: The state after the last round, which may hold the sites' own fits.
        replies: The replies of that round.

    Returns:
        One for each reply; None where nothing says.
    """
    payloads = [plain_of(reply.payload) for reply in replies]
    layer = layer_of(task)
    alone = dict(state.alone) if isinstance(state, Compared) else {}
    if replies and all(str(reply.client) in alone for reply in replies):
        return [_from_alone(task, alone[str(reply.client)], layer) for reply in replies]
    if payloads and all(isinstance(payload, Dense) for payload in payloads):
        prior = task.prior.dense(layer)
        return [_without(payload, prior) for payload in payloads]
    if payloads and all(isinstance(payload, Sums) for payload in payloads) and len(payloads[0].square):
        return [_from_sums(task, payload, layer) for payload in payloads]
    return None


def information_of(task: Task, state: Any, pooled: Dense, sites: Sequence[Natural]) -> Tensor | None:
    """Find what all rows together say of the weights, without the prior.

    Args:
        pooled: The Gaussian of all sites together, with the prior in it.
        sites: The sites' likelihoods; none where they are not known.

    Returns:
        The precision of their likelihood [P, P], in as many digits as it is known to; None where it is not known.
    """
    if hierarchy_in(state) is not None:
        return _from_factors(task, state)
    if sites:
        return torch.stack([site.precision.double() for site in sites]).sum(0)
    fit = state.fit if isinstance(state, Fitted) else None
    if isinstance(fit, Spectrum):  # without the λ that stands for the prior
        layer = layer_of(task)
        one = _spectrum_precision(fit, fit.values[0], pack(layer).shape[1])
        matrix = torch.block_diag(*([one] * len(fit.coefficients)))
        means = torch.zeros(len(matrix) // len(one), len(one), dtype=torch.float64)
        return _in_order(means, matrix, layer).precision.float()
    prior = task.prior.dense(layer_of(task)).precision.double()
    likelihood = pooled.precision[: len(prior), : len(prior)] - prior
    own = likelihood.diagonal()
    likelihood[own < UNTOLD * prior.diagonal()] = 0.0
    likelihood[:, own < UNTOLD * prior.diagonal()] = 0.0
    told: Tensor = likelihood.to(state.posterior.precision.dtype)
    return told


def _from_factors(task: Task, state: Any) -> Tensor | None:
    """What the rows of all sites say of their weights, where each has its own; None where only the model is known."""
    said = [*dict(state.factors).values()]
    if not said:
        return None
    digits = next(iter(task.like.values())).dtype
    whole = torch.stack([as_factor(task, factor, state.log_noise).precision for factor in said]).sum(0)
    return whole.to(digits)


def _without(posterior: Dense, prior: Dense) -> Natural:
    """A site's posterior with the prior taken out of it."""
    count = len(prior.mean)  # a learned log-noise, which comes last, is left out
    whole = natural(Dense(posterior.mean.double(), posterior.precision.double()))
    start = natural(Dense(prior.mean.double(), prior.precision.double()))
    return Natural(whole.linear[:count] - start.linear, whole.precision[:count, :count] - start.precision)


def _gram(sums: Sums, width: int) -> tuple[Tensor, Tensor]:
    """Σ φφᵀ [K, K] and Σ y φᵀ [C, K]."""
    wide = decompress(sums)
    skip = wide.features - width
    gram = square_matrix(whole_gram(wide), wide.features).double()[skip:, skip:]
    return gram, wide.cross.double()[:, skip:]


def _from_sums(task: Task, sums: Sums, layer: Params) -> Natural:
    """Least squares at the site, with its own noise unless that is known."""
    assert isinstance(task.likelihood, GaussianNoise)
    places = _places(layer)
    gram, cross = _gram(sums, places.shape[1])
    precision = 1 / (task.likelihood.noise or _noise(sums, gram, cross))
    dense = _in_order(cross * precision, torch.block_diag(*([gram * precision] * len(cross))), layer)
    return Natural(dense.mean, dense.precision)


def _noise(sums: Sums, gram: Tensor, cross: Tensor) -> float:
    """σ̂² of least squares: the squares left over n − p; infinite where none are, as where numbers are all the same."""
    values, vectors = torch.linalg.eigh(gram)
    rounding = 10 * len(gram) * torch.finfo(sums.gram.dtype).eps
    kept = values > max(SINGULAR, rounding) * values[-1]
    along = cross @ vectors[:, kept]
    left = float(sums.square.sum() - (along**2 / values[kept]).sum())
    freedom = float(sums.counts.sum() - kept.sum()) * len(cross)
    if freedom < 1 or left <= torch.finfo(sums.gram.dtype).eps * float(sums.square.sum()):
        return math.inf
    return left / freedom


def _from_alone(task: Task, own: OwnFit | Sums, layer: Params) -> Natural:
    if isinstance(own, Sums):
        return _from_sums(task, own, layer)
    return _from_fit(own, layer)


def _from_fit(fit: OwnFit, layer: Params) -> Natural:
    """The quadratic about a site's own mode."""
    hessian = square_matrix(fit.there.curvature.double(), fit.mode.numel())
    linear = hessian @ fit.mode.double().flatten()
    dense = _in_order(linear.reshape(fit.mode.shape), hessian, layer)
    return Natural(dense.mean, dense.precision)


def told_by_rows(task: Task, parts: Sequence[Data], state: Any) -> Tensor | None:
    """Find what all rows say of the weights at the sites' own maxima: of what separates the outcomes, nothing.

    Args:
        parts: Every site's training rows.
        state: The state after the last round, which may hold the sites' own fits.

    Returns:
        The sum of their precisions [P, P]; None where replies say it, or the likelihood has no Gaussian at a prior.
    """
    if not fits_alone(task) or (isinstance(state, Compared) and state.alone):
        return None
    own = from_rows(task, parts)
    if not own:
        return None
    return torch.stack([site.precision.double() for site in own]).sum(0)


def from_rows(task: Task, parts: Sequence[Data]) -> list[Natural] | None:
    """Find the sites' likelihoods from their rows, as quadratics about their own maxima: for numbers, least squares.

    Args:
        parts: Every site's training rows.

    Returns:
        One for each site; None where there are too many weights.
    """
    layer = layer_of(task)
    count = sum(leaf.numel() for leaf in layer.values())
    if count > MOST:
        return None
    parts = [Data(*(leaf.cpu() for leaf in part)) for part in parts]
    if fits_alone(task):
        return [_from_fit(fit_alone(task, part), layer) for part in parts]
    features = feature_map(task.model)
    return [_from_sums(task, summarise(features, part, None), layer) for part in parts]
