"""What a report adds to the scores: warnings, where doubt comes from, predictions and truth, and what it leaves out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import tiny
import torch
from reports import classification, read, regression, reliability

import consilience as co
from consilience.data import Data
from consilience.distributions.predictive import Categorical, Normal
from consilience.metrics.shown import examples, picture, predicted_bins
from consilience.report.run_page import run_page
from consilience.report.schema.run_findings import read_run
from consilience.report.schema.warnings import doubts
from consilience.report.suppression import suppress


def calm() -> dict[str, Any]:
    """A run that gives no reason to doubt it."""
    run = classification()
    for site in run["per_site"]:
        site["labels"] = [30] * 10
    return run


def test_a_good_run_has_no_warning() -> None:
    assert doubts(read_run(calm())) == []
    assert doubts(read_run({})) == []


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"metrics": {"nll": 2.31}},
            "worse than giving all 10 classes the same probability (2.303)",
        ),  # log 10 = 2.3026
        ({"metrics": {"nll": math.inf}}, "is not finite"),
        (
            {
                "metrics": {"nll": math.inf},
                "per_site": [
                    {"site": "a", "test": 50, "metrics": {"nll": None}},
                    {"site": "b", "test": 50, "metrics": {"nll": 1.0}},
                ],
            },
            "The NLL is not finite at a: training diverged",
        ),
        ({"reliability": reliability([0] * 9 + [100], -0.2)}, "Overconfident: the mean confidence is 96 %"),
        ({"reliability": reliability([0] * 5 + [100, 0, 0, 0, 0], 0.2)}, "Underconfident: the mean confidence is 56 %"),
        ({"multiplies": True, "reliability": reliability([0] * 9 + [100], -0.2)}, "A product treats the sites"),
        (
            {"diagnostics": {"relative_gradient": 0.0123, "converged": False}},
            "Not converged: the pooled gradient is 0.01 of what it was at the start.",
        ),
        ({"diagnostics": {"beta": 0.0}}, "β is at the end of its range (0, the mixture)"),
        (
            {"diagnostics": {"beta": 1.0}},
            "(1, the product): no value in between did better on the server's 30 labelled rows",
        ),
        (
            {"diagnostics": {"at_end_of_range": {"temperature": 32.0}}},
            "The best temperature is at the end of what was tried (32): no value inside that range did better.",
        ),
        ({"bounds": {"centralised": {"failure": "Too far."}}}, "The centralised bound failed: Too far."),
        ({"rows": {"test": 199}}, "Only 199 test rows"),
        ({"per_site": [{"site": "a", "test": 19}, {"site": "b", "test": 20}]}, "Site a has fewer than 20 test rows"),
        ({"per_site": [{"site": "a", "labels": [5, 0]}, {"site": "b", "labels": [1, 0]}]}, "training rows of class 1"),
    ],
)
def test_each_reason_to_doubt_is_told_once(change: dict[str, Any], sentence: str) -> None:
    found = doubts(read_run({**calm(), **change}))
    assert len([d for d in found if sentence in d.replace("\u00a0", " ")]) == 1


@pytest.mark.parametrize("beta", [0.002, 0.5, 0.998])
def test_a_beta_inside_its_range_is_no_warning(beta: float) -> None:
    assert doubts(read_run({**calm(), "diagnostics": {"beta": beta}})) == []


def test_a_regression_worse_than_the_mean_is_told() -> None:
    run = {**regression(), "predicted": {"bins": [], "points": None, "spread": 0.4}}  # its RMSE is 0.412
    assert "worse than always predicting the mean (0.400)" in doubts(read_run(run))[0]


def test_the_split_adds_up_to_what_predict_says() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("beta"), task, sites)
    p = result.predict(sites.all_test.x)  # the sites are not standardised

    parts = {part["of"]: part for part in result.report["uncertainty"]}

    every = parts["all test rows"]
    assert every["aleatoric"] == pytest.approx(float(p.aleatoric.mean()), rel=1e-5)
    assert every["within"] + every["disagreement"] == pytest.approx(float(p.epistemic.mean()), rel=1e-4)
    assert parts["it got right"]["rows"] + parts["it got wrong"]["rows"] == every["rows"] == len(sites.all_test.x)
    sizes = [len(d.x) for d in sites.test]
    means = [parts[f"site {name}"]["aleatoric"] for name, n in zip(sites.names, sizes, strict=True) if n]
    held = [n for n in sizes if n]
    weighted = sum(m * n for m, n in zip(means, held, strict=True)) / sum(held)
    assert weighted == pytest.approx(every["aleatoric"], rel=1e-5)  # the mean over rows is the mean over sites, by size


def test_one_set_of_weights_has_no_split() -> None:
    task, sites = tiny.classification()
    assert co.run(tiny.method("fedavg"), task, sites, rounds=1).report["uncertainty"] is None


def test_beta_is_written_down() -> None:
    task, sites = tiny.classification()
    result = co.run(tiny.method("beta"), task, sites)
    assert result.report["diagnostics"] == {"beta": result.state.beta}


def test_predictions_and_truth_in_bins() -> None:
    mean = torch.arange(100, dtype=torch.float64)
    y = mean + 1
    p = Normal(mean, torch.full((100,), 3.0), torch.full((100,), 1.0))  # a deviation of √(3 + 1) = 2

    found = predicted_bins(p, y, public=False)

    assert found is not None and found.points is None
    first = found.bins[0]
    assert (first.predicted, first.observed, first.rows, first.deviation) == (4.5, 5.5, 10, 2.0)  # of 0 … 9
    half = 1.96 * torch.arange(10.0).std().item() / 10**0.5
    assert first.interval == pytest.approx([5.5 - half, 5.5 + half])
    assert found.spread == pytest.approx(mean.std().item())
    shown = predicted_bins(p, y, public=True)
    assert shown is not None and shown.points is not None
    assert shown.points[0] == (0.0, 2.0, 1.0)


def test_examples_are_the_most_confidently_wrong_and_the_most_uncertain() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.7, 0.3], [0.5, 0.5], [0.2, 0.8]])
    y = torch.tensor([1, 1, 0, 1])  # the first two are wrong, the first with 90 %
    sites = co.datasets.moons(n=40).split(co.splits.iid(), sites=2, seed=0)
    sites = co.Sites(**{**sites.__dict__, "test": (Data.of(torch.zeros(4, 2), y),)})

    found = examples(Categorical(probs.log()), y, sites)

    wrong = [e for e in found if e.kind == "most confidently wrong"]
    assert [(e.predicted, round(e.confidence, 3), e.true) for e in wrong] == [(0, 0.9, 1), (0, 0.7, 1)]
    assert next(e for e in found if e.kind == "most uncertain").confidence == pytest.approx(0.5)
    assert all(e.image is None for e in found)  # two numbers are no picture


def test_single_rows_are_shown_of_public_data_only() -> None:
    x, y = torch.randn(80, 64), torch.arange(80) % 2
    split = {"sites": 2, "seed": 0, "calibration": 5}
    for public in (True, False):
        sites = co.from_arrays(x, y, public=public).split(co.splits.iid(), **split)
        result = co.run(tiny.method("mixture"), co.classification(co.models.linear(64, 2)), sites)
        assert bool(result.report["examples"]) == public
        assert ("Example predictions" in run_page(result.report)) == public
    assert len(picture(torch.randn(64)) or []) == 8
    assert picture(torch.randn(3, 64, 64)) is None  # too large for a report


def test_small_cells_are_left_out_of_a_study() -> None:
    run = {
        **classification(),
        "smallest_count": 10,
        "examples": [{"kind": "most uncertain", "said": 1, "confidence": 0.5, "true": 0, "image": [[0.0]]}],
        "uncertainty": [{"of": "site 1", "rows": 9, "aleatoric": 1.0, "within": 0.1, "disagreement": 0.1}],
    }
    run["per_site"][0] |= {"test": 9, "labels": [0, 1, 9, 10, 50, 0, 0, 0, 0, 0]}

    shown = suppress(run)

    assert shown["examples"] is None and shown["uncertainty"] == []
    assert shown["per_site"][0]["labels"] == [0, None, None, 10, 50, 0, 0, 0, 0, 0]
    assert shown["per_site"][0]["metrics"] == {}
    right = [round(b["count"] * b["accuracy"]) for b in shown["reliability"]]  # bins are merged, none is left out
    wrong = [b["count"] - hits for b, hits in zip(shown["reliability"], right, strict=True)]
    assert min(*right, *wrong) >= 10
    assert sum(b["count"] for b in shown["reliability"]) == sum(b["count"] for b in run["reliability"])
    assert read(run_page(run)).open == []
    assert suppress(classification()) == classification()
