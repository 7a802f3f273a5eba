"""What stands beside a number is of that number, and lists that are cut say so: page, terminal and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Invoke

from consilience.biostatistics.effects import Effects
from consilience.cli.commands.recommend import _slopes
from consilience.data.cells import Cell, Cells
from consilience.data.encoding import Encoding, encode
from consilience.methods.situation import Shift
from consilience.methods.slopes import Slopes
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


def test_one_row_is_not_several(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """`predict` said "1 rows.", and `recommend` "1 columns"."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{k % 7},{(k * k + k // 3) % 5}" for k in range(60)]
    for name in ("a", "b", "c"):
        Path(f"{name}.csv").write_text("\n".join(["age,score", *rows, ""]))
    Path("new.csv").write_text("age\n3\n")
    told = ("--data", "?.csv", "--target", "score", "--task", "regression")
    assert "1 column," in invoke("recommend", *told)[1]
    assert invoke("run", "glm", *told, "--no-bounds", "--out", "r")[0] == 0
    assert "\n1 row." in invoke("predict", "r", "new.csv")[1]


def test_a_small_difference_beyond_chance_is_little_and_not_unseen() -> None:
    """Cramér's V 0.14 with p < 0.01, of 160 schools: "not seen to differ"."""
    shift = Shift(0.2, 0.001, (), (), Slopes(0.14, 1e-4), Slopes(0.4, 1e-4), number=True)
    assert _slopes(shift).startswith("The sites differ little")
    assert _slopes(shift._replace(slopes=Slopes(0.1, 0.4))).startswith("The sites are not seen to differ")
    assert _slopes(shift._replace(slopes=Slopes(0.5, 1e-4))).startswith("The sites differ in")
