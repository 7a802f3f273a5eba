"""Each sampler against a Gaussian whose answer is known, and against Bayesian linear regression in closed form."""

from __future__ import annotations

import math

import pytest
import torch

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Point
from consilience.distributions.prior import Isotropic
from consilience.errors import Diverged, InputError
from consilience.inference import Inference
from consilience.inference.hmc import HMC
from consilience.inference.kernels import At
from consilience.key import Key
from consilience.messages import Client

DIMENSIONS = 2000


def nothing_learned(var: float) -> tuple[co.Task, Client]:
    """One row with x = 0: the weights' posterior is their prior N(0, var), in 2000 independent dimensions.

    With n = 1, U/n = θ²/(2·var): curvature h = 1/var.
    """
    task = co.regression(torch.nn.Linear(DIMENSIONS, 1, bias=False), noise=1.0, prior=Isotropic(var))
    return task, Client(Data.of(torch.zeros(1, DIMENSIONS), torch.zeros(1)), (), Key(3))


@pytest.mark.parametrize("temperature", [1.0, 0.25])
def test_sgld_has_its_stationary_variance(temperature: float) -> None:
    var, rate = 2.0, 0.4
    task, client = nothing_learned(var)
    sampler = co.SGLD(rate=rate, epochs=140, burn=60, every=20, batch=1, temperature=temperature)

    samples = sampler(task, task.init(Key(0)), client).params["weight"]

    # AR(1): θ' = (1−εh)θ + √(2εT)ξ has variance T·var / (1 − ε/(2·var)).
    expected = temperature * var / (1 - rate / (2 * var))
    assert samples.shape[0] == 4
    # 8000 nearly independent draws: relative standard error √(2/8000) = 1.6 %; 5 of them.
    assert samples.var().item() == pytest.approx(expected, rel=0.08)
    assert samples.mean().item() == pytest.approx(0, abs=5 * (expected / 8000) ** 0.5)


@pytest.mark.parametrize("friction", [0.1, 0.9])
def test_the_sghmc_kernel_has_its_stationary_variance(friction: float) -> None:
    var, rate, temperature = 2.0, 0.8, 0.5
    sampler = co.CyclicalSGHMC(rate=rate, friction=friction, epochs=1, cycles=1, samples=1, temperature=temperature)
    theta = Key(0).normal((20_000,))
    velocity = sampler.init(theta)

    for i in range(200):  # at progress 0 the cosine is 1: a constant step
        theta, velocity = sampler.step(theta, theta / var, velocity, At(0, 0.0, torch.tensor(1.0), Key(1), i))

    # AR(2) with φ₁ = 2 − α − ε/var, φ₂ = −(1 − α): variance T·var·(4 − 2α)/(4 − 2α − ε/var).
    expected = temperature * var * (4 - 2 * friction) / (4 - 2 * friction - rate / var)
    # 20 000 independent draws: relative standard error √(2/20 000) = 1 %; 5 of them.
    assert theta.var().item() == pytest.approx(expected, rel=0.05)


def test_cyclical_sghmc_samples_the_posterior() -> None:
    task, client = nothing_learned(2.0)
    sampler = co.CyclicalSGHMC(rate=0.5, friction=0.9, epochs=400, cycles=1, samples=400, keep=1, batch=1)

    samples = sampler(task, task.init(Key(0)), client).params["weight"]

    # With ε → 0 along the cosine the variance tends to T·var; 2000 draws: 5 standard errors are 16 %.
    assert samples.var().item() == pytest.approx(2.0, rel=0.16)


def test_cyclical_sghmc_without_temperature_is_an_optimiser() -> None:
    task, client = nothing_learned(2.0)
    sampler = co.CyclicalSGHMC(rate=0.5, epochs=100, cycles=1, samples=1, keep=1, batch=1, temperature=0.0)

    samples = sampler(task, task.init(Key(0)), client).params["weight"]

    assert samples.abs().max().item() < 1e-3  # the mode is 0


def regression_problem() -> tuple[co.Task, Client, torch.Tensor, torch.Tensor]:
    """A conjugate problem and its closed form: precision A = XᵀX/σ² + I/v, mean A⁻¹Xᵀy/σ²."""
    generator = torch.Generator().manual_seed(5)
    n, features, noise, var = 40, 3, 0.5, 1.0
    x = torch.randn(n, features, generator=generator)
    y = x @ torch.tensor([1.0, -0.5, 0.3]) + noise**0.5 * torch.randn(n, generator=generator)
    task = co.regression(torch.nn.Linear(features, 1, bias=False), noise=noise, prior=Isotropic(var))
    precision = x.T @ x / noise + torch.eye(features) / var
    return task, Client(Data.of(x, y), (), Key(8)), torch.linalg.solve(precision, x.T @ y / noise), precision


def test_point_estimates_reach_the_mode_of_bayesian_linear_regression() -> None:
    task, client, mean, _ = regression_problem()
    for inference in (co.SGD(rate=0.05, momentum=0.9, epochs=200, batch=40), co.Adam(rate=0.02, epochs=500, batch=40)):
        point = inference(task, task.init(Key(0)), client)
        torch.testing.assert_close(point.params["weight"][0], mean, atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(co.SGLD(rate=0.05, epochs=6000, burn=500, every=5, batch=40), marks=pytest.mark.slow),
        co.SGLD(rate=0.05, epochs=2000, burn=200, every=5, batch=40),
        pytest.param(
            co.CyclicalSGHMC(rate=0.02, friction=0.3, epochs=6000, cycles=1, samples=5500, keep=5500, batch=40),
            marks=pytest.mark.slow,
        ),
        co.CyclicalSGHMC(rate=0.02, friction=0.3, epochs=2500, cycles=1, samples=2300, keep=2300, batch=40),
    ],
)
def test_samplers_reach_bayesian_linear_regression(sampler: co.SGLD | co.CyclicalSGHMC) -> None:
    task, client, mean, precision = regression_problem()
    draws = sampler(task, task.init(Key(0)), client).params["weight"][:, 0]

    covariance = torch.linalg.inv(precision)
    # Some hundreds of effective draws: means within 0.25 posterior deviations, variances within 25 %.
    assert ((draws.mean(0) - mean).abs() / covariance.diagonal().sqrt()).max() < 0.25
    torch.testing.assert_close(draws.T.cov().diagonal(), covariance.diagonal(), rtol=0.25, atol=0)


def test_a_chain_that_diverges_says_so() -> None:
    task, client, _, _ = regression_problem()

    with pytest.raises(Diverged, match=r"step \d+; try a smaller rate"):
        co.SGD(rate=1e3, epochs=50, batch=40)(task, task.init(Key(0)), client)


def test_too_few_epochs_for_the_cycles_are_refused() -> None:
    task, client, _, _ = regression_problem()

    with pytest.raises(InputError, match="need 10 epochs"):
        co.CyclicalSGHMC(epochs=5)(task, task.init(Key(0)), client)


def test_init_depends_on_the_key_alone() -> None:
    task = co.classification(co.models.mlp(3, 2))

    torch.manual_seed(1)
    first = task.init(Key(4))
    torch.manual_seed(2)

    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(first), tree.leaves(task.init(Key(4))), strict=True))
    assert not torch.equal(tree.ravel(first.params), tree.ravel(task.init(Key(5)).params))
    assert isinstance(first, Point)


@pytest.mark.parametrize(
    "sampler",
    [
        co.SGLD(epochs=30, burn=30),
        co.SGLD(epochs=30, burn=40),
        co.SGLD(every=0),
        co.SGLD(burn=-1),
        co.CyclicalSGHMC(samples=0),
        co.CyclicalSGHMC(cycles=0),
        co.CyclicalSGHMC(keep=0),
        co.CyclicalSGHMC(epochs=4),
        co.SWAG(epochs=10, burn=9),
        co.SWAG(every=0),
        HMC(samples=0),
        HMC(every=0),
    ],
    ids=repr,
)
def test_settings_that_keep_no_sample_are_told_in_one_sentence(sampler: Inference) -> None:
    task, client = nothing_learned(1.0)

    with pytest.raises(InputError) as told:
        sampler(task, task.init(Key(0)), client)

    assert str(told.value).endswith(".") and "\n" not in str(told.value)


def test_a_single_sample_is_enough() -> None:
    task, client = nothing_learned(1.0)
    for sampler in (co.SGLD(epochs=3, burn=2, every=1), co.CyclicalSGHMC(epochs=2, cycles=1, samples=1, keep=1)):
        assert len(sampler(task, task.init(Key(0)), client).params["weight"]) == 1


@pytest.mark.parametrize(("epochs", "cycles"), [(50, 5), (50, 4), (25, 2), (20, 3), (7, 7)])
def test_samples_are_taken_where_the_step_is_smallest(epochs: int, cycles: int) -> None:
    sampler = co.CyclicalSGHMC(rate=1.0, friction=1.0, epochs=epochs, cycles=cycles, samples=1, temperature=0.0)
    steps = 10
    rates = {  # v = −ε·1 with no momentum, so the step is the rate
        (epoch, i): -float(
            sampler.step(
                *(torch.zeros(1), torch.ones(1), torch.zeros(1)),
                At(epoch, (epoch + i / steps) / epochs, torch.tensor(1.0), Key(0), i),
            )[0]
        )
        for epoch in range(epochs)
        for i in range(steps)
    }
    sampling = [epoch for epoch in range(epochs) if sampler.in_sampling_stage(epoch)]
    assert len(sampling) == cycles and sampling[-1] == epochs - 1
    for epoch in sampling:  # the last step before a sample is the smallest of its cycle, the next is the largest of all
        length = len(sampler.cycle(epoch))
        assert rates[epoch, steps - 1] == pytest.approx(0.5 - 0.5 * math.cos(math.pi / (length * steps)), abs=1e-6)
        assert epoch == epochs - 1 or rates[epoch + 1, 0] == pytest.approx(1.0)
