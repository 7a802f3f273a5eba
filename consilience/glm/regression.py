"""Linear regression of numbers from sums: its mode, with a noise that is known or learned, and the Hessian there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.distributions.likelihood import FARTHEST
from consilience.glm.derivatives import Quadratic, layer_gram, smallest_ridge
from consilience.glm.sums import Sums


class Line(NamedTuple):
    """A linear regression of numbers.

    Attributes:
        weights: B [M, K].
        log_noise: The log-variance of an observation.
        gram: G [K, K].
    """

    weights: Tensor
    log_noise: Tensor
    gram: Tensor


def regress(totals: Sums, prior: Quadratic, log_noise: Tensor | Quadratic) -> Line:
    """Find the mode of a linear regression, which takes the sums of the first round and nothing else.

    A learned noise is where its own posterior is largest, the weights averaged over: under flat priors the squares that
    are left over n − p.

    Args:
        prior: The prior over B.
        log_noise: The log-variance of an observation, or its prior where it is learned.
    """
    problem = _Regression(totals, prior)
    if isinstance(log_noise, Quadratic):
        noise_prior = log_noise
        log_noise = _last_root(lambda s: problem.slope(s, noise_prior))
    return Line(problem.weights(log_noise), log_noise, problem.gram)


def line_hessian(line: Line, totals: Sums, prior: Quadratic, noise_prior: Quadratic | None) -> Tensor:
    """Write the Hessian of U at the mode of a linear regression.

    Args:
        prior: The prior over B.
        noise_prior: That over the log-noise, where it is learned.

    Returns:
        A matrix over the weights of one target after another and, where it is learned, the log-noise.
    """
    weights, log_noise, gram = line
    precision = torch.exp(-log_noise)
    matrix: Tensor = torch.block_diag(*(precision * gram + torch.diag(row) for row in prior.precision))
    if noise_prior is None:
        return matrix
    problem = _Regression(totals, prior)
    across = -precision * (weights @ gram - problem.cross).reshape(-1, 1)
    own = 0.5 * precision * problem.residual(weights) + noise_prior.precision
    return torch.cat([torch.cat([matrix, across], 1), torch.cat([across.mT, own.reshape(1, 1)], 1)])


class _Regression:
    """U of a linear regression as a function of its log-noise, with the weights at their best or averaged over."""

    def __init__(self, totals: Sums, prior: Quadratic) -> None:
        width = prior.mean.shape[1]
        self.prior = prior
        self.gram = layer_gram(totals, width)
        self.cross = totals.cross[:, totals.features - width :]
        self.square = totals.square.sum()
        self.numbers = totals.counts.sum() * len(self.cross)
        self.spectra = torch.stack([_spectrum(self.gram, row) for row in prior.precision])

    def weights(self, log_noise: Tensor) -> Tensor:
        """B at its best: (G + σ²Λ)⁻¹(Σ y φ + σ²Λm) for every target."""
        scaled = log_noise.exp() * self.prior.precision
        right = self.cross + scaled * self.prior.mean
        ridge = 1e-3 * smallest_ridge(self.gram)
        solved = [torch.linalg.solve(self.gram + torch.diag(s + ridge), r) for s, r in zip(scaled, right, strict=True)]
        return torch.stack(solved)

    def residual(self, weights: Tensor) -> Tensor:
        """Σ (y − Bφ)²."""
        explained: Tensor = (2 * weights * self.cross - weights @ self.gram * weights).sum()
        return (self.square - explained).clamp(min=0)

    def used(self, log_noise: Tensor) -> Tensor:
        """How many numbers the weights took up: tr (G + σ²Λ)⁻¹G, their rank where the prior is flat."""
        used: Tensor = (self.spectra / (self.spectra + log_noise.exp())).sum()
        return used

    def slope(self, log_noise: Tensor, prior: Quadratic) -> Tensor:
        """d/d log σ² of −log p(σ² | D), the weights averaged over."""
        fit: Tensor = torch.exp(-log_noise) * self.residual(self.weights(log_noise))
        return 0.5 * (self.numbers - self.used(log_noise) - fit) + prior.gradient(log_noise).sum()


def _spectrum(gram: Tensor, precision: Tensor) -> Tensor:
    """The eigenvalues of Λ^−½ G Λ^−½ [K]; those that rounding made of nothing are 0."""
    least = 1e-12 * gram.diagonal().mean().clamp(min=1e-300)
    root = precision.clamp(min=least).rsqrt()
    values = torch.linalg.eigvalsh(root * gram * root.unsqueeze(1))
    return torch.where(values > 1e-12 * values[-1], values, 0.0)


def _last_root(f: Callable[[Tensor], Tensor]) -> Tensor:
    """The largest log-noise at which a slope changes its sign: more than one noise may explain few rows."""
    high = torch.tensor(FARTHEST, dtype=torch.float64)
    low = high - 1
    while float(low) > -FARTHEST and bool(f(low) > 0):
        low, high = low - 1, low
    for _ in range(60):
        middle = (low + high) / 2
        if bool(f(middle) > 0):
            high = middle
        else:
            low = middle
    return (low + high) / 2
