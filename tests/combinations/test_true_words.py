"""What stands beside a number is of that number, and lists that are cut say so: page, terminal and refusals."""

from __future__ import annotations

import pytest

from consilience.biostatistics.effects import Effects
from consilience.data.cells import Cell, Cells
from consilience.data.encoding import Encoding, encode
from consilience.metrics.findings import Scores
from consilience.report.schema.run_findings import read
from consilience.report.table import _cell

BOTH = {"metrics": {"ece": 0.125, "ece_debiased": 0.105}, "intervals": {"ece": (0.0, 0.2), "ece_debiased": (0.0, 0.2)}}


def test_interval_of_the_calibration_error_stands_beside_its_estimate_only() -> None:
    """`ends["ece_debiased"] = ends["ece"]` in metrics.scores: one interval, pivotal around the debiased estimate."""
    scores = read(Scores, BOTH)
    assert _cell("ece", scores, "").plain == "12.5 %"
    assert _cell("ece_debiased", scores, "").plain == "10.5 %\n0.0–20.0"
    assert scores.error_bar("ece") is None
    assert read(Scores, {"metrics": {"ece": 0.1}, "intervals": {"ece": (0.0, 0.2)}}).error_bar("ece") == (0.0, 0.2)


def test_refusal_of_a_category_says_that_its_list_goes_on() -> None:
    levels = tuple("abcdefg")
    cells = Cells.of([Cell("a", "t.csv", 2), Cell("z", "t.csv", 3)])
    assert "(a, b, c, d, e, …)" in encode([Encoding("ward", levels)], {"ward": cells}, "t.csv").bad[1]
    assert "(a, b, c, d, e)" in encode([Encoding("ward", levels[:5])], {"ward": cells}, "t.csv").bad[1]


@pytest.mark.parametrize(
    ("link", "words"), [("hazard", "the hazard of the event, time 'days'"), ("logit", "'days'"), ("identity", "'days'")]
)
def test_effects_on_a_time_are_those_on_its_hazard(link: str, words: str) -> None:
    assert Effects("days", "", link, 0.95, ()).outcome == words
