"""Survival and counts on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from consilience.cli import app


@pytest.fixture
def tables(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    for name in ("east", "north", "south", "west"):
        lines = ["age,treated,days,died"]
        for _ in range(60):
            age = rng.normal(60, 10)
            treated = rng.integers(2)
            time = rng.exponential(900 * np.exp(-0.05 * (age - 60) + 0.4 * treated))
            seen = rng.uniform(100, 2000)
            lines.append(f"{age:.1f},{treated},{min(time, seen) + 1:.0f},{int(time <= seen)}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "*.csv")


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_of_times_reports_concordance_and_calibration(tables: str, tmp_path: Path) -> None:
    out = tmp_path / "run"

    printed = invoke("run", "--data", tables, "--time", "days", "--event", "died", "--out", str(out))

    report = json.loads((out / "run.json").read_text())
    assert report["task"] == "survival" and report["method"] == "glm"
    assert {"concordance", "ibs", "nll"} == set(report["intervals"])
    assert all("concordance" in site["metrics"] for site in report["per_site"])
    assert len(report["predicted"]["bins"]) == 5
    assert "Concordance" in printed and "Integrated Brier" in printed
    page = (out / "report.html").read_text()
    assert "Calibration at a horizon" in page
    invoke("report", str(out))


def test_a_target_beside_times_is_a_mistake(tables: str) -> None:
    result = CliRunner().invoke(app, ["run", "--data", tables, "--time", "days", "--target", "died"])

    assert result.exit_code == 2
    assert "both columns" in result.output
