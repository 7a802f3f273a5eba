"""Whether samplers sample: the deviation of their predictions against Hamiltonian Monte Carlo that ran for long.

The oracle is written here, apart from the package: 32 chains with an accept step, in the metric of the Laplace
approximation, with its own gradient by autograd. Deviations are √(mean variance of the probabilities), which few draws
estimate without bias, where the mean of deviations would be 5 to 18 % too small with six.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.inference import HMC, Inference, Laplace, Newton, PreconditionedSGHMC, Sampler
from consilience.key import Key
from consilience.messages import Client
from consilience.serialisation.settings import describe, restore

FEATURES = 12


def hospital(rows: int, intercept: float, seed: int) -> tuple[Data, Tensor]:
    """Rows of correlated features, half of them of 0 and 1, and further inputs; as unbalanced as the intercept says."""
    draw = np.random.default_rng(seed)
    mixing = draw.normal(size=(FEATURES, FEATURES)) / 2 + np.eye(FEATURES)
    x = draw.normal(size=(rows + 60, FEATURES)) @ mixing
    x[:, ::2] = x[:, ::2] > 0.8
    logits = x @ draw.normal(size=FEATURES) * 0.5 + intercept
    y = (logits + draw.logistic(size=len(x)) > 0).astype(np.int64)
    inputs = torch.tensor(x, dtype=torch.float32)
    return Data.of(inputs[:rows], torch.tensor(y[:rows])), inputs[rows:]


HOSPITALS = [hospital(220, 0.0, 1), hospital(130, -1.5, 2), hospital(90, 2.0, 3)]


def oracle(task: co.Task, data: Data, chains: int = 32, proposals: int = 85) -> Tensor:
    """Weights [S, P] of a long Hamiltonian chain with an accept step, in double precision."""
    laplace = Laplace(mode=Newton(), dense=True)(task, task.init(Key(0)), Client(data, (), Key(1)))
    root = torch.linalg.cholesky(torch.linalg.inv(laplace.precision.double()))
    x = torch.cat([data.x, torch.ones(len(data.y), 1)], 1).double()

    def energy(z: Tensor) -> Tensor:
        theta = laplace.mean.double() + z @ root.T
        weight = torch.cat([theta[:, : 2 * FEATURES].reshape(-1, 2, FEATURES), theta[:, 2 * FEATURES :, None]], 2)
        logs = torch.log_softmax(torch.einsum("nd,scd->snc", x, weight), -1)
        return 0.5 * (theta**2).sum(1) - logs[:, torch.arange(len(x)), data.y].sum(1)

    gradient: Callable[[Tensor], Tensor] = torch.func.grad(lambda z: energy(z).sum())
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(chains, len(root), generator=draw, dtype=torch.float64)
    kept = []
    for i in range(proposals):
        step = 0.25 * (0.8 + 0.4 * float(torch.rand((), generator=draw)))
        p = torch.randn(z.shape, generator=draw, dtype=z.dtype)
        new, q = z, p - 0.5 * step * gradient(z)
        for j in range(6):
            new = new + step * q
            q = q - (step if j < 5 else 0.5 * step) * gradient(new)
        gain = energy(z) + 0.5 * (p**2).sum(1) - energy(new) - 0.5 * (q**2).sum(1)
        z = torch.where((torch.rand(chains, generator=draw).log() < gain)[:, None], new, z)
        if i >= 25 and i % 3 == 0:
            kept.append(laplace.mean + z @ root.T)
    return torch.cat(kept)


def deviation(weights: Tensor, inputs: Tensor) -> float:
    """√(mean variance over the draws) of the probability of class 1."""
    weight = weights[:, : 2 * FEATURES].reshape(-1, 2, FEATURES).double()
    logits = torch.einsum("nd,scd->snc", inputs.double(), weight) + weights[:, None, 2 * FEATURES :]
    return float(torch.softmax(logits, -1)[..., 1].var(0).mean().sqrt())


TASK = co.classification(co.models.linear(FEATURES, 2))


@cache
def expected(hospital: int) -> float:
    data, inputs = HOSPITALS[hospital]
    return deviation(oracle(TASK, data), inputs)


def ratios(sampler: Inference, seeds: int = 4, hospitals: tuple[int, ...] = (0, 1, 2)) -> list[float]:
    """For each hospital, the sampler's deviation in units of the oracle's, over seeds."""
    found = []
    for hospital in hospitals:
        data, inputs = HOSPITALS[hospital]
        width = expected(hospital)
        squares = []
        for seed in range(seeds):
            samples = sampler(TASK, TASK.init(Key(0)), Client(data, (), Key(seed)))
            weights = tree.ravel(samples.params, batch_dims=1)
            squares.append(deviation(weights, inputs) ** 2)
        found.append((sum(squares) / seeds) ** 0.5 / width)
    return found


ALL = (0, 1, 2)
UNBALANCED = (2,)  # and the fewest rows


@pytest.mark.parametrize("hospitals", [UNBALANCED, pytest.param(ALL, marks=pytest.mark.slow)], ids=["one", "all"])
def test_the_default_sampler_is_as_wide_as_the_posterior(hospitals: tuple[int, ...]) -> None:
    """At the default's 50 epochs."""
    assert all(0.8 < ratio < 1.2 for ratio in ratios(Sampler(), 1, hospitals))


@pytest.mark.slow
def test_six_samples_are_as_wide_too() -> None:
    """As many as the cyclical sampler sends."""
    assert all(0.8 < ratio < 1.2 for ratio in ratios(Sampler(keep=6)))


def test_the_default_sampler_is_what_methods_use() -> None:
    for method in (
        co.methods.Mixture(),
        co.methods.BCM(),
        co.methods.BetaPredictiveBayes(),
        co.methods.Centralised(),
        co.methods.LocalOnly(),
    ):
        assert method.inference == Sampler()
    assert isinstance(Sampler().choose(TASK), PreconditionedSGHMC)
    assert isinstance(Sampler(cycles=2).choose(TASK), co.CyclicalSGHMC)  # what is asked for is not ignored
    assert isinstance(Sampler().choose(co.classification(co.models.mlp(3, 2))), co.CyclicalSGHMC)
    assert Sampler(rate=0.1, keep=3).choose(TASK) == co.CyclicalSGHMC(rate=0.1, keep=3)


def test_the_cyclical_sampler_with_the_papers_settings_is_a_snapshot_ensemble() -> None:
    """What its documentation says: narrower than the posterior, and little wider than without any noise."""
    assert all(ratio < 0.7 for ratio in ratios(co.CyclicalSGHMC(), 1, UNBALANCED))


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler",
    [
        HMC(rate=0.1, leapfrogs=10, burn=100, samples=20, every=5),
        co.SGLD(rate=0.2, epochs=2000, burn=500, every=25, batch=220),
        co.CyclicalSGHMC(rate=0.3, epochs=800, cycles=1, samples=700, keep=700, batch=220),
        co.CyclicalSGHMC(rate=0.3, epochs=2000, cycles=10, samples=150, keep=1500, batch=220),  # several cycles
        PreconditionedSGHMC(epochs=400, burn=40, samples=200, batch=50),
    ],
    ids=["hmc", "sgld", "one cycle", "ten cycles", "preconditioned"],
)
def test_every_sampler_finds_the_posteriors_width_given_time(sampler: Inference) -> None:
    assert all(0.85 < ratio < 1.15 for ratio in ratios(sampler, seeds=1))


def test_settings_of_the_cycles_are_stored_as_the_sampler_that_they_ask_for() -> None:
    asked = Sampler(epochs=6, cycles=2, batch=16)

    assert asked.canonical() == co.CyclicalSGHMC(epochs=6, cycles=2, batch=16)
    assert describe(co.methods.Mixture(asked)) == describe(
        co.methods.Mixture(co.CyclicalSGHMC(epochs=6, cycles=2, batch=16))
    )
    assert restore(describe(co.methods.Mixture())) == co.methods.Mixture()
