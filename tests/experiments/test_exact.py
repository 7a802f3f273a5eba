"""The tables of exact pooling: every kind of column on a few drawn images, and the page is that of its results."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from consilience.benchmark.reproduce import load, module
from consilience.data.dataset import Dataset
from consilience.key import Key

ROOT = Path(__file__).parents[2]


def drawn(name: str, data_dir: str | None = None) -> Dataset:
    """Small images of four classes; a table of numbers under the name of one."""
    if name == "wine":
        x = Key(7).normal((200, 4))
        return Dataset(name, x, x[:, 0] + 0.3 * Key(8).normal((200,)), standardise=True)
    y = torch.arange(260) % 4
    x = (Key(7).uniform(260 * 64).reshape(260, 64) + (torch.arange(64) % 4 == y.unsqueeze(1))) / 2
    return Dataset(name, x, y, classes=4)


@pytest.mark.parametrize(
    ("column", "row"),
    [
        ("digits/conv:32/exact", "Tuned, Dirichlet"),
        ("digits/conv:32/dirichlet:0.3/3", "FedAvg, head, 10 short rounds"),
        ("digits/conv:32/dirichlet:0.3+rotate:30/3", "Discriminant, 1 round"),
        ("digits/cnn/dirichlet:0.3/3", "CNN of 3 short rounds, then Tuned"),
        ("digits/cnn/pooled", "Pooled CNN"),
        ("digits/conv:32/bytes", "Dirichlet, float16"),
        ("digits/conv:32/rates", "scale 0.3, Evidence, head"),
        ("wine/fourier:20/exact", "Ridge, 1 round"),
        ("wine/mlp/iid/3/once", "FedAvg, MLP, 1 round"),
    ],
)
@pytest.mark.usefixtures("hurried")
def test_every_kind_of_column_is_filled(column: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.data.datasets.load", drawn)

    values = load("exact/table").trial(column, 0, "smoke", None)

    assert row in values
    assert all(math.isfinite(scores["nll"] or 0) and "nll_error" in scores for scores in values.values())


def test_splits_maps_and_whole_runs_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.data.datasets.load", drawn)

    values = load("exact/table").trial("digits/conv:32/check", 0, "smoke", None)

    nll = {row: scores["nll"] for row, scores in values.items()}
    for head in ("OneHot", "Discriminant", "Dirichlet"):
        assert nll[f"{head}, dirichlet:0.05"] == pytest.approx(nll[f"{head}, iid"], abs=1e-6)
    assert nll["OneHot, map inside"] == pytest.approx(nll["OneHot, 1 round"], abs=1e-6)
    assert nll["Tuned, two rounds"] == pytest.approx(nll["Tuned"], abs=1e-6)


def test_the_page_is_that_of_its_results() -> None:
    summary = module("exact/summary")

    assert summary.page(summary.stored_trials()) in (ROOT / "experiments/exact/README.md").read_text()
    assert summary.claims(summary.stored_trials()) in (ROOT / "docs/one-shot.md").read_text(), "summary.py renews it"


def test_stored_checks_are_below_one_in_a_million() -> None:
    trials = json.loads((ROOT / "experiments/exact/results/table.json").read_text())
    tables = [rows for column, seeds in trials.items() if column.endswith("/check") for rows in seeds.values()]

    assert tables
    for rows in tables:
        for head in ("OneHot", "Discriminant", "Dirichlet"):
            assert abs(rows[f"{head}, dirichlet:0.05"]["nll"] - rows[f"{head}, iid"]["nll"]) < 1e-6


def test_the_rows_of_glm_are_those_of_their_results() -> None:
    stored = json.loads((ROOT / "experiments/exact/results/glm.json").read_text())
    assert module("exact/glm").table(stored) in (ROOT / "experiments/exact/README.md").read_text()


@pytest.mark.usefixtures("hurried")
def test_rates_are_tried_until_the_best_is_inside_and_on_validation_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = module("exact/rates")
    losses = {0.005: 5.0, 0.016: 4.0, 0.05: 3.0, 0.16: 2.0, 0.5: 1.0, 1.6: 0.9, 5.1: 1.1}
    asked: list[tuple[float, bool, int]] = []

    def run(name: str, seed: int, rate: float, folder: str, validate: bool) -> dict[str, dict[str, float]]:
        asked.append((rate, validate, seed))
        return {rates.LAST: {"nll": losses[rate]}}

    monkeypatch.setattr(rates, "run", run)
    found = rates.fill("mnist", {}, "", 2)

    assert found["rate"] == 1.6 and [*found["validation"]] == [str(rate) for rate in losses]
    first, *beyond = [*rates.RATES], [1.6], [5.1]
    tried = [(rate, True, seed) for part in (first, *beyond) for seed in (100, 101, 102) for rate in part]
    assert asked == [*tried, (1.6, False, 0), (1.6, False, 1)]


def test_a_rate_that_is_the_tables_takes_its_rows() -> None:
    rates = module("exact/rates")
    found = rates.fill(
        "mnist", {"validation": {"0.005": 3.0, "0.016": 2.0, "0.05": 1.0, "0.16": 2.0, "0.5": 3.0}}, "", 1
    )
    stored = json.loads((ROOT / "experiments/exact/results/table.json").read_text())["mnist/conv:1024/dirichlet:0.1/10"]
    assert found["rate"] == 0.05
    assert [run[rates.LAST]["nll"] for run in found["runs"]] == [stored[str(s)][rates.ROW]["nll"] for s in range(10)]


@pytest.mark.usefixtures("hurried")
def test_the_rate_of_the_table_gives_the_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAvg with 0.05 is table.py's row, whichever program runs it."""
    rates = module("exact/rates")
    monkeypatch.setattr("consilience.data.datasets.load", drawn)
    monkeypatch.setitem(rates.COLUMNS, "digits", rates.Column("conv:32", "dirichlet:0.3", 3, 1, 1, 0.25))

    own = rates.run("digits", 0, 0.05, "", False)[rates.LAST]
    row = load("exact/table").trial("digits/conv:32/dirichlet:0.3/3", 0, "full", None)["FedAvg, head, 10 short rounds"]

    assert {score: row[score] for score in ("accuracy", "ece", "up_bytes")} == pytest.approx(
        {score: own[score] for score in ("accuracy", "ece", "up_bytes")}
    )
    assert own["nll"] == pytest.approx(row["nll"], rel=1e-6)


def test_the_rows_of_tuned_rates_are_those_of_their_results() -> None:
    stored = json.loads((ROOT / "experiments/exact/results/rates.json").read_text())
    assert module("exact/rates").table(stored) in (ROOT / "experiments/exact/README.md").read_text()
