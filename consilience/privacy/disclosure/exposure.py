"""What a coreset shows of the rows it was learned from: how near its inputs come to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.payload import Coreset

COMPARED = 2000  # rows that say how far apart rows usually are


class Nearness(NamedTuple):
    """How near pseudo-rows come to rows, in units of how far a row usually is from the row nearest to it.

    Attributes:
        closest: The shortest distance from a pseudo-row to a row.
        typical: The median over pseudo-rows.
        copies: How many pseudo-rows are nearer to a row than rows usually are to each other.
    """

    closest: Tensor
    typical: Tensor
    copies: Tensor


def nearness(coreset: Coreset, data: Data) -> Nearness:
    """Measure how near a coreset's inputs come to single rows; at the site, which alone can.

    Args:
        data: The site's rows, perhaps padded.

    Returns:
        The distances.
    """
    x = data.x.flatten(1)
    far = torch.where(data.w > 0, 0.0, torch.inf).to(x)  # padding is infinitely far from everything
    some = x[:COMPARED]
    padding = far[:COMPARED]
    between = _distances(some, some) + padding + torch.diag(torch.full((len(some),), torch.inf).to(x))
    apart = between.amin(1) + padding
    usual = _median(apart, torch.isfinite(apart).sum()).clamp(min=1e-12)
    away = (_distances(coreset.x.flatten(1), x) + far).amin(1) / usual
    return Nearness(away.amin(), away.median(), (away < 1).sum().to(x))


def exposure_warning(found: Sequence[Nearness], rows: Sequence[int]) -> str:
    """Say in the report what coresets can show.

    Args:
        found: One measurement a site.
        rows: How many pseudo-rows each site sent.

    Returns:
        Two sentences.
    """
    closest = min(range(len(found)), key=lambda k: float(found[k].closest))
    copies = sum(int(n.copies) for n in found)
    return (
        f"Coresets can show what their sites hold: {copies} of {sum(rows)} pseudo-rows lie nearer to a single row than "
        f"rows usually lie to each other, the closest (site {closest}) at {float(found[closest].closest):.2g} × that "
        "distance. Nothing here is a guarantee of privacy."
    )


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean, without the matrix product that loses short distances."""
    return torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")


def _median(values: Tensor, count: Tensor) -> Tensor:
    """The lower median of the `count` smallest; 1 where there are none, as with a single row."""
    ordered = torch.where(torch.isfinite(values), values, torch.inf).sort().values
    median = ordered.gather(0, ((count - 1).clamp(min=0) // 2).unsqueeze(0)).squeeze(0)
    return torch.where(count > 0, median, torch.ones_like(median))
