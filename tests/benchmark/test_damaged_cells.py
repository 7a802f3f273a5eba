"""Damaged folders of comparisons and searches: one sentence, or the same table as before."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import Outcomes, damaged, mutated

from consilience.benchmark import compare, tune
from consilience.errors import InputError
from consilience.runs.problem import Problem

PROBLEM = Problem("moons", sites=3, model="linear")
FEW_AND_MANY = [8, pytest.param(600, marks=pytest.mark.slow)]


def comparison(folder: Path) -> Any:
    words = ["fedavg[rounds=1,inference.epochs=1]", "mixture[inference.epochs=2,inference.cycles=1,inference.keep=2]"]
    return compare(words, PROBLEM, seeds=0, bounds=False, out=folder).to_json()


def search(folder: Path) -> Any:
    grid = {"inference.epochs": [1, 2], "inference.rate": [0.1]}
    return tune("fedavg", PROBLEM, rounds=1, seeds=(0, 1), grid=grid, out=folder).to_json()


@pytest.mark.parametrize("trials", FEW_AND_MANY)
@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("work", [comparison, search])
def test_a_damaged_cell_is_one_sentence(work: Callable[[Path], Any], sealed: bool, trials: int, tmp_path: Path) -> None:
    """With a checksum, and without one as older versions wrote it."""
    whole = work(tmp_path / "whole")
    files = sorted(p.relative_to(tmp_path / "whole") for p in (tmp_path / "whole").rglob("*.json"))
    draw = random.Random(8)
    outcomes = Outcomes()
    for _ in range(trials):
        folder = Path(shutil.copytree(tmp_path / "whole", tmp_path / "damaged"))
        file = draw.choice(files)
        path = folder / file
        raw = path.read_bytes()
        other = (folder / draw.choice(files)).read_bytes()
        if not sealed:
            value = {name: item for name, item in json.loads(raw).items() if name != "checksum"}
            path.write_text(json.dumps(mutated(value, draw)))
        elif draw.random() < 0.5:
            path.write_bytes(damaged(raw, other, draw))
        else:
            path.write_text(json.dumps(mutated(json.loads(raw), draw)))
        outcome = outcomes.note(lambda folder=folder: work(folder), lambda found: found == whole)
        assert not sealed or outcome != "other" or file.name == "settings.json", (file, path.read_bytes())
        shutil.rmtree(folder)

    assert not outcomes.bad, outcomes


@pytest.mark.parametrize("accuracy", [7.0, -0.5, math.nan])
def test_a_share_beyond_1_in_a_cell_is_one_sentence(accuracy: float, tmp_path: Path) -> None:
    """Such bins ended in a math domain error when Wilson's interval was taken of them."""
    comparison(tmp_path)
    file = sorted((tmp_path / "cells").rglob("mixture*.json"))[0]
    value = {name: item for name, item in json.loads(file.read_text()).items() if name != "checksum"}
    for site in value["calibration"]:
        for one in site["reliability"]:
            one["accuracy"] = accuracy
    file.write_text(json.dumps(value))

    with pytest.raises(InputError, match="damaged"):
        comparison(tmp_path)
