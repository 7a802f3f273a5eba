"""Invented counts and times to an event at several sites, and a pooled table of their training rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

import consilience as co

EFFECTS = np.array([0.5, -0.3, 0.0])


def survival_sites(n: int = 240, sites: int = 4, seed: int = 0, test: float = 0.3, conformal: float = 0.0) -> co.Sites:
    """Times with many ties, a baseline that differs from site to site, and about half of the rows censored."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    site = np.arange(n) % sites
    time = np.ceil(20 * rng.exponential(np.exp(-x @ EFFECTS - 0.5 * site))) + 1
    censored = rng.integers(1, 60, size=n)
    y = np.stack([np.minimum(time, censored), time <= censored], 1).astype(float)
    data = co.from_arrays(x, y, site, outcome="survival", standardise=False)
    return data.split(co.splits.natural(), calibration=0, test=test, seed=seed, conformal=conformal)


def count_sites(n: int = 240, sites: int = 4, exposed: bool = True, seed: int = 0) -> co.Sites:
    """Counts of about twenty a unit of exposure."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    exposure = rng.uniform(0.5, 2, size=n) if exposed else np.ones(n)
    count = rng.poisson(exposure * np.exp(x @ EFFECTS + 3)).astype(float)
    y = np.stack([count, exposure], 1) if exposed else count
    data = co.from_arrays(x, y, np.arange(n) % sites, outcome="counts", standardise=False)
    return data.split(co.splits.natural(), calibration=0, test=0.3, seed=seed)


def pooled_table(sites: co.Sites) -> pd.DataFrame:
    """All training rows: a, b, c, then time and event, and the site."""
    parts = []
    for k, part in enumerate(sites.train):
        columns = torch.cat([part.x, part.y, torch.full((len(part.x), 1), float(k))], 1)
        parts.append(pd.DataFrame(columns.double().numpy(), columns=["a", "b", "c", "time", "event", "site"]))
    return pd.concat(parts)
