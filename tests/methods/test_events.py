"""Counts and times to an event: what sites reach together is what statsmodels and lifelines reach on pooled rows."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from events import count_sites, pooled_table, survival_sites
from lifelines import CoxPHFitter
from torch import nn

import consilience as co
from consilience.data.sites import Data
from consilience.distributions.cox import Cox
from consilience.distributions.posterior import Dense, multiply
from consilience.distributions.prior import Flat, Isotropic
from consilience.glm.derivatives import triangle
from consilience.glm.event_sums import differentiate_counts, differentiate_times
from consilience.inference.newton import Newton

LAPLACE = co.Laplace(mode=Newton(), dense=True)


def posterior(result: co.Result) -> Dense:
    found = result.state.posterior  # type: ignore[union-attr]
    assert isinstance(found, Dense)
    return found


def test_newton_rounds_equal_lifelines_stratified_by_site() -> None:
    sites = survival_sites()
    oracle = CoxPHFitter().fit(pooled_table(sites), "time", "event", strata=["site"], fit_options={"precision": 1e-12})

    result = co.run(co.methods.GLM(), co.survival(nn.Linear(3, 1), Flat()), sites)

    found = posterior(result)
    assert found.mean.numpy() == pytest.approx(oracle.params_.values, abs=1e-6)
    assert torch.linalg.inv(found.precision).numpy() == pytest.approx(oracle.variance_matrix_.values, abs=1e-6)
    assert result.report["diagnostics"]["converged"]


@pytest.mark.parametrize("exposed", [True, False])
def test_newton_rounds_equal_statsmodels_for_counts(exposed: bool) -> None:
    sites = count_sites(exposed=exposed)
    x = torch.cat([part.x for part in sites.train]).double().numpy()
    y = torch.cat([part.y for part in sites.train]).double().numpy().reshape(len(x), -1)
    exposure = y[:, 1] if exposed else np.ones(len(x))
    oracle = sm.GLM(y[:, 0], sm.add_constant(x), family=sm.families.Poisson(), exposure=exposure).fit(tol=1e-12)

    result = co.run(co.methods.GLM(), co.counts(nn.Linear(3, 1), Flat()), sites)

    found = posterior(result)
    order = [3, 0, 1, 2]  # the bias comes first in statsmodels
    assert found.mean.numpy()[order] == pytest.approx(oracle.params, abs=1e-6)
    covariance = torch.linalg.inv(found.precision).numpy()[np.ix_(order, order)]
    assert covariance == pytest.approx(oracle.cov_params(), abs=1e-6)
    assert result.report["diagnostics"]["converged"]


def test_large_counts_need_no_halving() -> None:
    """From the rows' own counts the first step lands near the mode: from 0 it would overshoot by e to the mean."""
    sites = count_sites(exposed=False)
    sites = co.from_arrays(
        torch.cat([part.x for part in sites.train]).numpy(),
        torch.cat([part.y for part in sites.train]).numpy() * 1000,
        np.arange(sum(len(part.x) for part in sites.train)) % 3,
        outcome="counts",
        standardise=False,
    ).split(co.splits.natural(), calibration=0)

    result = co.run(co.methods.GLM(), co.counts(nn.Linear(3, 1), Flat()), sites, rounds=6)

    assert result.report["diagnostics"]["converged"]


@pytest.mark.parametrize("kind", ["counts", "survival"])
def test_one_round_is_the_product_of_the_sites_posteriors(kind: str) -> None:
    if kind == "counts":
        task, sites = co.counts(nn.Linear(3, 1).double()), count_sites().to(torch.float64)
    else:
        task, sites = co.survival(nn.Linear(3, 1).double()), survival_sites().to(torch.float64)
    alone = []
    for k in range(len(sites)):
        single = co.run(co.methods.GLM(), task, one_site(sites, k), scored=False)
        alone.append(posterior(single))

    result = co.run(co.methods.GaussianProduct(LAPLACE), task, sites, engine="sequential", scored=False)

    expected = multiply(alone, Isotropic().dense(task.like))
    assert isinstance(expected, Dense)
    assert posterior(result).mean.numpy() == pytest.approx(expected.mean.numpy(), abs=1e-6)
    assert posterior(result).precision.numpy() == pytest.approx(expected.precision.numpy(), rel=1e-5, abs=1e-5)


def one_site(sites: co.Sites, k: int) -> co.Sites:
    return dataclasses.replace(sites, train=sites.train[k : k + 1], test=sites.test[k : k + 1], names=("one",))


def test_derivatives_of_a_partial_likelihood_equal_autograds() -> None:
    part = survival_sites().train[0]
    x, y = part.x.double(), part.y.double()
    weights = torch.tensor([[0.3, -0.5, 0.2]], dtype=torch.float64)

    sent = differentiate_times(lambda rows: rows, Data.of(x, y), weights)

    loss = lambda b: Cox().nll(x @ b, y, {}).sum()
    assert float(sent.loss) == pytest.approx(float(loss(weights[0])))
    torch.testing.assert_close(sent.gradient[0], torch.func.grad(loss)(weights[0]))
    torch.testing.assert_close(sent.curvature, triangle(torch.func.hessian(loss)(weights[0])))


def test_padding_changes_no_derivative() -> None:
    sites = count_sites()
    part = sites.train[0]
    padded = Data(*(torch.cat([leaf, torch.zeros_like(leaf[:5])]) for leaf in part))
    weights = torch.tensor([[3.0, 0.5, -0.3, 0.1]], dtype=torch.float64)
    times = survival_sites().train[0]
    padded_times = Data(*(torch.cat([leaf, torch.zeros_like(leaf[:5])]) for leaf in times))

    for a, b in (
        (differentiate_counts(lambda x: x, part, weights), differentiate_counts(lambda x: x, padded, weights)),
        (differentiate_times(lambda x: x, times, None), differentiate_times(lambda x: x, padded_times, None)),
    ):
        for one, other in zip(a, b, strict=True):
            torch.testing.assert_close(one, other)


def test_counts_agree_on_every_engine() -> None:
    sites = count_sites()
    task = co.counts(nn.Linear(3, 1))

    means = [
        posterior(co.run(co.methods.GLM(), task, sites, engine=e, scored=False)).mean
        for e in ("sequential", "vectorised")
    ]

    torch.testing.assert_close(*means)


@pytest.mark.parametrize(
    "method", [co.methods.FedAvg(co.SGD(epochs=3)), co.methods.FedProx(), co.methods.Mixture(co.SGD(epochs=3))]
)
def test_networks_learn_counts(method: co.Method) -> None:
    sites = count_sites(exposed=False)

    result = co.run(method, co.counts(co.models.mlp(3, None, hidden=(8,))), sites, rounds=1)

    assert 0 < result.metrics["nll"] < 100
    assert result.predict(sites.all_test.x).mean is not None


@pytest.mark.parametrize(
    ("method", "engine", "sentence"),
    [
        (co.methods.GaussianProduct(), "auto", "compares each row with all others"),
        (co.methods.FedAvg(), "auto", "use one of gaussian_product, glm"),
        (co.methods.GLM(), "vectorised", "use sequential"),
    ],
)
def test_what_cannot_learn_times_says_so(method: co.Method, engine: str, sentence: str) -> None:
    with pytest.raises(co.InputError, match=sentence):
        co.run(method, co.survival(nn.Linear(3, 1)), survival_sites(), engine=engine)


def test_a_task_of_another_kind_is_refused() -> None:
    with pytest.raises(co.InputError, match=r"co\.survival\(model\)"):
        co.run(co.methods.GLM(), co.regression(nn.Linear(3, 1)), survival_sites())
    with pytest.raises(co.InputError, match="ascend"):
        co.survival(nn.Linear(3, 1), times=(2, 1))


def test_a_run_of_times_is_saved_and_predicts_the_same_curves(tmp_path: object) -> None:
    sites = survival_sites()
    result = co.run(co.methods.GLM(), co.survival(nn.Linear(3, 1)), sites, out=f"{tmp_path}/run")
    x = sites.all_test.x

    again = co.load(f"{tmp_path}/run").predict(x)

    first = result.predict(x)
    assert again.survival is not None and first.survival is not None and again.times is not None
    torch.testing.assert_close(again.survival, first.survival)
    assert again.survival.shape == (len(x), len(again.times))
    assert bool((again.survival.diff(dim=1) <= 1e-12).all())
