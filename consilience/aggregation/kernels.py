"""Products of kernel densities, sampled.  Neiswanger et al., UAI 2014, Algorithm 1."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Gaussian, Samples, moments
from consilience.distributions.predictive import positive
from consilience.key import Key


def multiply_kernels(clients: Sequence[Samples], prior: Gaussian, draws: int, sweeps: int, key: Key) -> Tensor:
    """Draw from the product of the clients' kernel densities, over the prior to the power K − 1.

    The product is a mixture of Sᴷ Gaussians, one for each choice of a sample a client. A chain of Metropolis within
    Gibbs asks the clients in turn for another sample; a draw comes from the Gaussian of the last choice.

    Args:
        clients: The samples of each client.
        prior: p(θ).
        draws: How many, each at the end of a chain of its own.
        sweeps: How often a chain asks every client for another sample.
        key: The randomness.

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
