"""Paired differences, Wilcoxon's test, Holm's adjustment, arrows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from consilience.errors import InputError
from consilience.metrics.paired import Difference, arrow, difference, holm


def test_difference_agrees_with_scipy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(0.3, 1, 10).tolist(), rng.normal(0, 1, 10).tolist()

    found = difference(a, b)

    theirs = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert found.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert found.n == 10
    assert found.p == pytest.approx(stats.wilcoxon(a, b, method="exact").pvalue)


@pytest.mark.parametrize("n", [1, 5, 6, 8])
def test_the_smallest_p_is_two_in_two_to_the_n(n: int) -> None:
    found = difference([1.0 + 0.1 * i for i in range(n)], [0.0] * n)

    assert found.p == pytest.approx(2 / 2**n)  # all signs alike: two of 2ⁿ patterns; with five 0.0625


def test_ties_and_zeros_have_an_exact_p() -> None:
    d = [-0.3, -0.3, -0.2, 0.4, 0.2, 0.5, 0.0]

    found = difference([0.7 + x for x in d], [0.7] * 7)

    # By enumeration: the zero is dropped, the others have mid-ranks 3½ 3½ 1½ 5 1½ 6, the positive ones' sum is 12½ and
    # the mean of all patterns' sums 10½. Without the rounding 0.7 + 0.2 − 0.7 and 0.7 − 0.5 are no ties, and p is 0.78.
    ranks = [3.5, 3.5, 1.5, 5, 1.5, 6]
    sums = [sum(r for r, s in zip(ranks, signs, strict=True) if s) for signs in itertools.product((0, 1), repeat=6)]
    assert found.p == pytest.approx(sum(abs(s - 10.5) >= 2 for s in sums) / 64)
    assert found.n == 7


def test_equal_scores_differ_by_nothing() -> None:
    found = difference([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])

    assert found == Difference(0.0, 0.0, 0.0, 3, 1.0, 0.0, 0)


def test_one_pair_says_nothing() -> None:
    found = difference([0.9], [0.8])

    assert found[:5] == (pytest.approx(0.1), -math.inf, math.inf, 1, 1.0)


@given(st.integers(1, 30), st.integers(0, 10**6))
@settings(max_examples=40)
def test_p_agrees_with_scipy_where_scipy_is_exact(n: int, seed: int) -> None:
    a, b = np.random.default_rng(seed).normal(size=(2, n))  # continuous: no ties, no zeros

    assert difference(a.tolist(), b.tolist()).p == pytest.approx(stats.wilcoxon(a, b, method="exact").pvalue)


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=14))
@settings(max_examples=40)
def test_swapping_the_sides_turns_the_difference_round(pairs: list[tuple[float, float]]) -> None:
    a, b = zip(*pairs, strict=True)

    forth, back = difference(a, b), difference(b, a)

    assert forth.low <= forth.mean <= forth.high
    assert 0 < forth.p <= 1
    assert (back.mean, back.low, back.high) == pytest.approx((-forth.mean, -forth.high, -forth.low), abs=1e-9)
    assert back.p == pytest.approx(forth.p)


def test_unpaired_and_infinite_scores_are_refused() -> None:
    with pytest.raises(InputError, match="2 and 1 scores"):
        difference([1.0, 2.0], [1.0])
    with pytest.raises(InputError, match="same seeds"):
        difference([], [])
    with pytest.raises(InputError, match="finite"):
        difference([math.inf, 1.0], [math.inf, 0.0])


def test_holm_by_hand() -> None:
    # Sorted 0.005 0.01 0.03 0.04, times 4 3 2 1: 0.02 0.03 0.06 0.04; the last may not lie below the third.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([0.7, 0.6]) == [1.0, 1.0]  # 2 · 0.6 is cut at 1, and 0.7 may not lie below it
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_the_raw_p_and_bonferroni(ps: list[float]) -> None:
    for raw, adjusted in zip(ps, holm(ps), strict=True):
        assert raw <= adjusted <= 1
    assert min(holm(ps)) == pytest.approx(min(1, len(ps) * min(ps)))


@pytest.mark.parametrize(
    ("mean", "n", "p", "better", "expected"),
    [
        (0.1, 10, 0.004, +1, "↑↑"),
        (0.1, 10, 0.04, +1, "↑"),
        (0.1, 10, 0.04, -1, "↓"),
        (-0.1, 10, 0.004, +1, "↓↓"),
        (-0.1, 10, 0.004, -1, "↑↑"),
        (0.1, 10, 0.01, +1, "↑"),  # below 1 %, not at it
        (0.1, 10, 0.05, +1, ""),
        (0.1, 6, 0.03125, +1, "↑"),  # the smallest p of six seeds
        (0.1, 5, 0.001, +1, ""),  # five seeds never
        (0.1, 10, 0.001, 0, ""),  # neither direction is better
    ],
)
def test_arrows(mean: float, n: int, p: float, better: int, expected: str) -> None:
    assert arrow(Difference(mean, mean - 0.05, mean + 0.05, n, p), p, better) == expected


def test_seeds_that_split_one_table_have_wider_intervals() -> None:
    """By hand: s² (1/n + test/train) in place of s²/n, with n − 1 degrees of freedom."""
    a, b = [0.5, 0.4, 0.6, 0.7], [0.3, 0.3, 0.3, 0.3]

    found = difference(a, b, overlap=0.25)

    error = np.std([0.2, 0.1, 0.3, 0.4], ddof=1) * math.sqrt(1 / 4 + 0.25)
    assert found.high - found.mean == pytest.approx(stats.t.ppf(0.975, 3) * error)
    assert found.p == pytest.approx(2 * stats.t.sf(0.25 / error, 3))


def covered(seeds: int, overlap: float, tables: int = 200) -> float:
    """How often the interval holds the true difference of two predictors' squared errors, over fresh tables.

    y = x₁ + noise, with five columns; a straight line through all of them against the mean of y. The truth is the mean
    over all tables and splits. Each table of 80 rows is split anew by every seed: 60 to train, 20 to test.
    """
    draw = np.random.default_rng(1)
    each = np.empty((tables, seeds))
    for t in range(tables):
        x = np.column_stack([draw.normal(size=(80, 5)), np.ones(80)])
        y = 0.5 * x[:, 0] + draw.normal(size=80)
        for s in range(seeds):
            order = draw.permutation(80)
            train, test = order[:60], order[60:]
            line = np.linalg.lstsq(x[train], y[train], rcond=None)[0]
            errors = (y[test] - x[test] @ line) ** 2 - (y[test] - y[train].mean()) ** 2
            each[t, s] = errors.mean()
    truth = each.mean()
    intervals = [difference(row.tolist(), [0.0] * seeds, overlap) for row in each]
    return float(np.mean([d.low <= truth <= d.high for d in intervals]))


@pytest.mark.parametrize("seeds", [5, 10])
def test_intervals_over_splits_of_one_table_cover(seeds: int) -> None:
    """200 tables: the standard error of a coverage of 95 % is 1.5 %."""
    assert covered(seeds, overlap=0.0) < 0.93  # what made the correction necessary
    assert covered(seeds, overlap=20 / 60) >= 0.92


def test_skewed_differences_are_marked_with_median_and_signs() -> None:
    even = difference([0.1, -0.1, 0.2, -0.2, 0.05, -0.05], [0.0] * 6)
    diverged = difference([-0.1, -0.12, -0.09, -0.11, -0.1, 9.0], [0.0] * 6)

    assert not even.skewed
    assert diverged.skewed and diverged.mean > 0 > diverged.median and diverged.negative == 5
