"""Training that explodes on a regression: the noise is bounded, the site repeats it with smaller steps and is named."""

from __future__ import annotations

import dataclasses
import math
import warnings

import pytest
import torch
from scattered import scattered

import consilience as co
from consilience.data import Data
from consilience.data.sites import Sites
from consilience.data.splits.labels import natural
from consilience.distributions.likelihood import FARTHEST, LOG_NOISE, GaussianNoise, Heteroscedastic
from consilience.errors import Exploded, SiteWarning
from consilience.inference import SGD, CyclicalSGHMC, Laplace
from consilience.inference.explosion import find_explosion
from consilience.inference.sampler import Sampler
from consilience.key import Key
from consilience.messages import Client
from consilience.method import Method, usual_rounds
from consilience.method.settings import slow_down
from consilience.methods.fedopt import FedAvgM
from consilience.models.mlp import mlp
from consilience.tree import ravel


def small(seed: int = 0) -> Sites:
    """Six of the sites, under names that are not their numbers."""
    sites = scattered(seed, sites=6, rows=80).split(natural(), calibration=20, seed=0)
    return dataclasses.replace(sites, names=tuple("abcdef"))


def spread(sites: Sites) -> float:
    """The RMSE of predicting the overall mean."""
    y = torch.cat([rows.y for rows in sites.test])
    return sites.target_scale * float(y.square().mean().sqrt())


def run(method: Method, sites: Sites, hidden: tuple[int, ...] = (20,), engine: str = "auto") -> co.Result:
    task = co.regression(mlp(sites.features, 0, hidden=hidden))
    rounds = min(usual_rounds(method), 5)
    return co.run(method, task, sites, rounds=rounds, seed=0, engine=engine)


@pytest.mark.parametrize("hidden", [(20,), ()])
@pytest.mark.parametrize(
    "method", [co.methods.Mixture(), co.methods.FedAvg(), co.methods.Scaffold()], ids=lambda m: type(m).__name__
)
def test_defaults_do_not_explode(method: Method, hidden: tuple[int, ...]) -> None:
    sites = small()
    result = run(method, sites, hidden)
    assert result.metrics["rmse"] < 1.25 * spread(sites)
    assert math.isfinite(result.metrics["nll"])
    slowed = [w for w in result.report["warnings"] if "repeated with smaller steps" in w]
    assert len(slowed) == 1
    subject = slowed[0].split(": ")[0]
    assert set(subject.removeprefix("Sites ").removeprefix("Site ").split(", ")) <= {*"abcdef"}


def test_all_engines_slow_the_same_sites_down() -> None:
    sites = small()
    reports = [
        run(co.methods.Mixture(), sites, engine=engine).report for engine in ("sequential", "vectorised", "parallel")
    ]
    assert reports[0]["warnings"] == reports[1]["warnings"] == reports[2]["warnings"]
    for report in reports[1:]:
        assert report["metrics"]["rmse"] == pytest.approx(reports[0]["metrics"]["rmse"], rel=1e-2)


def test_a_rate_that_was_chosen_stays_and_its_explosion_is_named() -> None:
    sites = small()
    method = co.methods.FedAvg(SGD(rate=0.06))
    result = co.run(method, co.regression(mlp(sites.features, 0, hidden=(20,))), sites, rounds=2, seed=0)
    assert any(w.startswith("Site") and "its loss ends far above the start" in w for w in result.report["warnings"])
    assert not any("repeated" in w for w in result.report["warnings"])


def test_ordinary_rows_are_left_alone() -> None:
    sites = co.datasets.load("sine").split(natural(), seed=0)
    task = co.regression(mlp(sites.features, 0, hidden=(20,)))
    assert co.run(co.methods.Mixture(Sampler(epochs=10)), task, sites, seed=0).report["warnings"] == []
    client = Client(sites.train[0], (), Key(0).tensor)
    start = task.init(Key(0))
    plain = SGD(epochs=3)(task, start, client)
    guarded = SGD(epochs=3)(dataclasses.replace(task, guarded=True), start, client)
    assert torch.equal(ravel(plain.params), ravel(guarded.params))


def test_the_estimator_has_the_rule_of_all_others() -> None:
    data = scattered(2, sites=6, rows=80)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = co.FederatedRegressor(hidden=(20,)).fit(data.x.numpy(), data.y.numpy(), groups=data.site)
    assert model.result_.method == co.methods.Mixture()
    assert model.score(data.x.numpy(), data.y.numpy()) > 0


def rows() -> Data:
    x = torch.randn(30, 2)
    return Data(x, x[:, 0] + 0.1 * torch.randn(30), torch.ones(30))


@pytest.mark.parametrize(("log_noise", "weight", "exploded"), [(0.0, 0.0, False), (20.0, 0.0, True), (0.0, 9.0, True)])
def test_loss_and_noise_tell_an_explosion(log_noise: float, weight: float, exploded: bool) -> None:
    task = co.regression(torch.nn.Linear(2, 1))
    start = {name: torch.zeros_like(leaf) for name, leaf in task.like.items()}
    end = {name: torch.full_like(leaf, weight) for name, leaf in task.like.items()}
    end[LOG_NOISE] = torch.full((1,), log_noise)
    found = find_explosion(task, start, ravel(start), [ravel(end)], rows())
    assert found is not None and bool(found) == exploded


def test_classes_are_not_guarded() -> None:
    task = co.classification(torch.nn.Linear(2, 2))
    assert find_explosion(task, task.like, ravel(task.like), [ravel(task.like)], rows()) is None


def test_a_guarded_chain_refuses_what_exploded() -> None:
    x = 30 * torch.randn(40, 2)
    client = Client(Data(x, x.sum(1), torch.ones(40)), (), Key(0).tensor)
    task = dataclasses.replace(co.regression(torch.nn.Linear(2, 1)), guarded=True)
    with pytest.raises(Exploded, match="try a smaller rate"):
        SGD(momentum=0.0, rate=0.02, epochs=3, batch=40)(task, task.init(Key(0)), client)


@pytest.mark.parametrize("far", [-448.0, -31.0, 31.0, 448.0, 1e9])
@pytest.mark.parametrize("heteroscedastic", [False, True])
def test_noise_is_bounded_and_its_gradient_points_back(far: float, heteroscedastic: bool) -> None:
    y = torch.randn(5)
    likelihood = Heteroscedastic() if heteroscedastic else GaussianNoise()
    outputs = torch.randn(5, 2) if heteroscedastic else torch.randn(5, 1)
    if heteroscedastic:
        outputs[:, 1] = far
    params = {LOG_NOISE: torch.full((1,), far, requires_grad=True)}
    outputs.requires_grad_()
    noise = likelihood.outcome(outputs.detach()[None], [{LOG_NOISE: params[LOG_NOISE].detach()}]).noise
    assert bool(torch.isfinite(noise).all()) and float(noise.log().abs().max()) <= FARTHEST + 1e-3
    likelihood.nll(outputs, y, params).sum().backward()
    by_outputs, by_own = likelihood.gradients(outputs.detach(), y, {LOG_NOISE: params[LOG_NOISE].detach()})
    assert torch.allclose(outputs.grad, by_outputs, rtol=1e-5)  # type: ignore[arg-type]
    by_noise = by_outputs[:, 1:] if heteroscedastic else by_own[LOG_NOISE]
    if not heteroscedastic:
        assert torch.allclose(params[LOG_NOISE].grad, by_noise.sum().reshape(1), rtol=1e-5)  # type: ignore[arg-type]
    assert bool((by_noise.sign() == math.copysign(1, far)).all())


def test_within_the_bounds_no_bit_changes() -> None:
    y = torch.randn(50)
    mean = torch.randn(50, 1)
    for s in torch.linspace(-9, 7, 33):
        found = GaussianNoise().nll(mean, y, {LOG_NOISE: s.reshape(1)})
        assert torch.equal(found, 0.5 * ((y - mean[:, 0]) ** 2 * torch.exp(-s) + s + math.log(2 * math.pi)))


def test_only_rates_that_nobody_chose_are_lowered() -> None:
    assert slow_down(co.methods.FedAvg(), 0.25) == co.methods.FedAvg(SGD(rate=0.0125))
    explicit = co.methods.FedAvg(SGD(rate=0.06))
    assert slow_down(explicit, 0.25) is explicit
    momentum = slow_down(FedAvgM(), 0.25)
    assert momentum.inference.rate == 0.0125 and momentum.rate == FedAvgM().rate  # the server's step is not a client's
    assert slow_down(Laplace(), 0.25).mode.rate == Laplace().mode.rate / 4
    linear = co.regression(torch.nn.Linear(2, 1))
    network = co.regression(mlp(2, 0, hidden=(4,)))
    slow = slow_down(Sampler(), 0.25)
    assert slow.choose(linear).rate == 0.25 and slow.choose(network).rate == 0.0125
    assert Sampler().choose(network) == CyclicalSGHMC()
    assert slow_down(Sampler(rate=0.05), 0.25) == Sampler(rate=0.05)


def test_a_warning_of_a_site_says_which() -> None:
    assert str(SiteWarning(3, "look here.")) == "Site 3: look here."
