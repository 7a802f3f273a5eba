"""Sets × report × command: sets that keep their promise by holding everything say so wherever they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import Invoke

import consilience as co
from consilience.report.schema.prediction_sets import vacuous
from consilience.report.schema.run_findings import read_run
from consilience.report.schema.warnings import doubts


def noise(folder: Path, kind: str, slope: float) -> co.Result:
    """A column that tells nothing, or nearly all."""
    draws = torch.Generator().manual_seed(0)
    (folder / "data").mkdir()
    for name in ("north", "south"):
        x = torch.randn(120, generator=draws)
        u = torch.rand(120, generator=draws)
        y = 3 * slope * x + 6 * (u - 0.5) if kind == "numbers" else (torch.sigmoid(slope * x) > u).long()
        lines = [f"{a:.4f},{b:.4f}" for a, b in zip(x.tolist(), y.tolist(), strict=True)]
        (folder / "data" / f"{name}.csv").write_text("\n".join(["x,y", *lines, ""]))
    task = "classification" if kind == "classes" else "regression"
    sites = co.from_csv(str(folder / "data" / "*.csv"), "y", conformal=0.4, calibration=0, task=task)
    problem = co.classification if kind == "classes" else co.regression
    method = co.methods.Hierarchical()
    network = co.models.linear(sites.features, sites.classes)
    return co.run(method, problem(network), sites, level=0.95, out=folder / "run")


@pytest.mark.parametrize("kind", ["classes", "numbers"])
@pytest.mark.parametrize("slope", [0.0, 20.0])
def test_sets_of_everything_are_called_so(
    kind: str, slope: float, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = noise(tmp_path, kind, slope)
    monkeypatch.chdir(tmp_path)
    code, out, err = invoke("predict", "run", "data/north.csv", "--set", "0.95", "--site", "north", "-o", "p.csv")

    told = [text for text in doubts(read_run(result.report)) if "next to nothing" in text]
    assert code == 0, err
    assert (len(told) == 1) == (slope == 0) == ("next to nothing" in out)
    uninformed = result.report["guarantee"]["uninformed"]
    y = torch.cat([rows.y for rows in result.sites.train]).double() * result.sites.target_scale
    ends = torch.quantile(y, torch.tensor([0.025, 0.975], dtype=torch.float64))  # an oracle without columns
    assert uninformed == (
        pytest.approx(1.9) if kind == "classes" else pytest.approx(float(ends[1] - ends[0]), rel=1e-6)
    )


def test_what_says_nothing_depends_on_what_is_predicted() -> None:
    assert "1.98 classes on average, and 1.800 would do" in vacuous(1.98, 1.8, is_regression=False)
    assert "no bounds" in vacuous(float("inf"), None, is_regression=True)
    assert "lower bound is 0" in vacuous(0.0, None, is_regression=True, score="time")
    for size, score in ((1.2, ""), (3.0, "time")):
        assert vacuous(size, 2.0, is_regression=score == "time", score=score) == ""
