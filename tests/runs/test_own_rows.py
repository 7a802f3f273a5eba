"""Sites with models of their own: on their own rows and on all rows, in reports, tables and sentences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.benchmark.export import csv_text, markdown
from consilience.benchmark.plan import Plan
from consilience.benchmark.running import compare_plan
from consilience.data.sites import Data, Sites
from consilience.distributions.posterior import Point, Posterior
from consilience.distributions.predictive import Categorical, Distribution, Normal
from consilience.messages import Client
from consilience.metrics import evaluate
from consilience.metrics.by_part import scores_by_part
from consilience.metrics.scores import scores
from consilience.report.run_page import comparison_page, run_page
from consilience.report.schema.run_findings import read_run
from consilience.report.schema.sentence import sentence
from consilience.runs.problem import Problem


def part(p: Distribution, rows: slice) -> Distribution:
    if isinstance(p, Categorical):
        return Categorical(p.log_probs[rows])
    return Normal(p.mean[rows], p.var[rows], p.noise)


def predictions(kind: str, rows: int) -> tuple[Distribution, torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    if kind == "numbers":
        y = torch.randn(rows, generator=draws)
        return Normal(torch.randn(rows, generator=draws), torch.rand(rows, generator=draws), torch.tensor(0.3)), y
    classes = int(kind)
    log_probs = torch.randn(rows, classes, generator=draws).log_softmax(1)
    return Categorical(log_probs), torch.randint(classes, (rows,), generator=draws)


@pytest.mark.parametrize("kind", ["2", "3", "numbers"])
def test_many_parts_have_the_scores_of_each_part_alone(kind: str) -> None:
    sizes = [0, 1, 5, 20, 300, 7, 0, 50] * 5
    p, y = predictions(kind, sum(sizes))
    start = 0
    for size, together in zip(sizes, scores_by_part(p, y, sizes), strict=True):
        rows = slice(start, start + size)
        alone = scores(part(p, rows), y[rows]) if size else {}
        assert together == pytest.approx(alone, rel=1e-9, abs=1e-12)
        start += size


def unlike_sites() -> tuple[co.Task, Sites]:
    """Two sites in which the same input means opposite classes: nothing shared can be as good as a model each."""
    draws = torch.Generator().manual_seed(1)
    x = torch.randn(240, 2, generator=draws)
    y = (x[:, 0] > 0).long()
    y[120:] = 1 - y[120:]
    sites = co.from_arrays(x, y, ["a"] * 120 + ["b"] * 120).split(co.splits.natural(), calibration=10)
    return co.classification(co.models.linear(2, 2)), sites


def test_own_rows_are_scored_together_each_by_its_sites_model() -> None:
    task, sites = unlike_sites()
    report = co.run(co.methods.LocalOnly(co.SGD(epochs=20)), task, sites).report
    rows = [entry["test"] for entry in report["per_site"]]
    mean = sum(n * entry["metrics"]["nll"] for n, entry in zip(rows, report["per_site"], strict=True)) / sum(rows)
    assert report["own_rows"]["metrics"]["nll"] == pytest.approx(mean)
    assert report["own_rows"]["metrics"]["nll"] < 0.5 < report["metrics"]["nll"]
    assert report["own_rows"]["tempered"]["metrics"]["nll"] < report["tempered"]["metrics"]["nll"]


def test_a_run_says_what_each_sites_own_model_does_on_its_own_rows() -> None:
    task, sites = unlike_sites()
    result = co.run(co.methods.Mixture(co.SGD(epochs=20)), task, sites)
    report = {**result.report, "bounds": result.bounds}
    own = result.bounds["local_only"]["own_rows"]["metrics"]["nll"]
    assert f"on each site's own rows its own model has an NLL of {own:.3f}, this one" in sentence(read_run(report))
    page = run_page(report)
    assert "Local only, own rows" in page and "Local only, all rows" in page
    assert "own rows" in str(result)


@pytest.mark.usefixtures("hurried")
def test_a_comparison_shows_both_scores_and_pairs_own_rows(tmp_path: Path) -> None:
    problem = Problem("moons", model="linear", sites=3, calibration=10)
    short = ("inference.epochs=2", "inference.batch=200", "inference.cycles=1", "inference.samples=1")
    plan = Plan(("mixture",), problem, ("dirichlet:0.5",), tuple(range(6)), common=short)
    comparison = compare_plan(plan, tmp_path)
    local = next(row for row in comparison.rows if row.row == "local_only")
    assert local.own_rows is not None
    own = local.own_rows.scores
    assert "for each site's own model on its own rows" in comparison.sentence
    assert own.metrics["nll"] != local.metrics["nll"]
    mixture = comparison.rows[0].scores.values["nll"]
    apart = [a - b for a, b in zip(own.values["nll"], mixture, strict=True) if a is not None and b is not None]
    assert own.differences["nll"].difference.mean == pytest.approx(sum(apart) / 6)
    page = (comparison_page(comparison.to_json()), str(comparison))
    for text in page:
        assert "own rows" in text and "all rows" in text
    assert "| local_only, own rows |" in markdown(comparison)
    assert '"local_only, own rows",no,nll' in csv_text(comparison)
    again = compare_plan(plan, tmp_path)
    assert again.rows[-3].own_rows == local.own_rows


def test_pooled_rows_are_scored_site_by_site() -> None:
    task, sites = unlike_sites()
    result = co.run(co.methods.Mixture(co.SGD(epochs=2)), task, sites)
    central = result.bounds["centralised"]
    assert [entry["site"] for entry in central["per_site"]] == list(sites.names)
    assert [entry["test"] for entry in central["per_site"]] == [len(test.x) for test in sites.test]
    assert central["worst_site"]["site"] in sites.names


def many_sites(count: int) -> tuple[co.Task, Sites]:
    task, sites = tiny.classification()
    data = [Data.of(sites.all_test.x[i : i + 6], sites.all_test.y[i : i + 6]) for i in range(count)]
    names = tuple(f"s{k}" for k in range(count))
    return task, Sites(
        tuple(data), tuple(data), None, None, None, sites.classes, sites.features, "many", "natural", names
    )


def test_beyond_a_number_of_sites_some_models_predict_all_rows_and_every_model_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluate, "MODELS", 4)
    task, sites = many_sites(12)
    result = co.run(co.methods.LocalOnly(co.SGD(epochs=1)), task, sites)
    models = [result.model(site) for site in sites.names]
    assert result.report["models"] == 4
    every = [scores(models[k](sites.all_test.x), sites.all_test.y)["nll"] for k in (0, 3, 6, 9)]
    assert result.report["metrics"]["nll"] == pytest.approx(sum(every) / 4, rel=1e-5)
    for model, test, entry in zip(models, sites.test, result.report["per_site"], strict=True):
        assert entry["metrics"]["nll"] == pytest.approx(scores(model(test.x), test.y)["nll"], rel=1e-5)
    named = read_run({"sites": 12, "bounds": {"local_only": result.report}}).scored_bounds
    assert [name for _, name, _ in named] == ["Local only, own rows", "Local only, all rows (4 of 12 models)"]


def test_draws_are_even() -> None:
    assert evaluate.draw_evenly(3, 64) == [0, 1, 2]
    assert evaluate.draw_evenly(256, 64) == list(range(0, 256, 4))


@dataclass(frozen=True)
class Notes(co.SGD):
    """Training that notes under which engine it runs: vectorised means inside a vmap."""

    def __call__(self, task: co.Task, start: Posterior, client: Client) -> Point:
        VECTORISED.append(tree.under_vmap())
        return super().__call__(task, start, client)


VECTORISED: list[bool] = []


def test_bounds_are_trained_on_the_engine_of_the_run() -> None:
    task, sites = many_sites(12)
    method = co.methods.FedAvg(Notes(epochs=1))
    for engine in ("sequential", "vectorised"):
        result = co.run(method, task, sites, rounds=1, engine=engine, keep_replies="none")
        VECTORISED.clear()
        assert result.bounds.keys() == {"local_only", "centralised"}
        assert VECTORISED[0] == (engine == "vectorised")


def test_sites_with_models_of_their_own_and_a_common_one_are_scored_by_both() -> None:
    """Each site's own model on its own rows is the headline; what a newcomer gets is named, on all rows."""
    task, sites = unlike_sites()
    result = co.run(co.methods.Hierarchical(), task, sites)
    report = result.report
    models = [result.model(site) for site in sites.names]
    own = evaluate.join([model(test.x) for model, test in zip(models, sites.test, strict=True)])
    common = result.method.predictive(task, result.state)(sites.all_test.x)

    assert report["metrics"]["nll"] == pytest.approx(scores(own, sites.all_test.y)["nll"])
    assert report["newcomer"]["metrics"]["nll"] == pytest.approx(scores(common, sites.all_test.y)["nll"])
    assert report["metrics"]["nll"] < 0.5 < report["newcomer"]["metrics"]["nll"]  # opposite sites: nothing is common
    for entry, model, test in zip(report["per_site"], models, sites.test, strict=True):
        assert entry["metrics"]["nll"] == pytest.approx(scores(model(test.x), test.y)["nll"], rel=1e-5)
    assert report["tempered"]["metrics"]["nll"] < report["newcomer"]["tempered"]["metrics"]["nll"]
    last = report["history"][-1]
    assert (last["nll"], last["newcomer_nll"]) == (report["metrics"]["nll"], report["newcomer"]["metrics"]["nll"])
    page = run_page({**report, "bounds": {}})
    assert "own rows" in page and "Newcomer" in page
    report = {**report, "bounds": result.bounds}
    assert "its model without the others has an NLL of" in sentence(read_run(report))
    assert "newcomer" in str(result)


def test_validation_rows_are_those_of_each_sites_own_model() -> None:
    draws = torch.Generator().manual_seed(2)
    x = torch.randn(300, 2, generator=draws)
    y = (x[:, 0] > 0).long()
    y[150:] = 1 - y[150:]
    data = co.from_arrays(x, y, ["a"] * 150 + ["b"] * 150)
    sites = data.split(co.splits.natural(), calibration=0, validation=0.3)
    result = co.run(co.methods.Hierarchical(), co.classification(co.models.linear(2, 2)), sites)
    assert result.report["history"][-1]["validation_nll"] < 0.5


@pytest.mark.usefixtures("hurried")
def test_a_comparison_names_the_sites_own_models_and_the_newcomers(tmp_path: Path) -> None:
    problem = Problem("moons", model="linear", sites=3, calibration=0)
    plan = Plan(("hierarchical", "gaussian_product"), problem, ("dirichlet:0.5",), (0, 1))
    comparison = compare_plan(plan, tmp_path)
    row = next(row for row in comparison.rows if row.row == "hierarchical")
    assert row.newcomer is not None and row.own_rows is None
    assert row.newcomer.scores.metrics["nll"] != row.metrics["nll"]
    for text in (comparison_page(comparison.to_json()), str(comparison)):
        assert "own rows" in text and "newcomer" in text
    assert "| hierarchical, own rows |" in markdown(comparison)
    assert "| hierarchical, newcomer (all rows) |" in markdown(comparison)
    assert '"hierarchical, newcomer (all rows)",no,nll' in csv_text(comparison)
    again = compare_plan(plan, tmp_path)
    assert next(row for row in again.rows if row.row == "hierarchical").newcomer == row.newcomer
