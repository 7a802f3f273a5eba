"""Products of kernel densities, sampled.  Neiswanger et al., UAI 2014, Algorithm 1 and §3.3."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Dense, Gaussian, Samples, moments
from consilience.distributions.predictive import positive
from consilience.key import Key


def multiply_kernels(clients: Sequence[Samples], prior: Gaussian, draws: int, sweeps: int, key: Key) -> Tensor:
    """Draw from the product of the clients' kernel densities, over the prior to the power K − 1.

    The product is a mixture of Sᴷ Gaussians, one for each choice of a sample a client. A chain of Metropolis within
    Gibbs asks the clients in turn for another sample; a draw comes from the Gaussian of the last choice.

    Args:
        prior: p(θ).
        draws: How many, each at the end of a chain of its own.
        sweeps: How often a chain asks every client for another sample.

    Returns:
        The draws, [draws, d].
    """
    samples = [tree.ravel(client.params, batch_dims=1) for client in clients]
    widths = [kernel_variance(client) for client in clients]
    spare = len(clients) - 1  # powers of the prior that the clients' posteriors have too many
    wide = tree.ravel(prior.var)
    precision = positive(sum((1 / v for v in widths), -spare / wide), 1e-3 / wide)
    linear = [s / v for s, v in zip(samples, widths, strict=True)]
    squares = [(s * s / v).sum(1) for s, v in zip(samples, widths, strict=True)]

    choice = [_pick(len(s), draws, key.fold(k)) for k, s in enumerate(samples)]
    total = sum((a[i] for a, i in zip(linear, choice, strict=True)), -spare * tree.ravel(prior.mean) / wide)
    for step in range(sweeps * len(samples)):
        k = step % len(samples)
        now = key.fold(len(samples) + step)
        other = _pick(len(samples[k]), draws, now.fold(0))
        moved = total - linear[k][choice[k]] + linear[k][other]
        gain = ((moved**2 - total**2) / precision).sum(1) - squares[k][other] + squares[k][choice[k]]
        accepted = now.fold(1).uniform(draws, total).log() < gain / 2  # the gain is twice the log of the ratio
        choice[k] = torch.where(accepted, other, choice[k])
        total = torch.where(accepted.unsqueeze(1), moved, total)
    return total / precision + key.fold(-1).normal_like(total) * precision.rsqrt()


def multiply_semiparametric(
    sites: Sequence[Tensor], gaussians: Sequence[Dense], pooled: Dense, draws: int, sweeps: int, key: Key
) -> Tensor:
    """Draw from the product of Gaussians, each corrected by a kernel density of its site's draws.

    It is the sampler of `multiply_kernels` with other weights, in coordinates in which the pooled Gaussian is N(0, I).

    Args:
        sites: Draws of each site [S, d], without the prior.
        gaussians: With their means and covariances.
        pooled: The product of these Gaussians.
        draws: How many, each at the end of a chain of its own.
        sweeps: How often a chain asks every site for another draw.

    Returns:
        The draws, [draws, d].
    """
    lower = torch.linalg.cholesky(pooled.precision)
    samples = [(site - pooled.mean) @ lower for site in sites]
    width = torch.stack([kernel_variance(Samples({"z": z})).mean() for z in samples]).mean()
    count = len(samples)
    fitted = []
    for site, g in zip(sites, gaussians, strict=True):
        away = site - g.mean
        fitted.append(((away @ g.precision) * away).sum(1) / -2)
    own = [-(z * z).sum(1) / (2 * width) - fit for z, fit in zip(samples, fitted, strict=True)]

    def joint(total: Tensor) -> Tensor:  # Σ |z − z̄|² = Σ |z|² − K |z̄|²
        square = ((total / count) ** 2).sum(1)
        return count * square / (2 * width) - square / (2 * (1 + width / count))

    choice = [_pick(len(z), draws, key.fold(k)) for k, z in enumerate(samples)]
    total = sum((z[i] for z, i in zip(samples, choice, strict=True)), torch.zeros(()))
    for step in range(sweeps * count):
        k = step % count
        now = key.fold(count + step)
        other = _pick(len(samples[k]), draws, now.fold(0))
        moved = total - samples[k][choice[k]] + samples[k][other]
        gain = joint(moved) - joint(total) + own[k][other] - own[k][choice[k]]
        accepted = now.fold(1).uniform(draws, total).log() < gain
        choice[k] = torch.where(accepted, other, choice[k])
        total = torch.where(accepted.unsqueeze(1), moved, total)
    var = 1 / (count / width + 1)
    z = var * (count / width) * total / count + key.fold(-1).normal_like(total) * var.sqrt()
    pooled_draws: Tensor = pooled.mean + torch.linalg.solve_triangular(lower, z, upper=False, left=False)
    return pooled_draws


def kernel_variance(client: Samples) -> Tensor:
    """Choose how wide a client's kernels are, by Scott's rule.

    Args:
        client: S samples of d weights.

    Returns:
        The variance of its samples, weight by weight, times S^(−2/(4 + d)), [d].
    """
    var = tree.ravel(moments(client).var)
    count = len(tree.ravel(client.params, batch_dims=1))
    return var * math.pow(count, -2 / (4 + len(var)))


def _pick(number: int, draws: int, key: Key) -> Tensor:
    """Row numbers below `number`, each as likely as any other."""
    return (key.uniform(draws) * number).long().clamp(max=number - 1)
