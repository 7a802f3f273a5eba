"""Whether chains agree, and how many independent draws they are worth.  Vehtari et al., Bayesian Analysis 2021."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.errors import InputError


def rank_normal(x: Tensor) -> Tensor:
    """Replace numbers [..., d] by normal scores of their ranks over everything but the last dimension."""
    flat = x.reshape(-1, x.shape[-1])
    ranks = flat.argsort(0).argsort(0).double() + 1
    scores: Tensor = torch.special.ndtri((ranks - 0.375) / (len(flat) + 0.25))
    return scores.reshape(x.shape)


def split(x: Tensor) -> Tensor:
    """Cut each chain [C, S, d] into halves.

    Raises:
        InputError: There are fewer than four draws a chain.
    """
    half = x.shape[1] // 2
    if half < 2:
        raise InputError(f"There are {x.shape[1]} draws a chain: sample more, 500 or so.")
    return torch.cat([x[:, :half], x[:, -half:]])


def r_hat(x: Tensor) -> Tensor:
    """Compare chains [C, S, d], split and rank-normalised, by location and by spread; the larger of the two [d]."""
    folded = (x - x.flatten(0, 1).median(0).values).abs()
    return torch.maximum(_r_hat(rank_normal(split(x))), _r_hat(rank_normal(split(folded))))


def effective(x: Tensor) -> Tensor:
    """Count how many independent draws chains [C, S, d] are worth for a mean, rank-normalised [d]."""
    z = rank_normal(split(x))
    chains, count, _ = z.shape
    away = z - z.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(away, 2 * count, dim=1)
    covariance = torch.fft.irfft(spectrum * spectrum.conj(), 2 * count, dim=1)[:, :count].mean(0) / count
    within = covariance[0] * count / (count - 1)
    total = within * (count - 1) / count + z.mean(1).var(0)
    rho = 1 - (within - covariance * count / (count - 1)) / total
    rho[0] = 1
    pairs = rho[0 : count - count % 2 : 2] + rho[1::2][: count // 2]
    stays = (pairs > 0).long().cumprod(0)  # Geyer: up to the first pair that is not positive
    lowest = torch.cummin(pairs, 0).values  # and never rising again
    time = -1 + 2 * (lowest * stays).sum(0)
    size = chains * count
    worth: Tensor = size / time.clamp(min=1 / torch.log10(torch.tensor(float(size))))
    return worth


def _r_hat(z: Tensor) -> Tensor:
    count = z.shape[1]
    within = z.var(1).mean(0)
    between = count * z.mean(1).var(0)
    return ((between / within + count - 1) / count).sqrt()
