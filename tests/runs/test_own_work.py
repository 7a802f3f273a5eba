"""A researcher's own work: own methods by name, events after every round, tables for pandas and notebooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from tiny import Invoke

import consilience as co
from consilience.methods import METHODS
from consilience.plugins import VARIABLE
from consilience.runs import callbacks

OWN = '''
"""Median."""
from dataclasses import dataclass
import consilience as co


@dataclass(frozen=True)
class {name}(co.methods.FedAvg):
    """Smith et al. (2020). FedAvg under another name.

    1. As FedAvg.
    """

    trim: float = 0.1


class NotOne:
    pass
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder with a method that nobody registered."""
    monkeypatch.setattr("consilience.methods.METHODS", METHODS)
    before = dict(METHODS)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = f"mine_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(OWN.format(name="FedMine"))
    yield f"{module}:FedMine"  # type: ignore[misc]
    METHODS.clear()
    METHODS.update(before)


SMALL = ["--data", "digits", "--model", "linear", "--sites", "2", "--set", "inference.epochs=1", "--rounds", "1"]


def test_a_method_of_ones_own_runs_by_its_name(own: str, invoke: Invoke, tmp_path: Path) -> None:
    code, _, err = invoke("run", own, *SMALL, "--set", "trim=0.2", "--no-bounds", "--out", "r")
    assert code == 0, err
    assert json.loads((tmp_path / "r" / "run.json").read_text())["settings"]["trim"] == 0.2

    code, _, err = invoke("run", "--resume", "r", "--rounds", "2")
    assert code == 2 and "not part of consilience" in err and f"consilience run {own}" in err
    code, _, err = invoke("run", own, "--resume", "r", "--rounds", "2")
    assert code == 0, err
    for word, sentence in ((f"{own}x", "cannot be imported"), (own.replace("FedMine", "NotOne"), "is not a method")):
        code, _, err = invoke("run", word, *SMALL)
        assert code == 2 and sentence in err


def test_code_of_ones_own_that_fails_is_told_in_a_sentence(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing_on_import.py").write_text("1 / 0")
    sentence = "cannot be imported: ZeroDivisionError: division by zero"
    for words in (("run", "failing_on_import:M"), ("run", "fedavg", "--model", "failing_on_import:net")):
        code, _, err = invoke(*words)
        assert code == 2 and sentence in err
    for named in ("failing_on_import.py", "failing_on_import"):
        monkeypatch.setenv(VARIABLE, named)
        code, _, err = invoke("methods")
        assert code == 2 and sentence in err


def test_a_method_of_ones_own_is_compared_and_tuned(own: str) -> None:
    events: list[callbacks.RoundEvent] = []
    problem = co.Problem("moons", model="linear", sites=2)

    comparison = co.compare(
        [f"{own}[trim=0.3,rounds=2]", "fedavg[rounds=1]"], problem, seeds="0-1", bounds=False, on_round=events.append
    )
    tuning = co.tune(own, problem, rounds=1, grid={"trim": [0.1, 0.2]})

    assert [row.method for row in comparison.rows] == ["fedmine", "fedavg"]
    assert [(e.method, e.seed, e.round, e.rounds) for e in events if e.method == "fedmine"] == [
        ("fedmine", 0, 1, 2),
        ("fedmine", 0, 2, 2),
        ("fedmine", 1, 1, 2),
        ("fedmine", 1, 2, 2),
    ]
    assert tuning.name == "fedmine" and "Tuning(fedmine" in repr(tuning)
    frame = comparison.to_frame()
    nll = frame[(frame.row == "fedavg[rounds=1]") & (frame.score == "nll")]
    assert list(nll.seed) == [0, 1] and nll.value.mean() == pytest.approx(comparison.rows[1].scores.metrics["nll"])
    assert list(tuning.to_frame()["mean"]) == [trial.mean for trial in tuning.trials]
    assert "<table>" in comparison._repr_html_() and repr(comparison).startswith("Comparison(")


def test_rounds_are_told_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, sites = tiny.classification()
    events: list[callbacks.RoundEvent] = []
    log = callbacks.jsonl_log(tmp_path / "rounds.jsonl")

    result = co.run(tiny.method("fedavg"), task, sites, rounds=2, on_round=lambda e: (events.append(e), log(e)))

    assert [e.round for e in events] == [1, 2] and all(e.rounds == 2 for e in events)
    for event, entry in zip(events, result.report["history"], strict=True):
        assert {"round": event.round, **event.scores} == entry
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert [line["scores"]["nll"] for line in lines] == [e.scores["nll"] for e in events]
    assert list(result.to_frame()["nll"]) == [e.scores["nll"] for e in events]
    co.run(tiny.method("fedavg"), task, sites, rounds=1)
    assert len(events) == 2  # nobody listens any longer


@pytest.mark.parametrize(("name", "log"), [("mlflow", callbacks.mlflow_log), ("wandb", callbacks.wandb_log)])
def test_other_programs_are_imported_when_asked_for(name: str, log: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[dict[str, float], int]] = []

    class Program:
        @staticmethod
        def log(values: dict[str, float], step: int) -> None:
            told.append((values, step))

        log_metrics = log

    monkeypatch.setitem(__import__("sys").modules, name, Program)
    log()(callbacks.RoundEvent("m", "d", 0, 3, 5, {"nll": 0.5}, 1.0))
    assert told == [({"nll": 0.5}, 3)]
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(co.InputError, match=f"pip install {name}"):
        log()


def test_frames_and_torch_datasets_are_data() -> None:
    pandas = pytest.importorskip("pandas")
    x = torch.randn(40, 2)
    y = (x[:, 0] > 0).long()
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "died": y, "place": ["u", "v"] * 20})

    framed = co.from_arrays(frame, "died", "place")
    paired = co.from_arrays(torch.utils.data.TensorDataset(x, y))

    assert framed.feature_names == ("a", "b") and framed.site_names == ("u", "v")
    assert torch.equal(framed.x, paired.x) and torch.equal(framed.y, paired.y)
    with pytest.raises(co.InputError, match="Column 'place' holds no numbers"):
        co.from_arrays(frame, "died")
    with pytest.raises(co.InputError, match="y is missing"):
        co.from_arrays(x)


def test_things_say_what_they_are() -> None:
    _, sites = tiny.classification()
    assert repr(sites).startswith("Sites(") and "training and" in repr(sites) and "tensor" not in repr(sites)
    assert sites._repr_html_().count("<tr>") == 1 + len(sites)
