"""Fixed-point steps: as fine as bounds allow, and K of the largest numbers still fit."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilience.aggregation.summands import Counted, Mean, Total
from consilience.distributions.posterior import Point
from consilience.errors import InputError
from consilience.privacy.secure_aggregation.fixed_point import LARGEST, encode
from consilience.study.validation.magnitudes import Bounds
from consilience.study.validation.steps import COARSEST, scales_of, step_for

BOUNDS = Bounds(1.0, 10, 1.0, ((2, 5),), 3.0, 2.0, 2)


@given(st.floats(1e-6, 1e10), st.integers(3, 100))
def test_the_largest_numbers_of_all_sites_add_up_without_an_overflow(limit: float, sites: int) -> None:
    step = step_for(limit, sites)

    multiples = encode(torch.tensor([limit, -limit], dtype=torch.float64), step, LARGEST // sites)

    assert sites * int(multiples.abs().max()) <= 2**62  # exactly, in Python's whole numbers
    assert math.log2(step).is_integer()
    assert step == COARSEST or limit / (step / 2) * sites > 2**62 * (1 - 1e-12)  # half of it would be too fine


@pytest.mark.parametrize("limit", [math.inf, math.nan, 1e300])
def test_what_is_not_bounded_has_the_coarsest_step(limit: float) -> None:
    assert step_for(limit, 3) == COARSEST


def test_steps_do_not_depend_on_the_numbers() -> None:
    point = Point({"w": torch.randn(2, 5)})
    other = Point({"w": 100 * torch.randn(2, 5)})

    one, two = (scales_of(Mean().split(p, torch.tensor(50)), BOUNDS, 80, 3).steps for p in (point, other))

    assert one == two


def test_a_number_beyond_what_fits_is_refused_and_never_wraps() -> None:
    scales = scales_of(Total().split(torch.zeros(2), torch.tensor(50)), None, 80, 3)

    with pytest.raises(InputError, match="does not fit into fixed point"):
        scales.to_multiples(Counted(torch.tensor(50.0), torch.tensor([0.0, 2.0**42])))
    with pytest.raises(InputError, match="does not fit into fixed point"):
        scales.to_multiples(Counted(torch.tensor(50.0), torch.tensor([0.0, math.inf])))


def test_a_sum_of_other_sites_than_said_is_refused() -> None:
    summands = Total().split(torch.arange(3.0), torch.tensor(50))
    scales = scales_of(summands, BOUNDS, 80, 3)
    multiples = scales.to_multiples(summands)

    with pytest.raises(InputError, match="do not cancel"):
        scales.to_total(2 * multiples, 3)
    beyond = 3 * multiples
    beyond[1] = 2**63 - 1
    with pytest.raises(InputError, match="do not cancel"):
        scales.to_total(beyond, 3)
    beyond[1] = -(2**63)
    with pytest.raises(InputError, match="do not cancel"):
        scales.to_total(beyond, 3)
