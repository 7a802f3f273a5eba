"""Survival and counts on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import Invoke

import consilience as co


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
        (["run", "glm", *SURVIVAL, "--engine", "vectorised"], "use sequential"),
        (["study", "new", "s", "--like", "sites/east.csv", "--time", "days"], "both columns"),
        (["study", "new", "s", "--like", "sites/east.csv", *SURVIVAL, "--target", "age"], "leave --target"),
        (["study", "new", "s", "--like", "sites/east.csv", "--target", "age", "--horizon", "9"], "--horizon is for"),
        (
            ["study", "new", "s", "--like", "sites/east.csv", "--target", "age", "--exposure", "days"],
            "--task counts too",
        ),
        (["study", "new", "s", "--task", "counts"], "which column counts"),
        (["study", "new", "s", *SURVIVAL], "Give --like TABLE"),
        (["study", "new", "s", "--like", "sites/east.csv", *SURVIVAL, "--method", "fedavg"], "cannot serve a survival"),
        (
            ["study", "new", "s", "--like", "sites/east.csv", *SURVIVAL, "--level", "0.9", "--guarantee", "class"],
            "needs classes",
        ),
        (["study", "new", "s", "--like", "sites/east.csv", *SURVIVAL, "--horizon", "0"], "not a time"),
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


SITES = ("east", "north", "south")


def study_by_commands(invoke: Invoke, folder: Path, *words: str) -> None:
    """A study of one round, from its proposal to a pooled model; every site's files lie in its own folder."""
    assert invoke("study", "new", "trial", "--like", "sites/east.csv", "--rounds", "1", *words)[0] == 0
    for name in SITES:
        joined = invoke("site", "join", "trial.toml", name, f"sites/{name}.csv", "-o", f"{name}.join")
        assert joined[0] == 0
    assert invoke("study", "add", "trial.toml", *(f"{name}.join" for name in SITES))[0] == 0
    for name in SITES:
        fitted = invoke("site", "fit", "trial.toml", f"sites/{name}.csv", "--key", f"{name}.key")
        assert fitted[0] == 0, fitted
    assert invoke("study", "pool", "trial.toml", *(f"{name}.reply" for name in SITES))[0] == 0


def head_of(path: Path) -> list[str]:
    return path.read_text().splitlines()[0].split(",")


@pytest.mark.slow  # docs/survival.md goes through the same commands in the fast tests
def test_a_study_of_times_by_commands(invoke: Invoke, tables: str, tmp_path: Path) -> None:
    study_by_commands(invoke, tmp_path, *SURVIVAL, "--horizon", "365")

    _, shown, _ = invoke("study", "show", "trial.toml")
    assert "the time until 'died' is 1, with risks at 365" in " ".join(shown.split())
    assert "fewer than 10 rows that have an event" in " ".join(shown.split())
    _, printed, _ = invoke("predict", "trial.model", "sites/west.csv", "-o", "relative.csv")
    assert "how hazards compare" in " ".join(printed.split())
    assert head_of(tmp_path / "relative.csv")[1:4] == ["log-hazard", "low95", "high95"]
    for name in SITES:
        words = ("trial.toml", "trial.model", f"sites/{name}.csv", "--key", f"{name}.key")
        assert invoke("site", "statistics", *words)[0] == 0
    code, printed, _ = invoke("study", "choose", "trial.toml", "trial.model", *(f"{n}.statistics" for n in SITES))
    assert code == 0 and "Baseline hazard from sums of east, north, south" in " ".join(printed.split())
    report = (tmp_path / "trial-chosen.html").read_text()
    assert "Kaplan–Meier curve" in report and "hazard ratio" in report
    assert invoke("predict", "trial-chosen.model", "sites/west.csv", "-o", "curves.csv")[0] == 0
    assert "S(365)" in head_of(tmp_path / "curves.csv")
    _, printed, _ = invoke(
        "site", "evaluate", "trial-chosen.model", "sites/west.csv", "--study", "trial.toml", "--key", "east.key"
    )
    assert "Concordance" in printed and "Integrated Brier" in printed


@pytest.mark.slow
def test_a_study_of_counts_by_commands(invoke: Invoke, tables: str, tmp_path: Path) -> None:
    study_by_commands(invoke, tmp_path, "--target", "visits", "--task", "counts", "--exposure", "days")

    assert invoke("predict", "trial.model", "sites/west.csv", "-o", "counts.csv")[0] == 0
    assert head_of(tmp_path / "counts.csv")[1:4] == ["mean", "low95", "high95"]
    _, printed, _ = invoke(
        "site", "evaluate", "trial.model", "sites/east.csv", "--study", "trial.toml", "--key", "east.key"
    )
    assert "Deviance" in printed


@pytest.mark.slow
@pytest.mark.parametrize("words", [SURVIVAL, ["--target", "visits", "--task", "counts"]], ids=["times", "counts"])
def test_a_run_folder_predicts_as_its_module_does(
    invoke: Invoke, tables: str, tmp_path: Path, words: list[str]
) -> None:
    """The command, `Result.predict` and the module are three ways to one mean and one variance."""
    assert invoke("run", "--data", tables, *words, "--out", "run", "--no-bounds")[0] == 0

    assert invoke("predict", "run", "sites/west.csv", "-o", "rows.csv")[0] == 0

    result = co.load(tmp_path / "run")
    x = result.read(tmp_path / "sites" / "west.csv").x
    made = result.predict(x)
    assert made.mean is not None and made.var is not None
    module = result.to_module()(x.float()).detach()
    torch.testing.assert_close(module, torch.stack([made.mean, made.var], 1).float(), rtol=1e-4, atol=1e-5)
    with (tmp_path / "rows.csv").open() as file:
        lines = list(csv.DictReader(file))
    column = "log-hazard" if words is SURVIVAL else "mean"
    assert [float(line[column]) for line in lines] == pytest.approx(made.mean.tolist(), rel=1e-5, abs=1e-6)
    if made.survival is not None:
        shown = [name for name in lines[0] if name.startswith("S(")]
        assert made.times is not None
        last = int((made.times - float(shown[-1][2:-1])).abs().argmin())
        assert [float(line[shown[-1]]) for line in lines] == pytest.approx(made.survival[:, last].tolist(), rel=1e-4)


@pytest.mark.slow
def test_settings_are_tuned_on_times(invoke: Invoke, tables: str, tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text('{"tolerance": [1e-2, 1e-8]}')

    code, printed, error = invoke(
        "tune", "glm", "--data", tables, *SURVIVAL, "--grid", "grid.json", "--budget", "2", "--out", "tuned"
    )

    assert code == 0, error
    assert "tolerance" in printed
