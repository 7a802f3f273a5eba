"""A run on another device: the same problem, the same draws, everything handed back on the processor."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
from tiny import Invoke

import consilience as co
from consilience import tree
from consilience.runs.device import device

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use")


@pytest.mark.parametrize(
    ("name", "sentence"), [("cuda:99", "has no 'cuda:99'"), ("abacus", "no device called 'abacus'")]
)
def test_a_device_that_is_not_there_is_one_sentence(name: str, sentence: str) -> None:
    task, sites = tiny.classification()
    with pytest.raises(co.InputError, match=sentence):
        co.run(tiny.method("fedavg"), task, sites, rounds=1, engine=co.Compute(device=name))


def test_on_the_command_line(invoke: Invoke) -> None:
    code, _, err = invoke("run", "fedavg", "--device", "cuda:99")
    assert code == 2 and "use device='cpu'" in err


def test_the_processor_is_always_there() -> None:
    task, sites = tiny.classification()
    assert device("cpu").type == "cpu"
    assert co.run(tiny.method("fedavg"), task, sites, rounds=1).report["device"] == "cpu"


@no_gpu
@pytest.mark.parametrize("engine", ["sequential", "vectorised", "parallel"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "beta", "fedpa"])
def test_a_gpu_gives_the_processor_s_numbers(name: str, engine: str, tmp_path: Path) -> None:
    task, sites = tiny.classification(torch.float64)
    here = co.run(tiny.method(name), task, sites, engine="sequential")
    there = co.run(tiny.method(name), task, sites, engine=co.Compute(engine, device="cuda"), out=tmp_path / "r")

    assert all(leaf.device.type == "cpu" for leaf in tree.leaves(there.state) if isinstance(leaf, torch.Tensor))
    assert there.metrics["nll"] == pytest.approx(here.metrics["nll"], abs=1e-6)  # the same draws, in double precision
    loaded = co.load(tmp_path / "r", tiny.method(name), task, sites)
    assert loaded.report["device"] == "cuda"
