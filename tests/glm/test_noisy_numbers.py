"""A linear regression from noisy moments under a given prior: closed form without noise, coverage with it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.glm.derivatives import Quadratic
from consilience.glm.noisy import read_release, sum_bounded
from consilience.glm.noisy_derivatives import scale_of
from consilience.glm.noisy_numbers import fit_numbers
from consilience.key import Key
from consilience.models.bounded import Bounded
from consilience.privacy.dp.mechanisms import Privacy, Released, add_released
from consilience.privacy.entropy import Simulated


def itself(x: Tensor) -> Tensor:
    return x


def test_without_noise_it_is_bayesian_linear_regression() -> None:
    """Known noise 0.25 and prior N(0.1, 1/3): precision XᵀX/0.25 + 3, to rounding."""
    generator = torch.Generator().manual_seed(0)
    privacy = Privacy(1.0, 1e-5, bound=5.0)
    x = torch.randn(80, 3, generator=generator).double() / 4
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    y = (x.sum(1) + 0.5 * torch.randn(80, generator=generator)).double()
    exact = read_release(
        Released(sum_bounded(itself, Data.of(x, y), None, privacy).values, torch.tensor(1e-12)), 3, 1, None, privacy
    )
    prior = Quadratic(torch.full((1, 4), 0.1).double(), torch.full((1, 4), 3.0).double())
    found = fit_numbers(exact, prior, scale_of(4, True, privacy), privacy.bound, 0.25)
    rows = torch.cat([torch.ones(80, 1).double(), x], 1)
    precision = rows.mT @ rows / 0.25 + 3 * torch.eye(4).double()
    mean = torch.linalg.solve(precision, rows.mT @ y / 0.25 + 0.3)
    assert torch.allclose(found.precision, precision, rtol=1e-6)
    assert torch.allclose(found.mean[0], mean, atol=1e-6)
    assert float(found.log_noise) == pytest.approx(math.log(0.25))


def cover(seed: int, n: int, width: int, epsilon: float, sites: int = 1) -> tuple[float, float]:
    """The shares of 90 % intervals that hold the true function, and a new outcome; weights drawn from the prior."""
    generator = torch.Generator().manual_seed(seed)
    bound = Bounded(math.sqrt(width))
    weights = 2 * torch.randn(width + 1, generator=generator).double() / math.sqrt(width)
    psi = bound(torch.randn(n + 200, width, generator=generator).double())
    rows = torch.cat([torch.ones(n + 200, 1).double(), psi], 1)
    f = rows @ weights
    y = f + 0.5 * torch.randn(n + 200, generator=generator).double()
    privacy = Privacy(epsilon, 1e-5)
    parts = [Data.of(psi[:n][k::sites], y[:n][k::sites]) for k in range(sites)]
    released = [
        privacy.add_noise(sum_bounded(itself, part, None, privacy), Simulated(Key(seed).fold(k)))
        for k, part in enumerate(parts)
    ]
    prior = Quadratic(torch.zeros(1, width + 1).double(), torch.full((1, width + 1), width / 4).double())
    totals = read_release(add_released(released), width, 1, None, privacy)
    line = fit_numbers(totals, prior, scale_of(width + 1, True, privacy), privacy.bound, None)
    new = rows[n:]
    var = (new @ torch.linalg.inv(line.precision) * new).sum(1)
    known = (new @ line.mean[0] - f[n:]).abs() <= 1.645 * var.sqrt()
    outcome = (new @ line.mean[0] - y[n:]).abs() <= 1.645 * (var + line.log_noise.exp()).sqrt()
    return float(known.double().mean()), float(outcome.double().mean())


def test_intervals_cover_in_few_studies() -> None:
    """In 60 studies: 90 ± 7 % of functions and of outcomes for chance, four standard errors of some 1.7 %."""
    found = torch.tensor([cover(seed, 1000, 5, 3.0) for seed in range(60)])
    assert bool(((found.mean(0) - 0.9).abs() < 0.07).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "width", "epsilon", "sites"), [(5000, 20, 1.0, 1), (1000, 5, 1.0, 1), (5000, 20, 3.0, 5), (5000, 5, 0.3, 1)]
)
def test_intervals_cover(n: int, width: int, epsilon: float, sites: int) -> None:
    """90 % within 4 points, over 400 studies that set no band: seeds 500 to 700 found 88.2 to 90.7 % of functions and
    89.9 to 92.7 % of outcomes, most where noise drowns Σ t² (1 000 rows, ε = 1).
    """
    found = torch.tensor([cover(seed, n, width, epsilon, sites) for seed in range(10_000, 10_400)])
    assert bool(((found.mean(0) - 0.9).abs() < 0.04).all())
