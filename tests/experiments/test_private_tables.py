"""The tables of private pooling: the page is that of its results."""

from __future__ import annotations

import json
from pathlib import Path

from consilience.benchmark.reproduce import module

ROOT = Path(__file__).parents[2] / "experiments" / "private"


def test_the_page_is_that_of_its_results() -> None:
    trials = json.loads((ROOT / "results" / "table.json").read_text())
    rivals = json.loads((ROOT / "results" / "dpsgd.json").read_text())
    assert module("private/summary").page(trials, rivals) in (ROOT / "README.md").read_text()
