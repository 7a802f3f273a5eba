"""The discrete Gaussian: its weights, its exactness and its sources."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from consilience.errors import InputError
from consilience.key import Key
from consilience.privacy.dp import discrete
from consilience.privacy.dp.accountant import delta_of
from consilience.privacy.dp.discrete import discrete_gaussian
from consilience.privacy.entropy import Entropy, Simulated


def weights(sigma: float, reach: int) -> np.ndarray:
    """P(−reach … reach), by the definition."""
    k = np.arange(-reach, reach + 1)
    p = np.exp(-(k**2) / (2 * sigma**2))
    return p / p.sum()


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.7])
def test_draws_have_the_weights_of_the_definition(sigma: float) -> None:
    draws = discrete_gaussian(40_000, sigma, Simulated(Key(1))).numpy()
    reach = math.ceil(3 * sigma)
    expected = weights(sigma, 40)
    inner = slice(40 - reach, 40 + reach + 1)
    counts = [(draws == k).sum() for k in range(-reach, reach + 1)]
    rest = len(draws) - sum(counts)
    p = chisquare([*counts, rest], len(draws) * np.array([*expected[inner], 1 - expected[inner].sum()])).pvalue
    assert p > 1e-3


def test_large_noise_has_the_moments_of_a_gaussian() -> None:
    """Of N draws: the mean within 4σ/√N, the variance within 4σ²√(2/N), the fourth moment 3σ⁴ within 4·√(96/N)."""
    n, sigma = 200_000, 1.5e6
    draws = discrete_gaussian(n, sigma, Simulated(Key(2))).double() / sigma
    assert abs(float(draws.mean())) < 4 / math.sqrt(n)
    assert abs(float((draws**2).mean()) - 1) < 4 * math.sqrt(2 / n)
    assert abs(float((draws**4).mean()) - 3) < 4 * math.sqrt(96 / n)


def test_rounding_never_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions by fractions and 90 digits, for every number, are those by doubles: the extra bits lie below."""
    fast = discrete_gaussian(300, 5.5, Simulated(Key(3)))

    class Apart(Simulated):
        """Gives the extra bits from elsewhere, so that the others stay in step."""

        def __init__(self) -> None:
            super().__init__(Key(3))
            self.other = Simulated(Key(4))

        def words(self, count: int) -> discrete.Words:
            return (self.other if count == discrete.MORE_BITS // 64 else super()).words(count)

    monkeypatch.setattr(discrete, "NEAR", 2.0)
    assert torch.equal(discrete_gaussian(300, 5.5, Apart()), fast)


def test_a_discrete_gaussian_hides_as_much_as_a_continuous_one() -> None:
    """δ(ε) = Σ max(0, p(k − s) − e^ε p(k)) for a shift by s = σ, against the accountant's: a step's width apart."""
    sigma = 1000
    p = weights(sigma, 12 * sigma)
    for epsilon in (0.1, 1.0, 3.0):
        exact = np.maximum(p[:-sigma] - math.exp(epsilon) * p[sigma:], 0).sum()
        assert exact == pytest.approx(delta_of(epsilon, 1.0), rel=1e-3)  # releases have σ of some 10⁶ steps


def test_simulated_noise_repeats_and_real_noise_does_not() -> None:
    assert torch.equal(discrete_gaussian(50, 9.0, Simulated(Key(5))), discrete_gaussian(50, 9.0, Simulated(Key(5))))
    assert not torch.equal(discrete_gaussian(50, 9.0, Entropy()), discrete_gaussian(50, 9.0, Entropy()))


def test_without_entropy_nothing_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(count: int) -> bytes:
        raise OSError("no entropy")

    monkeypatch.setattr(os, "urandom", fail)
    with pytest.raises(InputError, match="operating system gives no random numbers"):
        discrete_gaussian(10, 9.0, Entropy())


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, 2.0**50])
def test_refuses_noise_that_cannot_be_drawn(sigma: float) -> None:
    with pytest.raises(InputError, match="steps"):
        discrete_gaussian(10, sigma, Entropy())
