"""What can be known about the weights: a point, samples, a diagonal or a dense Gaussian; how these combine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast, overload

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.predictive import positive
from consilience.errors import InputError
from consilience.key import Key
from consilience.tree import Params


class Point(NamedTuple):
    """One set of weights.

    Attributes:
        params: Weights by name.

    Example:
        >>> import torch
        >>> from consilience.distributions.posterior import Point
        >>> Point({"w": torch.tensor([1.0])})
        Point(params={'w': tensor([1.])})
    """

    params: Params


class Samples(NamedTuple):
    """Draws from a posterior.

    Attributes:
        params: Weights by name, each leaf [S, …].
    """

    params: Params


class Gaussian(NamedTuple):
    """A diagonal Gaussian.

    Attributes:
        mean: Means by name.
        var: Variances by name; leaves absent from it are points.

    Example:
        >>> import torch
        >>> from consilience.distributions.posterior import Gaussian
        >>> Gaussian({"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])})._fields
        ('mean', 'var')
    """

    mean: Params
    var: Params


class Dense(NamedTuple):
    """A Gaussian with a full precision matrix, for small models only.

    Attributes:
        mean: [P], in the order of `tree.ravel`.
        precision: [P, P].
    """

    mean: Tensor
    precision: Tensor


class Natural(NamedTuple):
    """A Gaussian, or a ratio of Gaussians, by what adds when densities multiply: exp(⟨linear, θ⟩ − ½ θᵀΛθ).

    Attributes:
        linear: Precision · mean; a tensor for a dense Gaussian, a leaf for each uncertain leaf of a diagonal one.
        precision: Λ, in the same form; it may be negative in a ratio.
    """

    linear: Any
    precision: Any


SMALLEST = 1e-12  # variance, so that samples that agree to the last bit still multiply

Posterior: TypeAlias = Point | Samples | Gaussian | Dense
P = TypeVar("P", Point, Samples, Gaussian, Dense)


def average(posteriors: Sequence[P], weights: Tensor) -> P:
    """Average posteriors of one kind, leaf by leaf.

    Args:
        weights: One number a client [K]; normalised here.

    Returns:
        Σ wₖ θₖ / Σ wₖ.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.distributions.posterior import Point
        >>> sites = [Point({"w": torch.tensor([w])}) for w in (1.0, 2.0)]
        >>> co.aggregation.average(sites, torch.tensor([0.25, 0.75])).params["w"].item()
        1.75
    """
    return cast(P, tree.mean(posteriors, weights))


@overload
def multiply(factors: Sequence[Dense], prior: Dense) -> Dense: ...
@overload
def multiply(factors: Sequence[Gaussian], prior: Gaussian) -> Gaussian: ...
def multiply(factors: Sequence[Any], prior: Gaussian | Dense) -> Gaussian | Dense:
    """Multiply the clients' Gaussians: precisions and precision-weighted means add; the prior counts once.

    A precision that is not positive is clamped, with a warning; leaves that are points are averaged.

    Args:
        factors: The clients' posteriors p(θ | Dₖ), each with the prior in it.
        prior: p(θ), of the same kind.

    Returns:
        Πₖ p(θ | Dₖ) / p(θ)^(K−1), renormalised.

    Example:
        >>> import torch
        >>> from consilience.distributions.posterior import Dense, multiply
        >>> values = ((1.0, 2.0), (3.0, 2.0), (0.0, 1.0))  # mean and precision of two sites, and of the prior
        >>> first, second, prior = (Dense(torch.tensor([m]), torch.tensor([[p]])) for m, p in values)
        >>> [round(value.item(), 3) for value in multiply([first, second], prior)[:2]]
        [2.667, 3.0]
    """
    spare = len(factors) - 1
    if isinstance(prior, Dense):
        precision = sum((f.precision for f in factors), -spare * prior.precision)
        linear = sum((f.precision @ f.mean for f in factors), -spare * (prior.precision @ prior.mean))
        return Dense(torch.linalg.solve(precision, linear), precision)
    mean: Params = {}
    var: Params = {}
    for k, m in prior.mean.items():
        if k not in prior.var or k not in factors[0].var:  # a point: nothing to weigh by
            mean[k] = torch.stack([f.mean[k] for f in factors]).mean(0)
            continue
        precision = sum((1 / f.var[k].clamp(min=SMALLEST) for f in factors), -spare / prior.var[k])
        var[k] = 1 / positive(precision, 1e-3 / prior.var[k])
        linear = sum((f.mean[k] / f.var[k].clamp(min=SMALLEST) for f in factors), -spare * m / prior.var[k])
        mean[k] = var[k] * linear
    return Gaussian(mean, var)


def natural(q: Gaussian | Dense) -> Natural:
    """Write a Gaussian by its natural parameters; points have none.

    Returns:
        Its linear term and its precision.
    """
    if isinstance(q, Dense):
        return Natural(q.precision @ q.mean, q.precision)
    return Natural({k: q.mean[k] / v for k, v in q.var.items()}, {k: 1 / v for k, v in q.var.items()})


def from_natural(n: Natural, points: Params, floor: Tensor | float) -> Gaussian | Dense:
    """Undo `natural`.

    Args:
        points: All weights; those without a precision stay the points they are.
        floor: What a precision that is not positive becomes, with a warning.

    Returns:
        The Gaussian with these natural parameters.
    """
    if isinstance(n.precision, Tensor):
        return Dense(torch.linalg.solve(n.precision, n.linear), n.precision)
    precision = {k: positive(p, torch.full_like(p, float(floor))) for k, p in n.precision.items()}
    mean = dict(points)
    mean.update({k: n.linear[k] / p for k, p in precision.items()})
    return Gaussian(mean, {k: 1 / p for k, p in precision.items()})


def as_samples(posterior: Posterior) -> Samples:
    """Take samples as they are, a point as the only one.

    Args:
        posterior: Samples or a point.

    Raises:
        InputError: For a Gaussian.
    """
    match posterior:
        case Samples():
            return posterior
        case Point(params):
            return Samples({k: v.unsqueeze(0) for k, v in params.items()})
    raise InputError(
        f"This rule pools samples, and the inference gives a {type(posterior).__name__}: "
        "use a sampler, CyclicalSGHMC or HMC."
    )


def moments(samples: Samples) -> Gaussian:
    """Fit a diagonal Gaussian to samples.

    Returns:
        The Gaussian with the samples' mean and (unbiased) variance.

    Raises:
        InputError: If there are fewer than two samples.

    Example:
        >>> import torch
        >>> from consilience.distributions.posterior import Samples, moments
        >>> moments(Samples({"w": torch.tensor([[0.0], [2.0]])})).mean["w"].tolist()
        [1.0]
    """
    if next(iter(samples.params.values())).shape[0] < 2:
        raise InputError("A variance needs two samples a site or more: use a sampler, CyclicalSGHMC or HMC.")
    mean = {k: v.mean(0) for k, v in samples.params.items()}
    away = {k: v - mean[k] for k, v in samples.params.items()}  # torch's own `var` over few samples takes 25 × as long
    return Gaussian(mean, {k: (a * a).sum(0) / (len(a) - 1) for k, a in away.items()})


def dense_moments(samples: Samples) -> Dense:
    """Fit a Gaussian with a full covariance to samples.

    Args:
        samples: More than there are weights.

    Returns:
        The Gaussian with the samples' mean and full covariance.

    Raises:
        InputError: If there are too few samples.
    """
    flat = tree.ravel(samples.params, batch_dims=1)
    count, weights = flat.shape
    if count <= weights:
        raise InputError(
            f"A full covariance of {weights} weights needs more than {weights} samples; there are {count}."
        )
    return Dense(flat.mean(0), torch.linalg.inv(flat.T.cov().reshape(weights, weights)))


def draw(gaussian: Gaussian | Dense, key: Key, n: int, like: Params | None = None) -> Samples:
    """Draw from a Gaussian.

    Args:
        gaussian: A diagonal or a dense one.
        like: Names and shapes of the leaves, which a dense Gaussian needs.

    Returns:
        n samples.

    Example:
        >>> import torch
        >>> from consilience.distributions.posterior import Gaussian, draw
        >>> from consilience.key import Key
        >>> q = Gaussian({"w": torch.zeros(3)}, {"w": torch.ones(3)})
        >>> draw(q, Key(0), 5).params["w"].shape
        torch.Size([5, 3])
    """
    if isinstance(gaussian, Dense):
        assert like is not None, "a dense Gaussian is unravelled by names: pass like="
        lower = torch.linalg.cholesky(gaussian.precision)
        noise = key.normal((n, gaussian.mean.numel()), gaussian.mean)
        flat = gaussian.mean + torch.linalg.solve_triangular(lower.mT, noise.mT, upper=True).mT
        return Samples({k: v.to(like[k]) for k, v in tree.unravel(flat, like).items()})
    mean = tree.ravel(gaussian.mean)
    var = tree.ravel({k: gaussian.var.get(k, torch.zeros_like(m)) for k, m in gaussian.mean.items()})
    return Samples(tree.unravel(mean + var.sqrt() * key.normal((n, mean.numel()), mean), gaussian.mean))


def centre(posterior: Posterior, like: Params | None = None) -> Point:
    """Take one set of weights in the middle of a posterior.

    Args:
        like: Names and shapes of the leaves, which a dense Gaussian needs.

    Returns:
        The point itself, the samples' mean or the Gaussian's mean.
    """
    match posterior:
        case Point():
            return posterior
        case Samples(params):
            return Point({k: v.mean(0) for k, v in params.items()})
        case Gaussian(mean, _):
            return Point(mean)
        case Dense(mean, _):
            assert like is not None
            return Point({k: v.to(like[k]) for k, v in tree.unravel(mean, like).items()})


def members(posterior: Posterior, key: Key, draws: int, like: Params) -> list[Params]:
    """List the sets of weights that stand for a posterior.

    Args:
        posterior: Any kind; Gaussians are drawn from.
        key: The randomness of those draws.
        draws: How many members stand for a Gaussian.
        like: Names and shapes of the leaves.

    Returns:
        The point alone, every sample, or `draws` draws.
    """
    match posterior:
        case Point(params):
            return [params]
        case Samples(params):
            leaves = [leaf.unbind() for leaf in params.values()]
            return [dict(zip(params, member, strict=True)) for member in zip(*leaves, strict=True)]
        case Gaussian() | Dense():
            return members(draw(posterior, key, draws, like), key, draws, like)


def find_posterior(send: Any) -> Posterior | None:
    """Find a site's own model within what it sends.

    Args:
        send: What is in a reply.

    Returns:
        The posterior, or None if there is none.
    """
    if isinstance(send, (Point, Samples, Gaussian, Dense)):
        return send
    if isinstance(send, tuple) and send and not hasattr(send, "counts"):
        return find_posterior(send[0])
    return None
