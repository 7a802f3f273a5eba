"""Closed forms: conjugate models, Gaussian identities, and the theorems of paper 004 with exact Gaussian processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF

import consilience as co
from consilience.data import Data
from consilience.data.datasets.synthetic import linear_gaussian
from consilience.distributions.posterior import Dense, Gaussian, draw, moments, multiply
from consilience.distributions.predictive import (
    Categorical,
    Normal,
    Powers,
    geometric,
    log_prob,
    maximise,
    mixture,
    product,
    robust,
    score,
    shared,
    tempered,
)
from consilience.distributions.prior import Flat, Isotropic
from consilience.key import Key
from consilience.messages import Server
from consilience.method import State
from consilience.metrics.evaluate import uncertainty
from consilience.runs.engines import Sequential, Turn

NOISE = 0.5


def conjugate(x: torch.Tensor, y: torch.Tensor, var: float) -> Dense:
    """Bayesian linear regression: precision XᵀX/σ² + I/v, mean its inverse times Xᵀy/σ²."""
    precision = x.T @ x / NOISE**2 + torch.eye(x.shape[1], dtype=x.dtype) / var
    return Dense(torch.linalg.solve(precision, x.T @ y / NOISE**2), precision)


@pytest.mark.parametrize("split", [co.splits.iid()])
@pytest.mark.parametrize("clients", [1, 3, 7])
def test_product_of_dense_posteriors_is_the_global_posterior(split: object, clients: int) -> None:
    sites = linear_gaussian(n=200, features=4, noise=NOISE, seed=1).split(
        co.splits.iid(), sites=clients, calibration=0, seed=2
    )
    sites = sites.to(torch.float64)
    var = 1.5
    prior = Dense(torch.zeros(4, dtype=torch.float64), torch.eye(4, dtype=torch.float64) / var)
    whole = sites.pooled().train[0]

    product_ = multiply([conjugate(d.x, d.y, var) for d in sites.train], prior)

    exact = conjugate(whole.x, whole.y, var)  # the prior counted once
    torch.testing.assert_close(product_.precision, exact.precision, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(product_.mean, exact.mean, rtol=1e-10, atol=1e-10)


def test_product_of_diagonal_gaussians_matches_the_dense_one() -> None:
    g = torch.Generator().manual_seed(0)
    means = torch.randn(3, 5, generator=g, dtype=torch.float64)
    variances = torch.rand(3, 5, generator=g, dtype=torch.float64) * 0.5 + 0.05
    prior = Gaussian({"a": torch.zeros(5, dtype=torch.float64)}, {"a": torch.full((5,), 2.0, dtype=torch.float64)})
    dense_prior = Dense(prior.mean["a"], torch.diag(1 / prior.var["a"]))

    diagonal = multiply([Gaussian({"a": m}, {"a": v}) for m, v in zip(means, variances, strict=True)], prior)
    dense = multiply([Dense(m, torch.diag(1 / v)) for m, v in zip(means, variances, strict=True)], dense_prior)

    torch.testing.assert_close(diagonal.mean["a"], dense.mean)
    torch.testing.assert_close(1 / diagonal.var["a"], dense.precision.diagonal())


def test_draws_have_the_gaussians_moments() -> None:
    like = {"a": torch.zeros(2), "b": torch.zeros(1)}
    precision = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.2], [0.0, 0.2, 4.0]])
    dense = Dense(torch.tensor([1.0, -2.0, 0.5]), precision)

    samples = draw(dense, Key(1), 200_000, like)

    flat = torch.cat([samples.params["a"], samples.params["b"]], 1)
    # standard errors: means ≤ 1.1/√200 000 = 0.0025, covariances about 0.005
    torch.testing.assert_close(flat.mean(0), dense.mean, atol=0.0125, rtol=0)
    torch.testing.assert_close(flat.T.cov(), torch.linalg.inv(precision), atol=0.025, rtol=0)
    diagonal = moments(samples)
    torch.testing.assert_close(diagonal.var["b"][0], torch.linalg.inv(precision)[2, 2], atol=0.01, rtol=0)


# --- Theorems 1–4 of Hasan et al. 2024 with exact Gaussian processes ---

OBSERVED, LENGTH = 0.2, 0.3  # σ_o² and the kernel's length; k(x, x) = 1, so σ_p² = 1.2


def gp(x: np.ndarray, y: np.ndarray, at: np.ndarray) -> Normal:
    model = GaussianProcessRegressor(RBF(LENGTH), alpha=OBSERVED, optimizer=None).fit(x[:, None], y)
    mean, deviation = model.predict(at[:, None], return_std=True)  # of the latent function
    return Normal(*(torch.tensor(v) for v in (mean, deviation**2 + OBSERVED, np.zeros_like(mean))))  # the paper's: y


def truth(x: np.ndarray) -> np.ndarray:
    return np.sin(3 * x)


def gp_clients(homogeneous: bool, clients: int = 4, n: int = 400) -> tuple[list[Normal], Normal]:
    rng = np.random.default_rng(0)
    at = np.array([0.5])
    parts = []
    for k in range(clients):
        centre = 0.0 if homogeneous else 10.0 * k
        x = centre + rng.uniform(0, 1, n)
        parts.append(gp(x, truth(x) + OBSERVED**0.5 * rng.normal(size=n), at))
    one = torch.ones(1, dtype=torch.float64)
    return parts, Normal(0 * one, (1 + OBSERVED) * one, 0 * one)


def test_theorem_1_the_product_is_overconfident_on_homogeneous_data() -> None:
    parts, prior = gp_clients(homogeneous=True)
    pooled = product(parts, prior)
    # σ⁻² → mσ_o⁻² − (m−1)σ_p⁻² = 4/0.2 − 3/1.2 = 17.5
    assert pooled.var.item() < OBSERVED
    assert pooled.var.item() == pytest.approx(1 / 17.5, rel=0.05)
    assert pooled.mean.item() == pytest.approx(truth(np.array(0.5)), abs=0.15)


def test_theorem_2_the_product_is_calibrated_on_separated_data() -> None:
    parts, prior = gp_clients(homogeneous=False)
    assert product(parts, prior).var.item() == pytest.approx(OBSERVED, rel=0.05)


def test_theorem_3_the_mixture_is_calibrated_on_homogeneous_data() -> None:
    parts, _ = gp_clients(homogeneous=True)
    assert mixture(parts, torch.ones(4)).var.item() == pytest.approx(OBSERVED, rel=0.1)


def test_theorem_4_the_mixture_is_underconfident_on_separated_data() -> None:
    parts, _ = gp_clients(homogeneous=False)
    # at least σ_o² + k(x,x)(1 − 1/m) = 0.2 + 0.75
    assert mixture(parts, torch.ones(4)).var.item() >= OBSERVED + 0.75 - 1e-6


# --- Theorems 5–8 as properties: p_T peaked, far clients uniform ---

probabilities = st.lists(st.floats(0.01, 1), min_size=2, max_size=6).map(lambda p: np.array(p) / np.sum(p))
counts = st.lists(st.integers(1, 50), min_size=2, max_size=6)


def categorical(p: np.ndarray) -> Categorical:
    return Categorical(torch.tensor(p, dtype=torch.float64).log()[None])


@given(probabilities, counts)
@settings(max_examples=60)
def test_theorems_5_to_8(p: np.ndarray, sizes: list[int]) -> None:
    c, classes, w = int(p.argmax()), len(p), torch.tensor(sizes, dtype=torch.float64)
    uniform = categorical(np.full(classes, 1 / classes))
    same = [categorical(p)] * len(sizes)
    separated = [categorical(p)] + [uniform] * (len(sizes) - 1)

    def of(pooled: object) -> float:
        assert isinstance(pooled, Categorical)
        return float(pooled.probs[0, c])

    tied = np.sum(p > p[c] - 1e-9) > 1
    assert of(product(same, uniform)) >= p[c] - 1e-12  # 5: overconfident
    if not tied:
        assert of(product(same, uniform)) > p[c]
    assert of(product(separated, uniform)) == pytest.approx(p[c], rel=1e-9)  # 6: calibrated
    if p[c] > 1 / classes + 1e-9:
        assert of(mixture(separated, w)) < p[c]  # 7: underconfident
    assert of(mixture(same, w)) == pytest.approx(p[c], rel=1e-9)  # 8: calibrated


@given(probabilities, counts, st.integers(0, 10**6))
@settings(max_examples=60)
def test_theorems_5_to_8_say_by_how_much(p: np.ndarray, sizes: list[int], seed: int) -> None:
    """The formulas of docs/theorems.md, for all classes, with sites of any sizes and any prior."""
    m, w = len(sizes), np.array(sizes) / np.sum(sizes)
    prior = np.random.default_rng(seed).dirichlet(np.ones(len(p))) + 1e-3
    prior /= prior.sum()

    def of(pooled: object) -> np.ndarray:
        assert isinstance(pooled, Categorical)
        return pooled.probs[0].numpy()

    same = [categorical(p)] * m
    separated = [categorical(p)] + [categorical(prior)] * (m - 1)
    sharpened = p * (p / prior) ** (m - 1)
    np.testing.assert_allclose(of(product(same, categorical(prior))), sharpened / sharpened.sum(), rtol=1e-9)  # 5
    np.testing.assert_allclose(of(product(separated, categorical(prior))), p, rtol=1e-9)  # 6
    np.testing.assert_allclose(of(mixture(separated, torch.tensor(w))), w[0] * p + (1 - w[0]) * prior, rtol=1e-9)  # 7
    np.testing.assert_allclose(of(mixture(same, torch.tensor(w))), p, rtol=1e-9)  # 8


def test_theorem_5_needs_the_most_probable_class_and_keeps_a_tie() -> None:
    uniform = categorical(np.full(3, 1 / 3))
    pooled = product([categorical(np.array([0.7, 0.2, 0.1]))] * 5, uniform)
    tied = product([categorical(np.array([0.4, 0.4, 0.2]))] * 5, uniform)

    assert isinstance(pooled, Categorical) and isinstance(tied, Categorical)
    assert float(pooled.probs[0, 1]) == pytest.approx(0.2**5 / (0.7**5 + 0.2**5 + 0.1**5))
    assert float(pooled.probs[0, 1]) < 0.2
    assert float(tied.probs[0, 0]) == pytest.approx(float(tied.probs[0, 1]))


# --- Pooling identities ---


def some_normals(k: int) -> tuple[list[Normal], Normal, torch.Tensor]:
    g = torch.Generator().manual_seed(k)
    draw_ = lambda: torch.rand(7, generator=g, dtype=torch.float64)
    parts = [Normal(draw_(), draw_() * 0.1 + 0.01, draw_()) for _ in range(k)]
    return parts, Normal(torch.zeros(7).double(), torch.full((7,), 2.0).double(), torch.zeros(7).double()), draw_()[:k]


def some_categoricals(k: int) -> tuple[list[Categorical], Categorical, torch.Tensor]:
    g = torch.Generator().manual_seed(k)
    parts = [Categorical(torch.randn(7, 4, generator=g, dtype=torch.float64).log_softmax(-1)) for _ in range(k)]
    return parts, Categorical(torch.zeros(7, 4).double().log_softmax(-1)), torch.rand(k, generator=g).double()


@pytest.mark.parametrize("make", [some_normals, some_categoricals])
def test_beta_0_is_the_mixture_and_1_the_product(make: object) -> None:
    parts, prior, w = make(3)  # type: ignore[operator]
    p, m = product(parts, prior, w), mixture(parts, w)
    for expected, beta in ((p, 1.0), (m, 0.0)):
        for a, b in zip(geometric(beta, p, m), expected, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("make", [some_normals, some_categoricals])
def test_pools_do_not_depend_on_the_order_of_clients(make: object) -> None:
    parts, prior, w = make(4)  # type: ignore[operator]
    order = [2, 0, 3, 1]
    again = [parts[i] for i in order]
    for a, b in (
        (mixture(parts, w), mixture(again, w[order])),
        (product(parts, prior, w), product(again, prior, w[order])),
    ):
        for left, right in zip(a, b, strict=True):
            torch.testing.assert_close(left, right)


def test_mixture_of_normals_has_the_mixtures_moments() -> None:
    parts, _, w = some_normals(3)
    pooled = mixture(parts, w)
    # by simulation: draw the component, then the value; 2·10⁶ draws, standard errors below 5e-4
    g = torch.Generator().manual_seed(1)
    which = torch.multinomial(w, 2_000_000, replacement=True, generator=g)
    mean, var = torch.stack([p.mean[0] for p in parts])[which], torch.stack([p.var[0] for p in parts])[which]
    values = mean + var.sqrt() * torch.randn(len(which), generator=g, dtype=torch.float64)
    assert pooled.mean[0].item() == pytest.approx(values.mean().item(), abs=2e-3)
    assert pooled.var[0].item() == pytest.approx(values.var().item(), abs=3e-3)


def test_the_noise_is_added_once() -> None:
    one = torch.ones(5, dtype=torch.float64)
    parts = [Normal(0 * one, 1e-9 * one, 0.3 * one)] * 4
    prior = Normal(0 * one, 5 * one, 0 * one)
    for pooled in (product(parts, prior), mixture(parts, torch.ones(4)), geometric(0.4, parts[0], parts[1])):
        torch.testing.assert_close(pooled.total, 0.3 * one, rtol=1e-6, atol=1e-6)


def test_a_precision_below_zero_is_clamped_and_told() -> None:
    one = torch.ones(3)
    wide = [Normal(0 * one, 10 * one, one)] * 3  # wider than the prior
    with pytest.warns(UserWarning, match="precision ≤ 0 at 3 of 3 places"):
        pooled = product(wide, Normal(0 * one, one, 0 * one))
    assert bool((pooled.var > 0).all())


def test_maximise_finds_inner_and_boundary_optima() -> None:
    assert maximise(lambda b: -((b - 0.3) ** 2), 0, 1) == pytest.approx(0.3, abs=1e-5)
    assert maximise(lambda b: b, 0, 1) == 1
    assert maximise(lambda b: -b, 0, 1) == 0


def test_temperature_of_a_sharpened_truth_is_recovered() -> None:
    g = torch.Generator().manual_seed(0)
    true = torch.randn(20_000, 4, generator=g, dtype=torch.float64).log_softmax(-1)
    y = torch.multinomial(true.exp(), 1, generator=g).squeeze(-1)
    sharp = tempered(Categorical(true), 1 / 3)  # three times too sure
    from consilience.distributions.predictive import temperature

    t = temperature(sharp, y)

    assert t == pytest.approx(3, rel=0.05)
    assert score(tempered(sharp, t), y) > score(sharp, y)


# --- Vector targets with full covariances: Hasan 2023, eq. 3.4–3.5 ---


def some_full_normals(k: int, outputs: int) -> tuple[list[Normal], Normal]:
    g = torch.Generator().manual_seed(k)
    draw_ = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    parts = []
    for _ in range(k):
        factor = 0.4 * draw_(6, outputs, outputs)
        covariance = factor @ factor.mT + 0.05 * torch.eye(outputs, dtype=torch.float64)
        parts.append(Normal(draw_(6, outputs), covariance, torch.full((6, outputs), 0.1, dtype=torch.float64)))
    wide = 10 * torch.eye(outputs, dtype=torch.float64).expand(6, -1, -1)
    return parts, Normal(torch.zeros(6, outputs).double(), wide, torch.zeros(6, outputs).double())


def test_full_product_is_the_products_of_densities() -> None:
    parts, prior = some_full_normals(3, 2)
    pooled = product(parts, prior)
    # log Π pₖ − (K−1) log prior must equal the pool's log-density up to a constant in f: compare at several points.
    points = torch.randn(5, 6, 2, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    density = lambda p: torch.distributions.MultivariateNormal(p.mean, p.var).log_prob(points)
    gap = sum(density(p) for p in parts) - 2 * density(prior) - density(pooled)
    torch.testing.assert_close(gap, gap[:1].expand_as(gap), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("powers", [shared, robust])
def test_full_products_with_powers_agree_with_those_output_by_output(powers: Powers) -> None:
    full, wide = some_full_normals(3, 2)
    diagonal = [Normal(p.mean, p.var.diagonal(dim1=-2, dim2=-1), p.noise) for p in (*full, wide)]
    as_full = [Normal(p.mean, torch.diag_embed(p.var), p.noise) for p in diagonal]
    a = product(as_full[:3], as_full[3], powers=powers(as_full[:3], as_full[3]))
    b = product(diagonal[:3], diagonal[3], powers=powers(diagonal[:3], diagonal[3]))
    assert isinstance(a, Normal) and isinstance(b, Normal)
    torch.testing.assert_close(a.mean, b.mean)
    torch.testing.assert_close(a.var, torch.diag_embed(b.var), atol=1e-10, rtol=1e-7)


def test_targets_in_a_column_are_scored_row_by_row() -> None:
    mean, y = torch.arange(4.0), torch.arange(4.0) + 0.5
    p = Normal(mean, torch.ones(4), torch.ones(4))
    torch.testing.assert_close(log_prob(p, y.unsqueeze(1)), log_prob(p, y))


def test_full_pools_agree_with_the_scalar_ones_for_one_output() -> None:
    full, wide = some_full_normals(3, 1)
    plain = [Normal(p.mean[:, 0], p.var[:, 0, 0], p.noise[:, 0]) for p in full]
    prior = Normal(wide.mean[:, 0], wide.var[:, 0, 0], wide.noise[:, 0])
    w = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    y = torch.zeros(6, 1, dtype=torch.float64)
    pairs = [
        (product(full, wide, w), product(plain, prior, w)),
        (mixture(full, w), mixture(plain, w)),
        (geometric(0.3, full[0], full[1]), geometric(0.3, plain[0], plain[1])),
    ]
    for a, b in pairs:
        torch.testing.assert_close(a.mean[:, 0], b.mean)
        torch.testing.assert_close(a.var[:, 0, 0], b.var)
        torch.testing.assert_close(log_prob(a, y), log_prob(b, y[:, 0]))


def test_vector_targets_end_to_end() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=g)
    first = x @ torch.tensor([1.0, -1.0, 0.5])
    y = torch.stack([first, -first], 1) + 0.3 * torch.randn(200, 2, generator=g)
    parts = [Data.of(x[i : i + 40], y[i : i + 40]) for i in range(0, 160, 40)]
    task = co.regression(co.models.mlp(3, 2, hidden=(8,)), full=True)
    method = co.methods.BCM(co.CyclicalSGHMC(rate=0.02, epochs=30, cycles=3, samples=4, keep=10, batch=20))
    server = Server(None, None, Key(0), 4)
    replies = Sequential(parts).gather(method, task, task.init(Key(0)), range(4), Turn(0, Key(1)))
    state = method.aggregate(task, State(task.init(Key(0))), replies, server)
    p = method.predictive(task, state)(x[160:])
    assert isinstance(p, Normal) and p.full
    assert p.var.shape == (40, 2, 2)
    assert float((p.mean - y[160:]).square().mean()) < 0.4
    assert bool(torch.isfinite(log_prob(p, y[160:])).all())


@pytest.mark.parametrize("prior", [Isotropic(), Flat()])
@pytest.mark.parametrize("powers", [None, shared])
def test_full_covariances_are_scored_and_their_doubt_adds_up(prior: Isotropic, powers: Powers | None) -> None:
    x = Key(0).normal((120, 3))
    y = torch.stack([x[:, 0], x[:, 1] - x[:, 0]], 1) + 0.3 * Key(1).normal((120, 2))
    sites = co.from_arrays(x, y).split(co.splits.iid(), 3, calibration=10)
    task = co.regression(co.models.mlp(3, 2, hidden=(8,)), full=True, prior=prior)
    result = co.run(co.methods.BCM(co.CyclicalSGHMC(epochs=10, cycles=2, samples=3), powers=powers), task, sites)
    assert {"nll", "crps", "coverage95"} <= set(result.report["metrics"])
    p = result.model()(sites.all_test.x)
    doubt = uncertainty(result.method, task, result.state, sites.all_test.x, p)
    torch.testing.assert_close(doubt.aleatoric + doubt.epistemic, doubt.total)
    assert bool((doubt.epistemic > 0).all()) and bool((doubt.disagreement <= doubt.epistemic + 1e-6).all())
