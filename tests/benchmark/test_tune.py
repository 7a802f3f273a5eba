"""Tuning: on validation rows alone, with the same number of trials for everybody, resumed anywhere."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import Invoke

import consilience as co
from consilience.benchmark import compare, tune
from consilience.benchmark.grids import draw_points, papers, points_of, read_grid
from consilience.benchmark.row_words import row
from consilience.benchmark.search import Search, Trial, on_validation, rank, run_search, write_settings
from consilience.errors import InputError
from consilience.metrics.evaluate import in_units
from consilience.metrics.scores import scores
from consilience.runs.problem import Problem

MOONS = Problem("moons", model="linear", sites=3, calibration=10, validation=0.3)
SHORT = ("inference.epochs=2", "inference.batch=200")


@pytest.fixture
def rates(tmp_path: Path) -> str:
    """A grid with one clear winner: two passes at a tiny rate learn nothing, and at a huge one leave the numbers."""
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({"inference.rate": [1e-6, 0.5, 1e30]}))
    return str(path)


def search(word: str, grid: str, **changes: Any) -> Search:
    return replace(Search(word, MOONS, (0, 1), grid, rounds=1, common=SHORT), **changes)


def test_the_best_setting_is_found_and_diverged_ones_come_last(tmp_path: Path, rates: str) -> None:
    trials = run_search(search("fedavg", rates), tmp_path / "t")
    assert [t.point["inference.rate"] for t in trials] == [0.5, 1e-6, 1e30]
    assert trials[2].mean is None and trials[2].failure.startswith("Site 0, round 1")


def test_a_trial_in_the_place_of_another_is_refused(tmp_path: Path, rates: str) -> None:
    small = search("fedavg", rates, seeds=(0,))
    run_search(small, tmp_path / "t")
    first, second, *_ = sorted((tmp_path / "t" / "trials").rglob("*.json"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(InputError, match="is of another trial: delete it"):
        run_search(small, tmp_path / "t")


def test_the_score_is_that_of_the_validation_rows(tmp_path: Path, rates: str) -> None:
    best = run_search(search("fedavg", rates, seeds=(0,)), tmp_path / "t")[0]
    task, sites = MOONS.build()
    result = co.run(row("fedavg[inference.rate=0.5]", None, dict(s.split("=") for s in SHORT)).method, task, sites, rounds=1)  # fmt: skip  # noqa: E501
    rows = sites.all_validation
    p = result.method.predictive(task, result.state)(rows.x)
    assert best.mean == pytest.approx(scores(*in_units(p, rows, sites))["nll"], rel=1e-6)


def test_regression_is_scored_in_the_targets_units(tmp_path: Path) -> None:
    grid = tmp_path / "g.json"
    grid.write_text('{"inference.rate": [0.05]}')
    problem = Problem("sine", model="linear", calibration=10, validation=0.3)
    best = run_search(search("mixture", str(grid), problem=problem, seeds=(0,), score="rmse", common=("inference.epochs=10",)), tmp_path / "t")[0]  # fmt: skip  # noqa: E501
    _, sites = problem.build()
    assert sites.validation is not None and best.mean is not None
    y = torch.cat([part.y for part in sites.validation]) * sites.target_scale
    assert best.mean < float(y.std()) * 1.2  # about the spread of the targets, not of their standardised form
    assert best.mean > 0.01 * float(y.std())


def test_test_rows_are_never_looked_at(tmp_path: Path, rates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run_search(search("fedavg", rates), tmp_path / "a")
    build = Problem.build

    def blinded(problem: Problem, seed: int) -> tuple[co.Task, co.Sites]:
        task, sites = build(problem, seed)
        if problem.given_sites:  # those of a trial, whose validation rows are in the place of test rows
            return task, sites
        test = tuple(part._replace(x=part.x * float("nan"), y=part.y * 0 - 1) for part in sites.test)
        return task, replace(sites, test=test)

    monkeypatch.setattr(Problem, "build", blinded)
    assert run_search(search("fedavg", rates), tmp_path / "b") == before


def test_an_interrupted_search_goes_on_where_it_was(tmp_path: Path, rates: str) -> None:
    whole = run_search(search("fedavg", rates), tmp_path / "whole")

    def stop(trials: list[Trial]) -> None:
        if len(trials) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_search(search("fedavg", rates), tmp_path / "cut", stop)
    done = {f: f.stat().st_mtime_ns for f in (tmp_path / "cut" / "trials").rglob("*.json")}
    assert len(done) == 4  # two trials, two seeds
    assert run_search(search("fedavg", rates), tmp_path / "cut") == whole
    assert all(f.stat().st_mtime_ns == when for f, when in done.items())
    with pytest.raises(InputError, match="holds another search for fedavg"):
        run_search(search("fedavg", rates, seeds=(5,)), tmp_path / "cut")


def test_a_search_does_not_go_on_with_other_rows(tmp_path: Path, rates: str) -> None:
    tiny.hospitals(tmp_path / "csv")
    problem = replace(MOONS, data=str(tmp_path / "csv" / "*.csv"), target="disease", sites=None)
    run_search(search("fedavg", rates, problem=problem, seeds=(0,)), tmp_path / "t")
    file = tmp_path / "csv" / "north.csv"
    first, *others = file.read_text().splitlines()
    file.write_text("\n".join([first, *(line.replace("yes", "no") for line in others)]))

    with pytest.raises(InputError, match="holds another search for fedavg"):
        run_search(search("fedavg", rates, problem=problem, seeds=(0,)), tmp_path / "t")


def test_several_methods_share_one_settings_file(tmp_path: Path, rates: str) -> None:
    for word in ("fedavg[inference.momentum=0.0]", "scaffold"):
        found = search(word, rates, budget=2)
        settings = write_settings(found, run_search(found, tmp_path / "t"), tmp_path / "t")
    assert list(settings) == ["fedavg", "scaffold"]
    read = json.loads((tmp_path / "t" / "settings.json").read_text())
    assert read == settings
    made = row("fedavg", read["fedavg"])
    assert made.method == co.methods.FedAvg(co.SGD(read["fedavg"]["inference.rate"], 0.0, 2, 200)) and made.rounds == 1
    lines = list(csv.DictReader((tmp_path / "t" / "tune.csv").open()))
    assert [x["method"] for x in lines] == ["fedavg"] * 4 + ["scaffold"] * 4  # two trials on two seeds each
    assert [x["seed"] for x in lines] == ["0", "1"] * 4


def test_the_budget_draws_points_without_replacement() -> None:
    grids = [{"a": [1, 2, 3], "b": [1, 2, 3]}, {"a": [3], "b": [3]}]  # nine points; one comes twice
    points = draw_points(grids, 4, 0)
    assert len(points_of(grids)) == 9 and len(points) == 4
    assert len({json.dumps(p) for p in points}) == 4 and all(p in points_of(grids) for p in points)
    assert draw_points(grids, 4, 0) == points != draw_points(grids, 4, 1)
    assert draw_points(grids, 20, 0) == points_of(grids)
    with pytest.raises(InputError, match="empty"):
        draw_points([{}], 4, 0)
    with pytest.raises(InputError, match="empty"):
        draw_points([{"a": []}], 4, 0)


def test_best_first_whichever_way_the_score_points() -> None:
    trials = [Trial({"a": i}, [m], m) for i, m in enumerate([0.5, None, 0.9])]
    assert [t.point["a"] for t in rank(trials, "nll")] == [0, 2, 1]
    assert [t.point["a"] for t in rank(trials, "accuracy")] == [2, 0, 1]


def test_the_papers_grid_has_their_numbers_of_points() -> None:
    # Hasan 2023, Table B.1
    _, sites = tiny.classification()
    _, numbers = tiny.regression()
    assert len(points_of(papers(co.methods.FedAvg(), sites))) == 3 * 3  # three optimisers, three rates
    assert len(points_of(papers(co.methods.FedAvg(), numbers))) == 3 * 4
    assert len(points_of(papers(co.methods.Mixture(), sites))) == 4 * 3  # rates, samples kept; the rest has one value
    assert len(points_of(papers(co.methods.Mixture(), numbers))) == 5 * 3 * 4 * 3 * 3
    student = row("beta[distil=Distil]").method
    assert len(points_of(papers(student, sites))) == 4 * 3 * 3 * 3 * 3  # optimisers, rates and epochs of the student
    for word, problem in (("fedprox", sites), ("fedyogi", sites), ("fedpa", numbers), ("beta[distil=Distil]", numbers)):
        for point in draw_points(papers(row(word).method, problem), 5, 0):
            search(word, "papers").row(point)  # every point can be set


def test_no_validation_rows_no_tuning() -> None:
    _, sites = tiny.classification()
    with pytest.raises(InputError, match="validation="):
        on_validation(sites)


FAST = ["--data", "moons", "--model", "linear", *(w for s in SHORT for w in ("--set", s))]


def test_tuned_settings_are_what_compare_reads(invoke: Invoke, tmp_path: Path, rates: str) -> None:
    code, out, _ = invoke("tune", "fedavg", *FAST, "--grid", rates, "--rounds", "1", "--out", "t")
    assert code == 0 and "inference.rate=0.5" in out and "3 trials" in out and "1 failed" in out
    words = ["compare", "fedavg", *FAST, "--settings", "t/settings.json", "--no-bounds", "--json", "--out", "c"]
    found = json.loads(invoke(*words)[1])
    assert found["rows"][0]["settings"]["inference"]["rate"] == 0.5 and found["rows"][0]["rounds"] == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("tune fedavgg", "Did you mean 'fedavg'?"),
        ("tune fedavg --grid nowhere.json", "There is no grid"),
        ("tune fedavg --grid empty.json", "The grid is empty"),
        ("tune fedavg --grid broken.json", "cannot be read"),
        ("tune fedavg --grid flat.json", "should hold"),
        ("tune fedavg --grid wrong.json", "Did you mean 'rate'?"),
        ("tune fedavg --validation 0", "no validation rows"),
        ("tune fedavg --budget 0", "at least one"),
        ("tune fedavg --score nl", "Did you mean 'nll'?"),
        ("tune fedavg --seeds x", "is not a list of seeds"),
        ("tune fedavg --grid huge.json --rounds 1", "Every trial of fedavg failed"),
        ("tune fedavg --grid tiny.json --rounds 1 --score rmse", "no score for this problem"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(invoke: Invoke, tmp_path: Path, words: str, sentence: str) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "flat.json").write_text('{"inference.rate": 0.1}')
    (tmp_path / "wrong.json").write_text('{"inference.rat": [0.1]}')
    (tmp_path / "huge.json").write_text('{"inference.rate": [1e30]}')
    (tmp_path / "tiny.json").write_text('{"inference.rate": [1e-3]}')
    code, out, err = invoke(*words.split(), *FAST)
    assert code == 2
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err and out == ""


def test_a_grid_may_be_a_list_of_grids(tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(
        '[{"inference": ["SGD"], "inference.momentum": [0, 0.9]}, {"inference": ["Adam"]}]'
    )
    points = points_of(read_grid(str(tmp_path / "g.json")))
    methods = [search("fedavg", "").row(point).method.inference for point in points]
    assert [type(m).__name__ for m in methods] == ["SGD", "SGD", "Adam"] and methods[0].momentum == 0.0


def test_python_tunes_words_and_objects_without_a_folder() -> None:
    problem = Problem("moons", model="linear", sites=3, calibration=10)
    grid = {"inference.rate": [1e-6, 0.5]}
    common = {"inference.epochs": 2, "inference.batch": 200}
    words = tune("fedavg", problem, grid=grid, rounds=1, settings=common)
    objects = tune(co.methods.FedAvg(co.SGD(epochs=2, batch=200)), problem, grid=grid, rounds=1)
    assert words.trials == objects.trials and words.best == objects.best == co.methods.FedAvg(
        co.SGD(0.5, epochs=2, batch=200)
    )
    assert row("fedavg", objects.settings).method == row("fedavg", words.settings).method == words.best
    assert "inference.rate=0.5" in str(words) and words.to_json()["settings"]["inference.rate"] == 0.5
    assert compare([words.best], problem, rounds=words.rounds, bounds=False).rows[0].rounds == 1
