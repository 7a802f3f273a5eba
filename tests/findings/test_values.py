"""Values that a report reads: what cannot be drawn is not there."""

from __future__ import annotations

import math

import pytest

from consilience.findings.values import LARGEST, Scores, finite_ends


@pytest.mark.parametrize("huge", [LARGEST, -LARGEST, 1e300, math.inf, math.nan])
def test_what_no_axis_can_show_is_left_out(huge: float) -> None:
    assert Scores(metrics={"nll": huge}).value("nll") is None
    assert finite_ends((0.0, huge)) is None
    assert Scores(metrics={"nll": 0.99 * LARGEST}).value("nll") == 0.99 * LARGEST
    assert finite_ends((0.0, 0.99 * LARGEST)) == (0.0, 0.99 * LARGEST)
