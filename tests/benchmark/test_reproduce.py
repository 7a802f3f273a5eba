"""Experiments: what is finished is not run again, results say what they can be compared with, mistakes are told."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tiny import Invoke

from consilience.benchmark.reproduce import Experiment, Values, collect, load, names, reproduce, run_plan
from consilience.errors import InputError
from consilience.report.reproduction_page import reproduction_page
from consilience.runs.store import Store

TOY = '''
"""A toy whose value is the seed + the length of the column's name."""
from pathlib import Path

from consilience.errors import Diverged, InputError
from consilience.benchmark.reproduce import Experiment


def trial(column, seed, scale, data_dir):
    with Path("calls.txt").open("a") as file:
        file.write(f"{column} {seed} {scale} {data_dir}\\n")
    if Path("stop.txt").exists() and seed == 2:
        raise InputError("Stopped.")
    if Path("far.txt").exists() and seed == 0:
        raise Diverged("Too far.")
    return {"ours": {"value": float(seed + len(column)), "other": 7.0}, "diverged": {"value": float("inf")}}


def draw(results, folder):
    (folder / "drawn.txt").write_text(results["title"])


EXPERIMENT = Experiment(
    title="A toy",
    columns=("a", "bb"),
    trial=trial,
    score="value",
    paper={"ours": {"a": (1.5, 0.5), "bb": (9.0, 1.0)}, "theirs": {"a": (2.0, 0.1)}},
    incomparable=("bb",),
    open_rows=("theirs",),
    scales=("full", "quick"),
)
'''
LONG = '''
"""Two runs of five rounds, of which the second is stopped once."""
from pathlib import Path

import consilience as co
from consilience.benchmark.reproduce import Experiment, resumable
from consilience.errors import InputError


def trial(column, seed, scale, data_dir):
    sites = co.datasets.moons(60, noise=0.1, seed=seed).split(co.splits.iid(), sites=2, test=0.2, seed=seed)
    task = co.classification(co.models.linear(2, 2))
    begun = []

    def note(event):
        with Path("rounds.txt").open("a") as file:
            file.write(f"{event.round} ")
        if Path("stop.txt").exists() and len(begun) == 2 and event.round == 4:
            raise InputError("Stopped.")

    values = {}
    for row in ("one", "two"):
        begun.append(row)
        method = co.methods.FedAvg(co.SGD(0.1, epochs=len(begun), batch=10))
        result = co.run(method, task, sites, rounds=5, seed=seed, on_round=note, **resumable())
        values[row] = {"nll": result.metrics["nll"], "rounds": float(len(result.report["history"]))}
    return values


EXPERIMENT = Experiment(title="Long", columns=("a:b",), trial=trial, score="nll")
'''
EVERY_CELL = {"row", "column", "ours", "spread", "seeds", "per_seed", "paper", "paper_spread", "comparable", "open"}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A working folder with one experiment in it."""
    (tmp_path / "experiments" / "papers").mkdir(parents=True)
    (tmp_path / "experiments" / "papers" / "toy.py").write_text(TOY)
    (tmp_path / "experiments" / "papers" / "notes.py").write_text("A = 1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.slow)])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers: threads in place of processes, each of which would import torch; processes in the slow suite."""

    def threads(count: int, context: object, first: Callable[..., None], words: tuple[int]) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(count)

    if request.param == "threads":
        monkeypatch.setattr("consilience.runs.engines.processes.ProcessPoolExecutor", threads)


def calls(folder: Path) -> list[str]:
    return (folder / "calls.txt").read_text().splitlines()


def test_only_files_with_an_experiment_are_listed(toy: Path) -> None:
    assert names() == ["papers/toy"]


def test_results_say_ours_spread_paper_and_whether_they_compare(toy: Path) -> None:
    results = reproduce("papers/toy", [0, 1, 2, 3], None, toy / "out", None)

    assert results == Store(toy / "out").read_json("results.json")
    assert {"experiment", "title", "score", "spread", "scale", "seeds", "cells"} <= set(results)
    assert results["scale"] == "full" and results["seeds"] == [0, 1, 2, 3]
    cells = {(c["row"], c["column"]): c for c in results["cells"]}
    assert all(set(c) >= EVERY_CELL for c in results["cells"])
    ours = cells["ours", "a"]
    # values 1, 2, 3, 4: mean 2.5, variance 5/3, standard error √(5/3)/√4 = 0.6455
    error = math.sqrt(5 / 3) / 2
    assert (ours["ours"], ours["paper"], ours["paper_spread"]) == (2.5, 1.5, 0.5)
    assert ours["spread"] == pytest.approx(error)
    assert ours["errors"] == {"value": pytest.approx(error), "other": 0}
    assert ours["away_in_standard_errors"] == pytest.approx(1 / math.hypot(0.5, error))
    assert ours["per_seed"] == [1, 2, 3, 4] and ours["scores"]["other"] == 7
    assert ours["comparable"] and not cells["ours", "bb"]["comparable"]  # printed, but on other data
    assert not cells["diverged", "a"]["comparable"]  # nothing printed
    assert cells["diverged", "a"]["ours"] is None and cells["diverged", "a"]["seeds"] == 0
    assert cells["theirs", "a"]["open"] and cells["theirs", "a"]["ours"] is None


def test_a_finished_trial_is_not_run_again(toy: Path) -> None:
    first = reproduce("papers/toy", [0, 1], None, toy / "out", "data")
    assert calls(toy) == ["a 0 full data", "bb 0 full data", "a 1 full data", "bb 1 full data"]

    again = reproduce("papers/toy", [0, 1], None, toy / "out", "data")
    more = reproduce("papers/toy", [0, 1, 2], None, toy / "out", "data")

    assert again == first
    assert calls(toy)[4:] == ["a 2 full data", "bb 2 full data"]
    assert more["cells"][0]["per_seed"] == [1, 2, 3]


def test_scales_are_kept_apart(toy: Path) -> None:
    reproduce("papers/toy", [0], "full", toy / "out", None)
    results = reproduce("papers/toy", [0], "quick", toy / "out", None)
    assert calls(toy)[2:] == ["a 0 quick None", "bb 0 quick None"] and results["scale"] == "quick"


def test_what_was_finished_before_a_stop_is_kept_and_gone_on_with(toy: Path) -> None:
    (toy / "stop.txt").touch()
    with pytest.raises(InputError, match="Stopped"):
        reproduce("papers/toy", [0, 1, 2], None, toy / "out", None)

    partial = collect("papers/toy", load("papers/toy"), [0, 1, 2], "full", toy / "out")

    cell = next(c for c in partial["cells"] if (c["row"], c["column"]) == ("ours", "a"))
    assert cell["per_seed"] == [1, 2] and cell["seeds"] == 2
    (toy / "stop.txt").unlink()
    (toy / "calls.txt").unlink()
    whole = reproduce("papers/toy", [0, 1, 2], None, toy / "out", None)
    assert calls(toy) == ["a 2 full None", "bb 2 full None"]
    assert whole["cells"][0]["per_seed"] == [1, 2, 3]


def test_a_long_trial_goes_on_in_the_run_it_was_stopped_in(toy: Path) -> None:
    (toy / "experiments" / "papers" / "long.py").write_text(LONG)
    alone = load("papers/long").trial("a:b", 0, "full", None)
    (toy / "rounds.txt").unlink()
    (toy / "stop.txt").touch()
    with pytest.raises(InputError, match="Stopped"):
        reproduce("papers/long", [0], None, toy / "out", None)
    assert (toy / "rounds.txt").read_text().split() == ["1", "2", "3", "4", "5", "1", "2", "3", "4"]
    (toy / "rounds.txt").unlink()
    (toy / "stop.txt").unlink()

    found = reproduce("papers/long", [0], None, toy / "out", None)

    again = (toy / "rounds.txt").read_text().split()
    assert "1" not in again and again[-1] == "5" and len(again) <= 2
    assert {c["row"]: c["scores"] for c in found["cells"]} == alone
    assert not [*(toy / "out" / "unfinished").rglob("*.*")]  # forgotten with the trial


@pytest.mark.usefixtures("workers")
def test_two_workers_find_what_one_does(toy: Path) -> None:
    one = reproduce("papers/toy", [0, 1], None, toy / "one", None)
    (toy / "calls.txt").unlink()

    two = reproduce("papers/toy", [0, 1], None, toy / "two", None, workers=2)

    assert two == one
    assert sorted(calls(toy)) == ["a 0 full None", "a 1 full None", "bb 0 full None", "bb 1 full None"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_trial_that_diverges_costs_no_other(toy: Path, workers: int) -> None:
    (toy / "far.txt").touch()
    found = reproduce("papers/toy", [0, 1, 2], None, toy / "out", None, workers)

    cell = next(c for c in found["cells"] if c["row"] == "ours" and c["column"] == "a")
    assert cell["per_seed"] == [2.0, 3.0] and cell["scores"] == {"value": 2.5, "other": 7.0}
    assert found["lost"] == ["a, seed 0: Too far.", "bb, seed 0: Too far."]
    assert "Lost: a, seed 0: Too far." in reproduction_page(found)
    run = len(calls(toy))
    assert reproduce("papers/toy", [0, 1, 2], None, toy / "out", None)["lost"] == found["lost"]
    assert len(calls(toy)) == run  # the same seed would go the same way


@pytest.mark.usefixtures("workers")
def test_a_mistake_ends_all_workers_and_keeps_what_is_finished(toy: Path) -> None:
    (toy / "stop.txt").touch()
    with pytest.raises(InputError, match="Stopped"):
        reproduce("papers/toy", [3, 2, *range(4, 200)], None, toy / "out", None, 2)

    assert len(calls(toy)) < 100  # of 396 that were handed in
    begun = [line.split()[:2] for line in calls(toy) if line.split()[1] != "2"]  # seed 2 is the mistake
    kept = [[file.parent.name, file.stem.removeprefix("seed-")] for file in (toy / "out" / "trials").rglob("*.json")]
    assert begun and sorted(kept) == sorted(begun)


def test_one_column_is_run_and_the_others_stay_as_they_are(toy: Path, invoke: Invoke) -> None:
    reproduce("papers/toy", [0], None, toy / "out", None, columns=["bb"])
    assert [line.split()[:2] for line in calls(toy)] == [["bb", "0"]]
    results = reproduce("papers/toy", [0], None, toy / "out", None, columns=["a"])
    assert len(calls(toy)) == 2
    assert {c["column"] for c in results["cells"] if c["ours"] is not None} == {"a", "bb"}


def test_unknown_names_are_told(toy: Path) -> None:
    with pytest.raises(InputError, match="Did you mean 'papers/toy'"):
        load("papers/toi")
    with pytest.raises(InputError, match=r"no scale called 'huge'. Known: full, quick"):
        reproduce("papers/toy", [0], "huge", toy / "out", None)


def test_the_command_lists_runs_draws_and_says_where(toy: Path, invoke: Invoke) -> None:
    _, listed, _ = invoke("reproduce")
    code, shown, _ = invoke("reproduce", "papers/toy", "--seeds", "0-3", "--scale", "quick")

    assert "papers/toy" in listed and "A toy" in listed
    assert code == 0 and "2.500 ± 0.645 (1.500)" in shown and "open" in shown and "scale quick" in shown
    folder = toy / "runs" / "papers" / "toy"
    assert (folder / "drawn.txt").read_text() == "A toy" and (folder / "results.json").exists()
    assert "1.50" in (folder / "report.html").read_text() and "report.html" in shown


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("papers/toi", "Did you mean 'papers/toy'?"),
        ("papers/toy --scale huge", "Known: full, quick."),
        ("papers/toy --column c", "no column called 'c'. Known: a, bb."),
        ("papers/toy --seeds 3-1", "'3-1' is not a list of seeds"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(toy: Path, invoke: Invoke, words: str, sentence: str) -> None:
    code, out, err = invoke("reproduce", *words.split())
    assert code == 2 and out == "" and sentence in " ".join(err.split()) and "Traceback" not in err
    assert not (toy / "calls.txt").exists()


def test_a_plan_runs_what_is_neither_here_nor_stored(tmp_path: Path) -> None:
    asked: list[int] = []

    def trial(column: str, seed: int, scale: str, data_dir: str | None) -> Values:
        asked.append(seed)
        return {"row": {"nll": 1.0}}

    experiment = Experiment(title="t", columns=("a/b",), trial=trial, score="nll")
    run_plan(experiment, [("a/b", range(3))], tmp_path, None, {"a/b": {"1": {}}})
    run_plan(experiment, [("a/b", range(3))], tmp_path, None)

    assert asked == [0, 2, 1]
    assert len(list(tmp_path.rglob("seed-*.json"))) == 3
