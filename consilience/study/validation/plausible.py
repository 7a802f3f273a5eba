"""What no honest site can have sent, found by the kind of value: weights, precisions, pseudo-rows, other numbers.

Each function gives a sentence for the first number that is out of bounds, which speaks of the reply as "it"; None where
all are within. Kinds are types, never methods.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.likelihood import LOG_NOISE
from consilience.distributions.payload import Coreset, Logits
from consilience.distributions.posterior import Dense, Gaussian, Natural, Point, Samples
from consilience.glm.derivatives import Derivatives
from consilience.glm.own_fit import OwnFit
from consilience.glm.sums import Sums
from consilience.study.validation.form import leaves_of, nodes_of
from consilience.study.validation.magnitudes import FAR, ROUNDING, Bounds
from consilience.tree import Params, Tree

FARTHEST = 1e6  # a weight without a prior: no more than forty over the SD of a column in its agreed unit
ALIKE = 1e-6  # of the least variance that samples can have: those of a short chain lie close together
ADVICE = "check the scaling of the columns, or try a smaller rate."


def implausible_weights(send: Tree, bounds: Bounds, rows: int) -> str | None:
    """Find weights that are larger than prior and rows allow, and learned noise that is none.

    Args:
        bounds: What an honest site's numbers cannot exceed.
        rows: How many rows stand behind it.

    Returns:
        The sentence, or None.
    """
    limit = bounds.norm(rows)
    for weights, batch in _weights_in(send):
        own = {name: leaf for name, leaf in weights.items() if name not in bounds.statistics}
        noise = own.pop(LOG_NOISE, torch.zeros(1))
        size = _largest_norm(own, batch)
        if size > limit:
            return (
                f"it holds weights of norm {size:.3g}, and the prior and {rows:,} rows allow none above {limit:.3g}: "
                + ADVICE
            )
        if float(noise.abs().max()) > bounds.log_noise():
            return f"it claims a noise of exp({float(noise.flatten()[0]):.3g}), which nothing measured can have."
    return None


def known_at(bounds: Bounds, message: Tree) -> Bounds:
    """Bound the outputs of a model whose weights a message holds: replies are about rates and hazards at these.

    Args:
        bounds: What an honest site's numbers cannot exceed.

    Returns:
        The bounds with the largest output; as they are where the message holds no weights, or nothing depends on it.
    """
    if not bounds.outcome:
        return bounds
    sizes = []
    for weights, batch in _weights_in(message):
        own = {name: leaf for name, leaf in weights.items() if name not in bounds.statistics}
        sizes.append(_largest_norm(own, batch) * bounds.reach * math.sqrt(_gain(own.values())))
    if not sizes:
        return bounds
    return bounds._replace(output=max(sizes))


def _weights_in(send: Tree) -> Iterator[tuple[Params, int]]:
    """Every set of weights in a value, and how many dimensions count the sets."""
    for node in nodes_of(send):
        match node:
            case Point(params):
                yield params, 0
            case Samples(params):
                yield params, 1
            case Gaussian(mean, _):
                yield mean, 0
            case Dense(mean, _):
                yield {"": mean}, 0


def _largest_norm(params: Params, batch: int) -> float:
    """The norm of the weights; the largest where there are several sets."""
    squares: Tensor | float = 0.0
    for leaf in params.values():
        own = leaf.double() ** 2
        squares = squares + own.flatten(batch).sum(-1)
    return math.sqrt(float(torch.as_tensor(squares).max()))


def implausible_precision(send: Tree, bounds: Bounds, rows: int) -> str | None:
    """Find Gaussians and samples that are narrower or wider than prior and rows allow, and such factors of one.

    Args:
        bounds: What an honest site's numbers cannot exceed.
        rows: How many rows stand behind it.

    Returns:
        The sentence, or None.
    """
    noise = _noise(send, bounds)
    for node in nodes_of(send):
        problem = None
        match node:
            case Samples(params):
                problem = _too_close(params, bounds.trace(rows, noise), bounds)
            case Gaussian(mean, var) if var:
                limit = bounds.trace(rows, noise, _gain(mean.values()))
                problem = _too_precise(1 / tree.ravel(var).double(), limit, bounds, rows)
            case Dense(mean, precision):
                limit = bounds.trace(rows, noise, _gain(_matrices(mean, bounds)))
                problem = _too_precise(torch.linalg.eigvalsh(precision.double()), limit, bounds, rows)
            case Natural(linear, precision):
                problem = _too_large_factor(linear, precision, bounds, rows, noise)
        if problem is not None:
            return problem
    return None


def _noise(send: Tree, bounds: Bounds) -> float:
    """The variance of an observation: as agreed, or as the reply says it was learned."""
    if bounds.noise:
        return bounds.noise
    learned = [float(leaf.min()) for path, leaf in leaves_of(send) if path.endswith(LOG_NOISE)]
    limit = bounds.log_noise()
    return math.exp(min(max(min(learned, default=0.0), -limit), limit))


def _gain(weights: Iterable[Tensor]) -> float:
    """How much longer than a row the derivatives of a network with these weights can be, squared; 1 for a linear model.

    The derivative by one of L matrices is no longer than the product of the others' largest singular values, for
    activations that stretch nothing. All but the smallest are multiplied, and the constants beside them count too.
    """
    leaves = list(weights)
    constants = sum(float((leaf.double() ** 2).sum()) for leaf in leaves if leaf.ndim < 2)
    matrices = [leaf.double().flatten(1) for leaf in leaves if leaf.ndim > 1]
    stretches = sorted(max(1.0, float(torch.linalg.matrix_norm(matrix, 2)) ** 2) for matrix in matrices)[1:]
    if not stretches:
        return 1.0
    return len(matrices) * math.prod(stretches) * (1 + constants)


def _matrices(mean: Tensor, bounds: Bounds) -> list[Tensor]:
    """The weights that a vector holds."""
    sizes = [math.prod(shape) for shape in bounds.shapes]
    return [leaf.reshape(shape) for leaf, shape in zip(mean.split(sizes), bounds.shapes, strict=True)]


def _too_precise(precisions: Tensor, limit: float, bounds: Bounds, rows: int) -> str | None:
    """The sentence for variances' inverses, or a matrix's eigenvalues, that cannot be."""
    total = float(precisions.sum())
    if total > limit:
        return (
            f"its precision adds up to {total:.3g}, and the prior and {rows:,} rows explain no more than {limit:.3g}."
        )
    least = float(precisions.min())
    if bounds.narrowest is not None:
        if least * bounds.norm(rows) * bounds.norm(rows) < 1:
            return f"it has a variance of {1 / least:.3g}, wider than its weights can lie apart."
        return None
    rounding = 1e-6 * len(precisions) * float(precisions.max())  # of a matrix in single precision
    if least < (1 - ROUNDING) / bounds.prior_var - rounding:
        return f"it is less certain than the prior, with a precision of {least:.3g}."
    return None


def _too_close(samples: Params, limit: float, bounds: Bounds) -> str | None:
    """The sentence for samples that lie closer together than any posterior's: Σ varᵢ is at least P² / Σ 1/varᵢ."""
    own = [leaf.double().flatten(1) for name, leaf in samples.items() if name not in bounds.statistics]
    weights = torch.cat(own, 1)
    count, size = weights.shape
    if count < 2:
        return None
    spread = float(weights.var(0).sum())
    least = ALIKE * size * size / limit
    if spread > least:
        return None
    return f"its {count} samples lie within a variance of {spread:.3g}, and prior and rows leave one above {least:.3g}."


def _too_large_factor(linear: Tree, precision: Tree, bounds: Bounds, rows: int, noise: float) -> str | None:
    """The sentence for natural parameters that cannot be; a precision may be negative in a ratio of Gaussians."""
    limit = bounds.trace(rows, noise)
    size = _largest(precision)
    if size > limit:
        return (
            f"it changes a precision by {size:.3g}, and the prior and {rows:,} rows explain no more than {limit:.3g}."
        )
    if _largest(linear) > limit * bounds.norm(rows):
        return f"it moves the weights by a term of {_largest(linear):.3g}, further than prior and rows allow."
    return None


def _largest(value: Tree) -> float:
    """The largest number in size; 0 where there are none."""
    return max((float(leaf.abs().max()) for leaf in tree.leaves(value) if leaf.numel()), default=0.0)


def implausible_rows(send: Tree, bounds: Bounds, rows: int) -> str | None:
    """Find pseudo-rows that are none: weights below 0 or of too many rows, unknown labels, inputs far out.

    Args:
        bounds: What an honest site's numbers cannot exceed.
        rows: How many rows they may stand for.

    Returns:
        The sentence, or None.
    """
    for node in nodes_of(send):
        if isinstance(node, Coreset):
            total = float(node.w.double().sum())
            if bool((node.w < 0).any()):
                return "its pseudo-rows have weights below 0."
            if total < 1:
                return f"its pseudo-rows count for {total:.3g} rows, so that they stand for none."
            if total > rows * (1 + ROUNDING):
                return f"its pseudo-rows count for {total:.6g} rows, more than the {rows:,} it has."
        if {"x", "y"} <= set(getattr(node, "_fields", ())):
            problem = _strange_rows(node, bounds)
            if problem is not None:
                return problem
    return None


def _strange_rows(node: Any, bounds: Bounds) -> str | None:
    """The sentence for inputs and targets that cannot be."""
    if _largest(node.x) > FAR * max(bounds.widest, 1.0):
        return f"its pseudo-rows reach {_largest(node.x):.3g}, far beyond the agreed ranges."
    if not bounds.classes:
        if _largest(node.y) > FAR * max(bounds.target, 1.0):
            return f"its pseudo-rows have targets of {_largest(node.y):.3g}, far beyond the agreed range."
        return None
    labels = node.y
    if labels.is_floating_point():  # probabilities of the classes
        return None
    if bool(((labels < 0) | (labels >= bounds.classes)).any()):
        return f"its pseudo-rows have labels that are none of the {bounds.classes} classes."
    return None


def implausible_numbers(send: Tree, bounds: Bounds, rows: int) -> str | None:
    """Find other numbers that are larger than any step, gradient, score or sum of scores can be.

    Args:
        bounds: What an honest site's numbers cannot exceed.
        rows: How many rows stand behind it.

    Returns:
        The sentence, or None.
    """
    for limit, path, leaf in _others(send, bounds, rows):
        size = _largest(leaf)
        if size > limit:
            return f"'{path}' holds {size:.3g}, and nothing above {limit:.3g} can come of {rows:,} rows: {ADVICE}"
    return None


def _others(value: Tree, bounds: Bounds, rows: int, path: str = "") -> Iterator[tuple[float, str, Tensor]]:
    """Tensors that are in none of the kinds above, with what bounds them."""
    match value:
        case Point() | Samples() | Gaussian() | Dense() | Natural() | Coreset():
            return
        case Sums() if not len(value.scale):
            yield bounds.gradient_sum(rows), f"{path}.cross".removeprefix("."), value.cross
            yield bounds.gram(rows), f"{path}.gram".removeprefix("."), value.gram
            yield rows * max(1.0, bounds.target) ** 2, f"{path}.square".removeprefix("."), value.square
        case Derivatives(loss, gradient, curvature) if isinstance(loss, Tensor):
            yield bounds.loss(rows), f"{path}.loss".removeprefix("."), loss
            yield bounds.gradient_sum(rows), f"{path}.gradient".removeprefix("."), gradient
            yield bounds.curvature(rows), f"{path}.curvature".removeprefix("."), curvature
        case OwnFit(mode, there):
            yield FARTHEST, f"{path}.mode".removeprefix("."), mode
            yield from _others(there, bounds, rows, f"{path}.there".removeprefix("."))
        case Logits(values):
            yield bounds.score(rows), f"{path}.values".removeprefix("."), values
        case Tensor():
            yield rows * bounds.score(rows), path, value
        case Mapping():
            for name, leaf in leaves_of(dict(value), path):
                yield bounds.step(rows), name, leaf
        case tuple():
            names = getattr(value, "_fields", range(len(value)))
            for name, child in zip(names, value, strict=True):
                yield from _others(child, bounds, rows, f"{path}.{name}".removeprefix("."))
