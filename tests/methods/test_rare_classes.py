"""A temperature and a β from thirty rows of which 6 % are positive: on average no worse than none."""

from __future__ import annotations

import warnings

import pytest
import torch

from consilience.aggregation.interpolation import choose_beta
from consilience.distributions.predictive import (
    Categorical,
    geometric,
    maximise,
    mixture,
    precise,
    product,
    score,
    temperature,
    tempered,
)

REPEATS = 40


def draw(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """True log-odds and labels, 6 % of them positive."""
    g = torch.Generator().manual_seed(seed)
    odds = torch.randn(rows, generator=g, dtype=torch.float64) * 1.2 - 3.2
    return odds, (torch.rand(rows, generator=g, dtype=torch.float64) < odds.sigmoid()).long()


def binary(odds: torch.Tensor) -> Categorical:
    return Categorical(torch.nn.functional.logsigmoid(torch.stack([-odds, odds], 1)))


def clients(odds: torch.Tensor, seed: int) -> list[Categorical]:
    """Five clients who each see the odds with an error of their own."""
    g = torch.Generator().manual_seed(seed)
    return [binary(odds + 0.8 * torch.randn(len(odds), generator=g, dtype=torch.float64)) for _ in range(5)]


def test_a_temperature_from_thirty_rows_does_not_harm_a_rare_class() -> None:
    odds, y = draw(20_000, 0)
    p = binary(odds)
    plain = score(p, y)
    fitted = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(1, REPEATS + 1):
            few, labels = draw(30, seed)
            fitted.append(score(tempered(p, temperature(binary(few), labels)), y))
    assert sum(fitted) / REPEATS > plain - 0.003


def test_beta_from_thirty_rows_does_not_harm_a_rare_class() -> None:
    odds, y = draw(20_000, 0)
    prior = binary(torch.zeros_like(odds))
    parts = clients(odds, 0)
    whole = precise(product(parts, prior)), precise(mixture(parts, torch.ones(5)))
    mixed = score(whole[1], y)
    cautious, plain = [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(1, REPEATS + 1):
            few, labels = draw(30, seed)
            own = clients(few, seed)
            both = precise(product(own, binary(torch.zeros_like(few)))), precise(mixture(own, torch.ones(5)))
            cautious.append(score(geometric(choose_beta(*both, labels), *whole), y))
            best = maximise(lambda b, both=both, labels=labels: score(geometric(b, *both), labels), 0.0, 1.0)
            plain.append(score(geometric(best, *whole), y))
    assert sum(cautious) / REPEATS > mixed - 0.003
    assert sum(cautious) > sum(plain)


def test_rows_of_one_class_choose_nothing_and_say_so() -> None:
    odds, _ = draw(30, 0)
    zeros = torch.zeros(30, dtype=torch.long)
    with pytest.warns(UserWarning, match="30 calibration rows are of one class, from which a temperature cannot"):
        assert temperature(binary(odds), zeros) == 1.0
    parts = clients(odds, 0)
    both = product(parts, binary(torch.zeros_like(odds))), mixture(parts, torch.ones(5))
    with pytest.warns(UserWarning, match="from which β cannot be chosen"):
        assert choose_beta(*both, zeros) == 0.0


def test_from_five_events_on_beta_is_the_papers_maximum() -> None:
    odds, y = draw(100, 5)
    assert 5 <= int(y.sum()) < 20
    parts = clients(odds, 5)
    both = precise(product(parts, binary(torch.zeros_like(odds)))), precise(mixture(parts, torch.ones(5)))
    plain = maximise(lambda b: score(geometric(b, *both), y), 0.0, 1.0)
    assert choose_beta(*both, y) == plain
