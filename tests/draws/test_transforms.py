"""Unconstrained space: every map has an inverse and the Jacobian that differentiation finds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from consilience.draws.transforms import (
    POSITIVE,
    REAL,
    UNIT,
    Correlation,
    Interval,
    Ordered,
    Simplex,
    Transform,
    infer,
    parse,
)
from consilience.errors import InputError
from consilience.key import Key

CASES: list[tuple[Transform, tuple[int, ...]]] = [
    (REAL, (2,)),
    (POSITIVE, (3,)),
    (UNIT, (2, 2)),
    (Interval(-1, 3), (2,)),
    (Interval(high=2.0), ()),
    (Simplex(), (4,)),
    (Simplex(), (2, 3)),
    (Ordered(), (4,)),
    (Correlation(), (4, 4)),
    (Correlation(factor=True), (3, 3)),
]


def normal(*shape: int, key: int = 0) -> Tensor:
    return Key(key).normal(shape, torch.zeros((), dtype=torch.float64))


def free_entries(transform: Transform, x: Tensor) -> Tensor:
    """The entries of a parameter that are not decided by the others."""
    if isinstance(transform, Correlation):
        rows, columns = torch.tril_indices(x.shape[-1], x.shape[-1], -1)
        return x[..., rows, columns].flatten()
    if isinstance(transform, Simplex):
        return x[..., :-1].flatten()
    return x.flatten()


@pytest.mark.parametrize(("transform", "shape"), CASES, ids=str)
def test_a_transform_has_an_inverse_and_its_jacobian(transform: Transform, shape: tuple[int, ...]) -> None:
    u = normal(3, transform.width(shape))

    x = transform.constrain(u, shape)

    assert x.shape == (3, *shape)
    torch.testing.assert_close(transform.free(x), u)
    for row, log in zip(u, transform.log_jacobian(u, shape), strict=True):
        found = torch.autograd.functional.jacobian(
            lambda v: free_entries(transform, transform.constrain(v.unsqueeze(0), shape)[0]), row
        )
        assert float(torch.linalg.slogdet(found)[1]) == pytest.approx(float(log), abs=1e-9)
    assert parse(str(transform)) == transform


def test_transforms_are_inferred_from_draws() -> None:
    wide = normal(500, 2)

    assert infer([wide], None) == REAL
    assert infer([(wide - 1).exp()], None) == POSITIVE
    assert infer([0.01 * wide + 5], None) == POSITIVE or infer([0.01 * wide + 5], None) == REAL
    assert infer([0.01 * wide + 5], wide) == REAL  # the prior's draws lie below 0
    assert infer([wide.sigmoid()], 0.999 * (3 * wide).sigmoid()) == UNIT
    assert infer([wide.softmax(1)], None) == Simplex()
    assert infer([wide.sort(1).values], None) == Ordered()
    assert infer([torch.stack([wide[:, 0], wide[:, 1] + 50], 1)], None) == REAL  # in order, and far apart
    assert infer([Correlation().constrain(normal(50, 3), (3, 3))], None) == Correlation()
    assert infer([Correlation(True).constrain(normal(50, 3), (3, 3))], None) == Correlation(True)


@pytest.mark.parametrize("text", ["log", "interval(1)", "interval(2,1)", ""])
def test_an_unknown_transform_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="give one of real, positive"):
        parse(text)


def test_values_out_of_bounds_are_not_finite() -> None:
    assert not math.isfinite(float(POSITIVE.free(torch.tensor([[-1.0]]))))
