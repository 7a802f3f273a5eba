"""Whether outcomes vary more than a study's model says, from one number that each site sends with its reply.

A site fits the linear model to its own rows and sends the variance that is left: of counts over what a Poisson allows,
of numbers in units of the agreed scale. As sites' own fits have slopes and an intercept of their own, differences
between sites do not count as noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.glm.own_fit import MOST, fit_alone, is_on_columns
from consilience.metrics.dispersion import DISPERSED, FEWEST, SURE
from consilience.report.schema.wording import over_dispersed, unequal_noise
from consilience.study.protocol.agreement import Agreement

DIGITS = 3
LARGEST_SHARE = 0.5  # of the squares that one row may have, above which the number would be about that row


def spread_of(agreement: Agreement, data: Data) -> float | None:
    """Find the variance that a site's own linear fit leaves.

    Returns:
        It, to three digits; None where the model is not linear on the columns or predicts no amounts, where too few
        rows are left over, and where one row has most of it.
    """
    target = agreement.target
    if target.classes or target.event:
        return None
    task = agreement.build_task()
    width = 1 + data.x.flatten(1).shape[1]
    left = len(data.y) - width
    if not is_on_columns(task.model) or width > MOST or left < FEWEST:
        return None
    design = torch.cat([torch.ones(len(data.y), 1), data.x.flatten(1)], 1).double()
    if target.counts_events:
        counts, exposure = data.y.double().reshape(len(data.y), -1).tensor_split([1], 1)
        expected = (design @ fit_alone(task, data).mode.T.double()[:, 0]).exp()
        if exposure.numel():
            expected = expected * exposure[:, 0]
        squares = (counts[:, 0] - expected) ** 2 / expected.clamp_min(1e-12)
    else:
        y = data.y.double().reshape(len(data.y), -1)[:, 0]
        squares = (y - design @ torch.linalg.lstsq(design, y, driver="gelsd").solution) ** 2
    return _rounded(squares, left)


def _rounded(squares: Tensor, left: int) -> float | None:
    total = float(squares.sum())
    if not math.isfinite(total) or total <= 0 or float(squares.max()) > LARGEST_SHARE * total:
        return None
    return float(f"{total / left:.{DIGITS}g}")


def spread_warnings(agreement: Agreement, spreads: Mapping[str, float | None], rows: Mapping[str, int]) -> list[str]:
    """Warn of counts that vary more than a Poisson, and of a site whose noise is another one.

    Args:
        spreads: What sites sent, by name.
        rows: How many rows each fitted.

    Returns:
        Sentences; none where sites did not say enough.
    """
    width = 1 + sum(len(column.names) for column in agreement.columns)
    left = {name: rows.get(name, 0) - width for name in spreads}
    known = {name: value for name, value in spreads.items() if value is not None and left[name] > 0}
    if not known or len(known) < len(spreads):
        return []
    pooled = _mean([*known.values()], [left[name] for name in known])
    if agreement.target.counts_events:
        if _is_loud(pooled, sum(left.values())):
            return [over_dispersed(pooled, "the sites' own fits leave a variance that is")]
        return []
    loud = {name: value / pooled for name, value in known.items() if _is_loud(value / pooled, left[name])}
    if not loud:
        return []
    name = max(loud, key=lambda site: loud[site])
    return [unequal_noise(name, loud[name])]


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


def _is_loud(ratio: float, left: int) -> bool:
    """Whether a ratio of variances is above 1 beyond chance; that of a χ² has a standard error of √(2 / ν)."""
    return ratio > max(DISPERSED, 1 + SURE * math.sqrt(2 / left))
