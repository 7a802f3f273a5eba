"""A device is held against the processor, method by method: what differs is said, what is not there is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import Invoke

from consilience import tree
from consilience.cli import device_check
from consilience.cli.device_check import check_device
from consilience.messages import Received
from consilience.methods import METHODS
from consilience.runs.engines import ENGINES, Vectorised


class Shifted(Vectorised):
    """An engine whose replies are a little off."""

    def gather(self, *words: Any, **options: Any) -> list[Received]:
        replies: Sequence[Received] = super().gather(*words, **options)
        moved = [tree.map(lambda leaf: leaf + 0.01, reply.payload) for reply in replies]
        return [reply._replace(payload=payload) for reply, payload in zip(replies, moved, strict=True)]


def test_the_processor_agrees_with_itself_and_a_wrong_engine_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = check_device("cpu", ["fedavg"], bench=False)
    assert found.passed and set(found.agreements[0].differences) == {"vectorised", "parallel"}

    monkeypatch.setitem(ENGINES, "vectorised", Shifted)
    wrong = check_device("cpu", ["fedavg"], bench=False)
    assert not wrong.passed
    gaps = wrong.agreements[0].differences
    assert gaps["vectorised"] > 1e-3 > gaps["parallel"]


def test_a_method_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: object, **options: object) -> None:
        raise RuntimeError("no kernel for this\ntrace")

    monkeypatch.setattr(device_check, "run", fail)
    found = check_device("cpu", ["fedavg"], bench=False)
    assert not found.passed and found.agreements[0].error == "no kernel for this"


def test_the_command_says_what_was_found(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "METHODS", {"exact": METHODS["exact"]})
    monkeypatch.setattr(device_check, "NETWORKS", {})
    code, out, _ = invoke("check-device", "cpu", "--out", str(tmp_path / "found.json"))
    assert code == 0 and "All 1 methods agree with the processor" in out
    assert json.loads((tmp_path / "found.json").read_text())["passed"] is True


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device")
def test_an_absent_device_is_one_sentence(invoke: Invoke) -> None:
    code, _, err = invoke("check-device", "cuda")
    assert code == 2 and "This machine has no 'cuda' that torch can use" in err
    code, _, err = invoke("check-device", "abacus")
    assert code == 2 and "There is no device called 'abacus'" in err


@pytest.mark.slow
def test_all_methods_agree_on_the_processor() -> None:
    found = check_device("cpu")
    assert found.passed and len(found.agreements) == len(METHODS)
    assert len(found.speeds) == 6  # two networks, three engines
