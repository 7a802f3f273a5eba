"""Scores against what was sent, and the communication to reach one."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
import tiny

import consilience as co
from consilience.metrics.communication import bytes_to_reach, communication, csv_text, curve, mean_curve, sentence


def point(round_: int, floats: int, validation: float, test: float = 0.0) -> dict[str, Any]:
    sums = {"up_floats": floats // 2, "down_floats": floats - floats // 2, "up_bytes": 4 * floats, "down_bytes": 0}
    return {"round": round_, **sums, "nll": test, "validation_nll": validation, "validation_accuracy": -validation}


def row(name: str, *curves: list[dict[str, Any]]) -> dict[str, Any]:
    return {"row": name, "name": name.title(), "needs": "nothing", "curves": dict(enumerate(curves))}


def test_a_curve_adds_up_what_was_sent() -> None:
    task, sites = tiny.classification()
    sites = co.datasets.moons(n=160).split(co.splits.iid(), sites=4, validation=0.2, seed=1)

    report = co.run(co.methods.FedAvg(co.SGD(epochs=1)), task, sites, rounds=3).report
    points = curve(report)

    # 27 weights to and from four sites a round: 4·27 floats each way.
    assert [p["up_floats"] for p in points] == [108, 216, 324]
    assert [p["down_bytes"] for p in points] == [432, 864, 1296]
    assert points[-1]["nll"] == report["metrics"]["nll"]
    assert points[-1]["validation_nll"] != points[-1]["nll"]
    begun = curve({**report, "started_from": {"up_floats": 10, "down_floats": 1, "up_bytes": 40, "down_bytes": 8}})
    assert begun[0]["up_floats"] == 118  # what the start had cost counts


def test_validation_rows_decide_and_test_rows_do_not() -> None:
    points = [point(1, 10, 2.0, test=0.1), point(2, 20, 0.9, test=5.0), point(3, 30, 0.5)]

    assert bytes_to_reach(points, "nll", 1.0) == points[1]  # the first round was better on test rows only
    assert bytes_to_reach(points, "accuracy", -1.0) == points[1]  # higher is better
    assert bytes_to_reach(points, "nll", 0.4) is None


def test_communication_is_told_as_a_multiple_of_the_references() -> None:
    one = row("one", [point(1, 10, 1.0)], [point(1, 10, 0.8)])
    many = row("many", [point(1, 100, 1.5), point(2, 200, 0.9)], [point(1, 100, 0.8), point(2, 200, 0.7)])
    never = row("never", [point(1, 100, 1.5)], [point(1, 100, 0.5)])

    found = communication([one, many, never], "one", "nll")

    assert found is not None and found["target"] == pytest.approx(0.9)
    by = {r["row"]: r for r in found["rows"]}
    assert by["many"]["floats"] == 150 and by["many"]["times"] == 15  # 200 and 100 floats, against 10
    assert by["never"]["floats"] is None and by["never"]["reached"] == 1
    assert "Many 150 floats in 1.5 rounds, 15 ×; Never does not get there in 1 of 2 seeds" in sentence(found)
    assert mean_curve(many["curves"])[1]["validation_nll"] == pytest.approx(0.8)
    bare = row("bare", [{k: v for k, v in point(1, 10, 1.0).items() if not k.startswith("validation")}])
    assert communication([bare], "bare", "nll") is None


def test_compare_writes_curves_and_says_what_a_score_takes(tmp_path: Path, invoke: tiny.Invoke) -> None:
    words = ("compare", "mixture", "fedavg[rounds=3]", "--data", "moons", "--validation", "0.2", "--no-bounds")
    short = ("--set", "inference.epochs=5", "--set", "inference.cycles=1", "--out", str(tmp_path))

    code, _, err = invoke(*words, *short)

    assert code == 0, err
    lines = list(csv.DictReader(io.StringIO((tmp_path / "curves.csv").read_text())))
    assert {(r["row"], r["round"]) for r in lines} == {
        ("mixture", "1"),
        *(("fedavg[rounds=3]", str(t)) for t in (1, 2, 3)),
    }
    assert {r["score"] for r in lines} == {"nll", "accuracy", "validation_nll", "validation_accuracy"}
    page = (tmp_path / "report.html").read_text()
    assert "against floats sent" in page and "To reach the validation nll of Mixture" in page
    assert "To reach the validation nll" in (tmp_path / "compare.md").read_text()


def test_csv_of_nothing_is_a_header() -> None:
    assert csv_text({"splits": [{"split": "iid", "rows": [{"row": "x"}]}]}).count("\n") == 1
