"""Numbers in fixed point: the error is at most half a step, and nothing wraps around."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilience.errors import InputError
from consilience.privacy.secure_aggregation.fixed_point import LARGEST, decode, encode


@given(st.floats(-1e6, 1e6), st.sampled_from([2**-20, 2**-8, 0.1, 1.0]))
def test_the_error_is_at_most_half_a_step(value: float, step: float) -> None:
    there = decode(encode(torch.tensor([value], dtype=torch.float64), step), step)

    assert abs(float(there) - value) <= step / 2 * (1 + 1e-9) + 1e-9


def test_an_overflow_is_refused_and_never_wraps() -> None:
    encode(torch.tensor([2.0**61], dtype=torch.float64), 1.0)
    with pytest.raises(InputError, match="does not fit into fixed point"):
        encode(torch.tensor([2.0 * LARGEST], dtype=torch.float64), 1.0)
    with pytest.raises(InputError, match="does not fit into fixed point"):
        encode(torch.tensor([11.0]), 1.0, most=10)
    with pytest.raises(InputError, match="does not fit into fixed point"):
        encode(torch.tensor([float("nan")]), 1.0)
