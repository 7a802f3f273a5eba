"""Partial pooling against closed forms, simulation, and statsmodels' mixed models."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.posterior import Dense, Natural, multiply
from consilience.glm.hierarchy import (
    as_dense,
    at_one,
    deviations,
    divide,
    i_squared,
    newcomer,
    pool,
    population,
    populations,
    site_posterior,
    stack,
)
from consilience.glm.mixed import factor_of, fit_variances, groups_of
from consilience.glm.sums import Sums, summarise

DOUBLE = torch.float64


def draws(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def rows_of(seed: int, sites: int = 4, rows: int = 12, weights: int = 3) -> list[tuple[Tensor, Tensor]]:
    """Inputs and targets of unit noise, whose weights differ from site to site."""
    found = []
    for k in range(sites):
        x = draws(10 * seed + k, rows, weights)
        theta = torch.ones(weights, dtype=DOUBLE) + 0.7 * draws(1000 + 10 * seed + k, weights)
        found.append((x, x @ theta + draws(2000 + 10 * seed + k, rows)))
    return found


def factors_of(rows: list[tuple[Tensor, Tensor]]) -> list[Natural]:
    return [Natural(x.mT @ y, x.mT @ x) for x, y in rows]


def standard(weights: int) -> Dense:
    return Dense(torch.zeros(weights, dtype=DOUBLE), torch.eye(weights, dtype=DOUBLE))


def test_without_spread_it_is_the_product() -> None:
    factors = factors_of(rows_of(1))
    prior = standard(3)
    posteriors = [
        Dense(torch.linalg.solve(f.precision + torch.eye(3), f.linear), f.precision + torch.eye(3)) for f in factors
    ]

    hierarchy = at_one([divide(p, prior) for p in posteriors], Natural(prior.mean, prior.precision), torch.zeros(3))

    product = multiply(posteriors, prior)
    for belief in (newcomer(hierarchy), *(site_posterior(hierarchy, factor) for factor in factors)):
        own = as_dense(belief)
        assert float((own.mean - product.mean).abs().max()) < 1e-8
        assert float((own.precision - product.precision).abs().max()) < 1e-8 * float(product.precision.max())


def test_with_endless_spread_each_site_is_alone() -> None:
    rows = rows_of(2)
    factors = factors_of(rows)

    hierarchy = at_one(factors, Natural(torch.zeros(3), torch.eye(3)), torch.full((3,), 1e12))

    for (x, y), factor in zip(rows, factors, strict=True):
        belief = site_posterior(hierarchy, factor)
        alone = torch.linalg.lstsq(x, y.unsqueeze(1)).solution.squeeze(1)
        assert float((belief.mean - alone).abs().max()) < 1e-8
        assert float((belief.var - torch.linalg.inv(x.mT @ x)).abs().max()) < 1e-8


def joint(rows: list[tuple[Tensor, Tensor]], var: Tensor) -> tuple[Tensor, Tensor]:
    """All targets in one vector, and their covariance with μ ~ N(0, I) and θₖ ~ N(μ, T) integrated out."""
    x = torch.cat([x for x, _ in rows])
    own = torch.block_diag(*(x @ torch.diag(var) @ x.mT for x, _ in rows))
    y = torch.cat([y for _, y in rows])
    return y, torch.eye(len(y), dtype=DOUBLE) + own + x @ x.mT


def test_the_marginal_likelihood_is_that_of_all_targets_together() -> None:
    rows = rows_of(3)
    variances = [torch.tensor(v, dtype=DOUBLE) for v in ([0.0, 0.0, 0.0], [0.1, 1.0, 1.0], [2.0, 0.5, 0.5])]

    found = [population(factors_of(rows), var, Natural(torch.zeros(3), torch.eye(3))) for var in variances]

    ours = [float(f.log_evidence - found[0].log_evidence) for f in found]
    theirs = [
        stats.multivariate_normal(cov=joint(rows, var)[1].numpy()).logpdf(joint(rows, var)[0]) for var in variances
    ]
    assert ours == pytest.approx([value - theirs[0] for value in theirs], abs=1e-8)


def test_a_sites_posterior_is_that_of_conditioning_everything_on_all_targets() -> None:
    rows = rows_of(4)
    var = torch.tensor([0.3, 1.2, 0.4], dtype=DOUBLE)

    hierarchy = at_one(factors_of(rows), Natural(torch.zeros(3), torch.eye(3)), var)

    y, cov = joint(rows, var)
    x = torch.cat([x for x, _ in rows])
    start = 0
    for own_x, own_y in rows:
        across = x.clone().mT  # Cov(θₖ, y) = I Xᵀ for all sites, and T Xₖᵀ more for this one
        across[:, start : start + len(own_x)] += torch.diag(var) @ own_x.mT
        start += len(own_x)
        belief = site_posterior(hierarchy, Natural(own_x.mT @ own_y, own_x.mT @ own_x))
        assert torch.allclose(belief.mean, across @ torch.linalg.solve(cov, y), atol=1e-9)
        whole = torch.eye(3, dtype=DOUBLE) + torch.diag(var) - across @ torch.linalg.solve(cov, across.mT)
        assert torch.allclose(belief.var, whole, atol=1e-9)
    assert torch.allclose(newcomer(hierarchy).var, torch.diag(var) + hierarchy.spread)


def test_regressions_that_share_inputs_are_each_as_if_alone() -> None:
    rows = rows_of(5)
    others = rows_of(6)
    var = torch.full((3,), 0.5, dtype=DOUBLE)
    both = [
        Natural(torch.stack([x.mT @ y, x.mT @ z], 1), x.mT @ x) for (x, y), (_, z) in zip(rows, others, strict=True)
    ]

    together = at_one(both, Natural(torch.zeros(3, 2), torch.eye(3)), var)

    alone = at_one(factors_of(rows), Natural(torch.zeros(3), torch.eye(3)), var)
    assert torch.allclose(together.mean[..., 0], alone.mean)
    own = site_posterior(together, both[1])
    assert torch.allclose(own.mean[:, 0], site_posterior(alone, factors_of(rows)[1]).mean)
    assert torch.allclose(own.var, site_posterior(alone, factors_of(rows)[1]).var)


def test_the_order_of_sites_is_irrelevant() -> None:
    factors = factors_of(rows_of(7))
    prior = Natural(torch.zeros(3), torch.eye(3))
    groups = torch.tensor([0, 1, 1])
    scale = torch.tensor([0.5, 0.5])

    forward = pool(factors, prior, groups, scale)
    backward = pool(factors[::-1], prior, groups, scale)

    for a, b in zip(forward, backward, strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-11)


def test_averaging_over_the_grid_is_the_integral_over_the_spread() -> None:
    """E(τ | D) of one mean in eight groups, against quadrature over a fine grid of τ."""
    factors = [Natural(5 * y, torch.full((1, 1), 5.0, dtype=DOUBLE)) for y in 1.5 * draws(8, 8, 1)]
    prior = Natural(torch.zeros(1), torch.full((1, 1), 1e-6))

    hierarchy = pool(factors, prior, torch.tensor([0]), torch.tensor([0.5]), nodes=15)

    taus = torch.linspace(5e-3, 6, 600, dtype=DOUBLE)
    logs = torch.stack([population(factors, (tau**2).reshape(1), prior).log_evidence for tau in taus])
    weights = torch.softmax(logs - 0.5 * (taus / 0.5) ** 2, 0)
    # the grid ends three deviations of log τ from its mean, which leaves half a percent out
    assert float(hierarchy.weights @ hierarchy.var.sqrt()[:, 0]) == pytest.approx(float(weights @ taus), rel=1e-2)
    low, middle, high = deviations(hierarchy)[:, 0].tolist()
    assert low < float(weights @ taus) < high
    assert low <= middle <= high


def test_many_sites_know_the_spread_and_the_grid_follows() -> None:
    """A thousand means of variance 1/5 around 0 with τ = 2: the grid's τ is the maximum of the marginal likelihood."""
    means = (0.2 + 4.0) ** 0.5 * draws(9, 1000, 1)
    factors = [Natural(5 * y, torch.full((1, 1), 5.0, dtype=DOUBLE)) for y in means]
    prior = Natural(torch.zeros(1, dtype=DOUBLE), torch.full((1, 1), 1e-6, dtype=DOUBLE))

    hierarchy = pool(factors, prior, torch.tensor([0]), torch.tensor([10.0]), nodes=5)

    best = (float(means.var()) - 0.2) ** 0.5  # REML of equal groups: the variance of their means less their own
    low, middle, high = deviations(hierarchy)[:, 0].tolist()
    assert low < best < high
    assert middle == pytest.approx(best, rel=0.02)
    assert high / low < 1.25


def test_intervals_of_sites_and_newcomers_cover_as_often_as_they_say() -> None:
    """All drawn from the model itself: τ half-normal, μ standard normal, seven sites of one mean; 300 worlds."""
    generator = torch.Generator().manual_seed(0)
    prior = Natural(torch.zeros(1), torch.eye(1))
    worlds = 300
    covered = {"site": 0, "newcomer": 0}
    for _ in range(worlds):
        z = torch.randn(18, generator=generator, dtype=DOUBLE)
        theta = z[0] + 0.5 * z[1].abs() * z[2:10]
        factors = [
            Natural(4 * (t + e / 2).reshape(1), torch.full((1, 1), 4.0))
            for t, e in zip(theta[:7], z[10:17], strict=True)
        ]
        hierarchy = pool(factors, prior, torch.tensor([0]), torch.tensor([0.5]))
        beliefs = {
            "site": (theta[0], site_posterior(hierarchy, factors[0])),
            "newcomer": (theta[7], newcomer(hierarchy)),
        }
        for name, (truth, belief) in beliefs.items():
            covered[name] += int((truth - belief.mean).abs() < 1.959964 * belief.var.sqrt())
    low, high = stats.binom.interval(0.999, worlds, 0.95)
    assert all(low <= count <= high for count in covered.values()), covered


def mixed_rows(seed: int, sites: int, slopes: float) -> list[tuple[Tensor, Tensor]]:
    found = []
    for k in range(sites):
        x = draws(100 * seed + k, 25, 2)
        own = draws(5000 + 100 * seed + k, 3) * torch.tensor([0.9, slopes, slopes], dtype=DOUBLE)
        y = (
            1.0
            + own[0]
            + x @ (torch.tensor([0.5, -1.0], dtype=DOUBLE) + own[1:])
            + 0.8 * draws(9000 + 100 * seed + k, 25)
        )
        found.append((x, y))
    return found


def sums_of(rows: list[tuple[Tensor, Tensor]]) -> list[Sums]:
    return [summarise(lambda x: x, Data.of(x, y), None) for x, y in rows]


FLAT = Natural(torch.zeros(3, dtype=DOUBLE), 1e-12 * torch.eye(3, dtype=DOUBLE))
LAYER = {"weight": torch.zeros(1, 2), "bias": torch.zeros(1)}


def test_random_intercepts_and_slopes_are_those_of_statsmodels() -> None:
    """REML of y ~ x1 + x2 with one variance of intercepts and one of both slopes, eight sites of 25 rows."""
    pandas = pytest.importorskip("pandas")
    formula = pytest.importorskip("statsmodels.formula.api")
    rows = mixed_rows(3, 8, 0.6)
    table = pandas.concat(
        [pandas.DataFrame({"x1": x[:, 0], "x2": x[:, 1], "y": y, "site": k}) for k, (x, y) in enumerate(rows)],
        ignore_index=True,
    )
    parts = {"intercepts": "1", "slopes": "0 + x1 + x2"}
    model = formula.mixedlm("y ~ x1 + x2", table, groups="site", re_formula="0", vc_formula=parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = model.fit(reml=True, method="lbfgs")

    ours = fit_variances(sums_of(rows), LAYER, FLAT)

    assert groups_of(LAYER).tolist() == [1, 1, 0]
    assert (ours.tau**2).tolist() == pytest.approx(list(theirs.vcomp), rel=2e-3)
    assert math.exp(float(ours.log_noise)) == pytest.approx(theirs.scale, rel=1e-4)
    factors = [factor_of(part, LAYER, ours.log_noise) for part in sums_of(rows)]
    hierarchy = at_one(factors, FLAT, (ours.tau**2)[groups_of(LAYER)])
    fixed = theirs.fe_params[["x1", "x2", "Intercept"]].to_numpy()
    assert hierarchy.centre.tolist() == pytest.approx(list(fixed), abs=1e-4)
    errors = theirs.bse_fe[["x1", "x2", "Intercept"]].to_numpy()
    assert hierarchy.spread.diagonal().sqrt().tolist() == pytest.approx(list(errors), rel=2e-3)
    own = site_posterior(hierarchy, factors[2]).mean - hierarchy.centre
    effects = theirs.random_effects[2]
    names = ["slopes[x1]", "slopes[x2]", "intercepts[Intercept]"]
    assert own.tolist() == pytest.approx([effects[name] for name in names], abs=1e-3)


def test_i_squared_of_equal_sites_is_the_share_of_their_spread() -> None:
    """Estimates of variance ¼ each and τ² = ¾: three quarters of what they differ by."""
    factors = [Natural(torch.zeros(1, dtype=DOUBLE), torch.full((1, 1), 4.0, dtype=DOUBLE))] * 5
    assert float(i_squared(factors, torch.tensor([0.75], dtype=DOUBLE))) == pytest.approx(0.75)


def fine_quantiles(factors: list[Natural], prior: Natural, middle: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Quantiles of τ of intercepts and slopes, from 121 × 121 nodes around a guess."""
    axes = [torch.linspace(-8, 2, 121, dtype=DOUBLE) + m.log() for m in middle]
    logs = torch.cartesian_prod(*axes)
    precision, linear = stack(factors)
    parts = (2 * logs).exp()[:, [0, 1, 1]].split(2000)
    evidence = torch.cat([populations(precision, linear, part, prior).log_evidence for part in parts])
    mass = torch.softmax(evidence + (logs - 0.5 * (logs.exp() / 0.5) ** 2).sum(1), 0).reshape(121, 121)
    columns = (mass.sum(1), mass.sum(0))
    found = [np.interp(levels, c.cumsum(0) - c / 2, axis) for axis, c in zip(axes, columns, strict=True)]
    return torch.from_numpy(np.exp(found)).T


@pytest.mark.parametrize(("seed", "spread"), [(1, 0.5), (2, 0.08), (3, 0.2)])
def test_quantiles_of_the_spread_are_those_of_a_fine_grid(seed: int, spread: float) -> None:
    """Nine nodes, read off, were 5 to 40 % away, and could have two ends alike."""
    factors = [Natural(x.mT @ y, x.mT @ x) for x, y in spread_rows(seed, 12, spread)]
    prior = Natural(torch.zeros(3, dtype=DOUBLE), torch.eye(3, dtype=DOUBLE))

    found = deviations(pool(factors, prior, torch.tensor([0, 1, 1]), torch.tensor([0.5, 0.5])))

    fine = fine_quantiles(factors, prior, found[1, :2], (0.025, 0.5, 0.975))
    assert torch.equal(found[:, 1], found[:, 2])
    assert torch.allclose(found[1:, :2], fine[1:], rtol=0.025)
    assert torch.allclose(found[0, :2], fine[0], rtol=0.025)


def spread_rows(seed: int, sites: int, tau: float) -> list[tuple[Tensor, Tensor]]:
    found = []
    for k in range(sites):
        x = torch.cat([torch.ones(30, 1, dtype=DOUBLE), draws(700 * seed + k, 30, 2)], 1)
        theta = torch.tensor([0.0, 1.0, 0.5], dtype=DOUBLE) + tau * draws(90_000 + 700 * seed + k, 3)
        found.append((x, x @ theta + draws(180_000 + 700 * seed + k, 30)))
    return found


def coverage_of_the_spread(worlds: int, sites: int) -> float:
    """How often 95 % intervals of τ of slopes hold it, τ being half-normal as its prior says."""
    covered = 0
    prior = Natural(torch.zeros(3, dtype=DOUBLE), torch.eye(3, dtype=DOUBLE))
    for world in range(worlds):
        tau = float(0.5 * draws(500_000 + world, 1).abs())
        factors = [Natural(x.mT @ y, x.mT @ x) for x, y in spread_rows(1000 + world, sites, tau)]
        found = deviations(pool(factors, prior, torch.tensor([0, 1, 1]), torch.tensor([0.5, 0.5])))
        covered += int(found[0, 1] <= tau <= found[2, 1])
    return covered / worlds


@pytest.mark.slow
def test_intervals_of_the_spread_cover_as_often_as_they_say() -> None:
    low, high = stats.binom.interval(0.999, 1000, 0.95)
    assert low <= 1000 * coverage_of_the_spread(1000, 10) <= high
