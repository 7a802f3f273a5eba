"""Weights and chains by ArviZ's own functions, an independent program."""

from __future__ import annotations

import arviz
import numpy as np
import pytest
import torch

from consilience.draws.convergence import effective, r_hat
from consilience.draws.importance import resample, smooth
from consilience.key import Key


@pytest.mark.parametrize("tail", [0.2, 0.6, 1.2])
def test_smoothed_weights_are_those_of_arviz(tail: float) -> None:
    rng = np.random.default_rng(0)
    logs = rng.exponential(tail, 2000)  # weights that are Pareto with k = tail

    found = smooth(torch.from_numpy(logs))

    weights, k = arviz.psislw(logs)
    assert found.k == pytest.approx(float(k), abs=1e-6)
    np.testing.assert_allclose(found.logs.numpy(), np.asarray(weights), atol=1e-6)


def test_equal_weights_have_nothing_to_smooth() -> None:
    found = smooth(torch.zeros(100))

    assert found.k == -np.inf and found.effective == pytest.approx(100)


def test_rows_are_chosen_as_often_as_weights_say() -> None:
    logs = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64).log()

    rows = resample(logs, 400, Key(0))

    assert torch.bincount(rows, minlength=4).tolist() == [200, 100, 100, 0]


def test_chains_are_judged_as_arviz_does() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 300, 3))
    for i in range(1, 300):
        x[:, i, 1] += 0.8 * x[:, i - 1, 1]
    x[0, :, 2] += 1.0
    draws = torch.from_numpy(x)

    data = arviz.convert_to_dataset({"x": x})

    np.testing.assert_allclose(r_hat(draws), arviz.rhat(data)["x"], rtol=0.002)
    np.testing.assert_allclose(effective(draws), arviz.ess(data)["x"], rtol=0.03)
