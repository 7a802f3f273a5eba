"""Numbers by `glm` and by `exact`: what least squares on all rows says, intervals and predictions of few rows too."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from scipy.stats import norm, t
from torch import nn

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.distributions.predictive import Normal
from consilience.distributions.prior import Flat

N, P = 40, 5  # rows and weights
METHODS = {"glm": co.methods.GLM(), "exact": co.methods.ExactPooling(share=1e-10)}


def made(rng: np.random.Generator, rows: int = N) -> tuple[np.ndarray, np.ndarray]:
    x = rng.normal(size=(rows, P - 1))
    return x, 3 + x @ np.array([1.0, -0.5, 0.2, 0.0]) + 2 * rng.normal(size=rows)


def learn(method: str, x: np.ndarray, y: np.ndarray) -> co.Result:
    """Four sites of ten rows each."""
    parts = tuple(Data.of(torch.tensor(x[k::4]), torch.tensor(y[k::4])) for k in range(4))
    sites = Sites(parts, parts, None, None, None, None, P - 1, "y", "natural", ("a", "b", "c", "d"))
    task = co.regression(nn.Linear(P - 1, 1).double(), prior=Flat())
    return co.run(METHODS[method], task, sites, rounds=1, scored=False)


def predicted(result: co.Result, x: np.ndarray) -> Normal:
    found = result.method.predictive(result.task, result.state)(torch.tensor(x))
    assert isinstance(found, Normal)
    return Normal(*(leaf.reshape(-1) for leaf in found))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore")
def test_effects_and_predictions_are_those_of_least_squares(method: str) -> None:
    """statsmodels' OLS, whose numbers are those of R's lm: n − p and Student's t."""
    rng = np.random.default_rng(0)
    x, y = made(rng)
    new, _ = made(rng, 20)
    oracle = sm.OLS(y, sm.add_constant(x)).fit()
    result = learn(method, x, y)

    frame = result.effects().to_frame()
    np.testing.assert_allclose(frame["estimate"], oracle.params, rtol=1e-6)
    np.testing.assert_allclose(frame["error"], oracle.bse, rtol=1e-6)
    np.testing.assert_allclose(frame[["low", "high"]], oracle.conf_int(0.05), rtol=1e-6)

    frame = oracle.get_prediction(sm.add_constant(new)).summary_frame(0.05)
    found = predicted(result, new)
    np.testing.assert_allclose(found.mean, frame["mean"], rtol=1e-6)
    freedom = N - P
    variance = oracle.get_prediction(sm.add_constant(new)).var_pred_mean + oracle.mse_resid
    np.testing.assert_allclose(found.total, variance * freedom / (freedom - 2), rtol=1e-6)  # Student's variance
    half = norm.ppf(0.975) * found.total.sqrt().numpy()  # a Normal's interval is within 1 % of t's
    np.testing.assert_allclose(half, (frame["obs_ci_upper"] - frame["obs_ci_lower"]) / 2, rtol=0.01)


def test_a_prior_in_the_noise_s_place_is_told() -> None:
    with pytest.raises(co.InputError, match=r"noise=Flat is no variance.*prior="):
        co.regression(nn.Linear(2, 1), Flat())  # type: ignore[arg-type]


def test_a_normal_with_student_s_variance_holds_what_it_promises() -> None:
    """In closed form: with 35 degrees of freedom 94.9 % of t lie within, with 10 still 94.7 %."""
    for freedom, held in ((35, 0.949), (10, 0.947)):
        reach = norm.ppf(0.975) * np.sqrt(freedom / (freedom - 2))
        assert 2 * t.cdf(reach, freedom) - 1 == pytest.approx(held, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore")
def test_intervals_of_few_rows_hold_what_they_promise(method: str) -> None:
    """1 000 worlds of 40 rows, five weights and 20 new rows: 95 % ± 3 standard errors is ± 1 for predictions (rows of a
    world share its fit), ± 2 for effects."""
    rng = np.random.default_rng(1)
    truth = np.array([3.0, 1.0, -0.5, 0.2, 0.0])
    effects, outcomes = [], []
    for _ in range(1000):
        x, y = made(rng)
        new, target = made(rng, 20)
        result = learn(method, x, y)
        frame = result.effects().to_frame()
        effects.append(np.mean((frame["low"] <= truth) & (truth <= frame["high"])))
        found = predicted(result, new)
        half = norm.ppf(0.975) * found.total.sqrt().numpy()
        outcomes.append(np.mean(np.abs(target - found.mean.numpy()) <= half))
    print(f"{method}: effects {np.mean(effects):.3f}, predictions {np.mean(outcomes):.3f}")
    assert abs(np.mean(effects) - 0.95) < 0.02
    assert abs(np.mean(outcomes) - 0.95) < 0.01


@pytest.mark.filterwarnings("ignore")
def test_effects_of_exact_are_of_least_squares_where_it_predicts_with_a_prior() -> None:
    """statsmodels' OLS again: λ is chosen for predictions, and a table of effects has no business with it."""
    x, y = made(np.random.default_rng(0))
    oracle = sm.OLS(y, sm.add_constant(x)).fit()
    parts = tuple(Data.of(torch.tensor(x[k::4]), torch.tensor(y[k::4])) for k in range(4))
    sites = Sites(parts, parts, None, None, None, None, P - 1, "y", "natural", ("a", "b", "c", "d"))
    task = co.regression(nn.Linear(P - 1, 1).double())

    result = co.run(co.methods.ExactPooling(), task, sites, scored=False)
    assert float(result.state.fit.share) > 0.01  # which shrinks
    frame = result.effects().to_frame()
    np.testing.assert_allclose(frame["estimate"], oracle.params, rtol=1e-6)
    np.testing.assert_allclose(frame["error"], oracle.bse, rtol=1e-6)
    np.testing.assert_allclose(frame[["low", "high"]], oracle.conf_int(0.05), rtol=1e-6)
