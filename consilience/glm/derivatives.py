"""Gradients and Hessians that add up over sites, and the search for the pooled mode with them.

U(B) = −Σ log p(y | φ, B) + ½ Σ λ (B − m)² with B [C, K], a row a class, over K features, with a leading 1 where the
layer has a bias. Small models: Newton's method with the whole Hessian. Large ones: a Kronecker product in its place,
Σ (diag(p) − ppᵀ)/n ⊗ G with the Gram matrix G, which is sent once; it would be the Hessian if φ and p were independent
over rows, and gradients of earlier rounds refine it (Liu and Nocedal 1989). Böhning's bound ½G took twice the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Dense
from consilience.distributions.softmax import log_softmax
from consilience.glm.sums import Sums, in_chunks, square_matrix, targets
from consilience.tree import Params

MEMORY = 20  # gradients of earlier rounds that refine a product in the Hessian's place
RIDGE = 1e-10  # of a Hessian's mean diagonal, which keeps rounding from deciding where rows say nothing
NOISE = 1e-12  # of a loss, relative, that rounding may add
FLAT = 1e-9  # of a Hessian's mean diagonal, below which a prior's precision counts as none


class Derivatives(NamedTuple):
    """What a site's rows say about the weights.

    Attributes:
        loss: −Σ log p(y | φ, B), a scalar.
        gradient: Its gradient Σ (p − y) φᵀ [C, K].
        curvature: Its Hessian's upper triangle, row by row, over the weights of one class after another [T]; where that
            is too large to send, Σ diag(p) − ppᵀ [C, C].
    """

    loss: Tensor
    gradient: Tensor
    curvature: Tensor


_NONE: Any = ()
NOTHING = Derivatives(_NONE, _NONE, _NONE)  # what is said where nothing was asked


class Quadratic(NamedTuple):
    """A prior over B, as far as modes are concerned.

    Attributes:
        mean: m [C, K].
        precision: λ [C, K].
    """

    mean: Tensor
    precision: Tensor

    def value(self, weights: Tensor) -> Tensor:
        """Evaluate −log p(B), up to a constant.

        Args:
            weights: B [C, K].
        """
        return 0.5 * (self.precision * (weights - self.mean) ** 2).sum()

    def gradient(self, weights: Tensor) -> Tensor:
        """Differentiate `value`.

        Args:
            weights: B [C, K].
        """
        return self.precision * (weights - self.mean)


class Search(NamedTuple):
    """Where the search for the mode stands.

    Attributes:
        point: B where U was lowest [C, K].
        value: U there.
        gradient: ∇U there [C, K].
        curvature: Of the rows there, as sites send it.
        step: To the point that is asked about next [C, K].
        first: ‖∇U‖ at the start.
        size: n, the number of rows.
        spectrum: The eigenvalues of G [K].
        basis: Its eigenvectors, in columns [K, K].
        steps: Earlier steps [M, C, K].
        changes: Of the gradient, along each of them [M, C, K].
    """

    point: Tensor
    value: Tensor
    gradient: Tensor
    curvature: Tensor
    step: Tensor
    first: Tensor
    size: Tensor
    spectrum: Tensor
    basis: Tensor
    steps: Tensor
    changes: Tensor

    @property
    def next(self) -> Tensor:
        """The point that is asked about next [C, K]."""
        return self.point + self.step

    @property
    def distance(self) -> float:
        """How far from converged: the norm of the pooled gradient relative to the first."""
        return float(self.gradient.norm() / self.first.clamp(min=1e-300))


def pack(params: Params) -> Tensor:
    """Write a linear layer as one matrix.

    Args:
        params: A weight [C, D], and a bias [C] where there is one.

    Returns:
        B [C, K] in double precision, the bias first.
    """
    parts = sorted(params.values(), key=lambda leaf: leaf.ndim)
    return torch.cat([leaf.reshape(len(leaf), -1).double() for leaf in parts], 1)


def unpack(weights: Tensor, like: Params) -> Params:
    """Undo `pack`; leading dimensions stay.

    Args:
        weights: B […, C, K].
        like: Gives names and order.

    Returns:
        Weight and bias by name, in double precision.
    """
    bias = weights.shape[-1] - max(leaf.shape[1] for leaf in like.values() if leaf.ndim > 1)
    parts = {k: weights[..., bias:] if leaf.ndim > 1 else weights[..., 0] for k, leaf in like.items()}
    # of one row, a slice counts as contiguous whatever its stride is, and cannot be saved
    return {k: part.clone(memory_format=torch.contiguous_format) for k, part in parts.items()}


def differentiate(
    features: Callable[[Tensor], Tensor], data: Data, weights: Tensor, hessian: bool = True
) -> Derivatives:
    """Add up the derivatives of a softmax over a client's rows, a chunk at a time.

    Args:
        features: From rows to φ without its leading 1.
        data: The rows; padding has weight 0.
        weights: B [C, K].
        hessian: Whether to send the whole Hessian.

    Returns:
        The sums, in double precision.
    """
    parts = [_differentiate_chunk(features(part.x), part, weights, hessian) for part in in_chunks(data)]
    totals = sum_up(parts)
    if hessian:
        totals = totals._replace(curvature=triangle(totals.curvature))
    return totals


def with_one(phi: Tensor, weights: Tensor) -> Tensor:
    """Put features into double precision, with a leading 1 where the layer has a bias.

    Args:
        phi: φ [N, D].
        weights: B [C, K].

    Returns:
        φ [N, K].
    """
    phi = phi.double()
    if phi.shape[1] == weights.shape[1]:
        return phi
    return torch.cat([torch.ones_like(phi[:, :1]), phi], 1)


def _differentiate_chunk(phi: Tensor, part: Data, weights: Tensor, hessian: bool) -> Derivatives:
    """The sums of one chunk, with a square Hessian."""
    phi = with_one(phi, weights)
    log_p = log_softmax(phi @ weights.mT)
    p = log_p.exp()
    w = part.w.double().unsqueeze(1)
    marks = targets(part.y, len(weights))
    loss = -(w * marks * log_p).sum()
    gradient = (w * (p - marks)).mT @ phi
    if not hessian:
        return Derivatives(loss, gradient, torch.diag_embed((w * p).sum(0)) - (w * p).mT @ p)
    classes, width = weights.shape
    spread = (p.unsqueeze(2) * phi.unsqueeze(1)).flatten(1)
    own = torch.stack([(w * p[:, c : c + 1] * phi).mT @ phi for c in range(classes)])
    between = torch.eye(classes, dtype=own.dtype, device=own.device).reshape(classes, 1, classes, 1)
    blocks = (between * own.unsqueeze(2)).reshape(classes * width, classes * width)
    return Derivatives(loss, gradient, blocks - (w * spread).mT @ spread)


def triangle(matrix: Tensor) -> Tensor:
    """Cut the upper triangle out of a symmetric matrix.

    Args:
        matrix: [P, P].

    Returns:
        Its triangle, row by row [T].
    """
    rows, columns = torch.triu_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]


def sum_up(parts: Sequence[Derivatives]) -> Derivatives:
    """Add derivatives up.

    Returns:
        Those of all rows.
    """
    return Derivatives(*(torch.stack(leaves).sum(0) for leaves in zip(*parts, strict=True)))


def doubt_derivatives(sent: Derivatives) -> str | None:
    """Say why no rows can have these derivatives.

    Args:
        sent: As a client sent them, of the right form.

    Returns:
        A sentence about the reply, as "it"; None where there is nothing to say.
    """
    if not isinstance(sent.loss, Tensor):
        return None
    if float(sent.loss) < 0:
        return "it sums log-probabilities to more than 0."
    matrix = sent.curvature
    if matrix.ndim == 1:
        matrix = square_matrix(matrix, sent.gradient.numel())
    largest = float(matrix.diagonal().abs().max())
    if float((matrix - matrix.mT).abs().max()) > RIDGE * largest:
        return "its curvature is not symmetric."
    if float(torch.linalg.eigvalsh(matrix)[0]) < -RIDGE * len(matrix) * largest:
        return "its curvature is not positive semi-definite, as that of a softmax is."
    scale = float(sent.gradient.abs().max())
    if len(sent.gradient) > 1 and float(sent.gradient.sum(0).abs().max()) > 1e-8 * len(sent.gradient) * scale:
        return "its gradients do not add up to 0 over the classes, as those of a softmax do."
    return None


def begin(totals: Sums, prior: Quadratic) -> Search:
    """Start at B = 0, where the sums of the first round are all that is needed.

    The step from there is a regression on ones and zeros that mark the classes, with the task's prior.
    """
    classes, width = prior.mean.shape
    size = totals.counts.sum()
    zero = torch.zeros_like(prior.mean)
    skip = totals.features - width
    mean = totals.gram[skip : totals.features] / classes  # the triangle begins with Σ φ
    gradient = mean - totals.cross[:, skip:] + prior.gradient(zero)
    curvature = size * (torch.eye(classes).to(zero) - 1 / classes) / classes
    spectrum, basis = torch.linalg.eigh(layer_gram(totals, width))
    none = zero.new_zeros(0, classes, width)
    value = size * math.log(classes) + prior.value(zero)
    search = Search(
        zero, value, gradient, curvature, zero, gradient.norm(), size, spectrum.clamp(min=0), basis, none, none
    )  # fmt: skip
    return search._replace(step=_refined_step(search, prior))


def layer_gram(totals: Sums, width: int) -> Tensor:
    """Take the Gram matrix of a layer's features.

    Args:
        width: K, how many the layer has, its bias among them.

    Returns:
        Σ φφᵀ [K, K], without the leading 1 where the layer has no bias.
    """
    skip = totals.features - width
    return square_matrix(totals.gram, totals.features)[skip:, skip:]


def smallest_ridge(matrix: Tensor) -> Tensor:
    """Choose what is added to a Hessian's diagonal, so that rounding decides nothing.

    Returns:
        A number far below its mean diagonal.
    """
    return RIDGE * matrix.diagonal().mean()


def advance(search: Search, totals: Derivatives, prior: Quadratic) -> Search:
    """Take the step if it lowered U, and find the next one; halve it if it did not.

    Args:
        search: Where the search stood when the point was asked about.
        totals: The derivatives of all rows at `search.next`.

    Returns:
        Where it stands now.
    """
    value = totals.loss + prior.value(search.next)
    gradient = totals.gradient + prior.gradient(search.next)
    if not bool(value <= search.value + NOISE * search.value.abs()):
        return search._replace(step=search.step / 2)
    taken = search._replace(
        point=search.next,
        value=value,
        gradient=gradient,
        curvature=totals.curvature,
        steps=torch.cat([search.steps, search.step.unsqueeze(0)])[-MEMORY:],
        changes=torch.cat([search.changes, (gradient - search.gradient).unsqueeze(0)])[-MEMORY:],
    )
    if totals.curvature.ndim == 1:
        return taken._replace(step=newton_step(taken, prior))
    return taken._replace(step=_refined_step(taken, prior))


def hessian(search: Search, prior: Quadratic) -> Tensor:
    """Write the Hessian of U where the search stands.

    Returns:
        A matrix [P, P], over the weights of one class after another.
    """
    if search.curvature.ndim == 1:
        rows = square_matrix(search.curvature, prior.mean.numel())
    else:
        rows = torch.kron(search.curvature / search.size, search.basis * search.spectrum @ search.basis.mT)
    return rows + torch.diag(prior.precision.flatten())


def newton_step(search: Search, prior: Quadratic) -> Tensor:
    """Compute Newton's step −H⁻¹∇U.

    Args:
        search: Where the search stands.

    Returns:
        The step [C, K].
    """
    matrix = hessian(search, prior)
    matrix.diagonal().add_(smallest_ridge(matrix))
    factor = torch.linalg.cholesky(matrix)
    return -torch.cholesky_solve(search.gradient.reshape(-1, 1), factor).reshape(search.point.shape)


def _refined_step(search: Search, prior: Quadratic) -> Tensor:
    """−∇U by the inverse of a product in the Hessian's place, refined by earlier steps: the two loops of L-BFGS."""
    solve = _kronecker_solver(search, prior)
    pairs = [(s, y, (s * y).sum()) for s, y in zip(search.steps, search.changes, strict=True)]
    pairs = [pair for pair in pairs if float(pair[2]) > 0]
    direction = search.gradient
    shares: list[Tensor] = []
    for s, y, product in reversed(pairs):
        shares.append((s * direction).sum() / product)
        direction = direction - shares[-1] * y
    direction = solve(direction)
    if pairs:
        _, y, product = pairs[-1]
        direction = direction * product / (y * solve(y)).sum()
    for (s, y, product), share in zip(pairs, reversed(shares), strict=True):
        direction = direction + (share - (y * direction).sum() / product) * s
    return -direction


def _kronecker_solver(search: Search, prior: Quadratic) -> Callable[[Tensor], Tensor]:
    """A function that applies (Σ (diag(p) − ppᵀ)/n ⊗ G + λ)⁻¹, which is never written out."""
    values, basis = torch.linalg.eigh(search.curvature / search.size)
    diagonal = values.clamp(min=0).unsqueeze(1) * search.spectrum + prior.precision.mean()
    diagonal = diagonal + RIDGE * diagonal.mean()

    def solve(matrix: Tensor) -> Tensor:
        solved: Tensor = basis @ (basis.mT @ matrix @ search.basis / diagonal) @ search.basis.mT
        return solved

    return solve


def laplace(mean: Tensor, matrix: Tensor, like: Params, log_noise: Tensor | None = None) -> Dense:
    """Write the Gaussian around a mode in the order of a task's weights.

    Args:
        mean: B [C, K].
        matrix: The Hessian of U, over the weights of one class after another and, where it is learned, the log-noise.
        like: Names and shapes of the layer's weights.
        log_noise: The log-noise, used where the matrix has a row for it.
    """
    count = mean.numel()
    places = pack(tree.unravel(torch.arange(count), like)).long().flatten()
    places = torch.cat([places, torch.arange(count, len(matrix))])
    precision = torch.empty_like(matrix)
    precision[places.unsqueeze(1), places] = matrix
    centre = tree.ravel(unpack(mean, like))
    if log_noise is not None and len(matrix) > count:
        centre = torch.cat([centre, log_noise.reshape(1)])
    return Dense(centre, precision)


def with_gauge(matrix: Tensor, prior: Quadratic) -> Tensor:
    """Make the Hessian of a softmax under a flat prior one that can be inverted.

    The direction in which all classes' weights move together gets a precision: no probability depends on it, as a
    softmax does not see what all logits share. Where rows say nothing at all, a trace of one is left.

    Args:
        matrix: The Hessian of U [P, P].

    Returns:
        The same matrix where the prior is not flat.
    """
    scale = matrix.diagonal().mean()
    if float(prior.precision.max()) > FLAT * float(scale):
        return matrix
    classes, width = prior.mean.shape
    if classes == 1:  # no softmax: nothing is shared
        return matrix + FLAT * scale * torch.eye(len(matrix)).to(matrix)
    together = torch.kron(torch.full((classes, classes), 1 / classes), torch.eye(width)).to(matrix)
    return matrix + scale * (together + FLAT * torch.eye(len(matrix)).to(matrix))
