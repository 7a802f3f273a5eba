"""The experiments of d'Hondt et al.: each runs for a few steps, is drawn, and has the paper's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import consilience as co
from consilience.benchmark.reproduce import collect, load, module
from consilience.benchmark.row_words import read_settings, row
from consilience.data.dataset import Dataset
from consilience.data.sites import Data
from consilience.distributions.posterior import Point
from consilience.distributions.prior import Flat
from consilience.inference.optimisers import AdamSteps, Descent
from consilience.key import Key
from consilience.messages import Client

ROOT = Path(__file__).parents[2]


def writers(name: str, data_dir: str | None = None) -> Dataset:
    """Six writers with 20 images of twelve classes each, a few of them for testing."""
    assert name == "femnist"
    y, site = torch.arange(120) % 12, torch.arange(120) // 20
    x = Key(3).uniform(120 * 784).reshape(120, 1, 28, 28)
    last = torch.arange(120) % 10 == 9
    parts = {"x_test": x[last], "y_test": y[last], "site_test": site[last]}
    return Dataset(name, x[~last], y[~last], classes=62, site=site[~last], public=True, **parts)


def drawn(name: str, column: str, folder: Path) -> dict[str, Any]:
    """One trial at the smallest size, collected and drawn as `reproduce` would."""
    experiment = load(name)
    values = experiment.trial(column, 0, "smoke", None)
    place = folder / "trials" / "smoke" / column
    place.mkdir(parents=True)
    (place / "seed-0.json").write_text(json.dumps({"format": 1, "values": values}))
    results = collect(name, experiment, [0], "smoke", folder)
    if draw := getattr(module(name), "draw", None):
        draw(results, folder)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure2", "figure4", "figure3"])
def test_figures_run_and_are_drawn(name: str, tmp_path: Path) -> None:
    column = load(f"dhondt2024/{name}").columns[0]

    results = drawn(f"dhondt2024/{name}", column, tmp_path)

    rows = {c["row"] for c in results["cells"]}
    assert {"FedAvg", "DOSFL", "BPC-FL + HMC"} <= rows and "_drawing" not in rows
    assert all(c["ours"] is not None for c in results["cells"])
    assert (tmp_path / f"{name}-seed-0.svg").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("hurried")
def test_table_1_fills_its_rows_and_figure_1_its_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load("dhondt2024/table1")
    monkeypatch.setattr("consilience.data.datasets.load", writers)
    values = experiment.trial("femnist", 0, "smoke", None)

    short = {r for r in experiment.paper or {} if "100 local" not in r}
    assert short <= set(values)
    # Two sets of ten images of 784 pixels with labels and weights, four numbers beside; one seed down to each.
    own = values["BPC-FL + SGD"]["floats_to_nll"]
    assert own == 2 * (10 * (784 + 2) + 4 + 1)
    assert values["BPC-FL + SGD"]["times_to_nll"] == 1
    drawing: Any = values["_drawing"]
    warm = drawing["curves"]["BPC-FL → FedAvg"]
    cold = drawing["curves"]["FedAvg (10 local steps)"]
    assert warm[0]["up_floats"] - cold[0]["up_floats"] == 2 * (10 * (784 + 2) + 4)  # the coresets count
    results = {"scale": "smoke", "drawings": {"femnist": {0: drawing}}, "cells": []}
    for name, picture in (("table1", "pseudo-inputs.svg"), ("figure1", "figure1.svg")):
        module(f"dhondt2024/{name}").draw(results, tmp_path)
        assert (tmp_path / picture).exists()


def test_no_writer_is_both_trained_and_tested_on(monkeypatch: pytest.MonkeyPatch) -> None:
    table1 = module("dhondt2024/table1")
    monkeypatch.setattr("consilience.data.datasets.load", writers)

    sites, others = table1.prepare(3, 2, 0, None)

    seen = {tuple(x.flatten()[:5].tolist()) for part in (*sites.train, *sites.test, *sites.validation) for x in part.x}
    assert len(sites) == 3 and len(seen) == 60 and len(others.x) == 40
    assert not seen & {tuple(x.flatten()[:5].tolist()) for x in others.x}


def test_femnist_is_white_on_black_as_fedjax_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consilience.data.datasets.load", writers)
    sites, others = module("dhondt2024/table1").prepare(3, 3, 0, None)
    rows = writers("femnist")
    assert rows.x_test is not None
    pixels = torch.cat([rows.x, rows.x_test])
    found = torch.cat([others.x, *(part.x for part in (*sites.train, *sites.test, *(sites.validation or ())))])
    assert found.sum().item() == pytest.approx((1 - pixels).sum().item(), rel=1e-5)


def test_fedpa_samples_ten_steps_with_momentum() -> None:
    """On h(θ − c)²/2 with v ← 0.9 v + h(θ − c), θ ← θ − 0.01 v."""
    task = co.regression(nn.Linear(1, 1, bias=False), noise=1.0, prior=Flat())
    data = Data.of(torch.full((4, 1), 2.0), torch.full((4,), 6.0))  # h = 4, c = 3
    theta, velocity, expected = 0.5, 0.0, []
    for _ in range(12):
        velocity = 0.9 * velocity + 4 * (theta - 3)
        theta -= 0.01 * velocity
        expected.append(theta)

    iterates = module("dhondt2024/table1").Iterates(steps=12)
    found = iterates(task, Point({"weight": torch.full((1, 1), 0.5)}), Client(data, (), Key(0)))

    assert found.params["weight"].flatten().tolist() == pytest.approx(expected[2:], abs=1e-5)


def test_the_server_descends_as_table_7_has_it() -> None:
    """A step of 0.01 and 2 000 of them, no momentum: 107.5 passes over 30 writers' 1 860 pseudo-rows, 32 over 100's."""
    table1 = module("dhondt2024/table1")
    for scale, writers, passes in (("evening", 30, 107), ("small", 10, 322), ("full", 100, 32)):
        steps = table1.descent(table1.SIZES[scale], 62 * writers)
        assert (steps.rate, steps.momentum, steps.batch, steps.epochs) == (0.01, 0.0, 100, passes)


@pytest.mark.parametrize("name", ["table1", "table9"])
def test_decay_on_the_mean_loss_is_a_column(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = load(f"dhondt2024/{name}")
    monkeypatch.setattr("consilience.data.datasets.load", writers)
    columns = [column for column in experiment.columns if "decay" in column]
    assert len(columns) == 1
    values = experiment.trial(columns[0], 0, "smoke", None)
    assert values["BPC-FL + SGD"]["nll"] > 0 and not any("Fed" in row for row in values)
    task = module("dhondt2024/table1").regularised(module("dhondt2024/table1").SIZES["smoke"], columns[0])
    assert task.prior == Flat() and [tilt.mu for tilt in task.tilts] == [1e-2]


def test_real_rows_alone_are_rows_of_the_writers(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, table1 = load("dhondt2024/table1"), module("dhondt2024/table1")
    monkeypatch.setattr("consilience.data.datasets.load", writers)
    for column in (f"femnist, {table1.UNLEARNED}", f"femnist, {table1.UNLEARNED}, {table1.HAIKU}"):
        assert column in experiment.columns
        values = experiment.trial(column, 0, "smoke", None)
        assert [*values] == [table1.REAL]
        assert values[table1.REAL]["copies"] == 20 and values[table1.REAL]["closest"] == pytest.approx(0, abs=1e-3)


def test_figure_2_has_exactly_its_points() -> None:
    for points in (100, 20):
        sites = module("dhondt2024/figure2").prepare(points, 0)
        assert [len(d.w) for d in sites.train] == [points] * 5
        assert [len(d.w) for d in sites.test] == [200] * 5 and len(sites.all_validation.w) == 100


@pytest.mark.parametrize("data", ["sine", "moons", "femnist"])
def test_the_preset_holds_the_papers_settings(data: str) -> None:
    tuned = read_settings("dhondt2024", data, None)
    made = {name: row(name, settings).method for name, settings in tuned.items()}

    learn = made["coreset"].learn  # type: ignore[attr-defined]
    # Table 2: update steps, weight samples per update, chain lengths, σ_z, σ_ε.
    table2 = {"sine": (400, 10, 150, 200, 1.0, 1e-2), "moons": (700, 20, 150, 200, 0.6, 1e-2)}
    table2 |= {"femnist": (500, 5, 200, 250, 1e-3, 1e-4)}
    assert (learn.updates, learn.draws, learn.data_steps, learn.coreset_steps, learn.spread, learn.noise) == table2[
        data
    ]
    assert isinstance(learn.chain, Descent if data == "femnist" else AdamSteps) and learn.chain.rate == 1e-2
    if data != "sine":  # Table 7 gives SGD a step and a number of steps, and no momentum
        assert made["coreset"].downstream.momentum == 0.0  # type: ignore[attr-defined]
    if data == "femnist":  # Tables 5 and 6
        assert made["fedpa"].rho == 0.1 and made["fedpa"].optimiser == Descent(0.5, 0.9)  # type: ignore[attr-defined]
        assert made["mime"].optimiser.rate == 1e-3  # type: ignore[attr-defined]
    else:  # Table 4
        assert made["dosfl"].learn.steps == {"sine": 20, "moons": 30}[data]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["table1", "table8", "table9"])
def test_the_tables_of_femnist_are_those_of_their_results(name: str) -> None:
    page = (ROOT / "experiments/dhondt2024/README.md").read_text()
    for mark, text in module("dhondt2024/summary").tables(name).items():
        assert f"<!-- {mark}: summary.py -->\n{text}\n<!-- end -->" in page


def test_runs_that_tables_share_are_the_same_where_both_have_them() -> None:
    """Controls learn no pseudo-rows, so where these begin is nothing to them; Table 8's 62 rows are Table 9's."""
    summary = module("dhondt2024/summary")
    tables = {name: summary.stored_results(name)["evening"]["per_seed"] for name in ("table8", "table9")}
    nine, eight = tables["table9"], tables["table8"]

    pairs = [(nine[a][row], nine[b][row]) for a, b in summary.SAME.items() for row in (summary.REAL, summary.ALL)]
    pairs += [(eight[summary.SIZE_OF_TABLE_9][row], nine["30 writers"][row]) for row in nine["30 writers"]]
    pairs += [(eight[size][summary.ALL], nine["30 writers"][summary.ALL]) for size in eight]
    for one, other in pairs:
        assert one["nll"][0] == pytest.approx(other["nll"][0], rel=1e-3)
        assert one["accuracy"][0] == pytest.approx(other["accuracy"][0], abs=1e-3)


def test_cells_with_more_seeds_are_kept_when_a_folder_has_fewer() -> None:
    def cell(row: str, nll: float, seeds: int) -> dict[str, Any]:
        return {"column": "30 writers", "row": row, "scores": {"nll": nll}, "seeds": seeds}

    def stored(seeds: list[int], *cells: dict[str, Any]) -> dict[str, Any]:
        values = {c["row"]: {"nll": [c["scores"]["nll"]] * c["seeds"]} for c in cells}
        return {"seeds": seeds, "cells": [*cells], "per_seed": {"30 writers": values}}

    old = stored([0, 1, 2], cell("BPC-FL + SGD", 2.0, 3), cell("real rows", 1.0, 1))
    new = stored([1, 3], cell("BPC-FL + SGD", 5.0, 2), cell("real rows", 1.5, 2))

    kept = module("dhondt2024/summary").keep_stored(new, old)

    assert kept["seeds"] == [0, 1, 2, 3]
    assert {c["row"]: c["scores"]["nll"] for c in kept["cells"]} == {"BPC-FL + SGD": 2.0, "real rows": 1.5}
    assert kept["per_seed"]["30 writers"] == {"BPC-FL + SGD": {"nll": [2.0] * 3}, "real rows": {"nll": [1.5] * 2}}
