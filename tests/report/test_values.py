"""Values that a report reads: what cannot be drawn is not there."""

from __future__ import annotations

import copy
import functools
import math
import operator
from typing import Any

import pytest

from consilience.errors import InputError
from consilience.metrics.findings import LARGEST, Scores, finite_ends
from consilience.report.schema.run_findings import read_run


@pytest.mark.parametrize("huge", [LARGEST, -LARGEST, 1e300, math.inf, math.nan])
def test_what_no_axis_can_show_is_left_out(huge: float) -> None:
    assert Scores(metrics={"nll": huge}).value("nll") is None
    assert finite_ends((0.0, huge)) is None
    assert Scores(metrics={"nll": 0.99 * LARGEST}).value("nll") == 0.99 * LARGEST
    assert finite_ends((0.0, 0.99 * LARGEST)) == (0.0, 0.99 * LARGEST)


WHOLE: dict[str, Any] = {
    "metrics": {"nll": 0.3, "ece": None},
    "per_site": [{"site": "a", "test": 20, "metrics": {"nll": 0.3}, "coverage": [{"level": 0.5, "observed": 0.4}]}],
    "reliability": [{"low": 0.0, "high": 0.1, "count": 20, "confidence": 0.05, "accuracy": 0.05, "interval": [0, 0.2]}],
    "bounds": {"local_only": {"metrics": {"nll": 0.4}, "models": 3}},
    "ledger": {"up_bytes": 10, "down_bytes": 10, "per_site": [{"site": "a", "up_bytes": 10, "down_bytes": 10}]},
    "history": [{"round": 1, "nll": 0.3, "up_bytes": 5}],
    "rows": {"train": 100},
}
DAMAGED = {
    "a score that is a list": ("metrics", "nll", [0.3]),
    "a score that is a truth": ("metrics", "nll", True),
    "scores that are a text": ("metrics", "nll"),
    "an accuracy above 1": ("reliability", 0, "accuracy", 7.0),
    "a confidence that is not a number": ("reliability", 0, "confidence", math.nan),
    "fewer than no rows": ("reliability", 0, "count", -3),
    "half a row": ("per_site", 0, "test", 0.5),
    "a coverage below 0": ("per_site", 0, "coverage", 0, "observed", -0.2),
    "scores of a bound in a list": ("bounds", "local_only", "metrics", "nll", [1, 2]),
    "sent bytes below 0": ("ledger", "per_site", 0, "up_bytes", -1),
    "a round that is a text": ("history", 0, "round", "x"),
    "counts in a text": ("rows", "train", "100"),
}


def test_a_whole_report_is_read() -> None:
    assert read_run(WHOLE).bounds["local_only"].scores.value("nll") == 0.4


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_values_of_a_wrong_type_or_range_are_refused_where_they_are_read(damage: tuple[Any, ...]) -> None:
    report = copy.deepcopy(WHOLE)
    *path, last, value = damage
    functools.reduce(operator.getitem, path, report)[last] = value
    with pytest.raises(InputError, match="the file is damaged"):
        read_run(report)
