"""Coverage of thresholds: closed forms, quadrature of scipy's own distributions, and simulated rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from consilience.prediction_sets import coverage


@pytest.mark.parametrize(("level", "rows", "expected"), [(0.9, 9, 9), (0.9, 8, 9), (0.9, 99, 90), (0.7, 9, 7)])
def test_a_rank_is_free_of_binary_rounding(level: float, rows: int, expected: int) -> None:
    assert coverage.rank(level, rows) == expected  # 0.7 · 10 is 7.000000000000001 in binary


@pytest.mark.parametrize(("level", "expected"), [(0.9, 9), (0.95, 19), (0.8, 4), (0.5, 1)])
def test_the_fewest_rows_are_one_over_alpha_less_one(level: float, expected: int) -> None:
    assert coverage.fewest_rows(level) == expected
    assert coverage.rank(level, expected) == expected
    assert coverage.rank(level, expected - 1) > expected - 1


def test_one_site_covers_as_an_order_statistic() -> None:
    assert coverage.quantile_coverage([18], [20], 1) == pytest.approx(18 / 21, abs=1e-10)


def test_sites_of_one_row_cover_as_the_order_statistic_of_all() -> None:
    assert coverage.quantile_coverage([1] * 7, [1] * 7, 5) == pytest.approx(5 / 8, abs=1e-10)


def test_equal_sites_cover_by_the_binomial_formula() -> None:
    sites, rows, own, k = 8, 25, 23, 5
    below = stats.beta(own, rows - own + 1).cdf
    expected, _ = integrate.quad(lambda u: stats.binom.cdf(k - 1, sites, below(u)), 0, 1, epsabs=1e-12)

    assert coverage.quantile_coverage([own] * sites, [rows] * sites, k) == pytest.approx(expected, abs=1e-9)


def test_the_largest_of_unequal_sites_covers_by_their_product() -> None:
    own, sizes = [10, 28, 90], [10, 30, 100]
    product = lambda u: np.prod([stats.beta(r, n - r + 1).cdf(u) for r, n in zip(own, sizes, strict=True)])
    expected = 1 - integrate.quad(product, 0, 1, epsabs=1e-12)[0]

    assert coverage.quantile_coverage(own, sizes, 3) == pytest.approx(expected, abs=1e-9)


def test_large_sites_are_integrated_where_they_change() -> None:
    """One site of a million rows: ℓ/(n + 1), though the integrand falls within a thousandth of the unit interval."""
    assert coverage.quantile_coverage([900_001], [1_000_000], 1) == pytest.approx(900_001 / 1_000_001, abs=1e-9)


@pytest.mark.parametrize("sizes", [(20,) * 6, (9, 15, 40, 200), (50,)])
def test_chosen_ranks_reach_the_level_and_hardly_more(sizes: tuple[int, ...]) -> None:
    usual = coverage.choose_k([coverage.rank(0.9, n) for n in sizes], sizes, 0.9)
    chosen = coverage.choose_ranks(sizes, 0.9)

    assert 0.9 - 1e-9 <= chosen.coverage <= usual.coverage
    assert chosen.coverage < 0.93
    assert chosen.coverage == pytest.approx(coverage.quantile_coverage(chosen.own, sizes, chosen.k), abs=1e-12)


@pytest.mark.parametrize("sizes", [(20,) * 6, (9, 15, 40, 200)])
def test_simulated_quantiles_of_quantiles_follow_their_law(sizes: tuple[int, ...]) -> None:
    """Scores are uniform, so that a threshold is its own coverage."""
    ranks = coverage.choose_ranks(sizes, 0.9)
    draws = np.random.default_rng(0)
    sent = [np.sort(draws.random((2000, n)), 1)[:, r - 1] for n, r in zip(sizes, ranks.own, strict=True)]
    thresholds = np.sort(np.stack(sent), 0)[ranks.k - 1]
    law = np.vectorize(lambda u: coverage.quantile_tail(ranks.own, sizes, ranks.k, u))

    assert stats.kstest(thresholds[:300], law).pvalue > 0.01
    assert thresholds.mean() == pytest.approx(ranks.coverage, abs=4 * thresholds.std() / 2000**0.5)
    least = coverage.quantile_least(ranks.own, sizes, ranks.k)
    assert (thresholds < least).mean() == pytest.approx(0.05, abs=4 * (0.05 * 0.95 / 2000) ** 0.5)


def test_intervals_of_a_proportion_are_clopper_and_pearsons() -> None:
    for hits, rows in ((0, 12), (12, 12), (45, 50)):
        expected = stats.binomtest(hits, rows).proportion_ci(0.95, method="exact")
        assert coverage.binomial_interval(hits, rows) == pytest.approx((expected.low, expected.high), abs=1e-12)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(9, 60), min_size=1, max_size=5))
def test_the_usual_ranks_always_reach_the_level(sizes: list[int]) -> None:
    found = coverage.choose_k([coverage.rank(0.9, n) for n in sizes], sizes, 0.9)

    assert found.coverage >= 0.9 - 1e-9
    if found.k > 1:
        assert coverage.quantile_coverage(found.own, sizes, found.k - 1) < 0.9 - 1e-9
