"""The papers' experiments: each runs on a few drawn rows for a few steps, and its formulas are the papers'."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import consilience as co
from consilience.benchmark.reproduce import folder, load, module, names, reproduce
from consilience.data.dataset import Dataset
from consilience.data.splits.labels import iid
from consilience.data.splits.split import Rows
from consilience.distributions.predictive import Normal
from consilience.distributions.prior import Flat
from consilience.inference.kernels import At
from consilience.key import Key
from consilience.methods.fedpa import delta

IMAGES = {
    "digits": (1, 8, 8),
    "mnist": (1, 28, 28),
    "fashion_mnist": (1, 28, 28),
    "femnist": (1, 28, 28),
    **dict.fromkeys(("cifar10", "svhn"), (3, 8, 8)),
    "cifar100": (3, 22, 22),  # the least that three convolutions with pooling leave a pixel of
}
DRAWN = ("hasan2023/figure31", "hasan2024/figures")  # from the trials of hasan2023/accuracy
SMOKE = [name for name in names() if "smoke" in load(name).scales and name not in DRAWN]
# Wide networks and many methods, of which shorter forms are below and in accuracy, or tables of others' rows.
DEAR = (
    "chen2021/released",
    "oneshot/published",
    "oneshot/table",
    "hasan2023/larger",
    "ozer2022/table1",
    "ozer2022/table3",
    "ozer2022/table5",
)


def drawn(name: str, data_dir: str | None = None) -> Dataset:
    """A few rows of the kind the name promises: images of ten classes, or a table with a test part where it has one."""
    key, leaky = Key(7), name.endswith("@hasan2023")
    if name.partition("@")[0] in IMAGES:
        y, shape = torch.arange(250) % 10, IMAGES[name]
        x = (key.fold(0).uniform(250 * math.prod(shape)).reshape(250, *shape) + y.reshape(-1, 1, 1, 1) / 10) / 2
        return Dataset(name, x[:200], y[:200], classes=10, x_test=x[200:], y_test=y[200:])
    x = key.fold(0).normal((260, 4))
    y = x @ torch.tensor([1.0, -0.5, 0.2, 0.0]) + 0.3 * key.fold(1).normal((260,))
    if not leaky:
        return Dataset(name, x, y, standardise=True)
    return Dataset(name, x[:150], y[:150], x_test=x[150:], y_test=y[150:])


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in DEAR else n for n in SMOKE])
@pytest.mark.usefixtures("hurried")
def test_every_row_is_filled(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = load(name).columns
    check_column(name, next(c for c in columns[::-1] if "natural" not in c), monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_every_row_of_small_images_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = load("oneshot/table").columns
    check_column("oneshot/table", next(c for c in columns if c.startswith("digits")), monkeypatch)


def check_column(name: str, column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load(name)
    monkeypatch.setattr("consilience.data.datasets.load", drawn)

    values = experiment.trial(column, 0, "smoke", None)

    printed = {row for row, cells in (experiment.paper or {}).items() if column in cells}
    assert printed - set(experiment.open_rows) <= set(values)
    for row, scores in values.items():
        assert experiment.score in scores, row
        assert all(v is None or math.isfinite(v) for v in scores.values()) or row.startswith("FedPA"), row
    assert sum(scores[experiment.score] is not None for scores in values.values()) >= len(values) - 2


def test_the_first_scale_is_the_whole_experiment_unless_that_takes_days() -> None:
    shorter = {"hasan2023/larger": "quick", "oneshot/fusefl": "small"}
    for name in names():
        assert load(name).scales[0] == shorter.get(name, "full"), name
        assert not name.endswith("/summary"), name  # what writes a page is no experiment


def test_many_rounds_are_five_on_letters_and_ten_on_photographs() -> None:
    paper = load("hasan2023/larger").paper
    assert paper is not None
    assert paper["FedAvg, 5 rounds"]["femnist:0.3"] == (84.02, 0.05)  # Table 3.1, '≥ 5'
    assert paper["FedAvg, 10 rounds"]["cifar10:0.3"] == (40.49, 0.33)
    assert "cifar10:0.3" not in paper["FedAvg, 5 rounds"]


def test_a_released_figure_pairs_each_prediction_of_a_batch_with_each_target() -> None:
    table2 = module("hasan2024/table2")
    mean, var = torch.tensor([0.0, 1.0]), torch.tensor([2.0, 1.0])
    p, y = Normal(mean, var, torch.zeros(2)), torch.tensor([1.0, 3.0])

    # ½ (log σ² + (μ − y)²/σ²) over the four pairs: σ² = 2, μ = 0: (1, 9)/2; σ² = 1, μ = 1: (0, 4)
    expected = 0.5 * (2 * math.log(2) + 0.5 + 4.5 + 0 + 4) / 4
    assert table2.pairwise(p, y) == pytest.approx(expected)
    # row by row: (0 − 1)²/2 and (1 − 3)²/1
    assert table2.batch_sums(p, y)["nll_sum"] == pytest.approx(0.5 * (math.log(2) + 0.5 + 4) / 2)


def test_the_papers_sums_count_the_last_batch_as_a_whole_one() -> None:
    table2 = module("hasan2024/table2")
    p = Normal(torch.zeros(150), torch.ones(150), torch.zeros(150))
    y = torch.cat([torch.full((100,), 2.0), torch.full((50,), 4.0)])
    found = table2.batch_sums(p, y)
    assert found["mse_sum"] == pytest.approx(4 + 16)  # 100 rows of 4, then 50 of 16
    assert found["mse"] == pytest.approx((100 * 4 + 50 * 16) / 150)
    assert found["nll"] == pytest.approx(0.5 * 8 + 0.5 * math.log(2 * math.pi))


@pytest.mark.parametrize("column", ["homogeneous", "separated"])
def test_the_variances_approach_their_limits(column: str) -> None:
    theory = module("hasan2023/theory")
    theory.SIZES = {"full": (400,)}

    values = theory.trial(column, 0, "full", None)

    # K = 4, homogeneous: product 1/(4/0.2 − 3/1.2) = 0.0571, mixture 0.2
    # separated: product 0.2, mixture 0.2 + 3/4 + sin(1.5)² · 3/16 = 1.1366
    expected = {"homogeneous": (1 / 17.5, 0.2), "separated": (0.2, 0.95 + np.sin(1.5) ** 2 * 3 / 16)}[column]
    for rule, limit in zip(("product", "mixture"), expected, strict=True):
        assert values[f"limit of the {rule}, K = 4"]["variance"] == pytest.approx(limit, rel=1e-9)
        assert values[f"{rule}, K = 4"]["variance"] == pytest.approx(limit, rel=0.05)


def test_theory_is_drawn(tmp_path: Path) -> None:
    results = reproduce("hasan2023/theory", [0, 1], "smoke", tmp_path, None)
    module("hasan2023/theory").draw(results, tmp_path)
    picture = (tmp_path / "theory.svg").read_text()
    assert picture.count("stroke-dasharray") >= 12  # a limit for each K in four panels


def test_figures_take_the_trials_of_the_accuracy_table_and_leave_out_what_diverged(tmp_path: Path) -> None:
    accuracy, figures = load("hasan2023/accuracy"), load("hasan2024/figures")
    assert figures.columns == accuracy.columns and figures.scales == accuracy.scales

    def cell(row: str, column: str, nll: float | None) -> dict[str, Any]:
        return {"row": row, "column": column, "scores": {"nll": nll, "ece": 0.02}}

    cells = [cell("β", c, 0.1) for c in figures.columns] + [cell("FedPA", "mnist:0.3", None)]
    module("hasan2024/figures").draw({"cells": cells}, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"nll.svg", "ece.svg"}


def test_cells_stored_with_more_seeds_stay() -> None:
    def found(seeds: list[int], *cells: tuple[str, str, int]) -> dict[str, Any]:
        return {"seeds": seeds, "cells": [{"column": c, "row": r, "seeds": n} for c, r, n in cells]}

    new = found([0, 3], ("a", "ours", 1), ("a", "theirs", 2), ("b", "ours", 0))
    old = found([0, 1], ("a", "theirs", 1), ("a", "ours", 2), ("b", "ours", 1), ("a", "gone", 1))
    kept = [("a", "ours", 2), ("a", "theirs", 2), ("a", "gone", 1), ("b", "ours", 1)]
    assert module("stored").joined(new, old) == found([0, 1, 3], *kept)


def test_marked_tables_are_those_of_the_stored_results(tmp_path: Path) -> None:
    stored = module("stored")
    cell = {"row": "FedAvg", "column": "a", "ours": 1.0, "seeds": 2}
    cell |= {"scores": {"accuracy": 81.26, "nll": -0.5, "other": 3.0}, "errors": {"accuracy": 0.24, "nll": None}}
    (tmp_path / "table-small.json").write_text(json.dumps({"cells": [cell, {**cell, "ours": None}]}))
    page = "Before.\n<!-- table-small: stored.py -->\nold\n<!-- end -->\nAfter.\n"
    made = stored.renewed(page, tmp_path)
    assert "| | seeds | accuracy, % | NLL |" in made and made.count("FedAvg") == 1 and "old" not in made
    assert "| FedAvg | 2 | 81.3 ± 0.2 | −0.500 |\n" in made and made.startswith("Before.") and made.endswith("After.\n")
    shown = stored.by_column({"cells": [{**cell, "paper": 80.0}, {**cell, "column": "b", "row": "β", "paper": None}]})
    assert "| a, 2 seeds | b, 2 seeds |" in shown
    assert "| FedAvg | 81.3 ± 0.2; −0.500 (80.0) | – |\n| β | – | 81.3 ± 0.2; −0.500 |" in shown
    for file in folder().glob("*/README.md"):
        assert stored.renewed(file.read_text(), file.parent / "results") == file.read_text(), file


def test_figure_3_1_draws_ours_and_the_printed_lines(tmp_path: Path) -> None:
    figure = load("hasan2023/figure31")
    printed = figure.paper or {}
    cells = [
        {"row": row, "column": column, "ours": None, "spread": None, "paper": mean, "paper_spread": error}
        for row, columns in printed.items()
        for column, (mean, error) in columns.items()
    ]
    cells[0] |= {"ours": 90.0, "spread": 1.0}
    module("hasan2023/figure31").draw({"cells": cells}, tmp_path)
    drawing = (tmp_path / "figure31.svg").read_text()
    assert all(f"<!-- {row} -->" in drawing for row in printed) and "<!-- MNIST, printed -->" in drawing


@pytest.mark.parametrize(("count", "exact"), [(1, True), (2, True), (4, False)])
def test_the_released_recursion_of_fedpa_is_exact_for_two_samples_only(count: int, exact: bool) -> None:
    theta, samples = Key(0).normal((6,)), Key(1).normal((count, 6))
    ours = delta(theta, samples, 0.4)
    released = module("hasan2024/released").released_delta(theta, samples, 0.4)
    assert torch.allclose(released, ours, atol=1e-4) == exact


def test_the_released_counter_decays_once_on_images() -> None:
    sampler = module("hasan2024/released").ReleasedCounter(0.1, epochs=25, cycles=5, batch=100, rows=60_000)
    places = [At(epoch, 0.0, torch.tensor(12_000.0), Key(0), step) for epoch in range(25) for step in range(120)]
    rates = [float(sampler.rate_at(at)) for at in places]
    firsts = rates[::120]
    assert firsts == sorted(firsts, reverse=True) and rates[0] == 0.1
    assert min(rates) == pytest.approx(0.05 * (1 + math.cos(math.pi * 2519 / 3005)))  # 24 · 100 + 119 of 25 · 601 / 5


def test_released_clients_of_one_file_are_cut_by_date() -> None:
    released = module("hasan2024/released")
    rows = Rows(torch.zeros(10, 1), torch.arange(10.0), None, None)
    assert [p.tolist() for p in released.InFileOrder()(rows, 2, Key(0))] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_released_client_carries_its_momentum_from_round_to_round(rounds: int) -> None:
    x, y = Key(0).normal((12, 3)), Key(1).normal((12,))
    sites = Dataset("rows", x, y).split(iid(), 1, test=0.25, calibration=0)
    network = torch.nn.Linear(3, 1)
    task = co.regression(network, noise=0.5, prior=Flat())
    sgd = co.SGD(rate=0.05, momentum=0.9, epochs=2, batch=4, shuffle=False)
    method = module("hasan2024/released").FedAvgCarried(sgd)

    result = co.run(method, task, sites, rounds=rounds, scored=False)

    network.load_state_dict(method.init(task, result.server).posterior.params)
    optimiser, rows = torch.optim.SGD(network.parameters(), 0.05, 0.9), sites.train[0]
    for _ in range(2 * rounds):
        for part, target in zip(rows.x.split(4), rows.y.split(4), strict=True):
            optimiser.zero_grad()
            ((network(part).squeeze(-1) - target) ** 2).mean().backward()
            optimiser.step()
    for name, leaf in network.state_dict().items():
        torch.testing.assert_close(result.state.posterior.params[name], leaf, atol=1e-5, rtol=1e-4)


def test_fedkt_alone_starts_its_student_at_random_as_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """The released programs of FedBE and one-shot FL set the student to a client, FedKT's sets nothing."""
    released = module("hasan2023/released")
    sites = co.datasets.moons(n=60).split(co.splits.iid(), sites=2, test=0.2, inputs=10, seed=0)
    trial = object.__new__(released.Trial)
    trial.task, trial.sites, trial.seed, trial.values = co.classification(co.models.linear(2, 2)), sites, 0, {}
    trial.distil = co.aggregation.Distil(co.SGD(0.1, epochs=1), start=co.aggregation.at_client)
    local = co.run(co.methods.FedAvg(co.SGD(0.1, epochs=1)), trial.task, sites, rounds=1, seed=0, scored=False)
    starts = {}
    monkeypatch.setattr(released.Trial, "score", lambda self, row, model: None)
    monkeypatch.setattr(released.Trial, "add", lambda self, row, r: starts.update({row: r.method.distil.start}))

    trial.students(local)

    assert starts == {"Oneshot FL": co.aggregation.at_client, "FedKT": co.aggregation.at_random}
