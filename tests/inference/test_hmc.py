"""Hamiltonian Monte Carlo against Gaussians whose moments are known."""

from __future__ import annotations

import warnings

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Point, Samples
from consilience.distributions.prior import Isotropic
from consilience.errors import InputError
from consilience.inference.hmc import infer
from consilience.key import Key
from consilience.messages import Client
from consilience.runs.engines import Sequential, Turn, Vectorised

DIMENSIONS = 10


def nothing_learned(var: float) -> tuple[co.Task, Client]:
    """One row with x = 0: the weights' posterior is their prior N(0, var) in independent dimensions."""
    task = co.regression(torch.nn.Linear(DIMENSIONS, 1, bias=False), noise=1.0, prior=Isotropic(var))
    return task, Client(Data.of(torch.zeros(1, DIMENSIONS), torch.zeros(1)), (), Key(3))


@pytest.mark.parametrize("inverse_mass", [1.0, 4.0])
def test_moments_of_a_known_gaussian(inverse_mass: float) -> None:
    var = 2.0
    task, client = nothing_learned(var)
    # A quarter of the period 2π√(var·M) in ten steps: proposals then hardly depend on where they start.
    rate = 0.25 * 2 * torch.pi * (var / inverse_mass) ** 0.5 / 10
    sampler = co.HMC(rate, inverse_mass, leapfrogs=10, burn=2, samples=4, every=2, chains=250, spread=0.1, aim=0)

    found = sampler.sample(task, task.init(Key(0)), client)

    draws = found.samples.params["weight"]
    assert draws.shape == (250 * 4, 1, DIMENSIONS)
    # 10 000 nearly independent draws: relative standard error of a variance √(2/10⁴) = 1.4 %; five of them.
    assert draws.var().item() == pytest.approx(var, rel=0.07)
    assert draws.mean().item() == pytest.approx(0, abs=5 * (var / 10_000) ** 0.5)
    assert draws.pow(4).mean().item() == pytest.approx(3 * var**2, rel=0.2)  # a Gaussian's fourth moment
    assert 0.9 < float(found.accepted) <= 1  # leapfrog errors at ε√(h/M) = 0.16 are small


def test_bayesian_linear_regression_in_closed_form() -> None:
    generator = torch.Generator().manual_seed(5)
    n, features, noise, var = 40, 3, 0.5, 1.0
    x = torch.randn(n, features, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -0.5, 0.3], dtype=torch.float64) + noise**0.5 * torch.randn(n, generator=generator)
    task = co.regression(torch.nn.Linear(features, 1, bias=False).double(), noise=noise, prior=Isotropic(var))
    # Closed form: precision A = XᵀX/σ² + I/v, mean A⁻¹Xᵀy/σ².
    precision = x.T @ x / noise + torch.eye(features, dtype=torch.float64) / var
    mean, covariance = torch.linalg.solve(precision, x.T @ y / noise), torch.linalg.inv(precision)

    found = co.HMC(rate=0.03, leapfrogs=6, burn=30, samples=5, every=3, chains=500).sample(
        task, task.init(Key(0)), Client(Data.of(x, y), (), Key(8))
    )

    draws = found.samples.params["weight"][:, 0]
    # 2500 draws, some of them correlated: means within 0.15 deviations, every covariance within 15 % of a variance.
    assert ((draws.mean(0) - mean).abs() / covariance.diagonal().sqrt()).max() < 0.15
    scale = covariance.diagonal().sqrt().outer(covariance.diagonal().sqrt())
    assert ((draws.T.cov() - covariance) / scale).abs().max() < 0.15
    assert float(found.accepted) == pytest.approx(0.8, abs=0.15)  # what the step was tuned to


def test_weighted_rows_count_as_often_as_they_weigh() -> None:
    x, y = torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 0.0])
    task = co.regression(torch.nn.Linear(1, 1, bias=False), noise=1.0, prior=Isotropic(1.0))
    data = Data(x, y, torch.tensor([3.0, 1.0]))

    draws = co.HMC(rate=0.2, leapfrogs=6, burn=8, samples=5, every=1, chains=400)(
        task, task.init(Key(0)), Client(data, (), Key(1))
    ).params["weight"]

    # Precision 1 + 3·1² + 1·2² = 8; mean (3·1·1 + 1·2·0)/8.
    assert draws.mean().item() == pytest.approx(3 / 8, abs=0.05)
    assert draws.var().item() == pytest.approx(1 / 8, rel=0.15)


def test_a_low_acceptance_says_what_to_change() -> None:
    task, client = nothing_learned(1e-4)

    with pytest.warns(UserWarning, match=r"accepted \d+%.*set rate="):
        co.HMC(rate=1.0, burn=2, samples=4, every=1, aim=0)(task, task.init(Key(0)), client)


@pytest.mark.parametrize("aim", [0.0, 0.8])
def test_a_low_acceptance_is_told_on_every_engine(aim: float) -> None:
    task, sites = tiny.classification(torch.float64)
    method = co.methods.Mixture(co.HMC(rate=50.0, burn=2, samples=1, every=2, chains=1, leapfrogs=2, aim=aim))
    heard = [co.run(method, task, sites, engine=e).report["warnings"] for e in ("sequential", "vectorised")]
    assert heard[0] == heard[1] and any("HMC accepted 0%" in said for said in heard[0])


def test_a_share_is_told_for_every_inference() -> None:
    task, client = nothing_learned(1.0)
    point, always = infer(co.SGD(epochs=1), task, task.init(Key(0)), client)
    samples, share = infer(co.HMC(rate=0.1, leapfrogs=3, burn=5, samples=2, every=1), task, task.init(Key(0)), client)
    assert isinstance(point, Point) and float(always) == 1
    assert isinstance(samples, Samples) and 0.2 < float(share) <= 1


def test_chains_are_the_same_under_vmap() -> None:
    task, sites = co.regression(torch.nn.Linear(2, 1).double(), noise=1.0), []
    for k in range(3):
        x = Key(k).normal((4 + k, 2)).double()
        sites.append(Data.of(x, x.sum(-1)))
    method = co.methods.Mixture(co.HMC(rate=0.1, leapfrogs=3, burn=3, samples=2, every=1, chains=2))
    message = task.init(Key(0))

    one, all_ = (e(sites).gather(method, task, message, range(3), Turn(0, Key(1))) for e in (Sequential, Vectorised))

    for a, b in zip(one, all_, strict=True):
        assert (tree.ravel(a.payload.params, 1) - tree.ravel(b.payload.params, 1)).abs().max() < 1e-10


def test_nothing_to_sample_is_refused() -> None:
    task, client = nothing_learned(1.0)
    with pytest.raises(InputError, match="at least one"), warnings.catch_warnings():
        co.HMC(samples=0)(task, task.init(Key(0)), client)


def test_a_network_that_draws_is_refused() -> None:
    task = co.regression(torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)))
    with pytest.raises(InputError, match="GroupNorm or LayerNorm"):
        co.HMC()(task, task.init(Key(0)), Client(Data.of(torch.zeros(3, 2), torch.zeros(3)), (), Key(0)))


def test_chains_begin_at_shuffled_layers_or_around_the_given_weights() -> None:
    task = co.regression(co.models.mlp(2, hidden=(6,)), noise=1.0)
    like = task.init(Key(0)).params

    shuffled = tree.unravel(co.HMC(chains=3).starts(like, Key(1)), like)
    around = co.HMC(chains=3, shuffle=False, spread=0.0).starts(like, Key(1))

    for name, leaf in like.items():
        for chain in shuffled[name]:
            assert torch.equal(chain.flatten().sort().values, leaf.flatten().sort().values)  # the same numbers
    assert not torch.equal(shuffled["0.weight"][0], shuffled["0.weight"][1])  # in another order
    assert torch.equal(around, tree.ravel(like).expand(3, -1))
