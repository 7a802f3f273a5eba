"""Bayesian pseudocoresets: their gradient against closed forms, and what happens when they go wrong."""

from __future__ import annotations

import dataclasses
import itertools
import warnings

import pytest
import tiny
import torch
from torch import Tensor

import consilience as co
from consilience.benchmark.outcomes import outcomes
from consilience.benchmark.row_words import Row
from consilience.data.sites import Data
from consilience.distributions.payload import Coreset
from consilience.distributions.prior import Isotropic
from consilience.errors import InputError
from consilience.inference import BPCfKL, Inference
from consilience.inference.coreset import contrast, departure, still
from consilience.inference.optimisers import Descent
from consilience.inference.pseudo_rows import drawn, initial
from consilience.key import Key
from consilience.messages import Client, Received, Server
from consilience.privacy.disclosure.exposure import nearness
from consilience.runs.engines import Sequential, Turn
from consilience.serialisation.settings import describe, restore
from consilience.task import mean_nll

NOISE, PRIOR = 0.5, 2.0  # variances
SEED = torch.tensor(11)


def conjugate(rows: int, seed: int) -> tuple[co.Task, Data]:
    """Two weights, no intercept, known noise: the posterior is Gaussian."""
    x = Key(seed).normal((rows, 2)).double()
    y = x @ torch.tensor([1.0, -0.7], dtype=torch.float64) + NOISE**0.5 * Key(seed + 1).normal((rows,)).double()
    task = co.regression(torch.nn.Linear(2, 1, bias=False).double(), noise=NOISE, prior=Isotropic(PRIOR))
    return task, Data.of(x, y)


def posterior(x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Closed form: precision A = Xᵀ diag(w) X/σ² + I/v, mean A⁻¹Xᵀ(w·y)/σ²."""
    precision = x.T @ (w.unsqueeze(1) * x) / NOISE + torch.eye(2, dtype=x.dtype) / PRIOR
    return torch.linalg.solve(precision, x.T @ (w * y) / NOISE), torch.linalg.inv(precision)


def divergence(data: Data, coreset: Coreset) -> Tensor:
    """KL(p(θ|D) ‖ q(θ|C)) between the two Gaussians, by the textbook formula."""
    m, s = posterior(*data)
    mc, sc = posterior(*coreset)
    inverse = torch.linalg.inv(sc)
    away = mc - m
    return 0.5 * ((inverse @ s).trace() + away @ inverse @ away - 2 + torch.logdet(sc) - torch.logdet(s))


def sigma_points(mean: Tensor, covariance: Tensor) -> Tensor:
    """Four sets of weights with exactly this mean and covariance: expectations of quadratics are then exact."""
    root = torch.linalg.cholesky(covariance) * 2**0.5
    return torch.cat([mean + root.T, mean - root.T])


def exact_gradient(task: co.Task, data: Data, coreset: Coreset) -> Coreset:
    """The gradient of line 5 with exact expectations: ∇nll is quadratic in the weights."""
    return contrast(task, task.like, coreset, sigma_points(*posterior(*data)), sigma_points(*posterior(*coreset)))


def some_coreset(rows: int, behind: float) -> Coreset:
    x, y = Key(20).normal((rows, 2)).double(), Key(21).normal((rows,)).double()
    return Coreset(x, y, torch.full((rows,), behind / rows, dtype=torch.float64))


def test_the_gradient_is_that_of_the_divergence() -> None:
    (task, data), coreset, h = conjugate(12, 0), some_coreset(3, 12.0), 1e-6

    gradient = exact_gradient(task, data, coreset)

    for name in ("x", "y"):
        leaf = getattr(coreset, name)
        for i in range(leaf.numel()):
            bump = torch.zeros(leaf.numel(), dtype=torch.float64)
            bump[i] = h
            up, down = (
                divergence(data, coreset._replace(**{name: leaf + s * bump.reshape(leaf.shape)})) for s in (1, -1)
            )
            # Central differences of the closed form: exact to h² and to rounding, 1e-16 · KL / h.
            assert getattr(gradient, name).flatten()[i].item() == pytest.approx(
                ((up - down) / (2 * h)).item(), abs=1e-6
            )


def test_the_divergence_falls_along_the_steps() -> None:
    (task, data), coreset = conjugate(12, 0), some_coreset(3, 12.0)
    learn = BPCfKL(rate_x=0.006, rate_y=0.03, momentum=0.0)
    seen = [divergence(data, coreset).item()]
    velocity, scale = still(coreset), torch.ones((), dtype=torch.float64)

    for _ in range(150):
        coreset, velocity = learn.update(coreset, velocity, exact_gradient(task, data, coreset), scale)
        seen.append(divergence(data, coreset).item())

    assert all(b < a for a, b in itertools.pairwise(seen))
    assert seen[-1] < 0.05 * seen[0]


@pytest.mark.parametrize("rows", [3, 6])
def test_steps_are_those_of_the_reference(rows: int) -> None:
    """torch's SGD with momentum 0.5 on the mean over K pseudo-rows, at weights drawn on either side."""
    task, _ = conjugate(12, 0)
    coreset = some_coreset(rows, 12.0)
    sides = [Key(30 + i).normal((4, 2)).double() for i in range(2)]
    x, y = (leaf.clone().requires_grad_() for leaf in coreset[:2])
    reference = torch.optim.SGD([{"params": [x], "lr": 0.3}, {"params": [y], "lr": 0.7}], momentum=0.5)
    learn, velocity, scale = BPCfKL(rate_x=0.3, rate_y=0.7), still(coreset), torch.ones((), dtype=torch.float64)

    for _ in range(3):
        reference.zero_grad()
        losses = [((x @ theta.T - y.unsqueeze(1)) ** 2 / (2 * NOISE)).mean() for theta in sides]
        (losses[0] - losses[1]).backward()
        reference.step()
        coreset, velocity = learn.update(coreset, velocity, contrast(task, task.like, coreset, *sides), scale)

    torch.testing.assert_close(coreset.x, x.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(coreset.y, y.detach(), atol=1e-12, rtol=0)


def test_settings_stored_before_keep_their_steps() -> None:
    old = {key: value for key, value in describe(BPCfKL()).items() if key not in ("momentum", "mean")}
    restored = restore(old)
    assert (restored.momentum, restored.mean) == (0.0, False)
    assert describe(restored) == old
    assert restore(describe(BPCfKL())) == BPCfKL()


def test_batches_of_unequal_pseudo_rows_are_all_but_unbiased() -> None:
    """A batch's weights are normalised within it: its mean is a ratio, biased by O(1/B) of what sets rows apart.

    All batches of B of 15 pseudo-rows, of five sites whose sizes differ as FEMNIST's writers do (a deviation of 27 % of
    the mean): the expected gradient is off by 1.4 % (B = 5) and 0.3 % (10), where a single batch is off by 32 and 16 %.
    """
    sizes = torch.tensor([100.0, 130.0, 155.0, 170.0, 210.0]).double()
    w = sizes.repeat_interleave(3) / 3
    slopes = Key(5).normal((15, 8)).double() + (w / w.mean()).unsqueeze(1)  # of each row; some of it grows with w
    right = (w / w.sum()) @ slopes
    theta = torch.zeros(8, dtype=torch.float64, requires_grad=True)

    def gradient(rows: Tensor) -> Tensor:
        return torch.autograd.grad(mean_nll(slopes[rows] @ theta, w[rows]), theta)[0]

    bias = {}
    for count in (5, 10):
        away = torch.stack([gradient(torch.tensor(rows)) for rows in itertools.combinations(range(15), count)]) - right
        bias[count] = (away.mean(0).norm() / right.norm()).item()
        noise = (away.norm(dim=1).mean() / right.norm()).item()
        assert bias[count] < noise / 20
    assert bias[5] < 0.015 and bias[10] < 0.3 * bias[5]  # (1 − B/N)/B: a quarter
    torch.testing.assert_close(gradient(torch.arange(15)), right)  # all rows in one batch: exact


def test_the_data_themselves_are_stationary() -> None:
    task, data = conjugate(6, 0)

    gradient = exact_gradient(task, data, Coreset(*data))

    assert max(gradient.x.abs().max(), gradient.y.abs().max()) < 1e-12


def test_the_whole_algorithm_leaves_the_data_where_they_are() -> None:
    task, data = conjugate(6, 0)
    # Plain gradient descent on all rows, as many steps on either side and no noise: both chains are the same one.
    learn = BPCfKL(
        rows=6, steps=8, interval=2, data_steps=4, coreset_steps=4, batch=6, updates=3, noise=0.0, chain=Descent(0.05)
    )
    weights, spacing = learn.pretrain(task, SEED, Client(data, (), Key(1)))
    assert (weights.shape, spacing) == ((10, 5, 2), 2)
    theta, rows = weights[:, 0], Data(*data)
    for _ in range(4):
        gradients = torch.stack([rows.x.T @ (rows.x @ t - rows.y) / (6 * NOISE) + t / PRIOR / 6 for t in theta])
        theta = theta - 0.05 * gradients

    # Four steps by hand, ∇(U/n) = Xᵀ(Xθ − y)/(nσ²) + θ/(nv), end at the second kept weights.
    torch.testing.assert_close(theta, weights[:, 2], atol=1e-12, rtol=0)
    gradient = contrast(task, task.like, Coreset(*data), weights[:, 2], theta)
    assert max(gradient.x.abs().max(), gradient.y.abs().max()) < 1e-10


def test_learning_brings_the_coresets_posterior_mean_to_the_datas() -> None:
    task, data = conjugate(30, 0)
    learn = BPCfKL(rows=4, trajectories=3, steps=14, data_steps=12, coreset_steps=12, interval=2, updates=40, draws=3)
    learn = dataclasses.replace(learn, batch=30, rate_x=0.004, rate_y=0.2, noise=0.05, chain=Descent(0.2))
    client = Client(data, (), Key(1))

    before = initial(task, data, 4, learn.spread, client.key.fold(1))
    after, halved, _ = learn.learn(task, SEED, client)

    wanted = posterior(*data)[0]
    gaps = [(posterior(*c)[0] - wanted).norm().item() for c in (before, after)]
    assert gaps[1] < 0.5 * gaps[0]
    assert float(halved) == 0 and after.w.sum().item() == pytest.approx(30)  # all rows are stood for


def test_a_coreset_begins_around_the_mean_with_its_labels_by_frequency() -> None:
    task = co.classification(co.models.mlp(2, 5))
    x = Key(0).normal((9, 2)) + 3
    data = Data(x, torch.tensor([4, 4, 4, 1, 1, 2, 0, 0, 0]), torch.tensor([1.0] * 6 + [0.0] * 3))  # three are padding

    coreset = initial(task, data, 7, 0.0, Key(1))

    assert coreset.y.tolist() == [4, 1, 2, 4, 1, 2, 4]  # three, two and one rows, then in turn again
    torch.testing.assert_close(coreset.x, x[:6].mean(0).expand(7, 2))
    assert coreset.w.tolist() == pytest.approx([6 / 7] * 7)


def test_trajectories_start_at_the_same_weights_on_every_site() -> None:
    task, data = conjugate(6, 0)
    learn = BPCfKL(trajectories=2, steps=4, data_steps=2, interval=2)
    other = conjugate(9, 5)[1]

    a, b = (learn.pretrain(task, SEED, Client(d, (), Key(k)))[0] for k, d in enumerate((data, other)))

    assert torch.equal(a[:, 0], b[:, 0]) and not torch.equal(a[:, 1], b[:, 1])
    assert not torch.equal(a[0, 0], a[1, 0])


def test_kept_weights_stay_within_the_memory() -> None:
    task, data = conjugate(6, 0)
    learn = BPCfKL(trajectories=10, steps=40, data_steps=20, interval=1, memory=1000)

    with pytest.warns(UserWarning, match="every 10 steps"):
        weights, spacing = learn.pretrain(task, SEED, Client(data, (), Key(0)))

    # One of 10 trajectories of two float64 weights is 160 bytes: six fit, one of them the start, so 40/5 = 8 steps
    # apart at least, and 10 divides L_D.
    assert spacing == 10 and weights.numel() * 8 <= 1000


def test_a_coreset_that_runs_away_is_put_back_and_its_step_halved() -> None:
    task, data = conjugate(12, 0)
    learn = BPCfKL(rows=3, trajectories=3, steps=10, data_steps=5, coreset_steps=5, updates=8, batch=12)
    wild, client = dataclasses.replace(learn, rate_y=1e4), Client(data, (), Key(1))

    tame_found, wild_found = learn.learn(task, SEED, client), wild.learn(task, SEED, client)

    assert float(tame_found.halved) == 0 and float(wild_found.halved) >= 3
    assert wild_found.coreset.y.abs().max() <= 10 * data.y.abs().max()
    lost = Coreset(torch.full((3, 2), torch.nan), torch.zeros(3), torch.ones(3))
    assert bool(departure(lost, lost, data))


def test_a_site_that_ran_away_is_reported_and_others_are_not() -> None:
    task, sites = (
        co.regression(co.models.linear(1), noise=0.1),
        co.datasets.sine(20).split(co.splits.natural(), seed=0, validation=0.2),
    )
    learn = BPCfKL(rows=3, trajectories=2, steps=10, data_steps=5, coreset_steps=5, updates=8, rate_y=1e3)

    result = co.run(co.methods.CoresetFL(learn, co.SGD(epochs=2)), task, sites)

    said = " ".join(result.report["warnings"])
    assert "steps were halved" in said and "can show what their sites hold" in said
    assert all(site["halved"] >= 1 for site in result.report["diagnostics"]["coresets"])


def test_fewer_rows_than_classes_and_a_class_with_one_row() -> None:
    x = torch.cat([Key(0).normal((40, 2)), torch.tensor([[9.0, 9.0]])])
    y = torch.cat([torch.arange(40) % 3, torch.tensor([3])])
    task, one = co.classification(co.models.linear(2, 4)), Data.of(x, y)
    learn = BPCfKL(rows=2, trajectories=2, steps=10, data_steps=5, coreset_steps=5, updates=3)
    method = co.methods.CoresetFL(learn, co.SGD(epochs=2))
    state = method.init(task, Server(None, None, Key(0), 1))

    replies = Sequential([one]).gather(method, task, method.broadcast(state), [0], Turn(0, Key(1)))
    with pytest.warns(UserWarning, match="2 pseudo-rows cannot show 4 classes: each site shows its 2 most frequent"):
        method.aggregate(task, state, replies, Server(None, None, Key(2), 1))

    assert replies[0].payload.coreset.y.tolist() == [0, 1]  # 14 and 13 rows
    whole = dataclasses.replace(learn, rows=4).learn(task, SEED, Client(one, (), Key(3))).coreset
    assert whole.y.tolist() == [0, 1, 2, 3]  # the class with one row comes last


def test_distances_are_in_units_of_those_between_rows() -> None:
    x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [77.0]])
    data = Data(x, torch.zeros(5), torch.tensor([1.0, 1, 1, 1, 0]))  # the last is padding
    coreset = Coreset(torch.tensor([[0.25], [5.0], [77.0]]), torch.zeros(3), torch.ones(3))

    found = nearness(coreset, data)

    # Rows are 1 apart; the pseudo-rows are 0.25, 2 and 74 away from the nearest.
    assert found.closest.item() == pytest.approx(0.25)
    assert found.typical.item() == pytest.approx(2.0)
    assert found.copies.item() == 1


@pytest.mark.parametrize(
    "downstream",
    [
        co.SGD(epochs=400, batch=30),
        co.Adam(rate=0.05, epochs=150, batch=30),
        co.HMC(rate=0.05, leapfrogs=8, burn=30, samples=10, every=2, chains=12),
    ],
)
def test_any_inference_reaches_the_posterior_of_the_union(downstream: Inference) -> None:
    task, _ = conjugate(2, 0)
    method = co.methods.CoresetFL(BPCfKL(), downstream)
    parts = [BPCfKL(rows=3, trajectories=1, steps=2, data_steps=1, coreset_steps=1, updates=0).learn(
        task, SEED, Client(conjugate(10, k)[1], (), Key(k))
    ) for k in (0, 4)]  # fmt: skip
    replies = [Received(k, torch.tensor(10.0), part) for k, part in enumerate(parts)]
    state = method.init(task, Server(None, None, Key(0), 2))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        new = method.aggregate(task, state, replies[::-1], Server(None, None, Key(2), 2))

    union = method.union(parts)
    mean, covariance = posterior(*union)  # closed form, with every row counted 10/3 times
    found = new.posterior.params["weight"].reshape(-1, 2)
    assert union.size.item() == pytest.approx(20)
    tolerance = 0.3 * covariance.diagonal().sqrt() if isinstance(downstream, co.HMC) else torch.tensor(0.02)
    assert ((found.mean(0) - mean).abs() < tolerance).all()
    assert 0 < float(new.accepted) <= 1


def test_the_mass_of_the_union_can_be_set() -> None:
    parts = [BPCfKL(rows=3, trajectories=1, steps=2, data_steps=1, coreset_steps=1, updates=0).learn(
        conjugate(2, 0)[0], SEED, Client(conjugate(n, 0)[1], (), Key(0))
    ) for n in (10, 30)]  # fmt: skip
    w = co.methods.CoresetFL(mass=6.0).union(parts).w
    assert w.tolist() == pytest.approx([6 / 4 / 3] * 3 + [6 * 3 / 4 / 3] * 3)  # by nₘ/N: one and three quarters


def test_impossible_settings_are_refused() -> None:
    task, data = conjugate(6, 0)
    with pytest.raises(InputError, match="data_steps no longer than steps"):
        BPCfKL(steps=10, data_steps=20)(task, SEED, Client(data, (), Key(0)))


def test_rows_that_differ_at_the_server_alone_learn_their_coresets_once() -> None:
    task, sites = tiny.classification()
    learn = tiny.shortened(BPCfKL())
    methods = [co.methods.CoresetFL(learn, co.SGD(epochs=2)), co.methods.CoresetFL(learn, co.Adam(epochs=2))]

    found = list(outcomes([Row(str(i), "", m, 1) for i, m in enumerate(methods)], task, sites, 3))

    one, other = (outcome.result for outcome in found)
    assert one is not None and other is not None
    assert one.replies[0].payload.coreset.x is other.replies[0].payload.coreset.x  # handed on, not learned again
    assert one.metrics != other.metrics
    assert other.metrics == co.run(methods[1], task, sites, seed=3).metrics


def test_a_coreset_can_begin_at_rows_of_the_clients_own() -> None:
    _, data = conjugate(12, 0)
    filled = Data(*(torch.cat([leaf, torch.zeros_like(leaf[:5])]) for leaf in data))  # five rows of padding

    few, many = (drawn(filled, rows, Key(4)) for rows in (7, 30))

    pairs = {(*x.tolist(), float(y)) for x, y in zip(data.x, data.y, strict=True)}
    for coreset in (few, many):
        assert {(*x.tolist(), float(y)) for x, y in zip(coreset.x, coreset.y, strict=True)} <= pairs
        assert float(coreset.w.sum()) == pytest.approx(12)
    assert len(few.x.unique(dim=0)) == 7 and len(many.x.unique(dim=0)) == 12  # none twice before each was drawn


def test_without_updates_a_coreset_stays_where_it_begins() -> None:
    (task, data), learn = conjugate(12, 0), BPCfKL(rows=4, trajectories=1, steps=1, data_steps=1, updates=0, own=True)

    learned = learn.learn(task, SEED, Client(data, (), Key(5)))

    assert torch.equal(learned.coreset.x, drawn(data, 4, Key(5).fold(1)).x)
    assert int(learned.near.copies) > 0  # and what is sent says that it shows rows
