"""The experiment on prediction sets: noise by zCDP, and newcomers that mix the classes differently."""

from __future__ import annotations

import math
import runpy
from pathlib import Path

import pytest
import torch

TABLE = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / "conformal" / "table.py"))


def test_noise_for_one_epsilon_lies_between_the_exact_gaussians_and_the_simple_bounds() -> None:
    """Balle and Wang 2018: σ = 3.730 for a Gaussian at (1, 10⁻⁵). Bun and Steinke 2016: ε = ρ + 2√(ρ ln(1/δ))."""
    deviation = math.sqrt(TABLE["noise_var"](1.0, 1e-5))
    rho = (math.sqrt(1 + math.log(1e5)) - math.sqrt(math.log(1e5))) ** 2
    simple = math.sqrt(1 / (2 * rho))

    assert 3.730 < deviation < simple


def test_newcomers_see_the_classes_they_have() -> None:
    assert TABLE["newcomer_coverage"](torch.full((4,), 0.9, dtype=torch.float64)) == pytest.approx(0.9)
    uneven = TABLE["newcomer_coverage"](torch.tensor([0.5, 1.0], dtype=torch.float64))
    assert 0.5 <= uneven < 0.6
