"""FLamby's survival data: the experiment fills its rows, and its page prints what was stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.benchmark.reproduce import collect, load, module
from consilience.data.dataset import Dataset
from consilience.key import Key

ROOT = Path(__file__).parents[2]


def invented(name: str, data_dir: str | None = None) -> Dataset:
    key = Key(3)
    x = key.fold(0).normal((240, 3))
    time = torch.exp(-x[:, 0]) * -torch.log(key.fold(1).uniform(240)) * 100 + 1
    y = torch.stack([time, (key.fold(2).uniform(240) < 0.7).float()], 1)
    site = torch.arange(240) % 3
    return Dataset(
        name, x[:180], y[:180], site=site[:180], x_test=x[180:], y_test=y[180:], site_test=site[180:],
        standardise=True, outcome="survival",
    )  # fmt: skip


def test_every_row_is_filled_and_the_published_stand_beside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("consilience.data.datasets.load", invented)
    brca = module("flamby/brca")
    monkeypatch.setattr(brca, "VARIANCES", (0.1,))
    monkeypatch.setattr(brca, "choose_variance", lambda method, rows: 0.1)
    values = brca.trial(brca.ALL, 0, "full", None)

    assert len(values) == 5
    assert all(50 < row["concordance"] <= 100 and row["low"] <= row["high"] for row in values.values())
    cells = collect("flamby/brca", load("flamby/brca"), [0], "full", tmp_path)["cells"]
    assert {cell["row"]: cell["paper"] for cell in cells if cell["column"] == brca.ALL}["FedAdam"] == 84.21


def test_the_page_prints_the_stored_results() -> None:
    stored = json.loads((ROOT / "experiments/flamby/results/brca.json").read_text())
    page = (ROOT / "experiments/flamby/README.md").read_text()
    found: dict[str, dict[str, Any]] = {}
    for cell in stored["cells"]:
        if cell["ours"] is not None:
            found.setdefault(cell["row"], {})[cell["column"]] = cell["scores"]

    assert len(found) == 5
    for columns in found.values():
        scores = columns["all test rows"]
        ends = f"[{scores['low']:.1f}, {scores['high']:.1f}]"
        assert f"| {scores['concordance']:.1f} {ends} | {columns['mean of regions']['concordance']:.1f} |" in page
        assert f"{scores['ibs']:.3f}" in page
