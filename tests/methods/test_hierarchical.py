"""What partial pooling promises beyond what every method does: its limits, models at home, newcomers, refusals."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.distributions.posterior import Dense, Natural
from consilience.distributions.predictive import Categorical, Normal
from consilience.glm.linear_model import layer_of
from consilience.inference import VariationalGaussian
from consilience.messages import Received
from consilience.method import own_models
from consilience.methods.gaussian_product import GaussianProduct
from consilience.methods.hierarchical import Hierarchical, HierarchicalState
from consilience.runs.bounds import leave_one_out

DOUBLE = torch.float64
EXACT = VariationalGaussian()


def fitted(problem: str, **settings: object) -> tuple[co.Task, co.Sites, co.Result]:
    task, sites = tiny.problem_of("hierarchical", problem, DOUBLE)
    return task, sites, co.run(Hierarchical(**settings), task, sites, scored=False)  # type: ignore[arg-type]


def test_without_spread_everybody_has_the_product_of_the_posteriors() -> None:
    task, sites, result = fitted("classification", tau=0.0)

    product = co.run(GaussianProduct(EXACT), task, sites, scored=False).state.posterior

    state = result.state
    assert isinstance(state, HierarchicalState) and isinstance(product, Dense)
    home = result.method.at_home(task, state, state.factors["2"])
    for own in (state.posterior, home.posterior):
        assert float((own.mean - product.mean).abs().max()) < 1e-8
        assert float((own.precision - product.precision).abs().max()) < 1e-8 * float(product.precision.abs().max())


def test_with_endless_spread_each_site_has_its_own_least_squares() -> None:
    """Sixty training rows of seven columns determine the weights by themselves; `lstsq` is the oracle."""
    sites = co.datasets.sine(n_per_site=80).split(co.splits.natural(), **tiny.SPLIT).to(DOUBLE)
    task = co.regression(co.models.linear(sites.features, None).to(DOUBLE), noise=0.3)
    result = co.run(Hierarchical(tau=1e6), task, sites, scored=False)

    for k, rows in enumerate(sites.train):
        own = result.method.at_home(task, result.state, result.state.factors[str(k)]).posterior
        design = torch.cat([rows.x, torch.ones_like(rows.x[:, :1])], 1)
        alone = torch.linalg.lstsq(design, rows.y.reshape(-1, 1)).solution.squeeze(1)
        assert list(layer_of(task)) == [name for name in task.like]  # weight, then bias
        assert float((own.mean - alone).abs().max()) < 1e-8
        var = 0.3 * torch.linalg.inv(design.mT @ design)
        assert float((torch.linalg.inv(own.precision) - var).abs().max()) < 1e-8


@pytest.mark.parametrize("problem", ["classification", "regression"])
def test_a_site_makes_its_model_at_home_of_what_is_handed_out_and_what_it_kept(problem: str) -> None:
    task, sites, result = fitted(problem)
    handed = result.method.hand_out(result.state, ensemble=False)

    assert isinstance(handed, HierarchicalState)
    assert handed.factors == () and handed.clients == ()
    assert result.checkpoint is not None
    for k, rows in enumerate(sites.test):
        home = result.method.at_home(task, handed, result.checkpoint.memories[k])
        at_home = result.method.predictive(task, home)(rows.x)
        at_server = result.model(sites.names[k])(rows.x)
        assert all(torch.equal(a, b) for a, b in zip(at_home, at_server, strict=True))
        named = result.predict(rows.x, site=sites.names[k])
        if named.probs is not None:
            assert torch.allclose(named.probs, at_server.probs, atol=1e-6)


def test_a_newcomer_is_told_less() -> None:
    task, sites, result = fitted("regression")
    x = sites.all_test.x
    common = result.method.predictive(task, result.state)(x)

    assert isinstance(common, Normal)
    for site in sites.names:
        own = result.model(site)(x)
        assert isinstance(own, Normal)
        assert bool((own.var < common.var).all())


def test_who_does_not_reply_has_the_newcomers_model_and_later_rounds_remember_who_did() -> None:
    task, sites, result = fitted("classification")
    method = result.method
    some = [reply for reply in result.replies if reply.client != 1]
    state = method.aggregate(task, method.init(task, result.server), some, result.server)

    memories = {k: memory for k, memory in result.memories.items() if k != 1}
    models = own_models(method, task, state, memories, len(sites))
    assert models is not None and len(models) == len(sites)
    x = sites.all_test.x
    common = method.predictive(task, state)(x)
    assert torch.equal(models[1](x)[0], common[0])
    assert not torch.equal(models[0](x)[0], common[0])

    later = method.aggregate(task, state, [result.replies[1]], result.server)
    whole = method.aggregate(task, method.init(task, result.server), result.replies, result.server)
    assert torch.allclose(later.posterior.mean, whole.posterior.mean, atol=1e-12)


def test_predictions_of_numbers_are_those_of_many_draws() -> None:
    """The closed form against 4 000 draws of the weights: moments agree to five standard errors."""
    task, sites, result = fitted("regression")
    x = sites.all_test.x[:5]
    closed = result.method.predictive(task, result.state)(x)
    many = dataclasses.replace(task, draws=4_000).predictive(result.state.posterior)(x)

    assert isinstance(closed, Normal) and isinstance(many, Normal)
    error = (closed.var / 4_000).sqrt()
    assert bool(((closed.mean - many.mean).abs() < 5 * error).all())
    assert torch.allclose(closed.var, many.var, rtol=0.12)
    assert torch.allclose(closed.noise.expand_as(many.noise), many.noise, rtol=1e-3)


def test_a_second_round_expands_classes_around_what_sites_share() -> None:
    """A later factor is the rows' own quadratic at the mode under N(μ, T), where their gradient and its pull cancel."""
    task, sites, first = fitted("classification", averaged=False)
    second = co.run(Hierarchical(averaged=False), task, sites, rounds=2, scored=False)
    shared = first.state.shared
    prior = 1 / tree.ravel(shared.var)
    factor = second.replies[0].payload
    assert isinstance(factor, Natural)

    mode = torch.linalg.solve(factor.precision + torch.diag(prior), factor.linear + prior * tree.ravel(shared.mean))

    weights = mode.clone().requires_grad_()
    rows = sites.train[0]
    params = tree.unravel(weights, layer_of(task))
    loss = task.likelihood.nll(task.outputs(params, rows.x), rows.y, params).sum()
    (gradient,) = torch.autograd.grad(loss, weights)
    pull = prior * (mode - tree.ravel(shared.mean))
    assert float((gradient + pull).abs().max()) < 1e-6


def test_more_rounds_of_numbers_change_nothing() -> None:
    task, sites, once = fitted("regression")
    twice = co.run(Hierarchical(), task, sites, rounds=2, scored=False)
    assert torch.equal(once.state.posterior.mean, twice.state.posterior.mean)


def test_left_out_sites_are_predicted_by_a_run_without_them() -> None:
    task, sites = tiny.problem_of("hierarchical", "classification", DOUBLE)
    found = leave_one_out(Hierarchical(), task, sites)

    alone = co.run(Hierarchical(), task, sites.without(sites.names[2]), scored=False)
    p = alone.method.predictive(task, alone.state)(sites.test[2].x)
    assert isinstance(p, Categorical)
    nll = float(-p.log_probs.gather(1, sites.test[2].y.unsqueeze(1)).mean())
    assert found["per_site"][2]["metrics"]["nll"] == pytest.approx(nll)
    assert [entry["site"] for entry in found["per_site"]] == list(sites.names)
    with pytest.raises(co.InputError, match="a model for all sites"):
        leave_one_out(co.methods.LocalOnly(co.SGD(epochs=1)), task, sites)


def test_it_says_what_it_cannot_do() -> None:
    task, sites = tiny.problem_of("hierarchical", "classification")
    for method, words in (
        (Hierarchical(largest=5), "take fewer features"),
        (Hierarchical(scale=0.0), "give a positive number"),
        (Hierarchical(tau=-1.0), "give 0 or more"),
    ):
        with pytest.raises(co.InputError, match=words):
            co.run(method, task, sites)
    task, sites = tiny.problem_of("hierarchical", "regression")
    with pytest.raises(co.InputError, match="heteroscedastic=False"):
        co.run(Hierarchical(), co.regression(co.models.linear(sites.features, 2), heteroscedastic=True), sites)


def test_what_no_rows_can_say_is_doubted() -> None:
    task, _, result = fitted("classification")
    method = result.method
    reply: Received = result.replies[0]
    honest = reply.payload
    assert isinstance(honest, Natural)
    message = method.broadcast(method.init(task, result.server))

    assert method.doubt(task, message, honest) is None
    negative = method.doubt(task, message, honest._replace(precision=-honest.precision))
    assert negative is not None and "semi-definite" in negative
    lopsided = method.doubt(task, message, honest._replace(precision=honest.precision.tril()))
    assert lopsided is not None and "symmetric" in lopsided
