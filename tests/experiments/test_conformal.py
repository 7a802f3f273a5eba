"""The experiment on prediction sets: newcomers that mix the classes differently."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

TABLE = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "conformal" / "table.py"))


def test_newcomers_see_the_classes_they_have() -> None:
    assert TABLE["newcomer_coverage"](torch.full((4,), 0.9, dtype=torch.float64)) == pytest.approx(0.9)
    uneven = TABLE["newcomer_coverage"](torch.tensor([0.5, 1.0], dtype=torch.float64))
    assert 0.5 <= uneven < 0.6
