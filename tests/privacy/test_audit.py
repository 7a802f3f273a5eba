"""The one-run audit: its arithmetic against other sources, and against mechanisms whose ε is known."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, norm

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key
from consilience.privacy.audit.canaries import corners, wrong_outcomes
from consilience.privacy.audit.one_run import bound, flip, guess, lower_bound, p_value


def test_the_bound_printed_in_the_paper() -> None:
    """Steinke et al. 2023, appendix D: m = 1000, 75 of 100 guesses right, δ = 1e-4, 95 % → ε ≥ 0.673."""
    assert lower_bound(1000, 100, 75, 1e-4, 0.95) == pytest.approx(0.673, abs=6e-4)


@settings(max_examples=25)
@given(st.integers(1, 60), st.data())
def test_without_delta_the_p_value_is_a_binomial_test(guesses: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, guesses))
    epsilon = data.draw(st.floats(0, 5))
    direct = binomtest(correct, guesses, math.exp(epsilon) / (1 + math.exp(epsilon)), "greater").pvalue
    assert p_value(100, guesses, correct, epsilon, 0.0) == pytest.approx(direct, rel=1e-9)


def test_delta_adds_the_theorems_term() -> None:
    """m = r = 2, v = 2, ε = 0: P[B ≥ 2] = ¼; P[1 ≤ B < 2] = ½ over 1, P[0 ≤ B < 2] = ¾ over 2; 2 m δ · ½ = 2 δ."""
    assert p_value(2, 2, 2, 0.0, 0.01) == pytest.approx(0.25 + 0.02)


def test_randomised_response_is_bounded_near_its_epsilon_and_seldom_above() -> None:
    """Each coin is told truthfully with probability e^ε / (1 + e^ε), the worst mechanism the theorem allows."""
    epsilon = 1.0
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    generator = torch.Generator().manual_seed(0)
    bounds = []
    for _ in range(400):
        correct = int((torch.rand(1000, generator=generator) < truthful).sum())
        bounds.append(lower_bound(1000, 1000, correct, 0.0))
    above = sum(b > epsilon for b in bounds)
    assert above <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)  # 95 % each, three deviations of the count
    assert sum(bounds) / 400 == pytest.approx(
        epsilon - 1.645 * math.sqrt(truthful * (1 - truthful) / 1000) / 0.1966, abs=0.02
    )


def test_a_gaussian_mechanism_is_never_refuted_in_100_runs() -> None:
    """Every canary has a coordinate of its own, so σ = 1 is 1-Gaussian DP of each coin: δ(ε) in closed form."""
    delta, canaries = 1e-5, 300
    epsilon = 3.0
    while norm.cdf(-epsilon + 0.5) - math.exp(epsilon) * norm.cdf(-epsilon - 0.5) > delta:
        epsilon += 0.01
    assert epsilon == pytest.approx(4.38, abs=0.02)  # μ = 1: the smallest ε at this δ
    found = []
    for run in range(100):
        key = Key(run)
        included = flip(canaries, key.fold(0))
        released = included.double() + key.fold(1).normal((canaries,)).double()
        found.append(bound(released, included, delta))
    assert not any(b.refutes(epsilon) for b in found)
    assert max(b.epsilon for b in found) > 0.5  # it is not for want of power
    assert all(b.epsilon <= b.ceiling for b in found)


def test_the_surest_are_guessed_and_the_middle_is_not() -> None:
    scores = torch.tensor([0.0, 5.0, -5.0, 1.0, -1.0, 0.1])
    assert guess(scores, 2 / 3).tolist() == [0, 1, -1, 1, -1, 0]


def test_coins_are_fair_and_independent_of_the_number_of_canaries() -> None:
    assert flip(2000, Key(3)).double().mean() == pytest.approx(0.5, abs=3 * 0.5 / math.sqrt(2000))


def test_what_cannot_be_audited_is_refused() -> None:
    with pytest.raises(InputError, match="at least 20"):
        bound(torch.zeros(5), torch.ones(5))
    with pytest.raises(InputError, match="not finite"):
        bound(torch.full((30,), torch.nan), torch.ones(30))
    with pytest.raises(InputError, match="at most the next"):
        p_value(10, 5, 6, 1.0, 0.0)


def test_canaries_with_wrong_outcomes_are_rows_with_another_class() -> None:
    data = Data.of(torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]))
    canaries = wrong_outcomes(data, 3, 10, Key(0))
    for x, y in zip(canaries.x, canaries.y, strict=True):
        own = data.y[(data.x == x).all(1)]
        assert len(own) == 1 and int(y) != int(own) and 0 <= int(y) < 3


def test_canaries_in_corners_stay_within_their_ranges() -> None:
    low, high = torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 7.0])
    canaries = corners(low, high, 4, 50, Key(0))
    assert set(canaries.x[:, 0].tolist()) == {-1.0, 1.0}
    assert set(canaries.x[:, 1].tolist()) == {0.0, 7.0}
    assert set(canaries.y.tolist()) == {0, 1, 2, 3}
