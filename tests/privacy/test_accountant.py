"""What Gaussian noise promises, against dp-accounting and the definition."""

from __future__ import annotations

import math

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.integrate import quad
from scipy.stats import norm

from consilience.errors import InputError
from consilience.privacy.dp.accountant import check_budget, compose, delta_of, epsilon_of, mu_of, sigma_of


@pytest.mark.parametrize(("sigma", "times"), [(2.0, 1), (3.0, 7), (20.0, 7)])
def test_agrees_with_dp_accounting(sigma: float, times: int) -> None:
    oracle = PLDAccountant(value_discretization_interval=5e-4)
    oracle.compose(SelfComposedDpEvent(GaussianDpEvent(sigma), times))
    mu = compose([1 / sigma] * times)

    epsilon = epsilon_of(1e-5, mu)

    assert epsilon == pytest.approx(oracle.get_epsilon(1e-5), rel=1e-3)
    assert delta_of(epsilon, mu) == pytest.approx(oracle.get_delta(epsilon), rel=1e-2)  # as steep as exp(ε·few)


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 0.3), (0.5, 0.3), (1.0, 1.0), (3.0, 0.7), (8.0, 2.5)])
def test_delta_is_the_integral_it_stands_for(epsilon: float, mu: float) -> None:
    """δ(ε) = ∫ max(0, p − e^ε q) for p = N(μ, 1), q = N(0, 1); p exceeds e^ε q right of ε/μ + μ/2."""
    excess, _ = quad(lambda x: norm.pdf(x - mu) - math.exp(epsilon) * norm.pdf(x), epsilon / mu + mu / 2, 40)
    assert delta_of(epsilon, mu) == pytest.approx(excess, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 1.0, 8.0, 200.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 1e-2])
def test_inverses_invert(epsilon: float, delta: float) -> None:
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) == pytest.approx(delta, rel=1e-5) and delta_of(epsilon, mu) <= delta
    assert epsilon_of(delta, mu) == pytest.approx(epsilon, rel=1e-5)
    assert sigma_of(epsilon, delta, 2.0) == pytest.approx(2 / mu)


def test_extremes_stay_numbers() -> None:
    assert delta_of(1e5, 1.0) == 0.0 and delta_of(0.0, 1e3) == 1.0 and delta_of(1.0, 0.0) == 0.0
    assert epsilon_of(1e-5, 0.0) == 0.0 and epsilon_of(0.5, 1e-3) == 0.0
    assert epsilon_of(1e-300, 5.0) > epsilon_of(1e-5, 5.0)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rows", "word"),
    [(0.0, 1e-5, None, "epsilon"), (-1.0, 1e-5, None, "epsilon"), (math.nan, 1e-5, None, "epsilon"),
     (math.inf, 1e-5, None, "epsilon"), (1.0, 0.0, None, "delta"), (1.0, 1.0, None, "delta"),
     (1.0, 1e-3, 1000, "rows"), (1.0, 1e-2, 740, "rows")],
)  # fmt: skip
def test_refuses_what_promises_nothing(epsilon: float, delta: float, rows: int | None, word: str) -> None:
    with pytest.raises(InputError, match=word):
        check_budget(epsilon, delta, rows)
