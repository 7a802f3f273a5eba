"""Generalised linear models: the mode of all rows and its Laplace posterior, however the rows are split."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import honest
import pytest
import scipy.optimize
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Dense, Point
from consilience.distributions.prior import Flat, Isotropic
from consilience.glm.derivatives import NOTHING, Derivatives, unpack
from consilience.inference import Laplace
from consilience.inference.newton import Newton
from consilience.key import Key
from consilience.messages import Client, Received, Server
from consilience.methods.glm import GLM
from consilience.models.maps import features, on_features
from consilience.runs.engines import Parallel, Sequential, Turn, Vectorised
from consilience.study.protocol.rehearsal import Broadcasts
from consilience.study.validation.gate import Refused
from consilience.study.validation.message import check_message
from consilience.task import Task

ENGINES = {"sequential": Sequential, "vectorised": Vectorised, "parallel": lambda data: Parallel(data, workers=2)}


def rows(n: int = 120, d: int = 4, classes: int | None = 3, seed: int = 0) -> Data:
    """Rows that a linear model explains in part."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    outputs = x @ torch.randn(d, classes or 1, generator=g, dtype=torch.float64)
    noise = torch.randn(outputs.shape, generator=g, dtype=torch.float64)
    if classes is None:
        return Data.of(x, (outputs + noise)[:, 0])
    return Data.of(x, (outputs + 2 * noise).argmax(1))


def model(d: int = 4, outputs: int | None = 3, bias: bool = True) -> nn.Module:
    return nn.Linear(d, outputs or 1, bias=bias).double()


def deal(data: Data, owners: list[int]) -> list[Data]:
    """Rows by their owners' numbers; nobody goes without."""
    where = torch.tensor(owners)
    return [Data(*(leaf[where == k] for leaf in data)) for k in sorted(set(owners))]


@torch.no_grad()
def fit(method: GLM, task: Task, sites: list[Data], rounds: int, engine: str = "sequential") -> list[Any]:
    """The states after each round."""
    clients = ENGINES[engine](sites)
    server = Server(None, None, Key(0), len(sites))
    states = [method.init(task, server)]
    for t in range(rounds):
        message = method.broadcast(states[-1])
        replies = clients.gather(method, task, message, range(len(sites)), Turn(t, Key(1)))
        states.append(method.aggregate(task, states[-1], replies, server))
    return states[1:]


def weights(task: Task, state: Any) -> Tensor:
    """Bias and weight as one matrix [C, K]."""
    mean = co.distributions.posterior.centre(state.posterior, task.like).params
    return torch.cat([mean["bias"].unsqueeze(1), mean["weight"]], 1)


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(x[:, :1]), x], 1)


@pytest.mark.parametrize("largest", [1500, 0])
@pytest.mark.parametrize("var", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("classes", [2, 3])
def test_classes_equal_scikit_learn_on_pooled_rows(classes: int, var: float, largest: int) -> None:
    data = rows(classes=classes)
    task = co.classification(model(4, classes), Isotropic(var))
    state = fit(GLM(largest=largest), task, deal(data, [0, 1, 1] * 40), 40)[-1]

    # scikit-learn does not penalise an intercept, but it does a column of ones; for two classes it learns their
    # difference, whose prior has twice the variance.
    penalty = 2 * var if classes == 2 else var
    oracle = LogisticRegression(C=penalty, fit_intercept=False, tol=1e-12, max_iter=10_000)
    oracle.fit(with_ones(data.x).numpy(), data.y.numpy())

    ours = weights(task, state)
    if classes == 2:
        ours = (ours[1] - ours[0]).unsqueeze(0)
    torch.testing.assert_close(ours, torch.as_tensor(oracle.coef_), atol=1e-6, rtol=1e-6)
    assert GLM().diagnose(task, state, data.x)["converged"]


def objective(data: Data, var: float) -> tuple[Any, Any]:
    """U and ∇U written down again, over a vector of [C, K]."""
    x, y = with_ones(data.x), torch.nn.functional.one_hot(data.y).double()

    def value(vector: Any) -> tuple[float, Any]:
        b = torch.as_tensor(vector, dtype=torch.float64).reshape(y.shape[1], -1)
        logs = torch.log_softmax(x @ b.T, 1)
        gradient = (logs.exp() - y).T @ x + b / var
        return float(-(y * logs).sum() + (b * b).sum() / (2 * var)), gradient.flatten().numpy()

    return value, y.shape[1] * x.shape[1]


def test_classes_equal_scipy_on_the_same_objective() -> None:
    data = rows(seed=3)
    task = co.classification(model(), Isotropic(0.7))
    value, count = objective(data, 0.7)
    oracle = scipy.optimize.minimize(
        value, torch.zeros(count).numpy(), jac=True, method="BFGS", options={"gtol": 1e-10}
    )

    state = fit(GLM(), task, deal(data, [0, 1, 2] * 40), 9)[-1]

    torch.testing.assert_close(weights(task, state).flatten(), torch.as_tensor(oracle.x), atol=1e-6, rtol=1e-6)
    assert float(state.search.value) == pytest.approx(oracle.fun, rel=1e-12)


def test_the_precision_is_laplace_s_of_all_rows() -> None:
    data = rows()
    task = co.classification(model(), Isotropic(0.5))
    state = fit(GLM(), task, deal(data, [0, 1, 2] * 40), 9)[-1]
    oracle = Laplace(Newton(steps=30), dense=True)(task, task.init(Key(0)), Client(data, (), Key(0)))

    assert isinstance(state.posterior, Dense) and isinstance(oracle, Dense)
    torch.testing.assert_close(state.posterior.mean, oracle.mean, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(state.posterior.precision, oracle.precision, atol=1e-6, rtol=1e-6)


def test_without_a_prior_it_is_maximum_likelihood_with_its_standard_errors() -> None:
    """The numbers that statistics packages print: contrasts with class 0 and the inverse of their information."""
    data = rows(n=300, seed=1)
    task = co.classification(model(), Flat())
    state = fit(GLM(), task, deal(data, [0, 1, 2] * 100), 12)[-1]
    oracle = LogisticRegression(C=math.inf, tol=1e-12, max_iter=10_000).fit(data.x.numpy(), data.y.numpy())
    coefficients = torch.cat([torch.as_tensor(oracle.intercept_).unsqueeze(1), torch.as_tensor(oracle.coef_)], 1)

    ours = weights(task, state)
    torch.testing.assert_close(ours[1:] - ours[0], coefficients[1:] - coefficients[0], atol=1e-6, rtol=1e-6)

    x = with_ones(data.x)
    p = torch.softmax(x @ (ours - ours[0]).T, 1)[:, 1:]
    inner = torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)
    information = torch.einsum("nab,ni,nj->aibj", inner, x, x).reshape(10, 10)
    covariance = torch.linalg.inv(state.posterior.precision)  # of weight [3, 4], then bias [3]
    places = torch.arange(15)
    by_class = torch.cat([places[12:].unsqueeze(1), places[:12].reshape(3, 4)], 1).flatten()
    ordered = covariance[by_class][:, by_class]
    contrast = torch.kron(torch.tensor([[-1.0, 1, 0], [-1, 0, 1]]), torch.eye(5)).double()
    torch.testing.assert_close(contrast @ ordered @ contrast.T, torch.linalg.inv(information), atol=1e-6, rtol=1e-6)


def test_without_a_prior_it_is_what_statsmodels_prints() -> None:
    from statsmodels import api

    data = rows(n=300, seed=1)
    task = co.classification(model(), Flat())
    state = fit(GLM(), task, deal(data, [0, 1, 2] * 100), 12)[-1]
    oracle = api.MNLogit(data.y.numpy(), with_ones(data.x).numpy()).fit(disp=0, method="newton", tol=1e-12)

    ours = weights(task, state)
    torch.testing.assert_close(ours[1:] - ours[0], torch.as_tensor(oracle.params.T), atol=1e-6, rtol=1e-6)

    data = rows(n=300, classes=None)
    task = co.regression(model(4, None), noise=1.0, prior=Flat())
    state = fit(GLM(), task, deal(data, [0, 1, 2] * 100), 1)[-1]
    line = api.OLS(data.y.numpy(), with_ones(data.x).numpy()).fit()
    torch.testing.assert_close(weights(task, state)[0], torch.as_tensor(line.params), atol=1e-6, rtol=1e-6)
    covariance = torch.linalg.inv(state.posterior.precision)[[4, 0, 1, 2, 3]][:, [4, 0, 1, 2, 3]]
    unscaled = torch.as_tensor(line.normalized_cov_params)
    torch.testing.assert_close(covariance, unscaled, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_numbers_with_a_known_noise_equal_the_closed_form(bias: bool) -> None:
    data = rows(classes=None)
    task = co.regression(model(4, None, bias), noise=0.3, prior=Isotropic(2.0))
    states = fit(GLM(), task, deal(data, [0, 1, 2] * 40), 2)

    x = torch.cat([data.x, torch.ones_like(data.x[:, :1])], 1) if bias else data.x  # as torch orders weights
    precision = x.T @ x / 0.3 + torch.eye(x.shape[1]) / 2.0
    torch.testing.assert_close(states[0].posterior.precision, precision, atol=1e-8, rtol=1e-8)
    mean = torch.linalg.solve(precision, x.T @ data.y / 0.3)
    torch.testing.assert_close(states[0].posterior.mean, mean, atol=1e-8, rtol=1e-8)
    assert states[1] is states[0], "one round decides"
    assert GLM().diagnose(task, states[0], data.x) == {"relative_gradient": 0.0, "converged": True}


def test_a_learned_noise_is_the_mode_of_its_own_posterior() -> None:
    """Of U(θ̂(s), s) + ½ log |H(s)|, the weights averaged over: under a flat prior least squares' RSS/(n − p)."""
    data = rows(classes=None)
    task = co.regression(model(4, None), prior=Isotropic(2.0))
    posterior = fit(GLM(), task, deal(data, [0, 1, 2] * 40), 1)[-1].posterior

    def u(vector: Tensor) -> Tensor:
        return task.potential(tree.unravel(vector, task.like), data, data.size)

    gradient = torch.func.grad(u)(posterior.mean)
    assert float(gradient[:-1].abs().max()) < 1e-6
    hessian = torch.func.jacrev(torch.func.grad(u))(posterior.mean)
    torch.testing.assert_close(posterior.precision, hessian, atol=1e-6, rtol=1e-6)

    x = with_ones(data.x)
    gram = x.T @ x

    def determinant(log_noise: Tensor) -> Tensor:
        return 0.5 * torch.logdet(gram * torch.exp(-log_noise) + torch.eye(5, dtype=torch.float64) / 2)

    assert float(gradient[-1] + torch.func.grad(determinant)(posterior.mean[-1])) == pytest.approx(0, abs=1e-6)


def test_unpenalised_numbers_are_ordinary_least_squares() -> None:
    data = rows(classes=None)
    task = co.regression(model(4, None), noise=1.0, prior=Flat())
    state = fit(GLM(), task, deal(data, [0, 1, 2] * 40), 1)[-1]

    oracle = torch.linalg.lstsq(with_ones(data.x), data.y.unsqueeze(1)).solution
    torch.testing.assert_close(weights(task, state), oracle.T, atol=1e-6, rtol=1e-6)


@settings(max_examples=12, deadline=None)
@given(
    owners=st.lists(st.integers(0, 5), min_size=60, max_size=60),
    classes=st.sampled_from([None, 2, 3]),
    largest=st.sampled_from([0, 1500]),
    engine=st.sampled_from(sorted(ENGINES)),
)
@pytest.mark.filterwarnings("ignore")
def test_sites_equal_pooled_rows_for_any_split_on_every_engine(
    owners: list[int], classes: int | None, largest: int, engine: str
) -> None:
    data = rows(60, classes=classes)
    task = co.classification(model(4, classes)) if classes else co.regression(model(4, None))
    method = GLM(largest=largest)
    pooled = fit(method, task, [data], 6)[-1].posterior
    split = fit(method, task, deal(data, owners), 6, engine)[-1].posterior

    for a, b in zip(tree.leaves(split), tree.leaves(pooled), strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)


def test_many_weights_converge_to_the_mode_of_newton_s_method_and_never_rise() -> None:
    """Random features of few rows: 363 weights, where the first steps overshoot."""
    data = rows(200, seed=5)
    map_ = features("relu:120", 4).double()
    task = co.classification(on_features(map_, nn.Linear(120, 3).double()))
    sites = deal(data, [0, 1] * 100)
    newton = fit(GLM(), task, sites, 12)
    others = fit(GLM(largest=0, tolerance=1e-9), task, sites, 90)

    for states in (newton, others):
        values = [float(state.search.value) for state in states]
        assert all(b <= a * (1 + 1e-11) for a, b in pairwise(values))
    assert isinstance(others[-1].posterior, Point)
    assert newton[-1].asked == () and others[-1].asked == ()
    torch.testing.assert_close(others[-1].search.next, newton[-1].search.next, atol=1e-6, rtol=1e-6)


def test_rounds_after_convergence_cost_nothing_and_change_nothing(tmp_path: Path) -> None:
    task, sites = tiny.problem_of("glm", "classification")
    result = co.run(GLM(), task, sites, rounds=12, out=tmp_path / "r")

    moved = [(entry["up_bytes"], entry["down_bytes"]) for entry in result.report["history"]]
    assert moved[0][1] == 0 and moved[1][1] > 0, "the first message asks for nothing but sums"
    assert moved[-1] == (0, 0) and 4 <= sum(up > 0 for up, _ in moved) <= 9
    further = co.run(GLM(), task, sites, rounds=14, out=tmp_path / "r", resume=True)
    assert tree.leaves(further.state)[0].equal(tree.leaves(result.state)[0])
    assert further.metrics == result.metrics
    assert result.report["diagnostics"]["converged"]
    assert all(reply.payload == NOTHING for reply in result.replies)


@pytest.mark.filterwarnings("ignore")
def test_messages_and_replies_pass_until_long_after_convergence() -> None:
    task, sites = tiny.problem_of("glm", "classification")
    method = GLM()
    server = Server(None, None, Key(5), len(sites))
    state = method.init(task, server)
    broadcasts = Broadcasts(method, task, sites.train[0])
    engine = Sequential(sites.train)
    for t in range(12):
        message = method.broadcast(state)
        check_message(message, broadcasts.until(t + 1), task)
        replies = engine.gather(method, task, message, range(len(sites)), Turn(t, Key(3)))
        assert all(method.doubt(task, message, reply.payload) is None for reply in replies)
        state = method.aggregate(task, state, replies, server)
    assert state.asked == ()


def test_over_messages_until_after_convergence() -> None:
    """The gate expects sums in answer to the first message, and nothing in answer to the same one later."""
    pytest.importorskip("flwr", reason="needs Flower: pip install 'consilience[flower]'")
    import loopback

    task, sites = tiny.problem_of("glm", "classification")
    alone = co.run(GLM(), task, sites, rounds=11, engine="sequential")
    other = co.run(GLM(), task, sites, rounds=11, engine=lambda data: loopback.flower(GLM(), task, data))

    assert alone.state.asked == () and other.replies[0].payload == NOTHING
    for a, b in zip(tree.leaves(alone.state), tree.leaves(other.state), strict=True):
        assert torch.equal(a, b)


def test_the_posterior_and_the_mode_predict() -> None:
    """Averaging makes probabilities less extreme; numbers keep the mode's mean."""
    data = rows(40)
    task = co.classification(model())
    state = fit(GLM(), task, [data], 9)[-1]
    mode = GLM().predictive(task, state)(data.x)[0]
    torch.testing.assert_close(mode, torch.log_softmax(with_ones(data.x) @ weights(task, state).T, 1))
    average = GLM(average=True).predictive(task, state)(data.x)[0]
    assert float(average.exp().amax(1).mean()) < float(mode.exp().amax(1).mean())

    numbers = rows(40, classes=None)
    task = co.regression(model(4, None), noise=0.5)
    state = fit(GLM(), task, [numbers], 1)[-1]
    predicted = GLM().predictive(task, state)(numbers.x)
    torch.testing.assert_close(predicted.mean, (with_ones(numbers.x) @ weights(task, state).T)[:, 0])


def test_a_million_fold_precision_predicts_in_single_precision() -> None:
    """A prior that counts little beside many rows: the precision's condition number exceeds single precision's."""
    data = rows(400)
    scaled = Data.of((1000 * data.x).float(), data.y)
    task = co.classification(nn.Linear(4, 3))
    state = fit(GLM(average=True), task, [scaled], 12)[-1]

    values = torch.linalg.eigvalsh(state.posterior.precision)
    assert float(values[-1] / values[0]) > 1e7
    assert bool(torch.isfinite(GLM(average=True).predictive(task, state)(scaled.x)[0]).all())
    assert len(task.member_predictions(state.posterior, scaled.x)) == task.draws


def test_a_step_that_raises_the_loss_is_halved_until_it_does_not() -> None:
    data = rows()
    task = co.classification(model(), Isotropic(10.0))
    start = fit(GLM(), task, [data], 1)[-1]
    too_far = start.search._replace(step=64 * start.search.step)
    method = GLM()
    state = start._replace(asked=Point(unpack(too_far.next, task.like)), search=too_far)
    values = []
    for _ in range(16):
        if not isinstance(state.asked, Point):
            break
        reply = method.local(task, state.asked, Client(data, data.size, Key(0)))
        state = method.aggregate(task, state, [Received(0, reply.size, reply.send)], Server(None, None, Key(0), 1))
        values.append(float(state.search.value))

    assert values[0] == float(start.search.value), "the first step was not taken"
    assert all(b <= a * (1 + 1e-11) for a, b in pairwise(values))
    mode = fit(GLM(), task, [data], 9)[-1]
    torch.testing.assert_close(state.search.next, mode.search.next, atol=1e-8, rtol=1e-8)


def test_other_networks_and_noises_are_refused() -> None:
    task, sites = tiny.classification()
    with pytest.raises(co.InputError, match="learns one linear layer on fixed features"):
        co.run(GLM(), task, sites)
    task, sites = tiny.regression()
    task = co.regression(co.models.mlp(sites.features, 2, hidden=()), heteroscedastic=True)
    with pytest.raises(co.InputError, match="one noise for all rows"):
        co.run(GLM(), task, sites)


def stretch(leaf: Tensor, largest: float) -> Tensor:
    """The same with another largest number: 60 rows within the agreed ranges explain no such sums."""
    return leaf * (largest / float(leaf.abs().max()))


LIES = {
    "a loss below 0": (lambda d: d._replace(loss=-d.loss), "log-probabilities to more than 0"),
    "a negative curvature": (lambda d: d._replace(curvature=-d.curvature), "not positive semi-definite"),
    "gradients of no softmax": (lambda d: d._replace(gradient=d.gradient + 1.0), "do not add up to 0"),
    "a gradient of 5 000": (lambda d: d._replace(gradient=stretch(d.gradient, 5e3)), "'gradient' holds 5e"),
    "a curvature of 20 000": (lambda d: d._replace(curvature=stretch(d.curvature, 2e4)), "'curvature' holds 2e"),
    "another shape": (lambda d: d._replace(curvature=d.curvature[:-1]), "'curvature' has the shape"),
    "nothing": (lambda d: NOTHING, "is missing"),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("largest", [1500, 0])
def test_derivatives_that_no_rows_have_are_refused(lie: str, largest: int, tmp_path: Path) -> None:
    agreement = honest.agreement_of(tmp_path, method="glm", smallest=1, rounds=8, settings=(f"largest={largest}",))
    change, sentence = LIES[lie]
    for played in honest.honest_rounds(agreement, honest.tables(agreement, tmp_path, 60), rounds=8):
        reply = played.replies[0]
        assert played.admit(reply).client == reply.client
        if isinstance(reply.payload, Derivatives) and reply.payload != NOTHING:
            with pytest.raises(Refused, match=sentence):
                played.admit(reply, send=change(reply.payload))


def test_sums_that_no_rows_have_are_refused(tmp_path: Path) -> None:
    agreement = honest.agreement_of(tmp_path, method="glm", smallest=1, rounds=1)
    played = next(iter(honest.honest_rounds(agreement, honest.tables(agreement, tmp_path, 60))))
    reply = played.replies[0]
    sums, own = reply.payload
    negative = torch.cat([sums.gram[:-1], torch.tensor([-1.0])])
    lies = {
        "'sums.gram' holds": sums._replace(gram=stretch(sums.gram, 6e4)),
        "'sums.cross' holds": sums._replace(cross=stretch(sums.cross, 5e3)),
        "counts": sums._replace(counts=sums.counts + 1),
        "positive semi-definite": sums._replace(gram=negative),
    }
    for sentence, lie in lies.items():
        with pytest.raises(Refused, match=sentence):
            played.admit(reply, send=reply.payload._replace(sums=lie))
    there = own.there
    fits = {
        "'own.mode' holds": own._replace(mode=stretch(own.mode, 1e7)),
        "'own.there.curvature' holds": own._replace(there=there._replace(curvature=stretch(there.curvature, 6e4))),
        "its curvature": own._replace(there=there._replace(curvature=-there.curvature)),
    }
    for sentence, lie in fits.items():
        with pytest.raises(Refused, match=sentence):
            played.admit(reply, send=reply.payload._replace(own=lie))
