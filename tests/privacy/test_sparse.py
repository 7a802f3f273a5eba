"""Combinations of features that few rows show: planted ones are found, and generic rows hold none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from consilience.privacy.disclosure.sparse import find_sparse


def rows_in(x: Tensor, smallest: int = 10) -> set[int]:
    return {row for found in find_sparse(lambda own: x[own], len(x), smallest) for row in found.rows.tolist()}


def generic(seed: int, rows: int, features: int) -> tuple[Tensor, torch.Generator]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, features, generator=draw), draw


@pytest.mark.parametrize("few", [1, 3, 9])
@pytest.mark.parametrize(("rows", "features"), [(60, 6), (200, 60), (5000, 20)])
def test_planted_rows_are_found_and_no_others(rows: int, features: int, few: int) -> None:
    for seed in range(3):
        x, draw = generic(seed, rows, features)
        planted = torch.randperm(rows, generator=draw)[:few]
        parts = 1 + seed  # a pair of columns, and totals of two and three
        x[:, parts] = x[:, :parts].sum(1)
        x[planted, parts] += 0.3 + torch.rand(few, generator=draw)

        assert rows_in(x) == set(planted.tolist())
        assert not rows_in(x, few)  # where the smallest count is no more than they are, there is nothing to say


def test_the_combination_is_the_one_that_was_planted() -> None:
    x, _ = generic(0, 400, 8)
    x[:, 5] = 2 * x[:, 1] - 3 * x[:, 2] + 7
    x[9, 5] += 1

    (found,) = find_sparse(lambda own: x[own], 400, 10)

    weights = found.weights / x.double().std(0, correction=0)
    expected = torch.tensor([0.0, 2, -3, 0, 0, -1, 0, 0]).double()
    assert found.rows.tolist() == [9]
    assert torch.allclose(weights / weights[5] * -1, expected, atol=1e-5)


def test_generic_rows_hold_nothing_few_would_show() -> None:
    """N rows in general position agree on no more than D of a combination of D features and a constant."""
    for seed, (rows, features) in enumerate([(40, 12), (90, 30), (200, 60), (2000, 50)]):
        x, _ = generic(seed, rows, features)
        assert not rows_in(x)
    heavy = torch.distributions.StudentT(3.0).sample((1000, 20))
    assert not rows_in(heavy)  # far out rows weigh much, and others weigh something


def test_nearly_is_as_good_as_exactly() -> None:
    """What others hold less than a ten-thousandth of blurs few rows by 1 %; what they hold more of hides them."""
    x, draw = generic(1, 500, 5)
    noise = torch.randn(500, generator=draw)
    for size, found in ((1e-4, True), (1e-2, False)):
        x[:, 4] = x[:, 0] + size * noise
        x[3, 4] = x[3, 0] + 1
        assert (rows_in(x) == {3}) == found


def test_constant_equal_and_empty_columns_do_no_harm() -> None:
    x, _ = generic(2, 100, 6)
    x[:, 1] = 0
    x[:, 2] = 1e6
    x[:, 4] = x[:, 3]

    assert not rows_in(x)
    assert not rows_in(x[:, :0]) and not rows_in(x[:5])
