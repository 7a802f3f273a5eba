"""A comparison that is really killed (SIGKILL), at one change of a file after another, and started again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import killing
import pytest
import studies

from consilience.benchmark.cells import claim
from consilience.errors import InputError
from consilience.runs.store import FORMAT, Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that can be killed")

WORDS = ["compare", "exact", "glm", "--data", "*.csv", "--target", "died", "--missing", "mean"]
WORDS += ["--seeds", "1", "--no-bounds", "--out", "c"]
CLOCKS = {"seconds", "checksum"}  # of a file that holds seconds
MOST = 100  # changes of files


def folder_of(home: Path) -> Path:
    home.mkdir()
    for number, name in enumerate(studies.NAMES):
        studies.table(home / f"{name}.csv", studies.rows(number, 80))
    return home


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_clocks(child) for name, child in value.items() if name not in CLOCKS}
    if isinstance(value, list):
        return [without_clocks(child) for child in value]
    return value


def found(home: Path) -> dict[str, Any]:
    """All files of a comparison but parts, which go when they are old; of JSON, all but the time that it took."""
    files = (path for path in sorted((home / "c").rglob("*")) if path.is_file() and path.suffix != ".part")
    return {
        str(path.relative_to(home)): without_clocks(json.loads(path.read_text())) if path.suffix == ".json" else None
        for path in files
    }


def test_what_was_killed_before_its_problem_was_written_goes_on(tmp_path: Path) -> None:
    """The folder of a split was there, empty, and every later start was refused."""
    store = Store(tmp_path)
    (tmp_path / "cells" / "default" / "1").mkdir(parents=True)
    (tmp_path / "cells" / "default" / "1" / f".{'0' * 16}.part").touch()

    def begin(rows: int) -> None:
        problem = {"format": FORMAT, "rows": rows}
        claim(store, "cells/default/1/problem.json", problem, "comparison, on other rows", "cells/default/1")

    for _ in range(2):
        begin(3)
    with pytest.raises(InputError, match="holds another comparison"):
        begin(4)


@pytest.mark.slow
@pytest.mark.parametrize("step", [5])
def test_a_comparison_goes_on_after_any_kill_to_the_same_numbers(step: int, tmp_path: Path) -> None:
    whole = folder_of(tmp_path / "whole")
    assert killing.fork(whole, "0", WORDS) == 0
    expected = found(whole)

    killed = 0
    for change in range(1, MOST, step):
        home = folder_of(tmp_path / f"{change}")
        code = killing.fork(home, str(change), WORDS)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killing.fork(home, str(change + 2), WORDS)  # and once more, unless it is done by then
        assert killing.fork(home, "0", WORDS) == 0
        assert found(home) == expected
        killed += 1
    assert killed >= 4
