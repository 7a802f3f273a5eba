"""Distributions of counts and of times: against scipy, and by what must hold."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from consilience.distributions import Counts, Survival
from consilience.distributions.predictive import finite_rows, log_prob, mixture, product, temperature, tempered
from consilience.errors import InputError


def counts() -> Counts:
    return Counts(torch.tensor([2.0, 5.0, 0.3]).double(), torch.tensor([0.0, 4.0, 0.5]).double())


def test_log_probabilities_are_those_of_a_negative_binomial() -> None:
    p = counts()
    shape = p.mean[1:] ** 2 / p.var[1:]

    found = log_prob(p, torch.tensor([3.0, 7.0, 0.0]))

    assert float(found[0]) == pytest.approx(scipy.stats.poisson.logpmf(3, 2.0))
    expected = scipy.stats.nbinom.logpmf([7, 0], shape, shape / (shape + p.mean[1:]))
    assert found[1:].numpy() == pytest.approx(expected)


def test_exposure_multiplies_rates() -> None:
    p = Counts(torch.tensor([2.0]).double(), torch.zeros(1).double())

    assert float(log_prob(p, torch.tensor([[5.0, 3.0]]))) == pytest.approx(scipy.stats.poisson.logpmf(5, 6.0))


def test_mixtures_keep_mean_and_variance() -> None:
    a = Counts(torch.tensor([2.0]).double(), torch.tensor([0.5]).double())
    b = Counts(torch.tensor([6.0]).double(), torch.tensor([1.5]).double())

    mixed = mixture([a, b], torch.tensor([1.0, 3.0]))

    assert isinstance(mixed, Counts)
    assert float(mixed.mean) == pytest.approx(5.0)  # (2 + 3·6) / 4
    assert float(mixed.var) == pytest.approx(0.125 + 1.125 + 0.25 * 9 + 0.75 * 1)  # within, then between


def test_tempering_multiplies_the_variance_down_to_a_poisson() -> None:
    p = counts()

    assert tempered(p, 2.0).total.numpy() == pytest.approx(2 * p.total.numpy())  # type: ignore[union-attr]
    assert tempered(p, 0.01).total.numpy() == pytest.approx(p.mean.numpy())  # type: ignore[union-attr]


def test_overdispersed_counts_ask_for_a_temperature_above_one() -> None:
    rng = np.random.default_rng(0)
    y = torch.from_numpy(rng.negative_binomial(2, 2 / 12, size=500).astype(float))  # mean 10, variance 60
    p = Counts(torch.full((500,), 10.0).double(), torch.zeros(500).double())

    assert 4 < temperature(p, y) < 9  # variance 60 over the Poisson's 10, from 500 draws


def test_intervals_hold_what_they_promise() -> None:
    p = Counts(torch.full((4000,), 7.0).double(), torch.full((4000,), 3.0).double())
    shape = 7**2 / 3
    y = scipy.stats.nbinom.rvs(shape, shape / (shape + 7), size=4000, random_state=0)

    low, high = p.interval(0.8)

    inside = np.mean((y >= low.numpy()) & (y <= high.numpy()))
    exact = scipy.stats.nbinom.cdf(high[0], shape, shape / (shape + 7))
    exact -= scipy.stats.nbinom.cdf(low[0] - 1, shape, shape / (shape + 7))
    assert exact >= 0.8
    assert inside == pytest.approx(exact, abs=3 * (0.16 / 4000) ** 0.5)


def test_products_are_refused_in_one_sentence() -> None:
    with pytest.raises(InputError, match="cannot be multiplied"):
        product([counts(), counts()], counts())


def test_curves_average_over_the_log_hazard() -> None:
    """E exp(−H e^η) with η ~ N(m, s²), by a fine sum over the Normal's density."""
    times = torch.tensor([1.0, 2.0]).double()
    hazard = torch.tensor([0.2, 1.0]).double()
    p = Survival(torch.tensor([0.4]), torch.tensor([0.25]), torch.zeros(1, 0), torch.zeros(1, 0)).on(times, hazard)
    z = np.linspace(-8, 8, 20001)
    density = scipy.stats.norm.pdf(z)

    for place, h in enumerate(hazard.tolist()):
        expected = np.trapezoid(density * np.exp(-h * np.exp(0.4 + 0.5 * z)), z)
        assert float(p.curves[0, place]) == pytest.approx(expected, abs=1e-5)


def test_the_log_probability_of_times_is_that_of_their_interval() -> None:
    times = torch.tensor([1.0, 2.0]).double()
    hazard = torch.tensor([0.2, 1.0]).double()
    rows = torch.zeros(4, 0)
    p = Survival(torch.zeros(4), torch.zeros(4), rows, rows).on(times, hazard)
    y = torch.tensor([[1.0, 1.0], [1.5, 1.0], [1.5, 0.0], [9.0, 1.0]])
    s = np.exp([-0.2, -1.0])

    found = log_prob(p, y)

    assert found.exp().numpy() == pytest.approx([1 - s[0], s[0] - s[1], s[0], s[1]], abs=1e-6)
    assert bool(finite_rows(p).all())
