"""A linear regression from noisy moments, under a prior that is given.

A site's factor of a product of Gaussians has the natural parameters Σ aaᵀ/s² and Σ t a/s²: the moments that `noisy`
bounds and releases, over s². So they are released by that mechanism, with its proof, and their total is read as a
gradient −b/s² at 0 and a Hessian G/s², of which `noisy_posterior` has the posterior: F = −Hw holds exactly here, and
b/s² − Hw ~ N(0, H), as for any exponential family. What remains is s², which is found from the same moments by the EM
algorithm of `noisy`, or known.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from consilience.glm.derivatives import Quadratic
from consilience.glm.noisy import NoisySums, fit_noisy
from consilience.glm.noisy_derivatives import NoisyDerivatives, Normal
from consilience.glm.noisy_posterior import fit_line


class NoisyLine(NamedTuple):
    """The posterior of a linear regression.

    Attributes:
        mean: B [C, K].
        precision: Over the weights of one target after another [C·K, C·K].
        log_noise: The logarithm of s², in the targets' units.
        noise_precision: How well the rows tell it.
    """

    mean: Tensor
    precision: Tensor
    log_noise: Tensor
    noise_precision: Tensor


def fit_numbers(totals: NoisySums, prior: Quadratic, scale: Tensor, bound: float, noise: float | None) -> NoisyLine:
    """Find the posterior of a linear regression.

    Args:
        totals: Noisy moments of a, and of targets in units of their bound.
        prior: Over the weights B of (1, ψ), for targets in their own units [C, K].
        scale: What (1, ψ) is multiplied with to make a [K].
        bound: That of the targets.
        noise: s² in the targets' units, where it is known.
    """
    variance = fit_noisy(totals).noise.mean()
    if noise is not None:
        variance = torch.as_tensor(noise / bound**2, dtype=torch.float64)
    units = bound * scale  # B over the weights of a
    fits = []
    for cross, mean, precision in zip(totals.cross, *prior, strict=True):
        seen = NoisyDerivatives(
            torch.zeros_like(cross), -cross / variance, totals.gram / variance, totals.cross_var / variance**2,
            totals.gram_var / variance**2,
        )  # fmt: skip
        fits.append(fit_line(seen, Normal(mean / units, torch.diag(precision * units**2))))
    error = 2 / totals.size + totals.square_var.mean() / (totals.size * variance) ** 2
    return NoisyLine(
        torch.stack([fit.mean * units for fit in fits]),
        torch.block_diag(*(fit.precision / torch.outer(units, units) for fit in fits)),
        (variance * bound**2).log(),
        1 / error,
    )
