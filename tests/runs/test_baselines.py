"""Baselines: what they are, where they are shown, and what is said of a model that they beat."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import tiny
import torch
from tiny import Invoke

import consilience as co
from consilience.benchmark.export import markdown
from consilience.benchmark.plan import Plan
from consilience.benchmark.running import compare_plan
from consilience.data.sites import Data, Sites
from consilience.metrics.baselines import lines_to_beat
from consilience.report.run_page import comparison_page, run_page
from consilience.report.schema.run_findings import read_run
from consilience.report.schema.warnings import doubts
from consilience.runs.problem import Problem
from consilience.runs.store import Store

SHORT = ("inference.epochs=2", "inference.batch=200", "inference.cycles=1", "inference.samples=1")


def rare(rows: int = 2000) -> Sites:
    """Two sites, 6 % positives in all, 11 % at one and 1 % at the other; the features say nothing."""
    draws = torch.Generator().manual_seed(3)
    site = torch.arange(rows) % 2
    y = (torch.rand(rows, generator=draws) < torch.where(site == 0, 0.01, 0.11)).long()
    x = torch.randn(rows, 3, generator=draws)
    return co.from_arrays(x, y, [f"s{int(k)}" for k in site]).split(co.splits.natural(), calibration=30)


def test_the_base_rate_and_that_of_every_site_come_from_training_rows() -> None:
    sites = rare()
    lines = lines_to_beat(sites)
    train = torch.cat([part.y for part in sites.train]).double()
    rate = float((train.sum() + 0.5) / (len(train) + 1))
    y = sites.all_test.y.double()
    expected = -(y * torch.tensor(rate).log() + (1 - y) * torch.tensor(1 - rate).log()).mean()
    assert lines["base_rate"]["metrics"]["nll"] == pytest.approx(float(expected), rel=1e-5)
    assert lines["site_rate"]["metrics"]["nll"] < lines["base_rate"]["metrics"]["nll"] < 0.3
    assert lines["base_rate"]["metrics"]["auroc"] == 0.5


def test_the_pooled_linear_model_of_numbers_is_least_squares_on_all_rows() -> None:
    draws = torch.Generator().manual_seed(4)
    x = torch.randn(600, 4, generator=draws)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 3 + 0.1 * torch.randn(600, generator=draws)
    sites = co.from_arrays(x, y, [f"s{i % 3}" for i in range(600)]).split(co.splits.natural())
    lines = lines_to_beat(sites)
    assert lines["pooled_linear"]["metrics"]["rmse"] == pytest.approx(0.1, rel=0.15)
    spread = float(torch.cat([part.y for part in sites.test]).std()) * sites.target_scale
    assert lines["base_rate"]["metrics"]["rmse"] == pytest.approx(spread, rel=0.05)


def test_the_pooled_linear_classifier_finds_a_linear_boundary() -> None:
    sites = Problem("moons", model="linear", sites=3).build_sites()
    lines = lines_to_beat(sites)
    assert lines["pooled_linear"]["metrics"]["nll"] < 0.5 * lines["base_rate"]["metrics"]["nll"]


def test_a_class_that_no_training_row_has_is_not_impossible() -> None:
    sites = rare(200)
    train = tuple(Data.of(part.x, torch.zeros_like(part.y)) for part in sites.train)
    lines = lines_to_beat(dataclasses.replace(sites, train=train))
    assert all(line["metrics"]["nll"] < 10 for line in lines.values())


def test_a_run_below_the_base_rate_is_warned_of_with_what_to_do() -> None:
    sites = rare()
    network = co.models.linear(3, 2)
    result = co.run(co.methods.Mixture(co.SGD(rate=1e-6, epochs=1)), co.classification(network), sites)
    assert result.baselines["base_rate"]["metrics"]["nll"] < result.metrics["nll"] < 0.75  # better than log 2, or close
    report = {**result.report, "baselines": result.baselines, "bounds": {}}
    (warning,) = [text for text in doubts(read_run(report)) if "classes' frequencies" in text]
    assert "do not use this model" in warning and "Try a linear model" in warning
    page = run_page(report)
    for name in ("Base rate", "Site base rate", "Pooled linear", "baseline"):
        assert name in page
    assert "Baselines: Base rate NLL" in str(result).replace("\n", " ")


def test_numbers_are_held_against_the_overall_mean_of_training_rows() -> None:
    report = {
        "task": "regression",
        "metrics": {"rmse": 2.1, "nll": 1.0},
        "baselines": {"base_rate": {"metrics": {"rmse": 2.0, "nll": 2.0}}},
    }
    (warning,) = doubts(read_run(report))
    assert "An RMSE of 2.1" in warning and "the overall mean" in warning
    report["metrics"] = {"rmse": 1.9, "nll": 3.0}
    (warning,) = doubts(read_run(report))
    assert "An NLL of 3.000" in warning and "do not use its intervals" in warning
    report["metrics"] = {"rmse": 1.9, "nll": 1.5}
    assert doubts(read_run(report)) == []


def test_a_comparison_has_its_lines_to_beat_and_warns_of_rows_below_them(tmp_path: Path) -> None:
    problem = Problem("moons", model="linear", sites=3, calibration=10)
    plan = Plan(
        ("mixture", "fedavg[rounds=1,inference=SGD,inference.rate=30]"), problem, ("iid",), (0, 1), common=SHORT
    )
    comparison = compare_plan(plan, tmp_path)
    value = comparison.to_json()
    assert list(value["baselines"]) == ["base_rate", "site_rate", "pooled_linear"]
    for seed in (0, 1):
        sites = dataclasses.replace(problem, split="iid").build_sites(seed)
        nll = lines_to_beat(sites)["base_rate"]["metrics"]["nll"]
        assert value["baselines"]["base_rate"]["values"]["nll"][seed] == pytest.approx(nll)
    for text in (comparison_page(value), str(comparison)):
        assert "Baselines" in text and "Site base rate" in text
    assert "| Pooled linear | (baseline) |" in markdown(comparison)
    worse = [
        row.name
        for row in comparison.rows
        if (row.metrics["nll"] or 0.0) > value["baselines"]["base_rate"]["metrics"]["nll"]
    ]
    warned = [text.partition(": an NLL")[0] for text in value["warnings"] if "classes' frequencies" in text]
    assert warned == worse and worse
    assert compare_plan(plan, tmp_path).to_json()["baselines"] == value["baselines"]


def test_a_run_on_the_command_line_needs_no_method(tmp_path: Path, invoke: Invoke) -> None:
    folder = tmp_path / "run"
    code, _, _ = invoke(
        "run", "--data", "moons", "--model", "linear", "--sites", "3", "--no-bounds", "--out", str(folder)
    )
    assert code == 0
    report = Store(folder).read_json()
    assert report["method"] == "gaussian_product" and "VariationalGaussian" in str(report["settings"]["inference"])
    assert list(report["baselines"]) == ["base_rate", "site_rate", "pooled_linear"]


def test_lines_need_rows() -> None:
    _, sites = tiny.classification()
    assert lines_to_beat(dataclasses.replace(sites, train=(), test=())) == {}


def test_a_run_without_method_and_network_is_exact_pooling(tmp_path: Path, invoke: Invoke) -> None:
    folder = tmp_path / "run"
    code, out, _ = invoke("run", "--data", "moons", "--sites", "3", "--no-bounds", "--out", str(folder))
    assert code == 0 and "hats" in out
    assert Store(folder).read_json()["method"] == "exact_tuned"
