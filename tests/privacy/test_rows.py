"""Rows are found by their values in every cheap disguise, and what methods send is not taken for rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.privacy.disclosure.hidden_rows import holds_rows


def table(rows: int = 60, features: int = 9) -> Data:
    """Numbers, and a mark in the first column."""
    draw = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, features, generator=draw)
    x[:, 0] = (x[:, 0] > 0).float()
    return Data.of(x, (x[:, 1] > 0).long())


def mixed(t: Tensor, dim: int = 0) -> Tensor:
    """In another order."""
    order = torch.randperm(t.shape[dim], generator=torch.Generator().manual_seed(1))
    return t.index_select(dim, order)


DISGUISES: dict[str, Callable[[Data], Tensor]] = {
    "a view": lambda d: d.x[3:5],
    "a copy": lambda d: d.x.clone(),
    "float64": lambda d: d.x.double(),
    "float16": lambda d: d.x.half(),
    "bfloat16": lambda d: d.x.bfloat16(),
    "whole numbers": lambda d: (1000 * d.x).int(),
    "shifted": lambda d: d.x + 7,
    "shifted and scaled": lambda d: 3 - 2 * d.x,
    "each column by itself": lambda d: d.x * torch.linspace(1, 2, 9) + torch.arange(9),
    "rows in another order": lambda d: mixed(d.x),
    "columns in another order": lambda d: mixed(d.x, 1),
    "transposed": lambda d: d.x.T.clone(),
    "flattened": lambda d: d.x.flatten().clone(),
    "all numbers in another order": lambda d: mixed(d.x.flatten()),
    "many of these": lambda d: (1 - 2 * mixed(mixed(d.x, 1)).T.flatten()).half(),
    "in an image": lambda d: d.x.reshape(1, 6, 90).clone(),
    "one column": lambda d: d.x[:, 4].clone(),
    "ten rows": lambda d: d.x[20:30].clone(),
    "one row": lambda d: d.x[5].clone(),
    "one row among weights": lambda d: torch.cat([torch.randn(8, 9), d.x[5:6]]),
    "the outcomes": lambda d: 2 * d.y.float() - 1,
}


@pytest.mark.parametrize("what", DISGUISES)
def test_rows_in_a_cheap_disguise_are_found(what: str) -> None:
    data = table()

    assert holds_rows({"weights": (torch.zeros(3), DISGUISES[what](data))}, data)


def test_a_row_of_many_features_is_found_when_shifted_and_scaled() -> None:
    data = table(features=30)

    assert holds_rows(torch.stack([torch.randn(30), 5 - 3 * data.x[7]]), data)


LARGE = [(300, 30, 1), pytest.param(300, 30, 20, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("rows", "features", "draws"), [(20, 4, 20), (60, 9, 10), (60, 2, 20), *LARGE])
def test_nothing_else_is_taken_for_rows(rows: int, features: int, draws: int) -> None:
    data = table(rows, features)
    draw = torch.Generator().manual_seed(0)
    shapes = [(rows, features), (100, features), (features,), (rows,), (features, rows), (rows, rows), (2, features)]

    for shape in shapes:
        for values in (torch.zeros(shape), torch.ones(shape), torch.eye(4), torch.arange(rows)):
            assert not holds_rows(values, data), shape
        for scale in (0.01, 1.0, 100.0):
            for _ in range(draws):
                assert not holds_rows(scale * torch.randn(shape, generator=draw), data), shape
    assert not holds_rows({"mean": data.x.mean(0), "cov": torch.cov(data.x.T)}, data)


@pytest.mark.parametrize("code", [lambda x: x**3, lambda x: x + torch.randn(x.shape), lambda x: x @ torch.randn(9, 9)])
def test_what_no_check_finds(code: Callable[[Tensor], Tensor]) -> None:
    """Any other code passes, which is why docs/privacy.md promises a review and not a proof."""
    data = table()

    assert not holds_rows(code(data.x), data)
