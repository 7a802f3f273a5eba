"""Lower bounds of times to an event: valid for any model and any censoring, and read off the same curves as scores."""

from __future__ import annotations

import math

import events
import numpy as np
import pytest
import torch
from scipy import stats

import consilience as co
from consilience.distributions.survival import Survival
from consilience.errors import InputError
from consilience.prediction_sets.coverage import rank
from consilience.prediction_sets.kinds import Calibration, find_guarantee, site_table
from consilience.prediction_sets.nonconformity import Score, time_scores
from consilience.prediction_sets.sets import Guarantee, lower_bounds
from consilience.report.schema.prediction_sets import read_sets, sets_sentence

TIME = Score("time")
EDGES = TIME.edges(4000, None)
GRID = torch.linspace(0.02, 8, 400, dtype=torch.float64)


def model(x: torch.Tensor, slope: float = 0.6) -> Survival:
    """A constant baseline hazard of 0.8 and half of the true effect: a wrong model."""
    nothing = Survival(slope * x, torch.zeros(len(x)), torch.zeros(len(x), 0), torch.zeros(len(x), 0))
    return nothing.on(GRID, 0.8 * GRID)


def patients(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Times with hazard exp(1.2 x), and censoring that depends on x too."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=count)
    time = draw.exponential(np.exp(-1.2 * x))
    censored = draw.exponential(2 * np.exp(0.5 * x))
    return torch.tensor(x), torch.tensor(time), torch.tensor(np.minimum(time, censored))


def calibrated(count: int, seed: int, level: float = 0.9) -> Guarantee:
    plan = Calibration("pooled", level, TIME, EDGES)
    x, _, seen = patients(count, seed)
    table = site_table(plan, time_scores(model(x), seen), seen)
    return find_guarantee(plan, table, [count], ["one"])


def test_a_time_is_covered_just_where_its_score_is_at_most_the_threshold() -> None:
    x, _, between = patients(500, 0)
    guarantee = calibrated(99, 1)
    p = model(x)
    bound = lower_bounds(p, guarantee)
    on_curve = p.curves[:, -1] <= guarantee.thresholds[0]

    for seen in (between, bound):  # events are at the curve's own times, and bounds too
        by_score = time_scores(p, seen) <= guarantee.thresholds[0]

        assert torch.equal((seen >= bound)[on_curve], by_score[on_curve])
        assert bool(((seen >= bound) >= by_score).all())  # the curve's end is a bound where the curve ends above
    assert torch.equal(time_scores(p, GRID[7].repeat(500)), p.curves[:, 7])
    assert float(time_scores(p, torch.zeros(500)).min()) == 1.0


def test_bounds_cover_what_was_seen_by_their_beta_and_events_at_least_as_often() -> None:
    """Coverage given 49 rows is Beta(45, 5) for the times seen; censoring only adds to it for events."""
    x, time, seen = patients(4000, 10_000)
    scores = time_scores(model(x), seen)
    event_scores = time_scores(model(x), time)
    thresholds = [calibrated(49, i).thresholds[0] for i in range(150)]
    covered = [float((scores <= threshold).double().mean()) for threshold in thresholds]
    events_covered = [float((event_scores <= threshold).double().mean()) for threshold in thresholds]

    r = rank(0.9, 49)
    assert stats.kstest(covered, stats.beta(r, 49 - r + 1).cdf).pvalue > 0.01
    assert all(more >= less for more, less in zip(events_covered, covered, strict=True))
    assert np.mean(covered) == pytest.approx(0.9, abs=4 * np.std(covered) / math.sqrt(150) + 1 / 200)


def test_a_model_without_curves_has_no_bounds() -> None:
    p = Survival(torch.zeros(2), torch.zeros(2), torch.zeros(2, 0), torch.zeros(2, 0))

    with pytest.raises(InputError, match="needs survival curves"):
        time_scores(p, torch.ones(2))


def test_a_run_has_lower_bounds_in_its_report_and_its_predictions() -> None:
    sites = events.survival_sites(conformal=0.3)
    task = co.survival(co.models.linear(sites.features, 1))
    result = co.run(co.methods.GLM(), task, sites, level=0.8)

    sets = read_sets(result.report["guarantee"])
    assert sets is not None and sets.is_of_times and sets.overall is not None
    assert "however rows are censored" in sets.promise and "a lower bound of" in sets_sentence(sets, True)
    test = sites.all_test
    prediction = result.predict(test.x, level=0.8)
    assert prediction.low is not None and prediction.high is None and prediction.times is not None
    covered = float((test.y[:, 0].double() >= prediction.low).double().mean())
    assert covered == pytest.approx(sets.overall.coverage)
    assert sets.overall.coverage >= 0.65  # 0.8 less 3 standard errors of 72 rows
    with pytest.raises(InputError, match="needs classes"):
        co.conformal(result, 0.8, "class")
