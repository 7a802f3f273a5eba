"""Scores of times and counts against lifelines, statsmodels and a direct computation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from lifelines import KaplanMeierFitter
from lifelines.utils import concordance_index

from consilience.distributions import Counts, Survival
from consilience.metrics.binning import once
from consilience.metrics.by_part import scores_by_part
from consilience.metrics.events import concordance, integrated_brier, observed_survival, risk_groups
from consilience.metrics.scores import intervals, scores


def times(n: int = 80, seed: int = 0) -> tuple[Survival, torch.Tensor]:
    rng = np.random.default_rng(seed)
    risk = np.round(rng.normal(size=n), 1)  # with ties
    time = np.ceil(10 * rng.exponential(np.exp(-risk)))
    censored = rng.integers(1, 25, size=n)
    y = torch.from_numpy(np.stack([np.minimum(time, censored), time <= censored], 1).astype(float))
    grid = torch.arange(2, 22, 2).double()
    nothing = torch.zeros(n, 0)
    p = Survival(torch.from_numpy(risk), torch.zeros(n).double(), nothing, nothing).on(grid, 0.1 * grid)
    return p, y


def test_concordance_is_harrells() -> None:
    p, y = times()

    found = concordance(p, y, once(y))

    assert float(found) == pytest.approx(concordance_index(y[:, 0], -p.risk, y[:, 1]))


def test_integrated_brier_equals_a_sum_over_rows_and_times() -> None:
    p, y = times()
    time, event = y.numpy().T
    seen = KaplanMeierFitter().fit(time, 1 - event)
    grid = p.times[0].numpy()
    curves = p.curves.numpy()
    errors = []
    for j, t in enumerate(grid):
        total = 0.0
        for i in range(len(time)):
            if time[i] <= t and event[i]:
                total += curves[i, j] ** 2 / seen.predict(time[i] - 1e-6)
            elif time[i] > t:
                total += (1 - curves[i, j]) ** 2 / seen.predict(t)
        errors.append(total / len(time))
    expected = np.trapezoid(errors, grid) / (grid[-1] - grid[0])

    assert float(integrated_brier(p, y, once(y))) == pytest.approx(expected, abs=1e-9)


def test_without_censoring_it_is_the_plain_brier_score() -> None:
    p, y = times()
    y = torch.stack([y[:, 0], torch.ones(len(y)).double()], 1)
    alive = (y[:, :1] > p.times).double()
    plain = ((alive - p.curves) ** 2).mean(0)
    inside = p.times[0] < y[:, 0].max()
    grid = p.times[0][inside]

    expected = torch.trapezoid(plain[inside], grid) / (grid[-1] - grid[0])
    assert float(integrated_brier(p, y, once(y))) == pytest.approx(float(expected))


def test_observed_survival_is_kaplan_and_meiers() -> None:
    _, y = times()
    oracle = KaplanMeierFitter().fit(y[:, 0], y[:, 1])
    at = 9.0

    survival, low, high = observed_survival(y, at)

    assert survival == pytest.approx(float(oracle.predict(at)))
    band = oracle.confidence_interval_survival_function_
    last = band.index[band.index <= at].max()
    assert [low, high] == pytest.approx(band.loc[last].tolist(), abs=1e-6)


def test_every_score_of_times_has_an_interval_around_it() -> None:
    p, y = times(200)

    values = scores(p, y)
    ends = intervals(p, y, resamples=200)

    assert set(values) == set(ends) == {"concordance", "nll", "ibs"}
    assert all(ends[name][0] < value < ends[name][1] for name, value in values.items())


def test_sites_are_scored_by_their_own_pairs() -> None:
    p, y = times(60)

    parts = scores_by_part(p, y, [20, 0, 40])

    assert parts[0] == pytest.approx(scores(p.take(slice(0, 20)), y[:20]))
    assert parts[1] == {}
    assert parts[2]["concordance"] == pytest.approx(scores(p.take(slice(20, 60)), y[20:])["concordance"])


def test_groups_at_a_horizon_hold_all_rows() -> None:
    p, y = times(100)

    at, groups = risk_groups(p, y, horizon=7.0)

    assert at in (6.0, 8.0)
    assert [g.rows for g in groups] == [20] * 5
    assert all(a.predicted <= b.predicted for a, b in itertools.pairwise(groups))
    assert all(g.interval[0] <= g.observed <= g.interval[1] for g in groups)


def test_deviance_is_statsmodels() -> None:
    import statsmodels.api as sm

    rng = np.random.default_rng(0)
    mean = rng.uniform(0.5, 5, size=50)
    y = rng.poisson(mean).astype(float)
    p = Counts(torch.from_numpy(mean), torch.zeros(50).double())

    expected = sm.families.Poisson().deviance(y, mean) / 50
    assert scores(p, torch.from_numpy(y))["deviance"] == pytest.approx(expected)
