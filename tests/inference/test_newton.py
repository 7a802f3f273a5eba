"""Newton's method against scikit-learn and against the closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import consilience as co
from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.prior import Isotropic
from consilience.inference import Laplace, Newton
from consilience.key import Key
from consilience.messages import Client, Received, Server
from consilience.runs.engines import Sequential, Turn, Vectorised


def two_classes(rows: int = 200) -> Data:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(rows, 4))
    y = (x @ [1.0, -2.0, 0.5, 0.0] + draw.logistic(size=rows) > 0.3).astype(np.int64)
    return Data.of(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def test_logistic_regression_is_scikit_learns() -> None:
    data = two_classes()
    # Two logits with N(0, 1) weights are one with N(0, 2) for the difference: C = 2. The bias is penalised too,
    # which scikit-learn does not do, so it is a column of ones there.
    task = co.classification(co.models.linear(4, 2))

    point = Newton()(task, task.init(Key(0)), Client(data, (), Key(1)))

    with_ones = np.column_stack([data.x.numpy(), np.ones(len(data.y))])
    theirs = LogisticRegression(C=2.0, fit_intercept=False, tol=1e-10, max_iter=1000).fit(with_ones, data.y.numpy())
    weight, bias = point.params.values()
    ours = [*(weight[1] - weight[0]).tolist(), float(bias[1] - bias[0])]
    assert ours == pytest.approx(theirs.coef_[0].tolist(), abs=1e-4)


def test_linear_regression_is_the_closed_form() -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=draw)
    y = x @ torch.tensor([1.0, 2.0, -1.0]) + 0.1 * torch.randn(50, generator=draw)
    task = co.regression(co.models.linear(3), noise=0.5, prior=Isotropic(2.0))

    point = Newton()(task, task.init(Key(0)), Client(Data.of(x, y), (), Key(1)))

    ones = torch.cat([x, torch.ones(50, 1)], 1).double()
    precision = ones.T @ ones / 0.5 + torch.eye(4) / 2.0  # XᵀX / σ² + I / v
    expected = torch.linalg.solve(precision, ones.T @ y.double() / 0.5)
    assert torch.allclose(tree.ravel(point.params).double(), expected, atol=1e-6)


def test_side_by_side_is_one_after_another() -> None:
    data = [two_classes(200), two_classes(90)]
    task = co.classification(co.models.linear(4, 2))
    method = co.methods.FedAvg(inference=Newton())
    message = task.init(Key(0))

    one, two = (e(data).gather(method, task, message, [0, 1], Turn(0, Key(1))) for e in (Sequential, Vectorised))

    for a, b in zip(one, two, strict=True):
        assert torch.allclose(tree.ravel(a.payload.params), tree.ravel(b.payload.params), atol=1e-6)


@pytest.mark.parametrize("attempt", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in (1, 2))])
def test_groups_of_sites_in_threads_find_their_modes(attempt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward-mode differentiation is not safe in threads: with it, groups of sites fail or are wrong."""
    monkeypatch.setattr("consilience.runs.engines.vectorised.cores", lambda: 4)
    data = [two_classes(20 + 37 * k) for k in range(12)]
    task = co.classification(co.models.linear(4, 2))
    method = co.methods.GaussianProduct(inference=Laplace(mode=Newton(), dense=True))
    message = task.init(Key(0))
    engine = Vectorised(data, chunk=2)
    assert len(engine.groups(task, range(12))) >= 6  # so that there is something for the threads

    together = engine.gather(method, task, message, range(12), Turn(0, Key(attempt)))

    apart = Sequential(data).gather(method, task, message, range(12), Turn(0, Key(attempt)))
    for a, b in zip(together, apart, strict=True):
        assert torch.allclose(a.payload.mean, b.payload.mean, atol=1e-5)


def test_dense_partitioned_inference_takes_newtons_mode() -> None:
    """One client: its posterior is the pooled one after a round, whatever the types of numbers in between."""
    data = two_classes()
    task = co.classification(co.models.linear(4, 2))
    inference = Laplace(mode=Newton(), dense=True)
    method = co.methods.PVI(inference, damping=1.0, dense=True)
    server = Server(None, None, Key(0), 1)
    state = method.init(task, server)

    reply = method.local(task, method.broadcast(state), Client(data, method.memory(state), Key(1)))
    state = method.aggregate(task, state, [Received(0, reply.size, reply.send)], server)

    alone = inference(task, task.init(Key(0)), Client(data, (), Key(1)))
    assert torch.allclose(state.posterior.mean, alone.mean, atol=1e-4)
    assert torch.allclose(state.posterior.precision, alone.precision, rtol=1e-3, atol=1e-3)
