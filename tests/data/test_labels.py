"""Every split hands out every row once, to sites that are never empty, as the key and nothing else decides."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import equal, keeps_its_contract, labelled

from consilience.data.datasets.synthetic import digits
from consilience.data.splits.labels import (
    HeterogeneousHasan2023,
    Iid,
    dirichlet,
    heterogeneous,
    iid,
    natural,
    sorted_feature,
)
from consilience.data.splits.split import Rows, Split, apportion, dirichlet_draws
from consilience.errors import InputError
from consilience.key import Key

SPLITS = st.one_of(
    st.just(iid()),
    st.floats(0, 1).map(heterogeneous),
    st.floats(1e-320, 1e12).map(dirichlet),
    st.sampled_from([1e-3, 0.01, 0.1, 1.0, 100.0]).map(dirichlet),
)


@settings(max_examples=150)
@given(SPLITS, st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 2**40), st.data())
def test_disjoint_complete_never_empty_deterministic(
    split: Split, labels: list[int], seed: int, data: st.DataObject
) -> None:
    rows, sites = labelled(labels), data.draw(st.integers(1, len(labels)))

    keeps_its_contract(split, rows, sites, seed)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(0, 2**40))
def test_natural_is_the_site_ids(ids: list[int], seed: int) -> None:
    site, sites = torch.tensor(ids), len(set(ids))
    rows = labelled([0] * len(ids), site=site)

    parts = natural()(rows, sites, Key(seed))

    assert [sorted(set(site[part].tolist())) for part in parts] == [[i] for i in sorted(set(ids))]
    assert torch.cat(parts).sort().values.tolist() == list(range(len(ids)))


def test_natural_with_fewer_sites_takes_the_first_ids() -> None:
    rows = labelled([0] * 6, site=torch.tensor([7, 2, 5, 2, 7, 5]))

    parts = natural()(rows, 2, Key(0))

    assert [part.tolist() for part in parts] == [[1, 3], [2, 5]]  # ids 2 and 5; id 7 takes no part


@pytest.mark.parametrize("split", [iid(), heterogeneous(0.5), heterogeneous(1.0), dirichlet(0.1), dirichlet(10)])
def test_the_key_matters(split: Split) -> None:
    rows = labelled(torch.arange(200) % 4)

    assert not equal(split(rows, 3, Key(0)), split(rows, 3, Key(1)))


def test_global_randomness_is_neither_used_nor_changed() -> None:
    rows = labelled(torch.arange(40) % 4)
    torch.manual_seed(1)
    first, after = dirichlet(0.5)(rows, 4, Key(3)), torch.rand(1)
    torch.manual_seed(1)

    untouched = torch.rand(1)

    assert torch.equal(after, untouched)
    assert equal(first, dirichlet(0.5)(rows, 4, Key(3)))  # though the global generator now stands elsewhere


def test_h_0_is_iid() -> None:
    rows = labelled(torch.arange(1000) % 4)

    parts = heterogeneous(0.0)(rows, 5, Key(0))

    assert [len(part) for part in parts] == [200] * 5
    # 50 rows of a class are expected at a site; hypergeometric deviation sqrt(200·¼·¾·800/999) = 5.5, five of them: 27.
    counts = torch.stack([torch.bincount(rows.y[part], minlength=4) for part in parts])
    assert (counts - 50).abs().max() < 27
    assert equal(parts, iid()(rows, 5, Key(0)))  # the same permutation, cut in the same places


def test_h_1_is_sorted_by_class_and_cut() -> None:
    rows = labelled(torch.tensor([3, 0, 2, 1, 3, 0, 2, 1, 3, 0, 2, 1]))

    parts = heterogeneous(1.0)(rows, 4, Key(0))

    assert [rows.y[part].tolist() for part in parts] == [[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3]]


def test_h_between_mixes_in_proportion() -> None:
    rows = labelled(torch.arange(4000) % 4)

    parts = heterogeneous(0.6)(rows, 4, Key(0))

    # Site k has its 600 sorted rows of class k, and of the 400 others a quarter of each class: 700, 100, 100, 100.
    # Deviation of the hypergeometric quarter: sqrt(400·¼·¾) < 9; five of them: 45.
    counts = torch.stack([torch.bincount(rows.y[part], minlength=4) for part in parts])
    assert (counts - (100 + 600 * torch.eye(4))).abs().max() < 45
    assert counts.sum(1).tolist() == [1000] * 4


@settings(max_examples=60)
@given(st.floats(0, 1), st.integers(1, 60), st.data())
def test_h_leaves_sites_of_equal_size(h: float, n: int, data: st.DataObject) -> None:
    sites = data.draw(st.integers(1, n))

    sizes = [len(part) for part in heterogeneous(h)(labelled(torch.arange(n) % 4), sites, Key(0))]

    assert max(sizes) - min(sizes) <= 1  # as even as n rows at K sites can be, for every h


def test_dirichlet_with_tiny_alpha_and_many_clients() -> None:
    y = digits().y[:1437]
    rows = Rows(torch.zeros(1437, 1), y, None, 10)

    parts = dirichlet(0.01)(rows, 100, Key(0))

    assert min(len(part) for part in parts) >= 1
    assert torch.cat(parts).sort().values.tolist() == list(range(1437))
    # Σα = 1 over 100 sites: a class sits almost wholly at a few of them, so most sites were repaired to one row.
    assert sum(len(part) == 1 for part in parts) > 50


def test_dirichlet_with_large_alpha_is_even() -> None:
    rows = labelled(torch.arange(400) % 4)

    parts = dirichlet(1e12)(rows, 4, Key(0))

    counts = torch.stack([torch.bincount(rows.y[part], minlength=4) for part in parts])
    assert (counts - 25).abs().max() <= 1  # shares are 1/4 up to 1e-5, so only the remainders differ


def test_dirichlet_draws_have_the_right_moments() -> None:
    draws = dirichlet_draws(0.7, (20000, 4), Key(0))

    # Dirichlet(α) over K: mean 1/K, variance (K−1) / (K² (Kα + 1)) = 3 / (16 · 3.8).
    assert torch.allclose(draws.sum(-1), torch.ones(20000, dtype=torch.float64))
    assert (draws.mean(0) - 0.25).abs().max() < 5 * (3 / (16 * 3.8) / 20000) ** 0.5
    assert (draws.var(0) - 3 / (16 * 3.8)).abs().max() < 0.002  # deviation of s²: sqrt((μ₄ − σ⁴)/n) ≈ 4e-4


@pytest.mark.parametrize("alpha", [5e-324, 1e-300, 1e-3, 1.0, 1e9, 1e300])
def test_dirichlet_draws_are_proportions_at_every_alpha(alpha: float) -> None:
    draws = dirichlet_draws(alpha, (50, 7), Key(1))

    assert torch.isfinite(draws).all()
    assert torch.allclose(draws.sum(-1), torch.ones(50, dtype=torch.float64))


@settings(max_examples=100)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=20).filter(any), st.integers(0, 200), st.integers(0, 99))
def test_apportion_is_within_one_of_the_quota(weights: list[int], total: int, seed: int) -> None:
    counts = apportion(torch.tensor(weights), total, Key(seed))

    assert sum(counts) == total
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) < 1


def test_test_rows_follow_the_training_rows_class_by_class() -> None:
    rows, test = labelled(torch.arange(2000) % 4), labelled(torch.arange(400) % 4)
    for split in (dirichlet(0.3), heterogeneous(0.9)):
        train = [rows.take(part) for part in split(rows, 6, Key(2))]

        parts = split.follow(test, train, Key(3))

        # 500 training and 100 test rows of each class: a site's quota is a fifth of its training rows, rounded.
        ours = torch.stack([torch.bincount(part.y, minlength=4) for part in train])
        theirs = torch.stack([torch.bincount(test.y[part], minlength=4) for part in parts])
        assert (theirs - ours / 5).abs().max() < 1
        assert torch.cat(parts).sort().values.tolist() == list(range(400))


def test_test_rows_of_a_class_nobody_trains_on_go_by_size() -> None:
    train = [labelled([0] * 30), labelled([1] * 10)]

    parts = dirichlet(1.0).follow(labelled([2] * 8), train, Key(0))

    assert [len(part) for part in parts] == [6, 2]  # 8 rows by 30 : 10


def test_fewer_test_rows_than_sites_leave_sites_without() -> None:
    train = [labelled([0]) for _ in range(5)]

    for split in (iid(), dirichlet(1.0), heterogeneous(0.5)):
        assert sorted(len(part) for part in split.follow(labelled([0, 0]), train, Key(0))) == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("h", [-0.1, 1.1, float("nan"), "0.5"])
def test_h_outside_its_range(h: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        heterogeneous(h)


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf"), "0.1"])
def test_alpha_outside_its_range(alpha: float) -> None:
    with pytest.raises(InputError, match="positive number"):
        dirichlet(alpha)


def test_impossible_requests() -> None:
    rows = labelled([0, 1, 2])

    with pytest.raises(InputError, match="at most 3 sites"):
        iid()(rows, 4, Key(0))
    with pytest.raises(InputError, match="at least one site"):
        iid()(rows, 0, Key(0))
    with pytest.raises(InputError, match="needs a site id for every row"):
        natural()(rows, 2, Key(0))
    with pytest.raises(InputError, match="Only 1 natural sites"):
        natural()(labelled([0, 1], site=torch.tensor([3, 3])), 2, Key(0))


@pytest.mark.parametrize("split", [dirichlet(0.1), heterogeneous(0.9)])
def test_regression_has_no_classes_to_go_by(split: Split) -> None:
    rows = Rows(torch.zeros(10, 1), torch.zeros(10), None, None)

    with pytest.raises(InputError, match=r"use iid\(\), natural\(\)"):
        split(rows, 2, Key(0))
    assert len(iid()(rows, 2, Key(0))) == 2


# Sorted by a feature


def measured(x: list[list[float]] | torch.Tensor) -> Rows:
    """Rows of a regression."""
    x = torch.as_tensor(x, dtype=torch.float32)
    return Rows(x, torch.zeros(len(x)), None, None)


@settings(max_examples=80)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40), st.integers(0, 2**40), st.data())
def test_sorted_parts_are_contiguous_complete_and_even(values: list[int], seed: int, data: st.DataObject) -> None:
    rows, sites = measured([[0.5, v] for v in values]), data.draw(st.integers(1, len(values)))

    parts = sorted_feature(1)(rows, sites, Key(seed))

    assert torch.cat(parts).sort().values.tolist() == list(range(len(values)))
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1
    assert all(rows.x[a, 1].max() <= rows.x[b, 1].min() for a, b in pairwise(parts))
    assert equal(parts, sorted_feature(1)(rows, sites, Key(seed)))


def test_without_a_column_it_is_the_one_of_largest_variance() -> None:
    rows = measured([[0, 30, 1], [1, 10, 1], [2, 20, 1], [3, 0, 1]])  # variances 1.25, 125, 0

    assert [part.tolist() for part in sorted_feature()(rows, 2, Key(0))] == [[1, 3], [0, 2]]
    assert [part.tolist() for part in sorted_feature(0)(rows, 2, Key(0))] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("seed", range(10))
def test_equal_variances_take_the_same_column_in_both_parts(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(200, generator=generator)
    x = torch.stack([a, a[torch.randperm(200, generator=generator)]], 1)  # equal variances but for rounding,
    rows, split = measured(x), sorted_feature()  # which depends on the order of the rows

    train = [rows.take(part) for part in split(rows, 4, Key(0))]
    test = torch.rand(50, 2, generator=generator)
    parts = split.follow(measured(test), train, Key(1))

    assert all(a.x[:, 0].max() <= b.x[:, 0].min() for a, b in pairwise(train))
    assert all(test[a, 0].max() <= test[b, 0].min() for a, b in pairwise(parts))


def test_test_rows_go_where_their_value_is_trained_on() -> None:
    train = [measured([[0.0], [1.0]]), measured([[2.0], [4.0]]), measured([[7.0], [9.0]])]
    test = measured([[-3.0], [0.5], [1.4], [1.6], [3.0], [5.0], [6.0], [50.0]])

    parts = sorted_feature().follow(test, train, Key(0))

    # Inside a range: 0.5, 3. Outside, the nearer end: −3 and 1.4 → 1; 1.6 → 2; 5 → 4; 6 → 7; 50 → 9.
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_test_rows_of_a_value_that_was_cut_through_go_by_count() -> None:
    train = [measured([[0.0], [1.0], [1.0], [1.0]]), measured([[1.0], [2.0], [2.0], [2.0]])]
    test = measured([[1.0]] * 8 + [[0.0], [2.0]])

    parts = sorted_feature().follow(test, train, Key(0))

    assert [len(part) for part in parts] == [6 + 1, 2 + 1]  # the eight by 3 : 1
    assert 8 in parts[0].tolist()
    assert 9 in parts[1].tolist()
    assert not equal(parts, sorted_feature().follow(test, train, Key(1)))  # which of the eight is chance


def test_sorting_by_a_feature_that_is_not_there() -> None:
    with pytest.raises(InputError, match="no feature 3 to sort by: the last is 2"):
        sorted_feature(3)(measured([[0, 0, 0], [1, 1, 1]]), 2, Key(0))
    for column in (-1, 0.5):
        with pytest.raises(InputError, match="not the number of a feature"):
            sorted_feature(column)  # type: ignore[arg-type]


# The released form of Hasan 2023


def test_the_released_form_has_one_homogeneous_part_for_all() -> None:
    rows = labelled(torch.arange(4000) % 4)

    parts = heterogeneous(0.6, "hasan2023")(rows, 4, Key(0))

    # n/K = 1000: 400 rows of one shuffle, the same at all sites, and the first 600 of the site's class. A quarter of
    # the 400 is expected to be of the site's class and therefore there twice: deviation sqrt(400·¼·¾) < 9, five: 45.
    assert [len(part) for part in parts] == [1000] * 4
    everywhere = set(parts[0].tolist()).intersection(*(part.tolist() for part in parts[1:]))
    assert len(everywhere) == 400
    counts = torch.stack([torch.bincount(rows.y[part], minlength=4) for part in parts])
    assert (counts.sort(1).values - torch.tensor([100, 100, 100, 700])).abs().max() < 45
    assert sorted(counts.argmax(1).tolist()) == [0, 1, 2, 3]
    for part in parts:
        assert abs(1000 - len(part.unique()) - 100) < 45


def test_the_released_form_at_its_ends() -> None:
    rows = labelled(torch.arange(40) % 4)

    same, apart = heterogeneous(0.0, "hasan2023")(rows, 4, Key(0)), heterogeneous(1.0, "hasan2023")(rows, 4, Key(0))

    assert all(torch.equal(part, same[0]) for part in same)
    assert [len(part) for part in same] == [10] * 4
    assert [len(set(rows.y[part].tolist())) for part in apart] == [1] * 4
    assert torch.cat(apart).sort().values.tolist() == list(range(40))


def test_the_released_form_deals_out_whole_classes() -> None:
    rows = labelled(torch.arange(1000) % 10, classes=10)

    three = heterogeneous(1.0, "hasan2023")(rows, 3, Key(0))
    many = heterogeneous(1.0, "hasan2023")(rows, 12, Key(0))

    # Classes shared out as evenly as can be, smaller groups first; with more sites than classes they begin again.
    assert [len(set(rows.y[part].tolist())) for part in three] == [3, 3, 4]
    assert torch.equal(many[0], many[10])
    assert len({int(rows.y[part][0]) for part in many}) == 10


@settings(max_examples=60)
@given(st.floats(0, 1), st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 99), st.data())
def test_the_released_form_leaves_no_site_empty(h: float, labels: list[int], seed: int, data: st.DataObject) -> None:
    sites = data.draw(st.integers(1, len(labels)))

    parts = heterogeneous(h, "hasan2023")(labelled(labels), sites, Key(seed))

    assert len(parts) == sites
    assert all(1 <= len(part) <= len(labels) // sites for part in parts)


def test_the_released_form_gives_a_site_without_rows_of_its_classes_one_of_the_others() -> None:
    parts = heterogeneous(1.0, "hasan2023")(labelled([0, 0, 0, 0]), 4, Key(0))  # three sites own classes nobody has

    assert [len(part) for part in parts] == [1] * 4


def test_a_row_is_handed_out_twice_only_by_a_split_that_says_so() -> None:
    class Twice(Iid):
        def deal(self, rows: Rows, sites: int, key: Key) -> list[torch.Tensor]:
            return [torch.arange(len(rows.y))] * sites

    class Shared(Twice):
        shares_rows = True

    with pytest.raises(InputError, match="deals a row twice"):
        Twice()(labelled([0, 1, 2]), 2, Key(0))
    assert [part.tolist() for part in Shared()(labelled([0, 1, 2]), 2, Key(0))] == [[0, 1, 2], [0, 1, 2]]


def test_the_released_form_goes_by_class_too() -> None:
    with pytest.raises(InputError, match="sorted_feature"):
        HeterogeneousHasan2023(0.3)(measured([[0.0], [1.0]]), 2, Key(0))


def test_an_ordered_site_has_its_own_classes_first_and_then_what_all_share() -> None:
    rows = labelled(torch.arange(4000) % 4)
    plain = heterogeneous(0.6, "hasan2023")(rows, 4, Key(0))
    ordered = heterogeneous(0.6, "hasan2023_ordered")(rows, 4, Key(0))

    assert [p.tolist() for p in plain] == [sorted(p.tolist()) for p in ordered]  # the same rows
    for part in ordered:
        assert len(rows.y[part[:600]].unique()) == 1
        assert part[600:].tolist() == ordered[0][600:].tolist()
    assert len(rows.y[ordered[0][600:]].unique()) == 4
