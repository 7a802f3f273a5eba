"""The five rules of Özer et al. 2022: closed forms, inequalities, what eq. 7 and 8 are, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal

import consilience as co
from consilience.aggregation.merging import Released, aalv, cf, eaa, gaa, merge, population, ppa, spread
from consilience.distributions.posterior import Gaussian
from consilience.key import Key

RULES = [eaa, gaa, aalv, ppa, cf]
numbers = st.floats(-5, 5)
variances = st.floats(1e-4, 1e2)
clients = st.lists(st.tuples(numbers, variances, st.floats(0.01, 1)), min_size=1, max_size=12)


def columns(drawn: list[tuple[float, float, float]]) -> tuple[Tensor, Tensor, Tensor]:
    m, v, w = torch.tensor(drawn, dtype=torch.float64).T
    return m[:, None], v[:, None], w / w.sum()


@given(clients)
@settings(max_examples=200)
def test_the_stated_inequalities(drawn: list[tuple[float, float, float]]) -> None:
    m, v, w = columns(drawn)
    var = {rule.__name__: float(rule(m, v, w)[1]) for rule in RULES}
    slack = 1 + 1e-12
    assert var["gaa"] <= var["eaa"] * slack  # β² ≤ β (the paper, §3.2)
    assert var["aalv"] <= var["eaa"] * slack  # Jensen: a geometric mean is below the arithmetic one
    assert var["eaa"] <= var["ppa"] * slack  # the means' disagreement is added
    assert float(v.min()) / slack <= var["aalv"] <= float(v.max()) * slack
    equal = torch.full_like(w, 1 / len(w))
    # CF = harmonic mean / K ≤ arithmetic mean / K = GAA
    assert float(cf(m, v, equal)[1]) <= float(gaa(m, v, equal)[1]) * slack
    assert float(cf(m, v, w)[1]) <= float(v.max()) * slack  # never wider than the widest client


@given(clients)
@settings(max_examples=100)
def test_all_but_conflation_have_the_average_mean_and_none_leaves_the_clients_range(
    drawn: list[tuple[float, float, float]],
) -> None:
    m, v, w = columns(drawn)
    for rule in RULES:
        mean = float(rule(m, v, w)[0])
        assert float(m.min()) - 1e-9 <= mean <= float(m.max()) + 1e-9
        if rule is not cf:
            assert mean == pytest.approx(float(w @ m[:, 0]), abs=1e-12)


@given(clients)
@settings(max_examples=60)
def test_eq_8_is_the_product_of_the_densities_to_the_powers_of_their_relative_weights(
    drawn: list[tuple[float, float, float]],
) -> None:
    m, v, w = columns(drawn)
    mean, var = cf(m, v, w)
    # log f = Σₖ (wₖ / max w) log N(θ; μₖ, σₖ²) + constant. Its second derivative is −Σ (wₖ/max w)/σₖ², so
    # σ² = max w / Σ wₖ/σₖ²; its root is μ = Σ wₖμₖ/σₖ² / Σ wₖ/σₖ²: eq. 8 is conflation with weights (Hill and
    # Miller 2011), i.e. the logarithmic pool whose largest power is 1. Compared at points, up to the constant.
    at = mean + var.sqrt() * torch.linspace(-3, 3, 7, dtype=torch.float64)
    pooled = sum(wk / w.max() * Normal(mk, vk.sqrt()).log_prob(at) for mk, vk, wk in zip(m, v, w, strict=True))
    gap = pooled - Normal(mean, var.sqrt()).log_prob(at)
    torch.testing.assert_close(gap, gap[:1].expand_as(gap), atol=1e-6, rtol=1e-9)


def test_eq_8_is_not_the_posterior_unless_the_prior_is_divided_out() -> None:
    # Two clients with one observation each, y = 1 and y = 3, noise 1, prior N(0, 1): each has N(y/2, 1/2).
    # All data: N(4/3, 1/3). Conflation counts the prior twice: N(1, 1/4). Dividing it out once is exact.
    m, v = torch.tensor([[0.5], [1.5]]), torch.full((2, 1), 0.5)
    mean, var = cf(m, v, torch.tensor([0.5, 0.5]))
    assert (float(mean), float(var)) == pytest.approx((1.0, 0.25))
    factors = [Gaussian({"a": mk}, {"a": vk}) for mk, vk in zip(m, v, strict=True)]
    exact = co.aggregation.multiply(factors, Gaussian({"a": torch.zeros(1)}, {"a": torch.ones(1)}))
    assert (float(exact.mean["a"]), float(exact.var["a"])) == pytest.approx((4 / 3, 1 / 3))


def test_ppa_has_the_moments_of_the_mixture() -> None:
    # By simulation: draw a client by its weight, then a weight from it; 10⁶ draws, standard error of the variance 0.01.
    m, v, w = torch.tensor([[0.0], [2.0], [-1.0]]), torch.tensor([[1.0], [0.5], [4.0]]), torch.tensor([0.2, 0.5, 0.3])
    g = torch.Generator().manual_seed(0)
    who = torch.multinomial(w, 1_000_000, replacement=True, generator=g)
    drawn = m[who, 0] + v[who, 0].sqrt() * torch.randn(len(who), generator=g)
    mean, var = ppa(m, v, w)
    assert float(mean) == pytest.approx(float(drawn.mean()), abs=0.01)
    assert float(var) == pytest.approx(float(drawn.var()), abs=0.04)


def test_a_population_scatters_around_the_exact_moments_as_sampling_says() -> None:
    m, v, w = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([1.0, 0.5, 4.0]), torch.tensor([0.2, 0.5, 0.3])
    many, size = 20_000, 100
    mean, var = population(Key(1), size)(*(x[:, None].expand(3, many).contiguous() for x in (m, v)), w)
    exact_mean, exact_var = ppa(m[:, None], v[:, None], w)
    within = float(w @ v)
    # Stratified: the mean has variance Σ (nₖ/N)² σₖ²/nₖ = Σ wₖσₖ²/N, and E[σ²] = Σ wₖ(σₖ² + (μₖ−μ̄)²) − Σ wₖσₖ²/N.
    assert float(mean.mean()) == pytest.approx(float(exact_mean), abs=5 * math.sqrt(within / size / many))
    assert float(mean.var()) == pytest.approx(within / size, rel=0.05)
    assert float(var.mean()) == pytest.approx(float(exact_var) - within / size, rel=0.005)
    # Literally, as the paper has it: nₖ draws from each client, pooled.
    g = torch.Generator().manual_seed(2)
    counts = (size * w).round().int().tolist()
    drawn = torch.cat([m[k] + v[k].sqrt() * torch.randn(n, many, generator=g) for k, n in enumerate(counts)])
    assert float(var.mean()) == pytest.approx(float(drawn.var(0, correction=0).mean()), rel=0.01)
    assert float(var.std()) == pytest.approx(float(drawn.var(0, correction=0).std()), rel=0.05)


def test_identical_clients() -> None:
    m, v = torch.full((10, 1), 0.3), torch.full((10, 1), 2.0)
    w = torch.full((10,), 0.1)
    expected = {"eaa": 2.0, "gaa": 0.2, "aalv": 2.0, "ppa": 2.0, "cf": 0.2}  # equal variances: σ², or σ²/K
    for rule in RULES:
        assert float(rule(m, v, w)[1]) == pytest.approx(expected[rule.__name__], rel=1e-5)


def test_the_released_running_sums() -> None:
    low = math.exp(-8)
    m, w = torch.zeros(10, 1, dtype=torch.float64), torch.full((10,), 0.1, dtype=torch.float64)
    below = torch.full((10, 1), math.exp(-9), dtype=torch.float64)
    # The first term is lifted back to e⁻⁸, nine more add β or β² of e⁻⁸: 1 + 0.9 and 1 + 0.09.
    assert float(Released(eaa)(m, below, w)[1]) == pytest.approx(1.9 * low)
    assert float(Released(gaa)(m, below, w)[1]) == pytest.approx(1.09 * low)
    assert float(Released(cf)(m, below, w)[1]) == pytest.approx(0.1 * low)  # harmonic mean of e⁻⁸ over K
    assert float(Released(aalv)(m, below, w)[1]) == pytest.approx(math.exp(-9))  # not clamped
    # Within the range and far above it nothing is lifted: eq. 4.
    wide = torch.full((10, 1), 0.5, dtype=torch.float64)
    assert float(Released(eaa)(m, wide, w)[1]) == pytest.approx(0.5)


def some(k: int, seed: int = 0) -> list[Gaussian]:
    g = torch.Generator().manual_seed(seed)
    return [
        Gaussian(
            {"conv": torch.randn(3, generator=g), "fc": torch.randn(2, 40_000, generator=g)},
            {"fc": torch.rand(2, 40_000, generator=g) + 0.1},
        )
        for _ in range(k)
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_merging_in_slices_is_merging_at_once_and_points_are_averaged(rule: object) -> None:
    gaussians, w = some(4), torch.tensor([1.0, 2.0, 3.0, 4.0])

    merged = merge(gaussians, w, rule)  # type: ignore[arg-type]

    share = w / w.sum()
    mean, var = rule(  # type: ignore[operator]
        torch.stack([g.mean["fc"] for g in gaussians]), torch.stack([g.var["fc"] for g in gaussians]), share
    )
    torch.testing.assert_close(merged.mean["fc"], mean)
    torch.testing.assert_close(merged.var["fc"], var)
    torch.testing.assert_close(
        merged.mean["conv"], sum(s * g.mean["conv"] for s, g in zip(share, gaussians, strict=True))
    )
    assert set(merged.var) == {"fc"}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_a_variance_that_is_none_is_refused_with_its_site(bad: float) -> None:
    gaussians = some(3)
    gaussians[1].var["fc"][1, 5] = bad
    with pytest.raises(co.InputError, match="Site 7 sent a variance of 'fc'"):
        merge(gaussians, torch.ones(3), eaa, sites=[4, 7, 9])


def test_clients_with_other_layers_are_refused() -> None:
    first, second = some(2)
    wide = second._replace(mean={**second.mean, "fc": torch.zeros(2, 3)}, var={"fc": torch.ones(2, 3)})
    with pytest.raises(co.InputError, match="Site 1 and site 0 differ in 'fc'"):
        merge([first, wide], torch.ones(2), eaa)
    bayesian = second._replace(var={**second.var, "conv": torch.ones(3)})
    with pytest.raises(co.InputError, match="differ in 'conv'"):
        merge([first, bayesian], torch.ones(2), eaa)


def test_an_all_point_model_is_refused() -> None:
    with pytest.raises(co.InputError, match="Every weight is a point"):
        merge([Gaussian({"a": torch.ones(2)}, {})] * 2, torch.ones(2), cf)
    task, sites = (
        co.classification(co.models.mlp(2, 2, hidden=(3,))),
        co.datasets.moons(60).split(co.splits.iid(), 2, seed=0),
    )
    with pytest.raises(co.InputError, match="gives single weights"):
        co.run(co.methods.VariationalAveraging(co.SGD(epochs=1)), task, sites, rounds=1)


def test_spread_is_the_norm_of_the_deviations() -> None:
    gaussian = Gaussian({"a": torch.zeros(3), "b": torch.zeros(1)}, {"a": torch.tensor([1.0, 4.0, 4.0])})
    assert spread(gaussian) == pytest.approx(3.0)  # √(1 + 4 + 4); points add nothing


def test_the_printed_spreads_follow_from_the_released_start_decay_and_clamp() -> None:
    # Özer et al., Table 4, ten clients: Fashion, CIFAR-10, SVHN. Weights of the linear layers, without biases:
    # 256·120 + 120·84 + 84·10 for 28 × 28 images, 400·120 + … for 32 × 32.
    weights = (256 * 120 + 120 * 84 + 840, 400 * 120 + 120 * 84 + 840, 400 * 120 + 120 * 84 + 840)
    rows = (60_000, 50_000, 73_257)
    for p, n, gaa_printed, aalv_printed in zip(weights, rows, (3.93, 4.68, 4.67), (2.81, 3.22, 3.48), strict=True):
        steps = 50 * 10 * math.ceil(n / 10 / 64)
        # rate 0.01 / (1 − momentum 0.9) · decay 1e-5 shrinks log σ² = −9 by 1e-6 a step; below −8 nothing else pulls
        log_var = -9 * math.exp(-1e-6 * steps)
        below = torch.full((10, 1), math.exp(log_var), dtype=torch.float64)
        m, w = torch.zeros_like(below), torch.full((10,), 0.1, dtype=torch.float64)
        assert math.sqrt(p * float(Released(aalv)(m, below, w)[1])) == pytest.approx(aalv_printed, rel=0.01)
        assert math.sqrt(p * float(Released(gaa)(m, below, w)[1])) == pytest.approx(gaa_printed, rel=0.01)
