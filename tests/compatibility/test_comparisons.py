"""Comparisons and searches that an earlier version left unfinished go on; see helpers/before.py."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from before import TRAINED, copied, kept, ran, same
from tiny import Invoke

pytestmark = pytest.mark.usefixtures("unhurried")


def check_only(folder: Path, missing: str, go_on: Callable[[], object]) -> None:
    """Go on; what was there is left as it is, and one file comes."""
    files = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*.json")}
    assert folder / missing not in files and len(files) > 1
    go_on()
    assert (folder / missing).exists()
    for path, was in files.items():
        assert (path.stat().st_mtime_ns, path.read_bytes()) == was, path
    parts = {path.relative_to(folder).parts[0] for path in files} & {"cells", "trials"}
    made = {path for part in parts for path in (folder / part).rglob("*.json")} - {*files}
    assert made == {folder / missing}


def test_a_comparison_goes_on_with_the_cell_it_lacks(tmp_path: Path, invoke: Invoke) -> None:
    copied("hospitals", tmp_path / "hospitals")
    folder, expected = copied("comparison", tmp_path / "comparison"), kept("comparison", "expected.json")

    check_only(folder, expected["missing"], lambda: ran(invoke, *expected["words"]))

    found = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    assert found.pop("rows") == found["splits"][0]["rows"]
    before = expected["compare"]
    assert found.pop("leaves_out") != before.pop("leaves_out")
    widen_errors(before)
    drop_additions(found, before)
    for part in (*found["splits"], *before["splits"]):
        for row in part["rows"]:
            del row["tempered"]  # few events: temperatures are fitted with more caution since
            row["name"] = re.sub(r"^Centralised, \d+ passes$", "Centralised", row["name"])  # which the name says since
    for part in (*found["splits"], *before["splits"], found, before):
        part["sentence"] = re.sub(r"± [\d.]+", "±", part["sentence"])
    same(found, before, TRAINED)


def drop_additions(found: Any, before: Any) -> None:
    """Forget what comparisons have learned to say since: lines to beat, own rows."""
    if isinstance(before, dict):
        for name in found.keys() - before.keys():
            del found[name]
        for name, value in before.items():
            drop_additions(found.get(name), value)
    elif isinstance(before, list):
        for one, other in zip(found, before, strict=True):
            drop_additions(one, other)


def widen_errors(compare: dict[str, Any]) -> None:
    """Standard errors now allow for the rows that both seeds share: s²(1/2 + test/train) where it was s²/2."""
    rows = compare["rows_of_data"]
    factor = (1 + 2 * rows["test"] / rows["train"]) ** 0.5
    for part in compare["splits"]:
        for row in part["rows"]:
            for scores in (row, row["tempered"] or {}):
                for name in scores.get("errors", {}):
                    scores["errors"][name] *= factor


def test_a_search_goes_on_with_the_trial_it_lacks(tmp_path: Path, invoke: Invoke) -> None:
    copied("hospitals", tmp_path / "hospitals")
    folder, expected = copied("tuning", tmp_path / "tuning"), kept("tuning", "expected.json")

    check_only(folder, expected["missing"], lambda: ran(invoke, *expected["words"]))

    assert (folder / "settings.json").read_text() == expected["settings.json"]
    found, before = (
        list(csv.DictReader(io.StringIO(text))) for text in ((folder / "tune.csv").read_text(), expected["tune.csv"])
    )
    assert len(before) == 3
    for row, old in zip(found, before, strict=True):
        same({**row, "value": float(row["value"])}, {**old, "value": float(old["value"])}, TRAINED)
