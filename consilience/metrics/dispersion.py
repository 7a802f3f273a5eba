"""Whether outcomes vary more than a model says: over-dispersed counts, and a site whose noise is another one."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from consilience.data.sites import Sites
from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Normal

DISPERSED = 1.5  # times the variance that was predicted, from which it is said
SURE = 3.0  # standard errors that such a ratio lies above 1
FEWEST = 20  # test rows that such a ratio is computed from


def describe_dispersion(p: Counts | Normal, y: Tensor, sites: Sites) -> dict[str, Any]:
    """Compare squared errors of test rows with the variances that were predicted.

    Args:
        p: What is predicted for all test rows.

    Returns:
        Their mean ratio, where it is too large for chance: of counts, as `dispersion`; of numbers, at the site where it
        is largest, as `loudest_site` with its name and the ratio there, if another site is as it should be.
    """
    mean, var = p.mean, p.total
    if isinstance(p, Counts):
        exposed, y = p.expose(y)
        mean, var = exposed.mean, exposed.total
    ratios = ((y.reshape(mean.shape) - mean) ** 2 / var.clamp(min=1e-12)).double().reshape(len(mean), -1).mean(1)
    if isinstance(p, Counts):
        if _is_loud(ratios):
            return {"dispersion": float(ratios.mean())}
        return {}
    parts = ratios.split([len(part.y) for part in sites.test])
    loud = [(float(part.mean()), name) for part, name in zip(parts, sites.names, strict=True) if _is_loud(part)]
    if not loud or len(loud) == len(parts):
        return {}
    ratio, name = max(loud)
    return {"loudest_site": [name, ratio]}


def _is_loud(ratios: Tensor) -> bool:
    """Whether squared errors are larger than predicted variances, beyond chance: their standard error is their own."""
    if len(ratios) < FEWEST:
        return False
    error = float(ratios.std()) / math.sqrt(len(ratios))
    return float(ratios.mean()) > max(DISPERSED, 1 + SURE * error)
