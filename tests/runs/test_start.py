"""A run can begin where another ended."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.errors import InputError


def short(**more: object) -> co.methods.FedAvg:
    return co.methods.FedAvg(co.SGD(epochs=1, batch=16, momentum=0.0), **more)  # type: ignore[arg-type]


def test_two_rounds_are_one_round_and_another_from_its_end(tmp_path: Path) -> None:
    task, sites = tiny.classification(torch.float64)
    method = co.methods.FedAvg(co.SGD(rate=0.1, epochs=1, batch=1000, momentum=0.0))  # full batches: no draw differs

    whole = co.run(method, task, sites, rounds=2)
    first = co.run(method, task, sites, rounds=1, out=tmp_path / "first")
    second = co.run(method, task, sites, rounds=1, start=tmp_path / "first")

    for a, b in zip(tree.leaves(whole.state), tree.leaves(second.state), strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    told = second.report["started_from"]
    assert told["method"] == "fedavg" and told["up_bytes"] == first.report["ledger"]["up_bytes"]


@pytest.mark.parametrize(
    "other",
    [co.methods.FedPA(), co.methods.Scaffold(), co.methods.FedAvgM(), co.methods.Mixture(), co.methods.CoresetFL()],
)
def test_any_method_begins_at_any_posterior(other: co.Method, tmp_path: Path) -> None:
    task, sites = tiny.classification()
    samples = co.methods.Centralised(tiny.shortened(co.CyclicalSGHMC()))

    first = co.run(samples, task, sites, rounds=1, out=tmp_path / "samples")
    result = co.run(tiny.shortened(other), task, sites, rounds=1, start=tmp_path / "samples")

    # FedAvgM with a rate of 1 and others move away from where they began; what they began at is the samples' mean.
    assert result.report["started_from"]["rounds"] == 1
    again = co.run(tiny.shortened(other), task, sites, rounds=1)
    assert not torch.equal(tree.leaves(again.state)[0], tree.leaves(result.state)[0])
    assert first.report["method"] == "centralised"


def test_costs_add_up_along_a_line_of_runs(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(short(), task, sites, rounds=1, out=tmp_path / "a")
    co.run(short(), task, sites, rounds=1, out=tmp_path / "b", start=tmp_path / "a")

    third = co.run(short(), task, sites, rounds=1, start=tmp_path / "b")

    assert third.report["started_from"]["up_floats"] == 2 * third.report["ledger"]["up_floats"]


def test_another_network_and_an_unfinished_run_are_refused(tmp_path: Path) -> None:
    task, sites = tiny.classification()
    co.run(short(), task, sites, rounds=1, out=tmp_path / "a")
    wider = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(6,)))

    with pytest.raises(InputError, match="27 parameters and this one 32"):  # 2·5+5+5·2+2 and 2·6+6+6·2+2
        co.run(short(), wider, sites, rounds=1, start=tmp_path / "a")
    with pytest.raises(InputError, match="is not a run's folder"):
        co.run(short(), task, sites, rounds=1, start=tmp_path / "nowhere")


def test_the_command_line_starts_from_a_folder(tmp_path: Path, invoke: tiny.Invoke) -> None:
    common = ("--data", "moons", "--set", "inference.epochs=1", "--no-bounds", "--rounds", "1")
    assert invoke("run", "fedavg", *common, "--out", str(tmp_path / "a"))[0] == 0

    code, out, _ = invoke(
        "run", "fedprox", *common, "--out", str(tmp_path / "b"), "--start", str(tmp_path / "a"), "--json"
    )

    assert code == 0 and '"started_from"' in out
    code, _, err = invoke("run", "fedprox", *common, "--out", str(tmp_path / "c"), "--start", str(tmp_path / "x"))
    assert code == 2 and "Traceback" not in err
