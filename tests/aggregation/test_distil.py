"""Distillation and the baselines of papers 000 and 004, against closed forms and hand-derived steps."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
import torch
from torch import nn

import consilience as co
from consilience import tree
from consilience.aggregation.distil import Distil, MatchNormals, SeekNormals, Start, at_average, at_client, widen
from consilience.aggregation.kernel_densities import multiply_kernels
from consilience.data.sites import Data
from consilience.distributions.payload import nbytes
from consilience.distributions.posterior import Point, Posterior, Samples, dense_moments
from consilience.distributions.predictive import Categorical, Normal, logarithmic, product, robust, shared
from consilience.distributions.prior import Isotropic
from consilience.errors import InputError
from consilience.inference import SWA
from consilience.inference.kernels import At
from consilience.key import Key
from consilience.messages import Client, Server
from consilience.method import Needs, Pooled, State, needs
from consilience.method.declared import shows_inputs
from consilience.methods.fedpa import delta
from consilience.runs.engines import Sequential, Turn

FIT = co.Adam(rate=0.02, epochs=150, batch=200)


def test_a_student_of_its_own_kind_learns_its_teacher() -> None:
    task, sites = tiny.classification()
    x = sites.pooled().train[0].x
    teacher = task.predictive(
        co.Adam(0.05, 40, 64)(task, task.init(Key(1)), Client(sites.pooled().train[0], (), Key(2)))
    )

    distil = co.aggregation.Distil(FIT, start=co.aggregation.at_random)
    student = distil.student(task, teacher, [], x, Key(3))

    p, q = teacher(x), distil.predictive(task, student)(x)
    assert isinstance(p, Categorical) and isinstance(q, Categorical)
    divergence = (p.probs * (p.log_probs - q.log_probs)).sum(-1).mean()
    start = (p.probs * (p.log_probs - distil.predictive(task, task.init(Key(3).fold(0)))(x).log_probs)).sum(-1).mean()  # type: ignore[union-attr]
    assert divergence < 0.02 < start


def test_the_teacher_is_asked_once() -> None:
    task, sites = tiny.classification()
    asked = []

    def teacher(x: torch.Tensor) -> Categorical:
        asked.append(len(x))
        return Categorical(torch.full((len(x), 2), 0.5).log())

    co.aggregation.Distil(co.Adam(epochs=7, batch=4), start=co.aggregation.at_random).student(
        task, teacher, [], sites.train[0].x, Key(0)
    )

    assert asked == [len(sites.train[0].x)]


def test_a_regression_student_learns_mean_and_variance() -> None:
    x = torch.linspace(-1, 1, 200).unsqueeze(1)
    mean, var = torch.sin(2 * x[:, 0]), 0.1 + 0.3 * (x[:, 0] > 0)
    task = co.regression(co.models.mlp(1, hidden=(20,)))
    distil = co.aggregation.Distil(co.Adam(rate=0.01, epochs=600, batch=200))

    student = distil.student(task, lambda _: Normal(mean, var - 0.05, torch.full_like(var, 0.05)), [], x, Key(0))
    p = distil.predictive(task, student)(x)

    assert isinstance(p, Normal)
    assert (p.mean - mean).abs().mean() < 0.05
    assert (p.total - var).abs().mean() < 0.06  # a step in the variance is smoothed at its edge


def test_the_divergence_between_normals_is_the_closed_form() -> None:
    m, v, s, t = (torch.tensor([a]) for a in (0.3, 0.5, -0.2, 0.8))  # teacher (m, v), student (s, t)
    outputs = torch.stack([s, t.log()], -1)
    loss = MatchNormals().nll(outputs, torch.stack([m, v], -1), {})
    kl = torch.distributions.kl_divergence(
        torch.distributions.Normal(m, v.sqrt()), torch.distributions.Normal(s, t.sqrt())
    )
    torch.testing.assert_close(loss, kl + 0.5 * (v.log() + 1))  # KL + ½(log v + 1): the teacher's entropy less ½ log 2π


def test_widening_doubles_the_last_layer_alone() -> None:
    model = co.models.mlp(3, 2, hidden=(4,))
    shapes = [tuple(p.shape) for p in widen(model).parameters()]
    assert shapes == [(4, 3), (4,), (4, 4), (4,)]
    assert widen(nn.Linear(3, 1)).out_features == 2
    assert [tuple(p.shape) for p in model.parameters()][-2:] == [(2, 4), (2,)]


@pytest.mark.parametrize("name", ["mixture", "bcm", "beta"])
@pytest.mark.parametrize("problem", ["classification", "regression"])
def test_every_pool_can_be_distilled(name: str, problem: str) -> None:
    task, sites = tiny.PROBLEMS[problem]()
    method = dataclasses.replace(tiny.method(name), distil=co.aggregation.Distil(co.Adam(epochs=3, batch=5)))  # type: ignore[call-arg]

    result = co.run(method, task, sites)

    assert isinstance(result.state.posterior, Point)
    assert result.report["needs"] == ("labels" if name == "beta" else "inputs")


def test_without_inputs_a_student_is_refused() -> None:
    task, sites = tiny.classification()
    method = dataclasses.replace(tiny.method("bcm"), distil=co.aggregation.Distil())
    with pytest.raises(co.InputError, match="unlabelled rows"):
        co.run(method, task, dataclasses.replace(sites, inputs=None))


def test_swa_averages_the_ends_of_its_cycles() -> None:
    swa = SWA(rate=0.1, low=0.05, begin=3, every=2, momentum=0.0)
    vector, state = torch.tensor([1.0]), swa.init(torch.tensor([1.0]))
    seen = []
    for i in range(8):
        vector, state = swa.step(vector, torch.tensor([1.0]), state, At(0, 0.0, torch.tensor(1.0), Key(0), i))
        seen.append(vector.item())
    # steps 1–3 at 0.1, then cycles (0.1, 0.05): ends after steps 5 and 7
    assert seen == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.55, 0.45, 0.4, 0.3])
    assert state[2].item() == pytest.approx((0.55 + 0.4) / 2)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_fedpas_delta_equals_the_dense_inverse(count: int) -> None:
    g = torch.Generator().manual_seed(count)
    samples, theta, rho = (
        torch.randn(count, 6, generator=g, dtype=torch.float64),
        torch.randn(6, generator=g, dtype=torch.float64),
        0.4,
    )
    r = 1 / (1 + (count - 1) * rho)
    covariance = samples.T.cov() if count > 1 else torch.zeros(6, 6, dtype=torch.float64)
    shrunk = r * torch.eye(6, dtype=torch.float64) + (1 - r) * covariance

    expected = torch.linalg.solve(shrunk, theta - samples.mean(0))

    torch.testing.assert_close(delta(theta, samples, rho), expected, rtol=1e-12, atol=1e-12)


def test_fedpa_with_one_sample_is_fedavg() -> None:
    task, sites = tiny.classification()
    one = co.CyclicalSGHMC(epochs=2, cycles=1, samples=1, keep=1, batch=16)
    averaged = co.run(co.methods.FedAvg(one), task, sites, rounds=1)
    posterior_averaged = co.run(co.methods.FedPA(one), task, sites, rounds=1)
    mean = tree.map(lambda leaf: leaf[0], averaged.state.posterior.params)  # its one sample
    for a, b in zip(mean.values(), posterior_averaged.state.posterior.params.values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class Exact:
    """Draws from the exact posterior of Bayesian linear regression, with the moments made exact."""

    count: int = 400
    noise: float = 0.25

    def __call__(self, task: co.Task, start: Posterior, client: Client) -> Samples:
        x, y = client.data.x, client.data.y
        prior = torch.eye(x.shape[1], dtype=x.dtype)
        precision = x.T @ x / self.noise + prior
        mean = torch.linalg.solve(precision, x.T @ y / self.noise)
        draws = client.key.normal((self.count, x.shape[1]), x)
        draws = draws - draws.mean(0)
        whitened = draws @ torch.linalg.inv(torch.linalg.cholesky(draws.T.cov())).T
        lower = torch.linalg.cholesky(torch.linalg.inv(precision))
        return Samples({"weight": (mean + whitened @ lower.T).unsqueeze(1)})


def test_ep_mcmc_reaches_the_closed_form_global_posterior() -> None:
    rows = co.datasets.linear_gaussian(n=120, features=3, noise=0.5, seed=4)
    sites = rows.split(co.splits.iid(), sites=4, calibration=0, seed=1).to(torch.float64)
    task = co.regression(nn.Linear(3, 1, bias=False).double(), noise=0.25)
    whole = sites.pooled().train[0]
    precision = whole.x.T @ whole.x / 0.25 + torch.eye(3, dtype=torch.float64)
    mean = torch.linalg.solve(precision, whole.x.T @ whole.y / 0.25)

    draws = 200_000
    method = co.methods.EPMCMC(Exact(), fit=co.distributions.posterior.dense_moments, draws=draws)
    server = Server(None, None, Key(2), len(sites))
    state = method.init(task, server)
    replies = Sequential(sites.train).gather(method, task, method.broadcast(state), range(4), Turn(0, Key(3)))
    found = dense_moments(method.aggregate(task, state, replies, server).posterior)

    # 200 000 draws: standard errors of the mean about 2e-4 and of the covariance below 1e-4.
    torch.testing.assert_close(found.mean, mean, atol=1.5e-3, rtol=0)
    torch.testing.assert_close(torch.linalg.inv(found.precision), torch.linalg.inv(precision), atol=5e-4, rtol=0)


def test_kernel_densities_multiply_as_on_a_grid() -> None:
    # Three clients, the first with two modes: the product of their densities over the prior squared, by quadrature.
    key, prior = Key(5), Isotropic(4.0).gaussian({"a": torch.zeros(1)})
    centres = (torch.tensor([-1.0, 1.0]).repeat(20), torch.full((30,), 0.5), torch.zeros(50))
    clients = [Samples({"a": (c + 0.6 * key.fold(k).normal((len(c),), c)).unsqueeze(1)}) for k, c in enumerate(centres)]
    grid = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    log_density = grid**2 / 4.0  # p(θ)^−2, whose exponent is +2·θ²/(2·4)
    for client in clients:
        s = client.params["a"].double()
        h = s.std() * len(s) ** -0.2
        log_density += torch.logsumexp(-((grid - s) ** 2) / (2 * h**2), 0)
    density = torch.softmax(log_density, 0)
    mean, square = density @ grid, density @ grid**2

    found = multiply_kernels(clients, prior, 6000, 12, Key(6)).double().squeeze(1)
    assert found.mean() == pytest.approx(float(mean), abs=0.02)  # a standard error is 0.004
    assert found.var() == pytest.approx(float(square - mean**2), rel=0.08)


def test_ep_mcmc_by_kernels_comes_near_a_conjugate_posterior_and_refuses_a_fit() -> None:
    rows = co.datasets.linear_gaussian(n=80, features=2, noise=0.5, seed=4)
    sites = rows.split(co.splits.iid(), sites=3, calibration=0, seed=1).to(torch.float64)
    task = co.regression(nn.Linear(2, 1, bias=False).double(), noise=0.25)
    whole = sites.pooled().train[0]
    covariance = torch.linalg.inv(whole.x.T @ whole.x / 0.25 + torch.eye(2, dtype=torch.float64))
    result = co.run(co.methods.EPMCMC(Exact(), draws=2000, sweeps=20), task, sites, scored=False)
    found = result.state.posterior.params["weight"].squeeze(1)
    away = (found.mean(0) - covariance @ whole.x.T @ whole.y / 0.25) / covariance.diagonal().sqrt()
    assert away.abs().max() < 0.2
    assert (found.var(0) / covariance.diagonal()).min() > 0.9  # kernels widen it a little
    assert (found.var(0) / covariance.diagonal()).max() < 1.3
    with pytest.raises(InputError, match="have no `fit`"):
        co.methods.EPMCMC(fit=dense_moments, sweeps=5)


def test_a_full_covariance_needs_enough_samples() -> None:
    with pytest.raises(co.InputError, match="needs more than 6 samples"):
        dense_moments(Samples({"a": torch.randn(4, 6)}))


def test_fedpa_converges_to_the_mean_of_the_product() -> None:
    # Two clients with Gaussian posteriors N(mₖ, Sₖ), exact samples, ρ large: the fixed point of Σ Δₖ = 0 with equal
    # sizes solves Σₖ Σ̂ₖ⁻¹(θ − mₖ) = 0, whatever the server's optimiser.
    g = torch.Generator().manual_seed(0)
    samples = [torch.randn(30, 3, generator=g, dtype=torch.float64) * torch.tensor([1.0, 2.0, 0.5]) + k for k in (0, 1)]
    rho, count = 0.9, 30
    r = 1 / (1 + (count - 1) * rho)
    inverses = [torch.linalg.inv(r * torch.eye(3, dtype=torch.float64) + (1 - r) * s.T.cov()) for s in samples]
    expected = torch.linalg.solve(
        inverses[0] + inverses[1], sum(i @ s.mean(0) for i, s in zip(inverses, samples, strict=True))
    )
    theta = torch.zeros(3, dtype=torch.float64)
    for _ in range(3000):
        theta = theta - 0.1 * sum(delta(theta, s, rho) for s in samples) / 2
    torch.testing.assert_close(theta, expected, atol=1e-9, rtol=1e-9)


def quadratic(centre: float) -> tuple[co.Task, Data]:
    task = co.regression(nn.Linear(1, 1, bias=False), noise=1.0, prior=Isotropic(1e12))
    return task, Data.of(torch.ones(4, 1), torch.full((4,), centre))


def point(value: float) -> Point:
    return Point({"weight": torch.full((1, 1), value)})


def test_fedprox_takes_the_steps_of_its_box() -> None:
    task, data = quadratic(1.0)
    method = co.methods.FedProx(co.SGD(rate=0.5, momentum=0.0, epochs=2, batch=10), mu=0.4)
    reply = method.local(task, point(0.0), Client(data, (), Key(0)))
    # θ₁ = ½·1 = ½; gradient there (½ − 1) + 0.4·½ = −0.3; θ₂ = 0.65.
    assert float(reply.send.params["weight"]) == pytest.approx(0.65)


def test_fedyogi_takes_the_steps_of_its_box() -> None:
    task, data = quadratic(1.0)
    method = co.methods.FedYogi(co.SGD(rate=0.5, momentum=0.0, epochs=1, batch=10), rate=0.1, tau=0.1)
    server = Server(None, None, Key(0), 1)
    state = method.init(task, server)._replace(posterior=point(0.0))
    x, m, v = 0.0, 0.0, 0.1**2
    for t in range(3):
        replies = Sequential([data]).gather(method, task, method.broadcast(state), [0], Turn(t, Key(0)))
        state = method.aggregate(task, state, replies, server)
        step = 0.5 * (1 - x)  # one local step towards 1
        m = 0.9 * m + 0.1 * step
        v = v - 0.01 * step**2 * (1 if v > step**2 else -1)
        x = x + 0.1 * m / (v**0.5 + 0.1)
    assert float(state.posterior.params["weight"]) == pytest.approx(x, abs=1e-6)


def test_fedavgm_and_fedadam_take_the_steps_of_their_boxes() -> None:
    task, data = quadratic(1.0)
    server, local = Server(None, None, Key(0), 1), co.SGD(rate=0.5, momentum=0.0, epochs=1, batch=10)
    heavy, adam = co.methods.FedAvgM(local, rate=0.8, momentum=0.5), co.methods.FedAdam(local, rate=0.1, tau=0.1)
    states = [m.init(task, server)._replace(posterior=point(0.0)) for m in (heavy, adam)]
    x, velocity = 0.0, 0.0
    z, m, v = 0.0, 0.0, 0.1**2
    for t in range(3):
        for i, method in enumerate((heavy, adam)):
            replies = Sequential([data]).gather(method, task, method.broadcast(states[i]), [0], Turn(t, Key(0)))
            states[i] = method.aggregate(task, states[i], replies, server)
        velocity = 0.5 * velocity + 0.5 * (x - 1)  # one local step moves half the way to 1
        x -= 0.8 * velocity
        step = 0.5 * (1 - z)
        m, v = 0.9 * m + 0.1 * step, 0.99 * v + 0.01 * step**2
        z += 0.1 * m / (v**0.5 + 0.1)
    assert float(states[0].posterior.params["weight"]) == pytest.approx(x, abs=1e-6)
    assert float(states[1].posterior.params["weight"]) == pytest.approx(z, abs=1e-6)


def test_equal_weights_ignore_sizes() -> None:
    _, few = quadratic(0.0)
    task, many = quadratic(2.0)
    double = Data.of(torch.cat([many.x, many.x]), torch.cat([many.y, many.y]))
    method = co.methods.FedAvg(co.SGD(rate=1.0, momentum=0.0, epochs=1, batch=10), equal=True)
    replies = Sequential([few, double]).gather(method, task, point(5.0), [0, 1], Turn(0, Key(0)))
    state = method.aggregate(task, State(point(5.0)), replies, Server(None, None, Key(0), 2))
    assert float(state.posterior.params["weight"]) == pytest.approx(1.0, abs=1e-5)  # by size: 4/3


def test_the_committee_machine_is_the_average_of_logits_to_the_power_of_the_clients() -> None:
    """With a prior that tells no class apart: so both choose the same classes, and differ in how sure they are."""
    clients = [Categorical(Key(k).normal((7, 4)).log_softmax(-1)) for k in range(5)]
    uniform = Categorical(torch.zeros(7, 4).log_softmax(-1))
    averaged = logarithmic(clients, torch.ones(5)).log_probs  # type: ignore[attr-defined]
    multiplied = product(clients, uniform).log_probs  # type: ignore[attr-defined]
    assert torch.allclose(multiplied, (5 * averaged).log_softmax(-1), atol=1e-5)
    assert torch.equal(multiplied.argmax(-1), averaged.argmax(-1))


def test_the_average_of_logits_is_the_logarithmic_pool() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 4, generator=g)
    pooled = logarithmic([Categorical(z.log_softmax(-1)) for z in logits], torch.ones(3))
    assert isinstance(pooled, Categorical)
    torch.testing.assert_close(pooled.log_probs, logits.mean(0).log_softmax(-1))


def test_shared_powers_are_the_generalised_product_and_robust_ones_fall_back_to_the_prior() -> None:
    prior = Categorical(torch.full((1, 3), 1 / 3).log())
    sure = Categorical(torch.tensor([[0.7, 0.2, 0.1]]).log())
    both = [sure, sure]
    gpoe = product(both, prior, powers=shared(both, prior))
    torch.testing.assert_close(gpoe.log_probs, sure.log_probs)  # type: ignore[union-attr]
    ignorant = [prior, prior]
    torch.testing.assert_close(product(ignorant, prior, powers=robust(ignorant, prior)).log_probs, prior.log_probs)  # type: ignore[union-attr]
    # Normals: βₖ = ½ log(σ_p²/σₖ²); precision Σ βₖ/σₖ² + (1 − Σβₖ)/σ_p² (Deisenroth and Ng 2015, eq. 20)
    one = torch.ones(1)
    parts, wide = [Normal(one, 0.5 * one, 0 * one), Normal(0 * one, 0.25 * one, 0 * one)], Normal(0 * one, one, 0 * one)
    beta = [0.5 * torch.log(torch.tensor(2.0)), 0.5 * torch.log(torch.tensor(4.0))]
    precision = beta[0] / 0.5 + beta[1] / 0.25 + (1 - sum(beta))
    pooled = product(parts, wide, powers=robust(parts, wide))
    torch.testing.assert_close(pooled.var, (1 / precision).reshape(1))  # type: ignore[union-attr]


def test_fedkt_counts_votes_as_its_box_says() -> None:
    # One feature; model with weight (a, b): logits (a·x, b·x). At x = 1 the class of the larger weight is said.
    task = co.classification(nn.Linear(1, 2, bias=False))
    says = {0: torch.tensor([[1.0], [0.0]]), 1: torch.tensor([[0.0], [1.0]])}
    clients = [(0, 0), (1, 1), (1, 0)]  # agree on 0, agree on 1, disagree
    posteriors = tuple(Samples({"weight": torch.stack([says[a], says[b]])}) for a, b in clients)
    state = Pooled(task.init(Key(0)), posteriors, torch.ones(3))
    x = torch.ones(1, 1)
    assert co.methods.FedKT().votes(task, state, x).tolist() == [[2.0, 2.0]]
    assert co.methods.FedKT(consistent=False).votes(task, state, x).tolist() == [[3.0, 3.0]]


def test_fedkts_parts_are_disjoint_and_complete() -> None:
    seen = []

    @dataclasses.dataclass(frozen=True)
    class Spy:
        def __call__(self, task: co.Task, start: Point, client: Client) -> Point:
            seen.append(client.data.w)
            return start

    task, sites = tiny.classification()
    co.methods.FedKT(Spy(), models=3).local(task, task.init(Key(0)), Client(sites.train[0], (), Key(1)))
    torch.testing.assert_close(sum(seen), sites.train[0].w)
    assert max(w.sum() for w in seen) - min(w.sum() for w in seen) <= 1


def test_fedkts_teachers_have_disjoint_rows_and_their_model_learns_what_most_of_them_say() -> None:
    # One feature, always 1; a model's weights are how often each class is among its rows, so it says the commonest.
    calls: list[Data] = []

    @dataclasses.dataclass(frozen=True)
    class Commonest:
        def __call__(self, task: co.Task, start: Point, client: Client) -> Point:
            calls.append(client.data)
            counts = torch.nn.functional.one_hot(client.data.y, 2).T.float() @ client.data.w
            return Point({"weight": counts.unsqueeze(1)})

    task = co.classification(nn.Linear(1, 2, bias=False))
    rows = Data.of(torch.ones(60, 1), torch.arange(60) % 2)
    inputs = torch.ones(7, 1)
    method = co.methods.FedKT(Commonest(), models=2, teachers=3)
    server = Server(inputs, None, Key(0), 1)
    reply = method.local(task, method.broadcast(method.init(task, server)), Client(rows, (), Key(4)))

    teachers, pupils = [c for i, c in enumerate(calls) if i % 4 != 3], calls[3::4]
    torch.testing.assert_close(sum(t.w for t in teachers), rows.w)
    assert [int(t.w.sum()) for t in teachers] == [10] * 6
    for s, pupil in enumerate(pupils):
        says = [int(t.w @ (t.y == 1).float() > 5) for t in teachers[3 * s : 3 * s + 3]]  # a tie says the first
        assert pupil.x is inputs and pupil.y.tolist() == [int(sum(says) >= 2)] * 7
        assert reply.send.params["weight"][s].argmax() == int(sum(says) >= 2)


@pytest.mark.parametrize("distil", [None, co.aggregation.Distil(co.Adam(epochs=2))])
def test_fedkts_inner_tier_is_the_same_on_every_engine_and_sends_the_inputs(
    distil: co.aggregation.Distil | None,
) -> None:
    task, sites = tiny.classification()
    method = co.methods.FedKT(co.SGD(epochs=2), teachers=2, distil=distil)
    one, many = (co.run(method, task, sites, engine=engine) for engine in ("sequential", "vectorised"))
    for a, b in zip(one.state.posteriors, many.state.posteriors, strict=True):
        torch.testing.assert_close(a.params, b.params, rtol=1e-4, atol=1e-5)
    plain = co.run(co.methods.FedKT(co.SGD(epochs=2), distil=distil), task, sites, engine="sequential")
    more = one.report["ledger"]["down_floats"] - plain.report["ledger"]["down_floats"]
    assert sites.inputs is not None and more == len(sites) * sites.inputs.numel()
    assert Needs.INPUTS in needs(method) and shows_inputs(method)
    assert not shows_inputs(dataclasses.replace(method, teachers=1))
    with pytest.raises(InputError, match=r"needs .*unlabelled rows"):
        co.run(dataclasses.replace(method, distil=None), task, dataclasses.replace(sites, inputs=None))
    with pytest.raises(InputError, match="teachers=0 trains nothing"):
        co.methods.FedKT(teachers=0)


@pytest.mark.parametrize(
    ("method", "copies"),
    [
        (co.methods.FedAvg(), 1),
        (co.methods.FedProx(), 1),
        (co.methods.FedYogi(), 1),
        (co.methods.FedPA(), 1),
        (co.methods.Scaffold(), 2),
        (co.methods.Mixture(), "keep"),
        (co.methods.BCM(), "keep"),
        (co.methods.BetaPredictiveBayes(), "keep"),
        (co.methods.EPMCMC(), "keep"),
        (co.methods.OneShotFL(), 1),
        (co.methods.FedKT(), "models"),
    ],
)
def test_bytes_equal_the_formula(method: co.Method, copies: int | str) -> None:
    task, sites = tiny.classification()
    short = tiny.shortened(method)
    times = {"keep": 2, "models": getattr(short, "models", 0)}.get(copies, copies)  # type: ignore[call-overload]
    parameters = sum(p.numel() for p in task.like.values())

    result = co.run(short, task, sites, rounds=1)

    assert all(nbytes(r.payload) == times * parameters * 4 for r in result.replies)  # S·P·4 up
    assert result.report["ledger"]["up_bytes"] == len(sites) * times * parameters * 4


@pytest.mark.parametrize("name", ["mixture", "bcm", "beta", "ep_mcmc", "oneshot", "fedkt", "fedpa"])
def test_one_client_and_a_client_with_one_class(name: str) -> None:
    task, sites = tiny.classification()
    for some in (sites.pooled(), _one_class(sites)):
        result = co.run(tiny.method(name), task, some, rounds=1)
        assert all(torch.isfinite(torch.tensor(v)) for v in result.metrics.values())


def _one_class(sites: co.Sites) -> co.Sites:
    first = sites.train[0]
    kept = Data(*(leaf[first.y == first.y[0]] for leaf in first))
    return dataclasses.replace(sites, train=(kept, *sites.train[1:]))


def test_a_teacher_with_certain_predictions_can_be_learned() -> None:
    task, sites = tiny.classification()
    certain = Categorical(torch.tensor([[0.0, -torch.inf]]).expand(len(sites.train[0].x), 2))
    student = co.aggregation.Distil(co.Adam(epochs=2), co.aggregation.at_random).student(
        task, lambda _: certain, [], sites.train[0].x, Key(0)
    )
    assert tree.all_finite(student)


def test_the_reversed_divergence_is_that_of_torch_and_has_its_gradients() -> None:
    outputs = Key(0).normal((6, 2)).requires_grad_()
    y = torch.stack([Key(1).normal((6,)), Key(2).uniform(6) + 0.5], -1)
    student = torch.distributions.Normal(outputs[:, 0], outputs[:, 1].exp().sqrt())
    teacher = torch.distributions.Normal(y[:, 0], y[:, 1].sqrt())
    divergence = torch.distributions.kl_divergence(student, teacher)

    found = SeekNormals().nll(outputs, y, {})

    constant = 0.5 * (y[:, 1].log() - 1)
    torch.testing.assert_close(found + constant, divergence)
    (expected,) = torch.autograd.grad(divergence.sum(), outputs)
    torch.testing.assert_close(SeekNormals().gradients(outputs.detach(), y, {})[0], expected)


def test_a_reversed_student_is_taught_by_the_reversed_divergence() -> None:
    task, _ = tiny.regression()
    assert type(co.aggregation.Distil(reverse=True).student_task(task).likelihood) is SeekNormals
    assert type(co.aggregation.Distil().student_task(task).likelihood) is MatchNormals
    with pytest.raises(InputError, match="reverse=False"):
        co.aggregation.Distil(reverse=True).student_task(tiny.classification()[0])


@pytest.mark.parametrize("drawn", [1, 2, 4])
def test_fedpas_delta_leaves_out_what_was_not_drawn(drawn: int) -> None:
    theta, samples = Key(0).normal((5,)), Key(1).normal((4, 5))
    mask = torch.arange(4) >= 4 - drawn
    torch.testing.assert_close(delta(theta, samples, 0.4, mask), delta(theta, samples[4 - drawn :], 0.4))


@pytest.mark.parametrize("start", [at_average, at_client])
def test_a_student_of_clients_that_send_no_weights_starts_from_fresh_ones(start: Start) -> None:
    """Evidence pooling without weights has nothing to start a student from; it ended with a traceback."""
    sites = co.datasets.moons(n=80).split(co.splits.iid(), sites=2, test=0.25, inputs=10, seed=0)
    task = co.classification(co.models.mlp(sites.features, sites.classes, hidden=(4,)))
    distil = Distil(co.Adam(epochs=1), start=start)

    result = co.run(co.methods.EvidenceLogits(co.SGD(epochs=1), distil=distil), task, sites, seed=0)

    assert result.metrics["nll"] > 0
