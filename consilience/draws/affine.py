"""Rules that move each site's draws by an affine map, so that they keep their shape: consensus and barycentres."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from consilience.distributions.posterior import Dense

CLOSE = 1e-12  # change of a covariance, relative, at which a barycentre is found
STEPS = 200  # towards it, at most


def transport(draws: Tensor, start: Dense, end: Dense) -> Tensor:
    """Move draws by the map that takes one Gaussian to another on the shortest way.

    Args:
        draws: Rows [S, d].
        start: The Gaussian that has their mean and covariance.
        end: The one that they shall have.
    """
    root = _power(torch.linalg.inv(start.precision), 0.5)
    back = torch.linalg.inv(root)
    middle = _power(root @ torch.linalg.inv(end.precision) @ root, 0.5)
    moved: Tensor = end.mean + (draws - start.mean) @ (back @ middle @ back)
    return moved


def consensus(sites: Sequence[Tensor], gaussians: Sequence[Dense]) -> Tensor:
    """Average one draw of each site, weighted by precision matrices.  Scott et al. 2016, consensus Monte Carlo.

    Args:
        sites: Draws of each [S, d]; as many as the shortest has are used.
    """
    count = min(map(len, sites))
    total = sum((site[:count] @ g.precision for site, g in zip(sites, gaussians, strict=True)), torch.zeros(()))
    precision = sum((g.precision for g in gaussians), torch.zeros(()))
    averaged: Tensor = torch.linalg.solve(precision, total.mT).mT
    return averaged


def barycentre(sites: Sequence[Tensor], gaussians: Sequence[Dense]) -> Tensor:
    """Move all draws to the Wasserstein barycentre of posteriors that each stand for all rows.  Srivastava et al. 2018.

    A site's posterior is raised to the power of the number of sites, as if its rows were repeated; the barycentre is
    that of location and scatter (Álvarez-Esteban et al. 2016).

    Args:
        sites: Draws of each [S, d].
        gaussians: With their means and covariances.
    """
    powered = [Dense(g.mean, len(sites) * g.precision) for g in gaussians]
    covariances = torch.stack([torch.linalg.inv(g.precision) for g in powered])
    mean = torch.stack([g.mean for g in powered]).mean(0)
    middle = covariances.mean(0)
    for _ in range(STEPS):
        root = _power(middle, 0.5)
        back = torch.linalg.inv(root)
        inner = torch.stack([_power(root @ c @ root, 0.5) for c in covariances]).mean(0)
        moved = back @ inner @ inner @ back
        change = float((moved - middle).norm() / middle.norm())
        middle = moved
        if change < CLOSE:
            break
    end = Dense(mean, torch.linalg.inv((middle + middle.mT) / 2))
    return torch.cat([transport(site, g, end) for site, g in zip(sites, gaussians, strict=True)])


def _power(matrix: Tensor, power: float) -> Tensor:
    """A power of a symmetric positive matrix."""
    values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
    raised: Tensor = (vectors * values.clamp(min=1e-300) ** power) @ vectors.mT
    return raised
