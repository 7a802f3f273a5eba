"""Multiple imputation: Rubin's rules as printed, and estimates that are as wide as what is missing makes them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import consilience as co
from consilience.data.sites import Data
from consilience.distributions.posterior import Dense, Gaussian, Point, Posterior
from consilience.distributions.prior import Isotropic
from consilience.errors import InputError
from consilience.inference import Laplace, MultipleImputation, Newton
from consilience.inference.imputed import combine_fits, impute, marks_of, read_marks
from consilience.key import Key
from consilience.messages import Client

NOISE = 0.25
VAR = 100.0


def closed_form(task: co.Task, start: Posterior, client: Client) -> Dense:
    """Bayesian linear regression with known noise, as Laplace at Newton's mode gives it, in a fraction of the time."""
    x = torch.cat([client.data.x, torch.ones(len(client.data.y), 1).double()], 1)
    precision = x.T @ x / NOISE + torch.eye(x.shape[1]).double() / VAR
    return Dense(torch.linalg.solve(precision, x.T @ client.data.y / NOISE), precision)


def test_rubins_rules_are_the_closed_form() -> None:
    """Rubin 1987, eq. 3.1.2–3.1.5: Q̄ = ΣQ/m, T = Ū + (1 + 1/m) B."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(5, 3))
    factors = rng.normal(size=(5, 3, 3))
    covariances = factors @ factors.transpose(0, 2, 1) + np.eye(3)
    fits = [Dense(torch.tensor(m), torch.tensor(np.linalg.inv(c))) for m, c in zip(means, covariances, strict=True)]
    found = combine_fits(fits)
    total = covariances.mean(0) + (1 + 1 / 5) * np.cov(means.T)
    assert isinstance(found, Dense)
    np.testing.assert_allclose(found.mean, means.mean(0))
    np.testing.assert_allclose(torch.linalg.inv(found.precision), total, rtol=1e-9)
    diagonal = combine_fits([Gaussian({"w": fit.mean}, {"w": torch.ones(3).double()}) for fit in fits])
    assert isinstance(diagonal, Gaussian)
    np.testing.assert_allclose(diagonal.var["w"], 1 + 1.2 * means.var(0, ddof=1))
    with pytest.raises(InputError, match="Rubin's rules combine Gaussians"):
        combine_fits([Point({"w": fits[0].mean})] * 2)


def rows(n: int = 400, seed: int = 0) -> tuple[Data, Data]:
    """y = x₁ + x₂ + noise, x₂ = 0.8 x₁ + …; x₂ is missing where x₁ is large: complete rows, and rows with gaps."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=n)
    second = 0.8 * first + 0.6 * rng.normal(size=n)
    y = torch.tensor(first + second + 0.5 * rng.normal(size=n))
    gap = rng.random(n) < 1 / (1 + np.exp(-2 * first))
    whole = np.column_stack([first, second, np.zeros(n)])
    holes = np.column_stack([first, np.where(gap, 0.0, second), gap])
    return Data.of(torch.tensor(whole), y), Data.of(torch.tensor(holes), y)


def fitted(data: Data, inference: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of x₁ and x₂, and their deviations."""
    task = co.regression(nn.Linear(3, 1).double(), noise=NOISE, prior=Isotropic(VAR))
    start = Point({name: torch.zeros_like(leaf) for name, leaf in task.like.items()})
    posterior = inference(task, start, Client(data, (), Key(3)))  # type: ignore[operator]
    var = torch.linalg.inv(posterior.precision).diagonal()
    return posterior.mean[:2], var[:2].sqrt()


def test_gaps_are_filled_without_bias_and_widen_what_is_known() -> None:
    whole, holes = rows()
    full, narrow = fitted(whole, closed_form)
    found, wide = fitted(holes, MultipleImputation(closed_form, marks="1:2", tables=10))
    filled, _ = fitted(
        holes._replace(x=holes.x * torch.tensor([1.0, 1.0, 0.0])), closed_form
    )  # 0, the mean, for every gap
    assert bool(((found - full).abs() < 3 * wide).all())
    assert bool((wide > narrow).all())
    assert float((filled - full).abs().max()) > 3 * float((found - full).abs().max())


def test_intervals_of_imputed_tables_cover() -> None:
    """95 % intervals of 30 tables: at least 24 cover each weight, below which a binomial of 0.95 falls once in 10⁴."""
    inside = torch.zeros(2)
    for seed in range(30):
        found, wide = fitted(rows(200, seed)[1], MultipleImputation(closed_form, marks="1:2", tables=5, sweeps=1))
        inside += ((found - 1.0).abs() < 1.96 * wide).float()
    assert bool((inside >= 24).all()), inside


def test_gaps_are_drawn_from_the_posterior_predictive() -> None:
    """Of a linear regression with a flat prior: Student's t with n − p degrees of freedom, wider far from the rows."""
    rng = np.random.default_rng(1)
    seen, gaps = 11, 300
    first = np.append(rng.normal(size=seen), np.full(gaps, 6.0))  # gaps lie far away, all in one place
    y = np.append(rng.normal(size=seen), np.zeros(gaps))
    second = first - y + rng.normal(size=seen + gaps)
    gap = np.arange(seen + gaps) >= seen
    holes = Data.of(torch.tensor(np.column_stack([first, np.where(gap, 0.0, second), gap])), torch.tensor(y))
    drawn = torch.stack([impute(holes, holes.y.unsqueeze(1), [(1, 2)], 1, Key(i))[seen:, 1] for i in range(300)])

    design = np.column_stack([first, y, np.ones(seen + gaps)])
    known, far = design[:seen], design[-1]
    best, left, _, _ = np.linalg.lstsq(known, second[:seen], rcond=None)
    leverage = float(far @ np.linalg.solve(known.T @ known, far))
    free = seen - 3
    width = float(np.sqrt(left[0] / free * (1 + leverage)))
    assert leverage > 3
    assert stats.kstest(drawn[:, 0], stats.t(free, float(far @ best), width).cdf).pvalue > 0.01
    assert stats.kstest(left[0] / drawn.var(1), stats.chi2(free).cdf).pvalue > 0.01  # one σ² for all gaps of a table


def test_what_is_known_is_kept_and_a_column_nobody_has_is_left_alone() -> None:
    _, holes = rows(50)
    outcome = holes.y.unsqueeze(1)
    x = impute(holes, outcome, [(1, 2)], 2, Key(0))
    known = holes.x[:, 2] == 0
    assert torch.equal(x[known], holes.x[known])
    assert bool((x[:, 2] == 0).all()) and bool((x[~known, 1] != 0).all())
    empty = holes._replace(x=holes.x * 0 + torch.tensor([0.0, 0.3, 1.0]))
    assert torch.equal(impute(empty, outcome, [(1, 2)], 2, Key(0)), empty.x)


def test_marks_are_found_by_names() -> None:
    assert marks_of(("age", "bp", "bp missing", "ward=a", "chol", "chol missing")) == "1:2,4:5"
    assert read_marks("1:2,4:5") == [(1, 2), (4, 5)]
    for wrong in ("", "1", "1:2:3", "a:b"):
        with pytest.raises(InputError, match="is no list of columns"):
            read_marks(wrong)


def test_a_product_of_imputed_posteriors_runs_on_every_engine() -> None:
    parts = [rows(40, seed)[1] for seed in range(3)]
    sites = co.Sites(tuple(parts), tuple(parts), None, None, None, None, 3, "y", "natural", ("a", "b", "c"))
    task = co.regression(nn.Linear(3, 1).double(), noise=0.25)
    method = co.methods.GaussianProduct(
        inference=MultipleImputation(Laplace(mode=Newton(steps=1), dense=True), marks="1:2", tables=2, sweeps=1)
    )
    results = [co.run(method, task, sites, engine=engine) for engine in ("sequential", "vectorised")]
    one, other = (result.state.posterior.mean for result in results)
    assert torch.allclose(one, other, atol=1e-6)
