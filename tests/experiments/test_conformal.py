"""The experiment on prediction sets: newcomers that mix the classes differently, and its page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from consilience.benchmark.reproduce import module

ROOT = Path(__file__).parents[2] / "experiments" / "conformal"


def test_newcomers_see_the_classes_they_have() -> None:
    newcomer_coverage = module("conformal/table").newcomer_coverage
    assert newcomer_coverage(torch.full((4,), 0.9, dtype=torch.float64)) == pytest.approx(0.9)
    uneven = newcomer_coverage(torch.tensor([0.5, 1.0], dtype=torch.float64))
    assert 0.5 <= uneven < 0.6


def test_the_page_is_that_of_its_results() -> None:
    trials = json.loads((ROOT / "results" / "table.json").read_text())
    assert module("conformal/summary").page(trials) in (ROOT / "README.md").read_text()


def test_columns_of_single_methods_stand_beside_the_six() -> None:
    cell = {"hinge_size_at_95": 1.0}
    trials = {"mnist/methods": {"0": {"exact": cell}}, "mnist/glm": {"0": {"glm": cell}, "1": {"glm": cell}}}
    joined = module("conformal/summary").join_methods({**trials, "mnist/folds": {"0": {}}})

    assert joined["mnist/methods"] == {"0": {"exact": cell, "glm": cell}, "1": {"glm": cell}}
    assert joined["mnist/folds"] == {"0": {}}
