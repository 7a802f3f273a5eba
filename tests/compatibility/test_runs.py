"""Runs that an earlier version wrote from Python are loaded, made again and gone on with; see helpers/before.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from before import BEFORE, LOADED, PARTS, PROBLEMS, TRAINED, copied, kept, predicted, same, same_file, same_predictions

import consilience as co
from consilience.runs.effects import run_effects
from consilience.runs.store import ALL_ROWS

pytestmark = pytest.mark.usefixtures("unhurried")
RUNS = sorted(f"{at}/{path.name}" for at in ("runs", "house/runs") for path in (BEFORE / at).iterdir())
PARTED = {"house/runs/hierarchical"}  # whose sites' differences count as disagreement since


def alike(name: str, found: dict[str, Any], before: dict[str, Any], tolerance: float) -> None:
    """The same predictions, but for parts of uncertainty that are told apart otherwise since."""
    left_out = PARTS if name in PARTED else set()
    same_predictions(*({k: v for k, v in p.items() if k not in left_out} for p in (found, before)), tolerance)


def how(report: dict[str, Any]) -> dict[str, Any]:
    """What else a run was given."""
    given: dict[str, Any] = {"rounds": report["rounds"], "seed": report["seed"], "scored": "metrics" in report}
    taking = report.get("participation")
    return given | ({"participation": co.Participation(**taking)} if taking else {})


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_loaded_and_predicts(name: str) -> None:
    expected = kept(name, "expected.json")

    result = co.load(BEFORE / name)

    assert list(result.sites.names) == expected["sites"]
    assert len(result.replies) == expected["replies"]
    assert result.report["rounds"] == expected["rounds"]
    assert result.report["failures"] == expected["failures"]
    assert {k: result.report["ledger"][k] for k in expected["crossed"]} == expected["crossed"]
    assert result.report.get("metrics") == expected["metrics"]  # read, not computed
    if "refused" in expected:
        with pytest.raises(co.InputError, match="has a model for each site and none for all"):
            predicted(result, expected["problem"])
    else:
        alike(name, predicted(result, expected["problem"]), expected["predictions"], LOADED)


def is_portable(name: str) -> bool:
    """Whether the hash of a run's rows is the same on every machine: the sine's rows are drawn with a logarithm."""
    return "sine" not in name


@pytest.mark.parametrize("name", filter(is_portable, RUNS))
def test_a_run_knows_its_rows_and_its_replies_are_pooled_again(name: str, tmp_path: Path) -> None:
    """The hash of method, task and rows is still the one in the folder, so that it is taken for what it is."""
    expected = kept(name, "expected.json")
    task, sites = PROBLEMS[expected["problem"]]()
    folder = copied(name, tmp_path / "run")
    loaded = co.load(folder, sites=sites)
    state = (folder / "state.safetensors").read_bytes()

    on = co.run(loaded.method, task, sites, out=folder, resume=True, **how(loaded.report))  # nothing is left to do

    assert (folder / "state.safetensors").read_bytes() == state
    if expected["metrics"] is not None:
        same(on.metrics, expected["metrics"], LOADED)  # computed anew
    if "predictions" in expected:
        alike(name, predicted(on, expected["problem"]), expected["predictions"], LOADED)
        if expected["rounds"] == 1 and name != "runs/server_only":  # which has no replies, but the server's own rows
            again = loaded.pool(loaded.method, scored=False)
            alike(name, predicted(again, expected["problem"]), expected["predictions"], TRAINED)  # some train a student


@pytest.mark.parametrize("name", RUNS)
def test_the_same_run_gives_the_same_numbers(name: str, tmp_path: Path) -> None:
    expected = kept(name, "expected.json")
    before = co.load(BEFORE / name)
    task, sites = PROBLEMS[expected["problem"]]()

    result = co.run(before.method, task, sites, out=tmp_path / "run", **how(before.report))

    if "predictions" in expected:
        alike(name, predicted(result, expected["problem"]), expected["predictions"], TRAINED)
    made, old = tmp_path / "run", BEFORE / name
    files = {path.relative_to(made) for path in made.rglob("*") if path.is_file()}
    files = {path for path in files if path.parts[0] != ALL_ROWS}  # which first runs did not have
    assert files | {Path("expected.json")} == {path.relative_to(old) for path in old.rglob("*") if path.is_file()}
    parts, parts_before = (json.loads((at / "task.json").read_text()).keys() for at in (made, old))
    assert parts - {"columns"} == parts_before - {"columns"}  # of tables, which the first runs did not know
    if name.startswith("house") and name not in PARTED:
        reports = [json.loads((at / "run.json").read_text()) for at in (made, old)]
        if "effects" in reports[0]:  # which were of the rows that predict
            reports[0]["effects"] = run_effects(result.fit).to_json()
        new = {"files", "matmul"}  # the digests of files; and how matrices were multiplied, which nobody said then
        same(*({name: value for name, value in report.items() if name not in new} for report in reports), TRAINED)
    if is_portable(name):
        for file in files:
            if file.suffix == ".safetensors":
                same_file(made / file, old / file, TRAINED)
