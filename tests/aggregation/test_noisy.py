"""Sums with noise: what one row or patient can change, and whether the posterior knows of the noise."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.predictive import Normal
from consilience.errors import InputError
from consilience.glm.fitting import fit
from consilience.glm.heads import OneHot, Ridge
from consilience.glm.noisy import (
    LOG_TEMPERATURES,
    Noisy,
    NoisySums,
    choose_temperature,
    fit_noisy,
    length_of,
    read_release,
    shrink_eigenvalues,
    sum_bounded,
    sum_scores,
)
from consilience.glm.sums import summarise
from consilience.key import Key
from consilience.models.bounded import Bounded
from consilience.privacy.dp.mechanisms import STEP, Clipped, Privacy, Released, add_released
from consilience.privacy.entropy import Simulated

PRIVACY = Privacy(1.0, 1e-5)


def itself(x: Tensor) -> Tensor:
    return x


def rows(seed: int, n: int, width: int, classes: int | None, size: float) -> Data:
    generator = torch.Generator().manual_seed(seed)
    x = size * torch.randn(n, width, generator=generator)
    y = size * 5 * torch.randn(n, generator=generator)
    if classes is not None:
        y = torch.randint(classes, (n,), generator=generator)
    return Data.of(x, y)


@pytest.mark.parametrize("classes", [3, None])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_no_row_moves_the_release_by_more_than_1(classes: int | None, size: float) -> None:
    """Brute force over data sets with each row removed, and rows along axes, equal, huge and tiny added."""
    data = rows(0, 12, 4, classes, size)
    whole = sum_bounded(itself, data, classes, PRIVACY).values
    largest = 0.0
    for i in range(12):
        without = Data(*(torch.cat([leaf[:i], leaf[i + 1 :]]) for leaf in data))
        largest = max(largest, float((whole - sum_bounded(itself, without, classes, PRIVACY).values).norm()))
    extremes = torch.cat([torch.eye(4), torch.ones(1, 4), -torch.ones(1, 4), torch.zeros(1, 4)])
    for x in extremes:
        for y in (0, 2) if classes else (-1e9, 3.0, 0.0):
            one = Data(x.unsqueeze(0) * size * 10, torch.tensor([y]).to(data.y), torch.ones(1))
            more = Data(*(torch.cat([a, b]) for a, b in zip(data, one, strict=True)))
            largest = max(largest, float((sum_bounded(itself, more, classes, PRIVACY).values - whole).norm()))
    assert largest <= 1 + 1e-9
    if size == 1e6:
        assert largest > 0.99  # so that no more noise is added than is needed


def test_a_heavy_row_counts_once() -> None:
    data = rows(0, 1, 4, 3, 1e6)
    heavy = sum_bounded(itself, data._replace(w=torch.tensor([50.0])), 3, PRIVACY).values
    assert float(heavy.norm()) <= 1 + 1e-9


def test_without_clipping_the_attack_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brute force is one that finds a row that is not clipped."""
    monkeypatch.setattr("consilience.glm.noisy.shorten", lambda x: x.double())
    assert float(sum_bounded(itself, rows(0, 1, 4, 3, 1e3), 3, PRIVACY).values.norm()) > 1e3


def test_rounding_is_counted_in_the_sensitivity() -> None:
    """Whole multiples of two neighbours differ by at most 1/h + √d."""
    data = rows(1, 40, 6, 3, 1e3)
    fewer = Data(*(leaf[1:] for leaf in data))
    a, b = (sum_bounded(itself, part, 3, PRIVACY).values for part in (data, fewer))
    apart = float(((a / STEP).round() - (b / STEP).round()).norm())
    assert apart <= 1 / STEP + math.sqrt(len(a))
    assert PRIVACY.deviation(len(a)) == pytest.approx((1 + STEP * math.sqrt(len(a))) / PRIVACY.mu)


@pytest.mark.parametrize("classes", [3, None])
def test_a_release_without_noise_is_read_back(classes: int | None) -> None:
    data = rows(2, 50, 4, classes, 0.2)
    sums = summarise(itself, data, classes)
    values = sum_bounded(itself, data, classes, PRIVACY).values
    outputs = classes or 1
    assert len(values) == length_of(4, outputs, classes)

    read = read_release(Released(values, torch.ones(())), 4, outputs, classes, PRIVACY)

    assert float(read.size) == pytest.approx(50)
    clipped = data.x.double() / data.x.double().norm(dim=1, keepdim=True).clamp(min=1)
    c = math.sqrt(1 + PRIVACY.constant**2)
    assert torch.allclose(read.gram[1:, 1:], clipped.mT @ clipped / c**2)
    if classes:
        assert torch.allclose(read.square, sums.counts)
    with pytest.raises(InputError, match="agreed"):
        read_release(Released(values[1:], torch.ones(())), 4, outputs, classes, PRIVACY)


def test_the_noise_is_what_is_said_and_shares_add_up_to_it() -> None:
    """10 sites' shares for t = 10 have one site's variance: within 4·√(2/d), with the multiples exact."""
    nothing = Clipped(torch.zeros(20_000, dtype=torch.float64))
    alone = PRIVACY.add_noise(nothing, Simulated(Key(0)))
    once = Privacy(1.0, 1e-5, noise="once", honest=10)
    shares = add_released([once.add_noise(nothing, Simulated(Key(k))) for k in range(1, 11)])
    for total in (alone, shares):
        assert float(total.values.var()) * PRIVACY.mu**2 == pytest.approx(1.0, abs=4 * math.sqrt(2 / 20_000))
        assert torch.equal((total.values / STEP).round() * STEP, total.values)
    assert float(shares.shares) == 10


def noiseless(data: Data, classes: int | None) -> NoisySums:
    total = Released(sum_bounded(itself, data, classes, PRIVACY).values, torch.ones(()))
    zero = torch.zeros((), dtype=torch.float64)
    read = read_release(total, data.x.shape[1], classes or 1, classes, PRIVACY)
    return read._replace(gram_var=zero, cross_var=zero, square_var=zero)


def test_without_noise_the_head_is_bayesian_linear_regression() -> None:
    """Many rows: the means of `Ridge` on the same features, whose prior and intercept then hardly matter."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4000, 3, generator=generator) / 3
    y = (0.3 + x @ torch.tensor([1.0, -0.5, 0.2]) + 0.1 * torch.randn(4000, generator=generator)).double()
    data = Data.of(x / x.norm(dim=1, keepdim=True).clamp(min=1), y)
    ours = Noisy(Ridge(), PRIVACY).predict(fit_noisy(noiseless(data, None)), data.x)
    theirs = Ridge().predict(fit(Ridge(), summarise(itself, data, None)), data.x)
    assert isinstance(ours, Normal) and isinstance(theirs, Normal)
    assert torch.allclose(ours.mean, theirs.mean, atol=1e-3)
    assert torch.allclose(ours.noise, theirs.noise, rtol=1e-2)
    assert torch.allclose(ours.var, theirs.var, rtol=0.05)


def test_the_linear_layer_is_the_mean() -> None:
    data = rows(4, 300, 4, None, 0.3)
    privacy = Privacy(8.0, 1e-5)
    release = privacy.add_noise(sum_bounded(itself, data, None, privacy), Simulated(Key(0)))
    fitted = fit_noisy(read_release(release, 4, 1, None, privacy))
    x = data.x.double() / data.x.double().norm(dim=1, keepdim=True).clamp(min=1)
    weight, bias = Noisy(Ridge(), privacy).linear(fitted)
    p = Noisy(Ridge(), privacy).predict(fitted, x)
    assert isinstance(p, Normal)
    assert torch.allclose((x @ weight.mT + bias).squeeze(1), p.mean)


def test_shrunk_eigenvalues_are_those_along_noisy_eigenvectors() -> None:
    """ξ estimates uᵀGu for eigenvectors u of G + E: on average over draws, within 5 % of the noise's reach 2τ√K."""
    width, tau = 60, 1.0
    g = torch.cat([torch.zeros(40), torch.linspace(5, 60, 20)]).double()
    errors = []
    for seed in range(5):
        e = tau * torch.randn(width, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        e = e.triu(1) + e.triu(1).mT + math.sqrt(2) * torch.diag(e.diagonal())
        values, basis = torch.linalg.eigh(torch.diag(g) + e)
        truth = (basis * (g.unsqueeze(1) * basis)).sum(0)
        errors.append(shrink_eigenvalues(values, torch.tensor(tau**2).double()) - truth)
    assert abs(float(torch.stack(errors).mean())) < 0.05 * 2 * tau * math.sqrt(width)


def simulate_study(seed: int, n: int, width: int, epsilon: float, sites: int = 1) -> tuple[float, float]:
    """The shares of 90 % intervals that hold the true function, and a new outcome."""
    generator = torch.Generator().manual_seed(seed)
    bound = Bounded(math.sqrt(width))
    weights = 2 * torch.randn(width, generator=generator).double() / math.sqrt(width)
    x = torch.randn(n + 200, width, generator=generator).double()
    f = 0.3 + bound(x) @ weights
    y = f + 0.5 * torch.randn(n + 200, generator=generator).double()
    privacy = Privacy(epsilon, 1e-5)
    released = []
    for k in range(sites):
        part = Data.of(x[:n][k::sites], y[:n][k::sites])
        source = Simulated(Key(seed).fold(k))
        released.append(privacy.add_noise(sum_bounded(bound, part, None, privacy), source))
    fitted = fit_noisy(read_release(add_released(released), width, 1, None, privacy))
    p = Noisy(Ridge(), privacy).predict(fitted, bound(x[n:]))
    assert isinstance(p, Normal)
    known = (p.mean - f[n:]).abs() <= 1.645 * p.var.sqrt()
    new = (p.mean - y[n:]).abs() <= 1.645 * (p.var + p.noise).sqrt()
    return float(known.double().mean()), float(new.double().mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "width", "epsilon", "sites"), [(5000, 20, 1.0, 1), (1000, 5, 1.0, 1), (5000, 20, 3.0, 5), (5000, 5, 0.3, 1)]
)
def test_intervals_cover(n: int, width: int, epsilon: float, sites: int) -> None:
    """Of 90 % intervals 88 to 92 % hold the true function and new outcomes, over 300 studies."""
    found = torch.tensor([simulate_study(seed, n, width, epsilon, sites) for seed in range(300)])
    function, outcome = found.mean(0).tolist()
    assert 0.88 < function < 0.92 and 0.88 < outcome < 0.92


def test_intervals_cover_in_few_studies() -> None:
    """The same in 40 studies: ± 4 % for chance, as the standard error is 1.2 % (of studies' shares, 7 %)."""
    found = torch.tensor([simulate_study(seed, 1000, 5, 3.0) for seed in range(40)])
    assert bool(((found.mean(0) - 0.9).abs() < 0.04).all())


def test_a_posterior_that_ignores_the_noise_does_not_cover() -> None:
    """What the test above would find otherwise: the same intervals with the noise's variances taken for 0."""
    generator = torch.Generator().manual_seed(0)
    privacy = Privacy(1.0, 1e-5)
    covered = []
    for seed in range(20):
        x = torch.randn(1200, 5, generator=generator).double() / 3
        f = x @ torch.ones(5).double()
        y = f + 0.5 * torch.randn(1200, generator=generator).double()
        released = privacy.add_noise(
            sum_bounded(itself, Data.of(x[:1000], y[:1000]), None, privacy), Simulated(Key(seed))
        )
        zero = torch.zeros((), dtype=torch.float64)
        naive = read_release(released, 5, 1, None, privacy)._replace(gram_var=zero, cross_var=zero)
        p = Noisy(Ridge(), privacy).predict(fit_noisy(naive), x[1000:])
        assert isinstance(p, Normal)
        covered.append(float(((p.mean - f[1000:]).abs() <= 1.645 * p.var.sqrt()).double().mean()))
    assert sum(covered) / 20 < 0.8


def test_scores_of_temperatures_are_bounded_and_choose() -> None:
    """One row's part is at most 1 long; with many rows the temperature that fits best is chosen."""
    generator = torch.Generator().manual_seed(5)
    x = torch.nn.functional.normalize(torch.randn(3000, 4, generator=generator), dim=1)
    y = (2 * x @ torch.randn(4, 3, generator=generator) + torch.randn(3000, 3, generator=generator)).argmax(1)
    head = Noisy(OneHot(floor=False, rates=False), PRIVACY)
    fitted = fit_noisy(noiseless(Data.of(x, y), 3))
    for i in range(5):
        one = sum_scores(head, fitted, itself, Data.of(100 * x[i : i + 1], (y[i : i + 1] + 1) % 3))
        assert float(one.values.norm()) <= 1 + 1e-12
    gains = sum_scores(head, fitted, itself, Data.of(x, y)).values
    t = choose_temperature(Released(gains, torch.ones(())), 1e-9)
    best = LOG_TEMPERATURES[int(gains.argmax())] if float(gains.max()) > 0 else 0.0
    assert abs(math.log(t) - best) <= math.log(2) / 4 + 1e-9
    assert choose_temperature(Released(0 * gains, torch.ones(())), 10.0) == 1.0


@pytest.mark.parametrize(
    ("change", "word"),
    [({"unit": "house"}, "unit"), ({"noise": "twice"}, "noise"), ({"bound": 0.0}, "clipped"),
     ({"noise": "once", "honest": 1}, "relied on"), ({"noise": "once", "honest": 4}, "relied on")],
)  # fmt: skip
def test_refuses_settings_that_promise_nothing(change: dict[str, object], word: str) -> None:
    with pytest.raises(InputError, match=word):
        Privacy(**change).check(sites=3)  # type: ignore[arg-type]


def test_refuses_sums_that_overflow_and_shares_that_are_missing() -> None:
    with pytest.raises(InputError, match="does not fit into fixed point"):
        PRIVACY.add_noise(Clipped(torch.tensor([1e12], dtype=torch.float64)), Simulated(Key(0)))
    with pytest.raises(InputError, match="put in their share"):
        Privacy(noise="once", honest=3).check_shares(Released(torch.zeros(1), torch.tensor(2.0)))


def test_a_head_that_needs_the_shares_of_classes_is_refused() -> None:
    """Offsets are 0 in a fit to noisy sums: the floor would be 0/0."""
    with pytest.raises(InputError, match="do not show the classes' shares"):
        Noisy(OneHot(), PRIVACY)
