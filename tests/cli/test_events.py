"""Survival and counts on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tiny import Invoke


@pytest.fixture
def tables(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    (tmp_path / "sites").mkdir()
    for name in ("east", "north", "south", "west"):
        lines = ["age,treated,days,died,visits"]
        for _ in range(60):
            age = rng.normal(60, 10)
            treated = rng.integers(2)
            time = rng.exponential(900 * np.exp(-0.05 * (age - 60) + 0.4 * treated))
            seen = rng.uniform(100, 2000)
            visits = rng.poisson(np.exp(0.03 * (age - 60) + 1))
            lines.append(f"{age:.1f},{treated},{min(time, seen) + 1:.0f},{int(time <= seen)},{visits}")
        (tmp_path / "sites" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return "sites/*.csv"


SURVIVAL = ["--time", "days", "--event", "died"]


def test_a_run_of_times_reports_concordance_and_calibration(invoke: Invoke, tables: str, tmp_path: Path) -> None:
    code, printed, _ = invoke("run", "--data", tables, *SURVIVAL, "--horizon", "365", "--out", "run", "--no-bounds")

    assert code == 0
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert report["task"] == "survival" and report["method"] == "glm"
    assert {"concordance", "ibs", "nll"} == set(report["intervals"])
    assert all("concordance" in site["metrics"] for site in report["per_site"])
    assert sum(group["rows"] for group in report["predicted"]["bins"]) == report["rows"]["test"]
    assert report["predicted"]["horizon"] == 365
    assert "Concordance" in printed and "Integrated Brier" in printed
    assert "Calibration at a horizon" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.slow
def test_counts_are_asked_for(invoke: Invoke, tables: str, tmp_path: Path) -> None:
    words = ["--data", tables, "--target", "visits", "--task", "counts", "--out", "run", "--no-bounds"]

    code, printed, _ = invoke("run", *words)

    assert code == 0 and "Deviance" in printed
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert report["task"] == "counts"
    assert [level["level"] for level in report["coverage"]][:2] == [0.05, 0.1]


@pytest.mark.slow
def test_methods_are_compared_on_times(invoke: Invoke, tables: str) -> None:
    product = "gaussian_product[inference.mode=Newton,inference.dense=True]"

    code, printed, _ = invoke("compare", "glm", product, "--data", tables, *SURVIVAL, "--out", "comparison")

    assert code == 0
    assert "IBS" in printed and "Kaplan–Meier" in printed and "Centralised" in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--time", "days", "--target", "died"], "both columns"),
        (["run", "--time", "days", "--event", "age"], "neither 1"),
        (["run", "glm", *SURVIVAL, "--horizon", "0"], "not a time"),
        (["run", "glm", "--target", "died", "--horizon", "9"], "for times to an event"),
        (["run", "mixture", *SURVIVAL], "use one of gaussian_product, glm"),
        (["run", "gaussian_product", *SURVIVAL], "inference.mode=Newton"),
        (["run", "glm", *SURVIVAL, "--engine", "vectorised"], "use sequential"),
        (["study", "new", "s", "--like", "sites/east.csv", *SURVIVAL], "not on times to an event"),
    ],
)
def test_mistakes_end_with_one_sentence(invoke: Invoke, tables: str, words: list[str], sentence: str) -> None:
    data = ["--data", tables] if words[0] == "run" else []

    code, _, error = invoke(*words, *data)

    assert code == 2
    assert sentence in " ".join(error.split())


def test_three_sites_draw_a_curve_from_their_files(invoke: Invoke, tables: str, tmp_path: Path) -> None:
    grid = ["--every", "200", "--until", "2000"]
    for name in ("east", "north", "south"):
        assert invoke("kaplan-meier", f"sites/{name}.csv", *SURVIVAL, *grid, "--sums", f"sums/{name}.json")[0] == 0

    code, printed, _ = invoke("kaplan-meier", "sums/*.json", "--out", "curve")

    assert code == 0 and "Without an event" in printed
    with (tmp_path / "curve" / "curve.csv").open() as file:
        steps = list(csv.DictReader(file))
    assert [float(step["survival"]) for step in steps] == sorted((float(s["survival"]) for s in steps), reverse=True)
    assert all(float(step["events"]) == 0 or float(step["events"]) >= 5 for step in steps)
    assert (tmp_path / "curve" / "curve.svg").read_text().startswith("<svg xmlns=")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["sites/[ns]*.csv", *SURVIVAL, "--every", "100", "--until", "900"], "at least 3"),
        (["sites/*.csv", *SURVIVAL], "--every and --until"),
        (["sites/*.csv", *SURVIVAL, "--every", "0", "--until", "9"], "make no grid"),
        (["sites/*.csv", *SURVIVAL, "--every", "9", "--until", "99", "--sums", "x.json"], "its file alone"),
        (["nothing/*.csv"], "No file matches"),
    ],
)
def test_no_curve_without_what_it_needs(invoke: Invoke, tables: str, words: list[str], sentence: str) -> None:
    code, _, error = invoke("kaplan-meier", *words)

    assert code == 2
    assert sentence in " ".join(error.split())


def test_a_file_of_impossible_sums_is_refused(invoke: Invoke, tables: str, tmp_path: Path) -> None:
    grid = ["--every", "200", "--until", "2000"]
    invoke("kaplan-meier", "sites/east.csv", *SURVIVAL, *grid, "--sums", "sums/a.json")
    value = json.loads((tmp_path / "sums" / "a.json").read_text())
    value["events"][0] = 1000
    (tmp_path / "sums" / "b.json").write_text(json.dumps(value))

    code, _, error = invoke("kaplan-meier", "sums/*.json")

    assert code == 2 and "no counts of its rows" in " ".join(error.split())
