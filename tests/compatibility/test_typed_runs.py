"""Runs that an earlier version wrote on the command line, or did not finish, go on; see helpers/before.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from before import LOADED, TRAINED, copied, kept, moons, predicted, ran, same, same_predictions, scores
from tiny import Invoke

import consilience as co

pytestmark = pytest.mark.usefixtures("unhurried")


@pytest.fixture
def typed(tmp_path: Path) -> Path:
    """Where the commands were typed: files of three hospitals, and the runs on them."""
    copied("hospitals", tmp_path / "hospitals")
    return copied("typed", tmp_path / "typed")


def test_a_typed_run_is_loaded_and_reported(typed: Path, invoke: Invoke) -> None:
    for name in ("mixture", "gaussian_product"):
        same_predictions(predicted(co.load(typed / name), "tables"), kept("typed", "expected.json")[name], LOADED)

    ran(invoke, "report", "typed/mixture")

    title = json.loads((typed / "mixture" / "run.json").read_text())["title"]
    assert title in (typed / "mixture" / "report.html").read_text(encoding="utf-8")


def test_a_typed_run_is_pooled_by_another_rule(typed: Path, invoke: Invoke) -> None:
    told = ran(invoke, "pool", "typed/mixture", "--method", "bcm", "--json")

    same(json.loads(told)["metrics"], kept("typed", "expected.json")["pooled"], LOADED)


def test_the_bounds_of_a_finished_run_are_the_same(typed: Path, invoke: Invoke) -> None:
    told = json.loads(ran(invoke, "run", "--resume", "typed/mixture", "--json"))

    bounds = kept("typed", "expected.json")["bounds"]
    assert told["bounds"].keys() == bounds.keys() == {"local_only", "server_only", "centralised"}
    for name, before in bounds.items():
        same({k: told["bounds"][name]["metrics"][k] for k in ("nll", "brier")}, scores(before["metrics"]), TRAINED)


def test_a_run_starts_where_another_ended(typed: Path, invoke: Invoke) -> None:
    words = ["--data", "hospitals/*.csv", "--target", "disease", "--model", "linear", "--calibration", "12"]
    words += ["--set", "inference.epochs=6", "--set", "inference.batch=16", "--rounds", "2", "--no-bounds"]

    ran(invoke, "run", "fedavg", *words, "--start", "typed/gaussian_product", "--seed", "4", "--out", "on")

    same_predictions(predicted(co.load("on"), "tables"), kept("typed", "expected.json")["started"], TRAINED)


def check_whole(result: co.Result, expected: dict[str, Any]) -> None:
    """As if nobody had ever stopped it."""
    same_predictions(predicted(result, expected["problem"]), expected["predictions"], TRAINED)
    same(scores(result.metrics), scores(expected["metrics"]), TRAINED)
    assert [row["round"] for row in result.report["history"]] == [1, 2, 3, 4]
    for row, before in zip(result.report["history"], expected["history"], strict=True):
        same(scores(row), scores(before), TRAINED)
    assert {k: result.report["ledger"][k] for k in expected["crossed"]} == expected["crossed"]


def test_a_run_of_two_rounds_goes_on_to_four(tmp_path: Path) -> None:
    folder = copied("stopped/scaffold", tmp_path / "run")
    task, sites = moons()
    method = co.methods.Scaffold(co.SGD(rate=0.3, epochs=8, batch=16, momentum=0.0))  # as it was typed then

    result = co.run(method, task, sites, rounds=4, seed=7, out=folder, resume=True, keep_replies="all")

    check_whole(result, kept("stopped", "scaffold", "expected.json"))
    assert result.report["history"][:2] == kept("stopped", "scaffold", "run.json")["history"]  # read, not run again


def test_a_killed_run_goes_on_from_its_folder_alone(tmp_path: Path, invoke: Invoke) -> None:
    copied("hospitals", tmp_path / "hospitals")
    folder = copied("stopped/typed", tmp_path / "run")
    assert kept("stopped", "typed", "run.json")["finished"] is False

    ran(invoke, "run", "--resume", "run", "--json")

    check_whole(co.load(folder), kept("stopped", "typed", "expected.json"))


def test_a_stopped_run_of_other_rows_is_refused(tmp_path: Path, invoke: Invoke) -> None:
    copied("hospitals", tmp_path / "hospitals")
    copied("stopped/typed", tmp_path / "run")
    file = tmp_path / "hospitals" / "south.csv"
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:-1], "51.5,0.250,yes"]) + "\n")

    code, _, err = invoke("run", "--resume", "run")

    assert code == 2 and "made with another method, model, data, seed or engine" in " ".join(err.split())
