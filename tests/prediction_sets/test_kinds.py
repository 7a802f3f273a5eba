"""The four kinds: simulated rows stay inside their Beta bands, and what cannot be promised is refused by name."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from consilience.errors import InputError
from consilience.key import Key
from consilience.prediction_sets.coverage import choose_ranks, rank
from consilience.prediction_sets.kinds import (
    Calibration,
    check_calibration,
    choose_kind,
    find_guarantee,
    find_threshold,
    own_guarantee,
    site_table,
)
from consilience.prediction_sets.nonconformity import Score
from consilience.prediction_sets.score_counts import add_noise, count_scores, merge_upwards
from consilience.prediction_sets.sets import Guarantee
from consilience.privacy.entropy import Simulated

BALANCED = (40, 40, 40)
UNBALANCED = (12, 30, 78)
REPEATS = 400
FINE = torch.linspace(5e-4, 1, 2000, dtype=torch.float64)
HINGE = Score("hinge")


def plan(kind: str, level: float = 0.9, edges: Tensor = FINE, classes: tuple[str, ...] = ()) -> Calibration:
    return Calibration(kind, level, HINGE, edges, classes)


def site_names(sizes: tuple[int, ...]) -> list[str]:
    return [f"site {k}" for k in range(len(sizes))]


def uniform_scores(sizes: tuple[int, ...], repeat: int) -> list[Tensor]:
    draws = np.random.default_rng(repeat)
    return [torch.tensor(draws.random(n)) for n in sizes]


def calibrate(kind: Calibration, scores: list[Tensor], labels: list[Tensor] | None = None) -> Guarantee:
    sizes = tuple(len(found) for found in scores)
    labels = labels or [torch.zeros(n, dtype=torch.int64) for n in sizes]
    tables = [site_table(kind, s, y) for s, y in zip(scores, labels, strict=True)]
    return find_guarantee(kind, torch.stack(tables).sum(0), sizes, site_names(sizes))


@pytest.mark.parametrize("sizes", [BALANCED, UNBALANCED])
def test_pooled_counts_of_alike_sites_cover_by_their_beta(sizes: tuple[int, ...]) -> None:
    """Scores are uniform, so that a threshold is its own coverage, up to the grid's 1/2000."""
    rows = sum(sizes)
    thresholds = [calibrate(plan("pooled"), uniform_scores(sizes, i)).thresholds[0] for i in range(REPEATS)]

    r = rank(0.9, rows, len(sizes))
    assert stats.kstest(thresholds, stats.beta(r, rows - r + 1).cdf).pvalue > 0.01
    found = calibrate(plan("pooled"), uniform_scores(sizes, 0))
    assert found.least == pytest.approx(stats.beta(r, rows - r + 1).ppf(0.05), abs=1e-9)


@pytest.mark.parametrize("sizes", [BALANCED, UNBALANCED])
def test_pooled_counts_of_different_sites_cover_their_mixture(sizes: tuple[int, ...]) -> None:
    """Lu et al. 2023: between 1 − α and 1 − α + K/(N + K), for site k with the weight (n_k + 1)/(N + K)."""
    spread = (1.0, 0.6, 0.3)
    weights = (np.array(sizes) + 1) / (sum(sizes) + len(sizes))
    covered = []
    for i in range(REPEATS):
        scores = [s * a for s, a in zip(uniform_scores(sizes, i), spread, strict=True)]
        threshold = calibrate(plan("pooled"), scores).thresholds[0]
        covered.append(weights @ [min(threshold / a, 1) for a in spread])

    error = 4 * np.std(covered) / REPEATS**0.5
    assert 0.9 - error <= np.mean(covered) <= 0.9 + len(sizes) / (sum(sizes) + len(sizes)) + error + 5e-4


@pytest.mark.parametrize("sizes", [BALANCED, UNBALANCED])
def test_each_class_is_covered_by_its_beta_however_the_sites_mix_classes(sizes: tuple[int, ...]) -> None:
    """Class 1 has scores three times as large; site k has a share of it of its own. Marginal counts miss class 1."""
    shares = (0.2, 0.5, 0.7)
    labels = [(torch.arange(n) < share * n).long() for n, share in zip(sizes, shares, strict=True)]
    rows = [sum(int((y == c).sum()) for y in labels) for c in range(2)]
    covered = []
    marginal = []
    for i in range(REPEATS):
        scores = [s * (1 + 2 * y) / 3 for s, y in zip(uniform_scores(sizes, i), labels, strict=True)]
        low, high = calibrate(plan("class", classes=("no", "yes")), scores, labels).thresholds
        covered.append((min(3 * low, 1), high))
        marginal.append(calibrate(plan("pooled"), scores).thresholds[0])

    for c in range(2):
        r = rank(0.9, rows[c])
        coverage = [pair[c] for pair in covered]
        assert stats.kstest(coverage, stats.beta(r, rows[c] - r + 1).cdf).pvalue > 0.01
    assert np.mean(marginal) < 0.88


@pytest.mark.parametrize("sizes", [BALANCED, UNBALANCED])
def test_own_rows_cover_by_their_beta(sizes: tuple[int, ...]) -> None:
    found = [own_guarantee(plan("own"), uniform_scores(sizes, i), site_names(sizes)) for i in range(REPEATS)]

    for k, n in enumerate(sizes):
        r = rank(0.9, n)
        thresholds = [guarantee.thresholds[k] for guarantee in found]
        assert stats.kstest(thresholds, stats.beta(r, n - r + 1).cdf).pvalue > 0.01


@pytest.mark.parametrize("sizes", [BALANCED, UNBALANCED])
def test_a_quantile_of_quantiles_is_read_off_the_sum_of_tables(sizes: tuple[int, ...]) -> None:
    scores = uniform_scores(sizes, 1)
    ranks = choose_ranks(sizes, 0.9)
    kind = plan("quantile")
    none = torch.zeros(0, dtype=torch.int64)
    tables = [site_table(kind, s, none, r) for s, r in zip(scores, ranks.own, strict=True)]

    found = find_guarantee(kind, torch.stack(tables).sum(0), sizes, site_names(sizes), ranks)

    sent = sorted(float(s.sort().values[r - 1]) for s, r in zip(scores, ranks.own, strict=True))
    assert 0 <= found.thresholds[0] - sent[ranks.k - 1] < 6e-4
    assert all(int(table.sum()) == 1 for table in tables)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-0.5, 1.5) | st.sampled_from([0.5, math.inf]), min_size=9, max_size=60),
    st.integers(2, 12),
    st.integers(1, 8),
)
def test_neither_grid_nor_merging_lowers_a_threshold(values: list[float], grid: int, smallest: int) -> None:
    """With ties and infinite scores: never below the score that the theorem names."""
    scores = torch.tensor(values, dtype=torch.float64)
    edges = Score("hinge").edges(grid, 2)
    exact = float(scores.sort().values[rank(0.9, len(values)) - 1])
    counts = count_scores(scores, edges).unsqueeze(0)
    merged = merge_upwards(counts, smallest)

    on_grid = find_threshold(counts[0], edges, 0.9)
    when_merged = find_threshold(merged[0], edges, 0.9)

    assert exact <= on_grid <= when_merged
    assert int(merged.sum()) == len(values)
    assert all(count == 0 or count >= smallest for count in merged[0].tolist())


def test_a_line_with_too_few_rows_is_left_out_when_merging() -> None:
    counts = torch.tensor([[2, 0, 1], [4, 0, 3]])

    assert merge_upwards(counts, 5).tolist() == [[0, 0, 0], [0, 0, 7]]


def test_noise_costs_level_but_never_validity() -> None:
    """Uniform scores: a threshold is its own coverage. The margin makes it cover more than 90 %."""
    edges = HINGE.edges(20, 2)
    noisy = Calibration("pooled", 0.9, HINGE, edges, noise=9.0)
    covered = []
    for i in range(200):
        scores = uniform_scores((2000,), i)
        table = site_table(noisy, scores[0], scores[0])
        private = add_noise(table, 9.0, Simulated(Key(i)))
        covered.append(find_guarantee(noisy, private, [2000], ["one"]).thresholds[0])

    assert np.mean(covered) >= 0.9
    assert np.mean(covered) < 0.97
    assert min(covered) >= 0.85


def test_noise_has_its_variance_in_fine_steps() -> None:
    drawn = add_noise(torch.zeros(1, 20_000, dtype=torch.int64), 4.0, Simulated(Key(3)))[0]

    assert float(drawn.mean()) == pytest.approx(0, abs=4 * 2 / 20_000**0.5)
    assert float(drawn.var()) == pytest.approx(4.0, rel=4 * (2 / 20_000) ** 0.5)
    assert torch.equal(drawn * 2**20, (drawn * 2**20).round())  # what masks write exactly
    assert float((drawn == drawn.round()).double().mean()) < 0.01


def test_too_much_noise_is_refused() -> None:
    kind = Calibration("pooled", 0.9, HINGE, HINGE.edges(50, 2), noise=100.0)
    table = site_table(kind, uniform_scores((60,), 0)[0], torch.zeros(60))

    with pytest.raises(InputError, match="The noise is too large"):
        find_guarantee(kind, table, [60], ["one"])


def test_masks_that_cancel_leave_the_thresholds_alone() -> None:
    """As in a secure sum: what each site sends is noise modulo 2⁶⁴, and the sum is the sum of counts."""
    kind = plan("pooled")
    tables = [site_table(kind, scores, scores) for scores in uniform_scores(UNBALANCED, 0)]
    masks = [torch.randint(-(2**63), 2**63 - 1, tables[0].shape) for _ in tables]
    sent = [table + mask - masks[k - 1] for k, (table, mask) in enumerate(zip(tables, masks, strict=True))]
    names = site_names(UNBALANCED)

    masked = find_guarantee(kind, torch.stack(sent).sum(0), UNBALANCED, names)

    assert masked == find_guarantee(kind, torch.stack(tables).sum(0), UNBALANCED, names)


def test_infinite_scores_and_ties_give_finite_thresholds_where_they_can() -> None:
    edges = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
    ties = torch.tensor([0.5] * 19 + [math.inf], dtype=torch.float64)
    worse = torch.tensor([0.5] * 10 + [math.inf] * 10, dtype=torch.float64)

    assert find_threshold(count_scores(ties, edges), edges, 0.9) == 0.5
    assert find_threshold(count_scores(worse, edges), edges, 0.9) == math.inf


def test_classes_with_too_few_rows_are_refused_by_name() -> None:
    scores = uniform_scores((30,), 0)
    labels = [torch.tensor([0] * 27 + [1] * 3)]

    with pytest.raises(InputError, match=r"90 %, which need 9: 'rare' has 3, 'unseen' has 0\."):
        calibrate(plan("class", classes=("common", "rare", "unseen")), scores, labels)


def test_sites_with_too_few_rows_are_refused_by_name() -> None:
    scores = uniform_scores((30, 8), 0)

    with pytest.raises(InputError, match="site 1 has 8"):
        own_guarantee(plan("own"), scores, ["site 0", "site 1"])
    with pytest.raises(InputError, match="This site has 8"):
        site_table(plan("quantile"), scores[1], torch.zeros(8))
    with pytest.raises(InputError, match="38 rows of 2 site"):
        calibrate(plan("pooled", 0.99), scores)


def test_one_site_pools_as_it_would_alone() -> None:
    scores = uniform_scores((25,), 4)
    pooled = calibrate(plan("pooled"), scores).thresholds[0]
    own = own_guarantee(plan("own"), scores, ["one"]).thresholds[0]

    assert 0 <= pooled - own < 6e-4


def test_nothing_set_aside_is_refused() -> None:
    with pytest.raises(InputError, match="No rows are held out"):
        calibrate(plan("pooled"), [torch.zeros(0), torch.zeros(0)])


def test_sites_without_rows_are_not_part_of_the_mixture() -> None:
    scores = uniform_scores((25,), 4)

    assert (
        calibrate(plan("pooled"), [*scores, torch.zeros(0)]).thresholds == calibrate(plan("pooled"), scores).thresholds
    )


@pytest.mark.parametrize(("counts", "kind"), [([9, 20], "class"), ([8, 20], "pooled"), (None, "pooled")])
def test_classes_are_guaranteed_where_each_has_rows_enough(counts: list[int] | None, kind: str) -> None:
    assert choose_kind(0.9, counts) == kind


def test_what_cannot_be_calibrated_is_refused() -> None:
    with pytest.raises(InputError, match="kind of guarantee"):
        check_calibration("clas", 0.9, True)
    with pytest.raises(InputError, match="not between 0 and 1"):
        check_calibration("pooled", 90, True)
    with pytest.raises(InputError, match="needs classes"):
        check_calibration("class", 0.9, False)
    with pytest.raises(InputError, match="sends none"):
        check_calibration("own", 0.9, True, noise=1.0)


def test_a_guarantee_survives_its_file() -> None:
    guarantee = dataclasses.replace(calibrate(plan("pooled"), uniform_scores(BALANCED, 0)), thresholds=(math.inf,))

    assert Guarantee.from_json(guarantee.to_json()) == guarantee
    with pytest.raises(InputError, match="damaged"):
        Guarantee.from_json({**guarantee.to_json(), "kind": "best"})
    with pytest.raises(InputError, match="damaged"):
        Guarantee.from_json({**guarantee.to_json(), "names": []})
