"""A regression like those that natural sites give: small sites, heavy tails, correlated features, a few odd sites."""

from __future__ import annotations

import numpy as np

from consilience.data.arrays import from_arrays
from consilience.data.dataset import Dataset

SITES = 42
ROWS = 110
FEATURES = 18


def scattered(seed: int = 0, sites: int = SITES, rows: int = ROWS) -> Dataset:
    """Make the rows of many small sites.

    Features share three factors and have tails as heavy as a Student's t with 3 degrees of freedom; every site has its
    own level, its own scale of the features and its own noise; every tenth site has targets far from all others.

    Args:
        seed: Of numpy's generator.
        sites: How many sites there are.
        rows: About how many rows each has.

    Returns:
        The data set.
    """
    draw = np.random.default_rng(seed)
    loadings = draw.normal(size=(3, FEATURES))
    coefficients = draw.normal(size=FEATURES) / 9
    x, y, site = [], [], []
    for k in range(sites):
        count = int(rows * draw.uniform(0.7, 1.3))
        factors = draw.standard_t(3, size=(count, 3)) @ loadings
        features = np.exp(draw.normal(0, 0.5)) * (factors + 0.5 * draw.standard_t(3, size=(count, FEATURES)))
        features += draw.normal(0, 0.5, FEATURES)
        target = features @ coefficients + draw.normal(0, 1) + draw.gamma(2, 0.2) * draw.standard_t(4, count)
        if k % 10 == 3:
            target = target + draw.choice([-1, 1]) * 4 * np.abs(draw.standard_t(2, count))
        x.append(features)
        y.append(target)
        site.append(np.full(count, k))
    return from_arrays(np.concatenate(x), np.concatenate(y), np.concatenate(site), name="scattered")
