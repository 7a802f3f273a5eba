"""Whether samplers sample a small network's posterior, in predictions, as its weights may trade places.

One hidden layer of three tanh units, 100 rows with a gap in the middle, known noise. The oracle is written here, apart
from the package: 32 chains of Hamiltonian Monte Carlo with an accept step, each begun at a draw of the prior (R-hat of
the predictions at most 1.011; another seed gives a deviation 0.2 % larger and means 0.04 deviations away). What it
found is kept below, so that the fast tests need not wait for it; a slow one finds it again.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.errors import Diverged
from consilience.inference import HMC, Inference, PreconditionedSGHMC, Sampler
from consilience.key import Key
from consilience.messages import Client

UNITS = 3
ROWS = 100
NOISE = 0.36
GRID = torch.linspace(-2.5, 2.5, 9).unsqueeze(1)  # beyond the rows, among them, and in their gap
MEAN = torch.tensor([-0.035, -0.415, -0.848, -0.973, -0.256, 0.675, 0.736, 0.406, 0.100])  # the oracle's
DEVIATION = 0.254  # √(mean variance over the grid) of the oracle's functions


def noisy_sine() -> Data:
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.uniform(-2, -0.5, ROWS // 2), draw.uniform(0.5, 2, ROWS // 2)])
    y = np.sin(1.5 * x) + NOISE**0.5 * draw.normal(size=ROWS)
    return Data.of(torch.tensor(x, dtype=torch.float32).unsqueeze(1), torch.tensor(y, dtype=torch.float32))


DATA = noisy_sine()
TASK = co.regression(nn.Sequential(nn.Linear(1, UNITS), nn.Tanh(), nn.Linear(UNITS, 1)), noise=NOISE)


def functions(weights: Tensor, x: Tensor) -> Tensor:
    """The network of each set of weights [S, P] at every input: [S, N]."""
    slopes, offsets, outer, level = weights.split([UNITS, UNITS, UNITS, 1], -1)
    hidden = torch.tanh(x * slopes.unsqueeze(1) + offsets.unsqueeze(1))
    return (hidden * outer.unsqueeze(1)).sum(-1) + level


def gradient(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """∇U by hand: of ½|θ|² + Σ (y − f)²/2σ²."""
    slopes, offsets, outer, level = weights.split([UNITS, UNITS, UNITS, 1], -1)
    hidden = torch.tanh(x * slopes.unsqueeze(1) + offsets.unsqueeze(1))
    error = ((hidden * outer.unsqueeze(1)).sum(-1) + level - y) / NOISE
    inner = error.unsqueeze(-1) * outer.unsqueeze(1) * (1 - hidden**2)
    by_outer = (error.unsqueeze(-1) * hidden).sum(1)
    return weights + torch.cat([(inner * x).sum(1), inner.sum(1), by_outer, error.sum(1, keepdim=True)], 1)


def oracle(chains: int = 32, proposals: int = 350, burn: int = 100, leaps: int = 25, step: float = 0.036) -> Tensor:
    """Weights [S, P] of long Hamiltonian chains with an accept step, in double precision."""
    x = DATA.x.double()
    y = DATA.y.double()
    draw = torch.Generator().manual_seed(0)

    def energy(theta: Tensor) -> Tensor:
        return 0.5 * (theta**2).sum(1) + 0.5 * ((y - functions(theta, x)) ** 2).sum(1) / NOISE

    theta = torch.randn(chains, 3 * UNITS + 1, generator=draw, dtype=torch.float64)
    kept = []
    for i in range(proposals):
        size = step * (0.8 + 0.4 * torch.rand(chains, 1, generator=draw, dtype=torch.float64))
        p = torch.randn(theta.shape, generator=draw, dtype=theta.dtype)
        new = theta
        q = p - 0.5 * size * gradient(theta, x, y)
        for _ in range(leaps - 1):
            new = new + size * q
            q = q - size * gradient(new, x, y)
        new = new + size * q
        q = q - 0.5 * size * gradient(new, x, y)
        gain = energy(theta) + 0.5 * (p**2).sum(1) - energy(new) - 0.5 * (q**2).sum(1)
        accept = torch.rand(chains, generator=draw, dtype=torch.float64).log() < gain
        theta = torch.where(accept.unsqueeze(1), new, theta)
        if i >= burn and i % 3 == 0:
            kept.append(theta)
    return torch.cat(kept)


def measure(sampler: Inference, seeds: int) -> tuple[float, float]:
    """A sampler's deviation and the distance of its mean, both in units of the oracle's deviation, over seeds."""
    variances = []
    distances = []
    for seed in range(seeds):
        samples = sampler(TASK, TASK.init(Key(seed)), Client(DATA, (), Key(seed)))
        found = functions(tree.ravel(samples.params, batch_dims=1), GRID)
        variances.append(float(found.var(0).mean()))
        distances.append(float(((found.mean(0) - MEAN) ** 2).mean()))
    return float(np.mean(variances)) ** 0.5 / DEVIATION, float(np.mean(distances)) ** 0.5 / DEVIATION


@pytest.mark.slow
def test_the_oracle_is_what_is_kept_here() -> None:
    found = functions(oracle(), GRID.double())

    assert float(found.var(0).mean().sqrt()) == pytest.approx(DEVIATION, rel=0.05)
    assert float(((found.mean(0) - MEAN) ** 2).mean().sqrt()) < 0.1 * DEVIATION


@pytest.mark.parametrize(
    ("sampler", "ratio"),
    [(Sampler(), 0.29), (co.CyclicalSGHMC(temperature=0.0), 0.29), (co.SGLD(), 0.28)],
    ids=["the default", "the default without noise", "sgld"],
)
def test_at_their_defaults_samplers_of_a_network_are_snapshot_ensembles(sampler: Inference, ratio: float) -> None:
    """What their documentation says, with this figure: a third of the posterior's deviation, with noise or without."""
    assert measure(sampler, seeds=8)[0] == pytest.approx(ratio, abs=0.08)


def test_a_constant_matrix_of_curvatures_does_not_suit_a_network() -> None:
    with pytest.raises(Diverged, match="smaller rate"):
        PreconditionedSGHMC()(TASK, TASK.init(Key(0)), Client(DATA, (), Key(0)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        HMC(rate=0.05, leapfrogs=15, burn=40, samples=20, every=3, chains=8),
        co.SGLD(rate=0.1, epochs=3000, burn=500, every=10, batch=ROWS),
        co.CyclicalSGHMC(rate=0.05, epochs=3000, cycles=1, samples=2600, keep=2600, batch=ROWS),
        co.CyclicalSGHMC(rate=0.05, epochs=3000, cycles=10, samples=220, keep=2200, batch=ROWS),
    ],
    ids=["hmc", "sgld", "one cycle", "ten cycles"],
)
def test_given_time_every_sampler_finds_the_networks_posterior(sampler: Inference) -> None:
    """Thousands of passes, sixty times the default; measured: 0.99 with HMC, 0.93, 0.95 and 0.87 with the others."""
    seeds = 2
    if isinstance(sampler, HMC):
        seeds = 1
    ratio, distance = measure(sampler, seeds)

    assert 0.8 < ratio < 1.2 and distance < 0.6
