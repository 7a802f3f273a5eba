"""Gradients and Hessians of a softmax over bounded rows, released with noise; `noisy_posterior` is what they tell.

**What is released.** Features ψ with ‖ψ‖ ≤ 1 and the constant κ make a = (κ, ψ)/√(1 + κ²), so that ‖a‖ ≤ 1 (without a
bias, a = ψ). Weights are t = Qᵀθ [C−1, K] with orthonormal contrasts Q [C, C−1] of the classes: what all classes share
changes no probability p. With y the indicator and S = diag(p) − ppᵀ, a row's part of the released vector at t is

    v = (Qᵀ(p − y)⊗a/√2,  2√g·svec(QᵀSQ⊗aaᵀ)),   g = 2/3 for two classes, 1/4 for more

*No v is longer than 1.* Q keeps lengths, since p − y and S have no part along 1, and svec those of matrices, so that
‖v‖² ≤ ‖p − y‖²/2 + 4g‖S‖² with Frobenius' norm. Let s = ‖p‖², x = 1 − s and r = 1 − p of the label's class.

  * ‖p − y‖² = s + 2r − 1 ≤ s + 1, so that 1 − ‖p − y‖²/2 ≥ x/2.
  * ‖S‖² = s − 2Σp³ + s² ≤ s − Σp³ = Σp·p(1 − p) ≤ 1/4, as s² ≤ Σp·Σp³ (Cauchy and Schwarz); and ‖S‖ ≤ tr S = x.
  * g = 1/4: 4g‖S‖² ≤ min(1/4, x²) ≤ x/2, at x ≤ ½ by the second and beyond it by the first.
  * Two classes: ‖p − y‖² = 2r² and ‖S‖² = 4r²(1 − r)², so that with g = 2/3 it is to be shown that
    (32/3)·r²(1 − r) ≤ 1 + r. The difference is largest where 2r − 3r² = 3/32, at r = 0.616, and below 0 there.

A row with a large residual has little curvature: the Hessian costs the gradient nothing. A row that is added or removed
changes Σ v by one v: the sensitivity is 1. `tests/aggregation/test_noisy_derivatives.py` attacks this with neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.softmax import log_softmax
from consilience.errors import InputError
from consilience.glm.derivatives import Quadratic
from consilience.glm.noisy import shorten
from consilience.glm.sums import in_chunks, square_matrix, targets
from consilience.privacy.dp.mechanisms import Clipped, Privacy, Released

TWO_CLASSES = 2 / 3  # g
MORE_CLASSES = 1 / 4
Map = Callable[[Tensor], Tensor]


class NoisyDerivatives(NamedTuple):
    """Totals at a point, with the variance of their noise; of several rounds, one more dimension in front.

    Attributes:
        point: t₀ [P], one contrast's K weights after another.
        gradient: ĝ [P].
        hessian: A [P, P].
        gradient_var: ρ².
        hessian_var: τ², of what is off the diagonal.
    """

    point: Tensor
    gradient: Tensor
    hessian: Tensor
    gradient_var: Tensor
    hessian_var: Tensor


class Normal(NamedTuple):
    """A Gaussian over t.

    Attributes:
        mean: [P].
        precision: [P, P].
    """

    mean: Tensor
    precision: Tensor


def contrasts(classes: int) -> Tensor:
    """Make Q.

    Returns:
        Orthonormal columns that add up to 0 each [C, C − 1].
    """
    columns = torch.zeros(classes, classes - 1, dtype=torch.float64)
    for j in range(1, classes):
        columns[:j, j - 1] = 1.0
        columns[j, j - 1] = -j
    contrast: Tensor = columns / columns.norm(dim=0)
    return contrast


def scale_of(width: int, bias: bool, privacy: Privacy) -> Tensor:
    """Find what (1, ψ) is multiplied with to make a.

    Args:
        bias: Whether the first of them is the constant.

    Returns:
        [K].
    """
    scale = torch.ones(width, dtype=torch.float64)
    if bias:
        scale[0] = privacy.constant
        scale = scale / math.sqrt(1 + privacy.constant**2)
    return scale


def weight_of(classes: int) -> float:
    """Return 2√g, what Hessians are multiplied with."""
    if classes == 2:
        return 2 * math.sqrt(TWO_CLASSES)
    return 2 * math.sqrt(MORE_CLASSES)


def length_of(weights: int) -> int:
    """Count the numbers of a release about P weights."""
    return weights + weights * (weights + 1) // 2


def sum_derivatives(features: Map, data: Data, weights: Tensor, privacy: Privacy) -> Clipped:
    """Add up a client's rows, each bounded, as the numbers that are released once there is noise on them.

    Args:
        features: From rows to ψ, without a leading 1.
        data: The rows; padding has weight 0, and no weight counts for more than 1.
        weights: θ [C, K] of (1, ψ), or of ψ where there is no bias.

    Returns:
        Σ v [d].
    """
    classes, width = weights.shape
    q = contrasts(classes)
    count = (classes - 1) * width
    gradient = torch.zeros(count, dtype=torch.float64)
    hessian = torch.zeros(count, count, dtype=torch.float64)
    for part in in_chunks(data):
        psi = shorten(features(part.x))
        bias = psi.shape[1] < width
        if bias:
            psi = torch.cat([torch.ones_like(psi[:, :1]), psi], 1)
        p = log_softmax(psi @ weights.double().mT).exp()
        rows = psi * scale_of(width, bias, privacy)
        w = part.w.double().clamp(0, 1).unsqueeze(1)
        residual = w * ((p - targets(part.y, classes)) @ q)
        gradient = gradient + (residual.mT @ rows).flatten()
        hessian = hessian + curvature(rows, w * p, p, q)
    above = _above(count)
    rows_, columns = torch.triu_indices(count, count)
    triangle = weight_of(classes) * above * hessian[rows_, columns]
    return Clipped(torch.cat([gradient / math.sqrt(2), triangle]))


def curvature(rows: Tensor, weighted: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Add up QᵀSQ⊗aaᵀ.

    Args:
        rows: a [N, K].
        weighted: Probabilities, each row's times its weight [N, C].
        p: Probabilities [N, C].

    Returns:
        The sum [P, P].
    """
    count = q.shape[1] * rows.shape[1]
    blocks = []
    for j in range(q.shape[1]):
        for k in range(q.shape[1]):
            own = weighted @ (q[:, j] * q[:, k]) - (weighted @ q[:, j]) * (p @ q[:, k])
            blocks.append((rows * own.unsqueeze(1)).mT @ rows)
    shape = (q.shape[1], q.shape[1], rows.shape[1], rows.shape[1])
    return torch.stack(blocks).reshape(shape).permute(0, 2, 1, 3).reshape(count, count)


def read_derivatives(total: Released, point: Tensor, classes: int, privacy: Privacy, part: float) -> NoisyDerivatives:
    """Take apart what sites released, added up.

    Args:
        total: The sum over sites.
        point: t₀ [P].
        part: The share of μ² that the release took.

    Returns:
        The totals, and how much noise is on them.

    Raises:
        InputError: There are not as many numbers as that makes.
    """
    count = len(point)
    numbers = length_of(count)
    values = total.values.double().flatten()
    if len(values) != numbers:
        raise InputError(f"The release has {len(values)} numbers and {numbers} are agreed.")
    variance = total.shares.double() * privacy.deviation(numbers, part) ** 2
    hessian = square_matrix(values[count:] / _above(count) / weight_of(classes), count)
    gradient = math.sqrt(2) * values[:count]
    return NoisyDerivatives(point, gradient, hessian, 2 * variance, variance / (2 * weight_of(classes) ** 2))


def join_rounds(before: NoisyDerivatives | None, seen: NoisyDerivatives) -> NoisyDerivatives:
    """Put a release behind those of earlier rounds.

    Args:
        before: Those of earlier rounds, if there were any.

    Returns:
        All of them, the first one first.
    """
    newest = [leaf.unsqueeze(0) for leaf in seen]
    if before is None:
        return NoisyDerivatives(*newest)
    return NoisyDerivatives(*(torch.cat(pair) for pair in zip(before, newest, strict=True)))


def combine_rounds(rounds: NoisyDerivatives) -> NoisyDerivatives:
    """Average releases, each weighted by the budget it took.

    Args:
        rounds: Those of several rounds.

    Returns:
        ĝ and A at t₀, with noise as of one release.
    """
    weights = round_weights(rounds)
    point, gradient, hessian = (torch.tensordot(weights, leaf, 1) for leaf in rounds[:3])
    gradient_var = 1 / (1 / rounds.gradient_var).sum()
    return NoisyDerivatives(point, gradient, hessian, gradient_var, 1 / (1 / rounds.hessian_var).sum())


def round_weights(rounds: NoisyDerivatives) -> Tensor:
    """c, which add up to 1."""
    budgets = 1 / rounds.gradient_var
    return budgets / budgets.sum()


def _above(count: int) -> Tensor:
    """√2 above the diagonal of a triangle and 1 on it, row by row."""
    rows, columns = torch.triu_indices(count, count)
    return torch.where(rows == columns, 1.0, math.sqrt(2)).double()


def contrast_prior(prior: Quadratic, scale: Tensor) -> Normal:
    """Write a prior over θ as one over t.

    Args:
        prior: Means and precisions above 0 [C, K].
        scale: From θ to its weights of a [K].
    """
    q = contrasts(len(prior.mean))
    mean = q.mT @ (prior.mean / scale)
    var = 1 / (prior.precision * scale**2)
    blocks = torch.einsum("cj,ck,ca->jka", q, q, var)
    width = len(scale)
    covariance = torch.diag_embed(blocks).permute(0, 2, 1, 3).reshape(mean.numel(), mean.numel())
    assert covariance.shape[0] == q.shape[1] * width
    return Normal(mean.flatten(), torch.linalg.inv(covariance))


def as_weights(fitted: Normal, prior: Quadratic, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Write a Gaussian over t as one over θ; along what all classes share, the prior is all that is known.

    Args:
        prior: The prior over θ.
        scale: From θ to its weights of a [K].

    Returns:
        The mean [C, K], and the precision over the weights of one class after another.
    """
    classes, width = prior.mean.shape
    q = contrasts(classes)
    mean = q @ fitted.mean.reshape(classes - 1, width) * scale + prior.mean.mean(0)
    change = torch.kron(q.mT.contiguous(), torch.diag(1 / scale))
    shared = torch.full((classes, classes), 1 / classes, dtype=torch.float64)
    together = torch.kron(shared, torch.diag(1 / (1 / prior.precision).mean(0)))
    return mean, change.mT @ fitted.precision @ change + together
