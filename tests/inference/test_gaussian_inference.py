"""Gaussian posteriors against closed forms: Laplace, SWAG, mean-field VI, their product and PVI."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

import consilience as co
from consilience import tree
from consilience.data import Data
from consilience.data.datasets.synthetic import linear_gaussian
from consilience.distributions.posterior import Dense, Gaussian, Natural, natural
from consilience.distributions.prior import Believed, Isotropic
from consilience.inference import AdamSteps, Descent
from consilience.inference.divergence import divergence
from consilience.inference.laplace import fisher, ggn, sum_curvature
from consilience.key import Key
from consilience.messages import Client, Server
from consilience.models.variational import BayesianConv2d, log_variances
from consilience.runs.engines.vectorised import pad_rows

NOISE, VAR = 0.5, 1.5  # standard deviation of the noise, variance of the prior
# Full batches on a quadratic: every step shortens the way by √momentum, 0.8^100 = 2e-10 is left.
TO_THE_MODE = co.SGD(rate=0.1, momentum=0.8, epochs=200, batch=10_000)


def conjugate(clients: int = 3) -> tuple[co.Task, co.Sites]:
    """Bayesian linear regression with features that are correlated, in double precision."""
    sites = linear_gaussian(n=150, features=3, noise=NOISE, seed=1).split(
        co.splits.iid(), clients, calibration=0, seed=2
    )
    mix = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 1.0]])
    sites = sites.map_x(lambda x: x @ mix).to(torch.float64)
    return co.regression(co.models.linear(3).double(), noise=NOISE**2, prior=Isotropic(VAR)), sites


def factor(data: Data) -> tuple[Tensor, Tensor]:
    """The likelihood's precision XᵀX/σ² and linear term Xᵀy/σ²; the last column is the intercept's."""
    x = torch.cat([data.x, torch.ones(len(data.x), 1, dtype=data.x.dtype)], 1)
    return x.T @ x / NOISE**2, x.T @ data.y / NOISE**2


def exact(data: Data) -> Dense:
    precision, linear = factor(data)
    precision = precision + torch.eye(4, dtype=torch.float64) / VAR
    return Dense(torch.linalg.solve(precision, linear), precision)


def client_of(data: Data, seed: int = 3) -> Client:
    return Client(data, (), Key(seed))


# --- Laplace ---


def test_laplace_is_exact_on_bayesian_linear_regression() -> None:
    task, sites = conjugate()
    truth = exact(sites.train[0])

    dense = co.Laplace(TO_THE_MODE, dense=True)(task, task.init(Key(0)), client_of(sites.train[0]))
    diagonal = co.Laplace(TO_THE_MODE)(task, task.init(Key(0)), client_of(sites.train[0]))

    assert isinstance(dense, Dense) and isinstance(diagonal, Gaussian)
    torch.testing.assert_close(dense.mean, truth.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(dense.precision, truth.precision, rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(tree.ravel(diagonal.mean), truth.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(1 / tree.ravel(diagonal.var), truth.precision.diagonal(), rtol=1e-10, atol=1e-9)


def logistic() -> tuple[co.Task, Data, dict[str, Tensor]]:
    task, sites = tiny.classification(torch.float64)
    task = co.classification(co.models.linear(2, 2).double())
    return task, sites.train[0], task.init(Key(1)).params


def test_ggn_is_the_hessian_of_a_linear_model() -> None:
    task, data, params = logistic()

    factors = ggn(task, params, data)

    flat = lambda v: task.likelihood.nll(task.outputs(tree.unravel(v, params), data.x), data.y, params).sum()
    hessian = torch.autograd.functional.hessian(flat, tree.ravel(params))
    torch.testing.assert_close(factors.T @ factors, hessian, rtol=1e-8, atol=1e-8)


def test_empirical_fisher_is_the_sum_of_squared_gradients() -> None:
    task, data, params = logistic()

    found = (fisher(task, params, data) ** 2).sum(0)

    expected = torch.zeros_like(found)
    for x, y in zip(data.x, data.y, strict=True):  # row by row, by plain autograd
        v = tree.ravel(params).requires_grad_()
        task.likelihood.nll(task.outputs(tree.unravel(v, params), x[None]), y[None], params).sum().backward()
        expected += v.grad**2  # type: ignore[operator]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("curvature", [ggn, fisher])
def test_padding_has_no_curvature(curvature: Any) -> None:
    task, data, params = logistic()
    long = pad_rows(data, len(data.w) + 7)
    torch.testing.assert_close((curvature(task, params, long) ** 2).sum(0), (curvature(task, params, data) ** 2).sum(0))


@pytest.mark.parametrize("curvature", [ggn, fisher])
@pytest.mark.parametrize("problem", tiny.PROBLEMS)
def test_a_perceptrons_diagonal_is_that_of_its_rows_matrices(curvature: Any, problem: str) -> None:
    task, sites = tiny.PROBLEMS[problem](torch.float64)
    params = task.init(Key(1)).params
    data = sites.train[0]._replace(w=torch.linspace(0.0, 2.0, len(sites.train[0].w), dtype=torch.float64))

    found = sum_curvature(task, params, data, curvature)

    torch.testing.assert_close(found, (curvature(task, params, data) ** 2).sum(0), rtol=1e-10, atol=1e-12)


def test_laplace_leaves_a_learned_noise_a_point() -> None:
    task, sites = tiny.regression()
    found = co.Laplace(co.SGD(epochs=1))(task, task.init(Key(0)), client_of(sites.train[0]))
    assert set(found.mean) - set(found.var) == {"likelihood.log_noise"}
    with pytest.raises(co.InputError, match="needs a known noise"):
        co.Laplace(co.SGD(epochs=1), dense=True)(task, task.init(Key(0)), client_of(sites.train[0]))


# --- SWAG ---


def test_swag_has_the_moments_of_its_snapshots() -> None:
    task, sites = tiny.classification(torch.float64)
    start, client = task.init(Key(0)), client_of(sites.train[0])

    found = co.SWAG(rate=0.05, epochs=5, burn=2, batch=16)(task, start, client)

    # Snapshots after 3, 4 and 5 epochs: where SGD with the same key stands after so many.
    ends = [tree.ravel(co.SGD(rate=0.05, epochs=e, batch=16)(task, start, client).params) for e in (3, 4, 5)]
    torch.testing.assert_close(tree.ravel(found.mean), torch.stack(ends).mean(0))
    expected = torch.stack(ends).var(0, correction=0).clamp(min=math.exp(-20))
    torch.testing.assert_close(tree.ravel(found.var), expected)
    with pytest.raises(co.InputError, match="at least two snapshots"):
        co.SWAG(epochs=3, burn=2)(task, start, client)


# --- The product, and PVI ---


def test_the_product_of_laplaces_is_the_global_posterior() -> None:
    task, sites = conjugate()
    truth = exact(sites.pooled().train[0])

    result = co.run(co.methods.GaussianProduct(co.Laplace(TO_THE_MODE, dense=True)), task, sites, scored=False)

    torch.testing.assert_close(result.state.posterior.mean, truth.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(result.state.posterior.precision, truth.precision, rtol=1e-9, atol=1e-9)


@dataclass(frozen=True)
class ExactConjugate:
    """The best Gaussian of its family, in closed form: with any Gaussian prior, here PVI's cavity.

    A mean-field q for a Gaussian target N(m, Λ⁻¹) has mean m and precisions diag Λ (Bishop 2006, §10.1.2).
    """

    dense: bool = False

    def __call__(self, task: co.Task, start: Any, client: Client) -> Gaussian | Dense:
        assert isinstance(task.prior, Believed)
        likelihood, shift = factor(client.data)
        belief = task.prior.belief
        if self.dense:
            precision = likelihood + belief.precision
            return Dense(torch.linalg.solve(precision, shift + belief.linear), precision)
        own, linear = tree.ravel(belief.precision), tree.ravel(belief.linear)
        mean = torch.linalg.solve(likelihood + torch.diag(own), shift + linear)
        return Gaussian(tree.unravel(mean, task.like), tree.unravel(1 / (likelihood.diagonal() + own), task.like))


def test_pvi_reaches_the_exact_posterior_in_one_undamped_round() -> None:
    task, sites = conjugate()
    truth = exact(sites.pooled().train[0])
    method = co.methods.PVI(co.Laplace(TO_THE_MODE, dense=True), damping=1.0, dense=True)

    for rounds in (1, 2):  # and stays there
        found = co.run(method, task, sites, rounds=rounds, scored=False).state.posterior
        torch.testing.assert_close(found.precision, truth.precision, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.mean, truth.mean, rtol=1e-6, atol=1e-8)


def test_damping_halves_what_is_missing_every_round() -> None:
    task, sites = conjugate()
    whole, shift = factor(sites.pooled().train[0])
    for rounds in (1, 2, 3):
        found = co.run(
            co.methods.PVI(ExactConjugate(dense=True), damping=0.5, dense=True),  # type: ignore[arg-type]
            *(task, sites),
            rounds=rounds,
            engine="sequential",
            scored=False,
        ).state
        # t ← t^½ (likelihood)^½ from t = 1: after r rounds the share 1 − 2⁻ʳ of every likelihood has arrived.
        arrived = 1 - 0.5**rounds
        prior = torch.eye(4, dtype=torch.float64) / VAR
        torch.testing.assert_close(found.natural.precision, prior + arrived * whole)
        torch.testing.assert_close(found.natural.linear, arrived * shift)


def test_mean_field_pvi_ends_at_the_mean_field_of_the_global_posterior() -> None:
    task, sites = conjugate()
    truth = exact(sites.pooled().train[0])

    found = co.run(
        co.methods.PVI(ExactConjugate()), task, sites, rounds=80, engine="sequential", scored=False
    ).state.posterior  # type: ignore[arg-type]

    # The fixed point is the global mean-field optimum (Ashman et al. 2022, Theorem 1): (1 − 1/3)⁸⁰ = 8e-15 is missing.
    torch.testing.assert_close(tree.ravel(found.mean), truth.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(1 / tree.ravel(found.var), truth.precision.diagonal(), rtol=1e-9, atol=1e-9)


def test_a_belief_is_the_gaussian_it_stands_for() -> None:
    like = {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)}
    q = Gaussian({"a": torch.tensor([1.0, -2.0]).double()}, {"a": torch.tensor([0.5, 2.0]).double()})
    belief = Believed(natural(q), like, Isotropic(3.0))
    theta = {"a": torch.tensor([0.3, 0.7]).double(), "b": torch.tensor([1.5]).double()}

    v = tree.ravel(theta).requires_grad_()
    belief.log_density(tree.unravel(v, like)).backward()

    expected = lambda p: (  # densities from torch; constants do not matter
        Normal(q.mean["a"], q.var["a"].sqrt()).log_prob(p["a"]).sum() + Normal(0, 3.0**0.5).log_prob(p["b"]).sum()
    )
    u = tree.ravel(theta).requires_grad_()
    expected(tree.unravel(u, like)).backward()
    torch.testing.assert_close(v.grad, u.grad)
    torch.testing.assert_close(belief.gradient(tree.ravel(theta)), -u.grad)  # type: ignore[operator]
    given = belief.gaussian(like)
    torch.testing.assert_close(given.mean["a"], q.mean["a"])
    torch.testing.assert_close(given.var["b"], torch.full((1,), 3.0).double())
    whole = Believed(Natural(torch.ones(3), 2 * torch.eye(3)), {}, Isotropic())
    torch.testing.assert_close(whole.gradient(torch.zeros(3)), -torch.ones(3))


# --- Mean-field variational inference ---


def test_mean_field_on_a_conjugate_task_is_the_mean_field_of_the_posterior() -> None:
    task, sites = conjugate(clients=1)
    truth = exact(sites.train[0])
    vi = co.MeanField(AdamSteps(rate=0.05), epochs=300, batch=40, start=-4.0, schedule=co.inference.cosine)

    found = vi(task, task.init(Key(0)), client_of(sites.train[0]))

    # Mean m and precisions diag Λ (Bishop 2006, §10.1.2); what is left is the last steps' noise.
    deviation = truth.precision.diagonal() ** -0.5
    assert float(((tree.ravel(found.mean) - truth.mean) / deviation).abs().max()) < 0.35
    ratio = tree.ravel(found.var) * truth.precision.diagonal()
    assert float(ratio.log().abs().max()) < 0.2


def test_the_divergence_is_torchs_and_its_gradient_its_gradient() -> None:
    mean = {"a": torch.tensor([0.3, -1.0]).double(), "point": torch.tensor([2.0]).double()}
    params = {**mean, "a_log_var": torch.tensor([-1.0, 0.5]).double()}
    weight = torch.tensor(0.7, dtype=torch.float64)
    kl = divergence(Isotropic(2.0), mean, ("a",), weight, low=-20.0)

    only = divergence(Isotropic(2.0), {"a": mean["a"]}, ("a",), torch.tensor(1.0), low=-20.0)
    q = Normal(mean["a"], (params["a_log_var"] / 2).exp())
    expected = kl_divergence(q, Normal(torch.zeros(2).double(), 2.0**0.5)).sum()
    torch.testing.assert_close(-only.log_density({k: v for k, v in params.items() if k != "point"}), expected)
    gradient = kl.gradient(tree.ravel(params))
    v = tree.ravel(params).requires_grad_()
    kl.log_density(tree.unravel(v, params)).backward()
    torch.testing.assert_close(gradient, -v.grad)  # type: ignore[operator]
    assert gradient[2] == pytest.approx(2.0 / 2.0)  # θ/v: a point keeps its prior, whatever the weight of the KL
    torch.testing.assert_close(gradient[:2], weight * mean["a"] / 2)
    torch.testing.assert_close(gradient[3:], weight * 0.5 * (params["a_log_var"].exp() / 2 - 1))


def one_fit(vi: co.MeanField, progress: float = 0.0) -> tuple[Gaussian, Gaussian]:
    """Two rounds by hand on one client: the second starts where the first ended."""
    task, sites = tiny.classification()
    client = client_of(sites.train[0])._replace(progress=torch.tensor(progress, dtype=torch.float64))
    first = vi(task, task.init(Key(0)), client)
    return first, vi(task, first, client)


def test_the_released_log_variances_are_never_learned_and_decay_alone_moves_them() -> None:
    released = co.MeanField(Descent(0.01, 0.9), epochs=2, batch=16, variant="ozer2022")
    first, second = one_fit(released)
    for found in (first, second):
        assert set(found.var) == {"0.weight", "2.weight"}  # biases are points
        torch.testing.assert_close(tree.ravel(found.var), torch.full((20,), math.exp(-9)), rtol=1e-5, atol=0)
    printed, _ = one_fit(dataclasses.replace(released, variant="printed", start=-9.0))
    assert float((tree.ravel(printed.var).log() + 9).abs().max()) > 1e-4

    decayed, _ = one_fit(dataclasses.replace(released, optimiser=Descent(0.01), weight_decay=0.1))
    _, sites = tiny.classification()
    steps = 2 * math.ceil(len(sites.train[0].x) / 16)
    # Nothing but decay acts on α: α ← (1 − ηλ) α at every step.
    assert float(tree.ravel(decayed.var).log().mean()) == pytest.approx(-9 * (1 - 0.01 * 0.1) ** steps, rel=1e-5)


def test_the_floor_holds_and_is_reported() -> None:
    task, sites = tiny.classification()
    vi = co.MeanField(epochs=1, batch=16, start=-5.0, floor=-5.0, kl=0.0)  # without a prior variances shrink

    result = co.run(co.methods.VariationalAveraging(vi, rule=co.aggregation.cf), task, sites, rounds=2)

    low = [float(tree.ravel(r.payload.var).min()) for r in result.replies]
    assert min(low) >= math.exp(-5) * 0.999
    held = sum(int((tree.ravel(r.payload.var) <= math.exp(-5) * 1.001).sum()) for r in result.replies)
    assert held > 0 and result.report["diagnostics"]["floored"] == held
    assert result.report["diagnostics"]["spread"] == pytest.approx(co.aggregation.spread(result.state.posterior))


def test_warm_up_weighs_the_divergence_by_the_share_of_rounds_done() -> None:
    cold = co.MeanField(epochs=2, batch=16, kl=0.0)
    half = co.MeanField(epochs=2, batch=16, kl=0.5)
    warm = co.MeanField(epochs=2, batch=16, warm_up=0.5)
    for same, progress in ((cold, 0.0), (half, 0.25), (dataclasses.replace(cold, kl=1.0), 0.75)):
        torch.testing.assert_close(one_fit(warm, progress)[0], one_fit(same)[0])


# --- Bayesian layers ---


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_outputs_have_the_moments_of_drawn_weights(kind: str) -> None:
    plain = nn.Linear(6, 3) if kind == "linear" else nn.Conv2d(2, 3, 2)
    x = torch.randn(1, 6) if kind == "linear" else torch.randn(1, 2, 3, 3)
    layer = co.models.variational(plain, layers="all", start=-2.0).train()
    draws = 20_000

    made = layer(x.expand(draws, *x.shape[1:])).detach()

    # By drawing weights and biases instead, N(w, e⁻²) each: standard errors 1/√20 000 = 0.7 % and √(2/20 000) = 1 %.
    g = torch.Generator().manual_seed(1)
    own = {k: p + math.exp(-1) * torch.randn(draws, *p.shape, generator=g) for k, p in plain.named_parameters()}
    other = torch.func.vmap(lambda p: torch.func.functional_call(plain, p, (x,))[0])(own).detach()
    assert float(((made.mean(0) - other.mean(0)) / other.std(0)).abs().max()) < 0.05
    assert float((made.var(0) / other.var(0)).log().abs().max()) < 0.07


def test_a_variational_network_keeps_names_and_predicts_as_the_plain_one() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
    x = torch.randn(3, 1, 4, 4)
    for layers, expected in {
        "linear": {"3.weight", "3.bias", "5.weight", "5.bias"},
        "all": {"0.weight", "0.bias", "3.weight", "3.bias", "5.weight", "5.bias"},
        "0, 5": {"0.weight", "0.bias", "5.weight", "5.bias"},
    }.items():
        made = co.models.variational(plain, layers).eval()
        assert set(log_variances(made)) == expected
        assert {k for k, _ in plain.named_parameters()} <= {k for k, _ in made.named_parameters()}
        torch.testing.assert_close(made(x), plain(x))
    assert isinstance(co.models.variational(plain, ["0"])[0], BayesianConv2d)  # type: ignore[index]
    assert not log_variances(plain), "the user's own network is untouched"
    with pytest.raises(co.InputError, match="no layer of the kind 'linear'"):
        co.models.variational(nn.Sequential(nn.Conv2d(1, 2, 3)))
    with pytest.raises(co.InputError, match="'4'"):
        co.models.variational(plain, "4")


def test_a_users_variational_network_decides_which_layers_have_variances() -> None:
    _, sites = tiny.classification()
    task = co.classification(co.models.variational(co.models.mlp(2, 2, hidden=(5,)), layers="2"))
    assert set(task.like) == {"0.weight", "0.bias", "2.weight", "2.bias"}

    result = co.run(tiny.shortened(co.methods.VariationalAveraging()), task, sites, rounds=2)

    assert set(result.state.posterior.var) == {"2.weight", "2.bias"}
    members = result.predict(sites.all_test.x)
    assert float(members.epistemic.max()) > 0  # members are drawn


@pytest.mark.parametrize("name", ["MeanField", "Laplace", "SWAG", "SGLD"])
def test_every_gaussian_inference_can_be_merged_by_every_rule(name: str) -> None:
    task, sites = tiny.classification()
    inference = tiny.shortened(getattr(co, name)())
    result = co.run(co.methods.VariationalAveraging(inference), task, sites, rounds=1, scored=False)
    for rule in (co.aggregation.eaa, co.aggregation.gaa, co.aggregation.aalv, co.aggregation.ppa, co.aggregation.cf):
        for equal in (False, True):
            state = result.pool(co.methods.VariationalAveraging(inference, rule, equal), scored=False).state
            assert bool((tree.ravel(state.posterior.var) > 0).all())
            assert bool(torch.isfinite(task.predictive(state.posterior)(sites.all_test.x).log_probs).all())  # type: ignore[union-attr]


def test_the_sampled_population_is_near_the_exact_moments() -> None:
    task, sites = tiny.classification()
    result = co.run(
        tiny.shortened(co.methods.VariationalAveraging(rule=co.aggregation.ppa)), task, sites, rounds=1, scored=False
    )
    sampled = result.pool(dataclasses.replace(result.method, population=100_000), scored=False).state.posterior  # type: ignore[type-var]
    exact_ = result.state.posterior
    torch.testing.assert_close(tree.ravel(sampled.var), tree.ravel(exact_.var), rtol=0.05, atol=0)


def test_settings_that_do_not_exist_are_refused_before_training() -> None:
    task, sites = tiny.classification()
    with pytest.raises(co.InputError, match="belongs to the rule ppa"):
        co.run(co.methods.VariationalAveraging(rule=co.aggregation.cf, population=100), task, sites, rounds=1)
    with pytest.raises(co.InputError, match="variant called 'ozer'"):
        co.run(co.methods.VariationalAveraging(variant="ozer"), task, sites, rounds=1)
    with pytest.raises(co.InputError, match="variant called 'ozer'"):
        co.run(co.methods.VariationalAveraging(co.MeanField(variant="ozer")), task, sites, rounds=1)


def test_pvi_is_damped_by_the_number_of_clients_unless_told_otherwise() -> None:
    task, _ = tiny.classification()
    assert float(co.methods.PVI().init(task, Server(None, None, Key(0), 4)).damping) == 0.25


def test_running_statistics_are_points_whatever_inferred_them() -> None:
    _, sites = tiny.classification()
    task = co.classification(nn.Sequential(nn.Linear(2, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)))
    for inference in (co.MeanField(), co.Laplace(), co.SWAG(), co.SGLD()):
        method = co.methods.VariationalAveraging(tiny.shortened(inference))
        posterior = co.run(method, task, sites, rounds=1, scored=False).state.posterior
        assert {"1.running_mean", "1.running_var"} <= set(posterior.mean) - set(posterior.var)
