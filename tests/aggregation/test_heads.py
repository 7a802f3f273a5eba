"""Sums of features and the heads fitted to them, against direct formulas, scikit-learn and scipy."""

import math

import numpy as np
import pytest
import scipy
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import BayesianRidge
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.predictive import Categorical, Normal
from consilience.glm import fitting, heads, sums

N, D, C = 60, 5, 3


def rows(classes: int | None = C, n: int = N, seed: int = 0) -> Data:
    g = torch.Generator().manual_seed(seed)
    x = 2 + torch.randn(n, D, generator=g, dtype=torch.float64) @ torch.randn(D, D, generator=g, dtype=torch.float64)
    score = x @ torch.randn(D, 1, generator=g, dtype=torch.float64).squeeze(1)
    noisy = score + 0.5 * score.std() * torch.randn(n, generator=g, dtype=torch.float64)
    if classes is None:
        return Data.of(x, noisy)
    return Data.of(x, torch.bucketize(noisy, torch.quantile(noisy, torch.tensor([0.3, 0.6], dtype=torch.float64))))


def total(data: Data, classes: int | None = C, by_class: bool = False) -> sums.Sums:
    return sums.summarise(lambda x: x, data, classes, by_class)


def scaled(data: Data) -> Tensor:
    return (data.x - data.x.mean(0)) / data.x.std(0, correction=0)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-8) -> bool:
    return torch.allclose(a, torch.as_tensor(b, dtype=a.dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("classes", [C, None])
@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_sums_do_not_depend_on_split_or_order(classes: int | None, by_class: bool, seed: int) -> None:
    if by_class and classes is None:
        pytest.skip("numbers have no classes")
    data = rows(classes)
    g = torch.Generator().manual_seed(seed)
    site = torch.randint(0, 1 + seed, (N,), generator=g)
    order = torch.randperm(N, generator=g)
    parts = [Data(*(leaf[order][site == k] for leaf in data)) for k in range(1 + seed)]
    together = sums.add([total(part, classes, by_class) for part in parts if len(part.w)])
    for whole, added in zip(total(data, classes, by_class), together, strict=True):
        assert close(whole, added, 1e-12)


def test_a_site_that_leaves_is_subtracted() -> None:
    data = rows()
    stays = Data(*(leaf[:40] for leaf in data))
    leaves = Data(*(leaf[40:] for leaf in data))
    rest = sums.subtract(total(data), total(leaves))
    for a, b in zip(rest, total(stays), strict=True):
        assert close(a, b, 1e-9)


def test_chunks_and_padding_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    data = rows()
    padded = Data(
        torch.cat([data.x, 1e3 * torch.ones(7, D, dtype=torch.float64)]),
        torch.cat([data.y, torch.zeros(7, dtype=torch.int64)]),
        torch.cat([data.w, torch.zeros(7, dtype=torch.float64)]),
    )
    whole = total(data)
    monkeypatch.setattr(sums, "CHUNK", 8)
    for a, b in zip(whole, total(padded), strict=True):
        assert close(a, b, 1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-15), (torch.float32, 1e-6), (torch.float16, 1e-3)])
@pytest.mark.parametrize("by_class", [False, True])
def test_sums_survive_sending(dtype: torch.dtype, tolerance: float, by_class: bool) -> None:
    before = total(rows(), by_class=by_class)
    after = sums.decompress(sums.compress(before, dtype))
    assert torch.equal(after.counts, before.counts)
    scale = sums.square_matrix(sums.whole_gram(before), D + 1).diagonal().max()
    assert float((after.gram - before.gram).abs().max() / scale) < tolerance
    assert sums.doubt(sums.compress(before, dtype)) is None


def test_sums_that_no_rows_have_are_doubted() -> None:
    honest = total(rows())
    assert sums.doubt(honest) is None
    assert "add up" in str(sums.doubt(honest._replace(counts=honest.counts + 1)))
    moved = honest.counts + torch.tensor([1.0, -1.0, 0.0])
    assert "add up" in str(sums.doubt(honest._replace(counts=moved)))
    broken = honest.gram.clone()
    broken[2] = 10 * broken.abs().max()
    assert "semi-definite" in str(sums.doubt(honest._replace(gram=broken)))
    numbers = total(rows(None), None)
    assert sums.doubt(numbers) is None
    assert "no rows have both" in str(sums.doubt(numbers._replace(square=0.01 * numbers.square)))
    classes = total(rows(), by_class=True)
    assert sums.doubt(classes) is None
    assert "sums by class" in str(sums.doubt(classes._replace(gram=classes.gram.flip(0))))
    unseen = broken.new_zeros(len(honest.gram))
    unseen[:3] = honest.gram[:3]  # a product with a feature that is always 0
    assert "semi-definite" in str(sums.doubt(honest._replace(gram=unseen, cross=_only_first(honest))))


def _only_first(honest: sums.Sums) -> Tensor:
    """Sums by class of rows with one feature beside the 1, or two."""
    return torch.cat([honest.cross[:, :3], 0 * honest.cross[:, 3:]], 1)


def test_rows_of_very_different_units_are_not_doubted() -> None:
    data = rows()
    units = torch.tensor([1e-4, 1.0, 1e5, 0.0, 1.0], dtype=torch.float64)
    for dtype in (torch.float64, torch.float32, torch.float16):
        assert sums.doubt(sums.compress(total(Data.of(units * data.x, data.y)), dtype)) is None


def test_ridge_is_bayesian_ridge() -> None:
    """scikit-learn's BayesianRidge on n − 1 contrasts, which is what a flat prior on the intercept leaves."""
    data = rows(None)
    fit = fitting.fit(heads.Ridge(), total(data, None))
    contrasts = scipy.linalg.helmert(N)
    z, y = contrasts @ scaled(data).numpy(), contrasts @ data.y.numpy()
    tiny = dict.fromkeys(("alpha_1", "alpha_2", "lambda_1", "lambda_2"), 1e-12)
    oracle = BayesianRidge(fit_intercept=False, max_iter=5000, tol=1e-12, **tiny).fit(z, y)
    assert float(fit.share * fit.size) == pytest.approx(oracle.lambda_ / oracle.alpha_, rel=1e-4)
    assert float(fit.noise) == pytest.approx(1 / oracle.alpha_, rel=1e-5)
    new = rows(None, 7, seed=1)
    p = heads.Ridge().predict(fit, new.x)
    assert isinstance(p, Normal)
    mean, deviation = oracle.predict(((new.x - data.x.mean(0)) / data.x.std(0, correction=0)).numpy(), return_std=True)
    assert close(p.mean, torch.as_tensor(mean) + data.y.mean(), 1e-5)
    intercept = float(fit.noise) / N
    assert float(fit.rest) == pytest.approx(float(fit.noise), rel=1e-4)  # where the marginal likelihood is largest
    widening = float(fit.freedom / (fit.freedom - 2))  # the variance of Student's t
    assert close((p.var + p.noise) / widening, torch.as_tensor(deviation**2) + intercept, 1e-4)


def test_near_the_base_rate_a_floor_makes_outputs_probabilities() -> None:
    """Features that say next to nothing: softmax of the outputs is then the outputs, classes alike; else it is flat."""
    g = torch.Generator().manual_seed(1)
    y = torch.arange(C).repeat(2000)
    x = torch.randn(len(y), C, generator=g, dtype=torch.float64) + 0.1 * sums.targets(y, C)
    totals = total(Data.of(x, y))
    fit = fitting.fit(heads.OneHot(), totals)
    outputs, _ = fit.latent(fit.rotate(x))
    p = heads.OneHot().predict(fit, x)
    flat = heads.OneHot(floor=False).predict(fit, x)
    assert isinstance(p, Categorical) and isinstance(flat, Categorical)
    errors = [float((q.log_probs.exp() - outputs).abs().max()) for q in (p, flat)]
    assert 3 * errors[0] < errors[1]
    sure = fitting.fit(heads.OneHot(), total(Data.of(x + 50 * sums.targets(y, C), y)))
    known = x[:5] + 50 * sums.targets(y[:5], C)
    plain = heads.OneHot(floor=False).predict(sure, known)
    assert torch.equal(heads.OneHot().predict(sure, known)[0], plain[0])  # where outputs are sure it changes nothing


def test_features_that_depend_on_each_other_leave_the_evidence_bounded() -> None:
    """A column that another one determines, as the marks of two levels do: the same λ as without it."""
    data = rows()
    level = (data.x[:, :1] > 2).double()
    with_marks = Data.of(torch.cat([data.x, level], 1), data.y)
    twice = Data.of(torch.cat([data.x, level, 1 - level], 1), data.y)
    single, double = (fitting.fit(heads.Discriminant(), total(d)).share for d in (with_marks, twice))
    assert float(double) > 1e3 * fitting.LEAST
    assert 0.3 < float(double / single) < 3  # a level that is marked twice has twice the scatter


def test_a_layer_is_the_mean_of_its_head() -> None:
    data = rows(None)
    fit = fitting.fit(heads.Ridge(), total(data, None), 0.01)
    weight, bias = heads.Ridge().linear(fit)
    p = heads.Ridge().predict(fit, data.x)
    assert close((data.x @ weight.T + bias).squeeze(1), p[0])
    labelled = rows()
    plain = heads.Discriminant(plain=True)
    fit = fitting.fit(plain, total(labelled), 0.01)
    weight, bias = plain.linear(fit)
    q = plain.predict(fit, labelled.x)
    assert isinstance(q, Categorical)
    assert close(torch.log_softmax(labelled.x @ weight.T + bias, 1), q.log_probs)


@pytest.mark.parametrize("share", [1e-4, 0.03])
def test_rows_left_out_of_a_regression(share: float) -> None:
    """Each row's prediction by a fit to the others, by normal equations, with the scale of all."""
    data = rows(None)
    z = torch.cat([torch.ones(N, 1, dtype=torch.float64), scaled(data)], 1)
    penalty = share * N * torch.diag(torch.tensor([0.0] + [1.0] * D, dtype=torch.float64))
    p = heads.Ridge().left_out(heads.Ridge().prepare(total(data, None)), data.x, data.y, [share])[0]
    whole = fitting.fit(heads.Ridge(), total(data, None), share)
    hat = z @ torch.linalg.inv(z.T @ z + penalty) @ z.T
    freedom = N - hat.trace()
    noise = ((data.y - hat @ data.y) ** 2).sum() / freedom
    assert float(whole.rest) == pytest.approx(float(noise), rel=1e-8)
    noise = noise * freedom / (freedom - 2)
    for i in (0, 17, 59):
        others = torch.arange(N) != i
        inverse = torch.linalg.inv(z[others].T @ z[others] + penalty)
        assert float(p[0][i]) == pytest.approx(float(z[i] @ inverse @ z[others].T @ data.y[others]), rel=1e-8)
        assert float(p[1][i]) == pytest.approx(float(noise * (z[i] @ inverse @ z[i])), rel=1e-8)


def dirichlet_oracle(data: Data, keep: Tensor, penalty: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """Latent means and variances of weighted least squares with a free intercept, class by class."""
    z = torch.cat([torch.ones(N, 1, dtype=torch.float64), scaled(data)], 1)
    new = torch.cat([torch.ones(len(x), 1, dtype=torch.float64), (x - data.x.mean(0)) / data.x.std(0, correction=0)], 1)
    prior = penalty * torch.diag(torch.tensor([0.0] + [1.0] * D, dtype=torch.float64))
    means, variances = [], []
    for c in range(C):
        alpha = 0.01 + (data.y == c).double()
        noise = torch.log1p(1 / alpha)
        inverse = torch.linalg.inv((z[keep].T / noise[keep]) @ z[keep] + prior)
        means.append(new @ inverse @ (z[keep].T / noise[keep]) @ (alpha.log() - noise / 2)[keep])
        variances.append(((new @ inverse) * new).sum(1))
    return torch.stack(means, 1), torch.stack(variances, 1)


def test_dirichlet_head_is_weighted_least_squares() -> None:
    """Milios et al. 2018, eq. 5: ỹ = log α − s/2, s = log(1 + 1/α), a Gaussian process a class."""
    data = rows()
    head = heads.Dirichlet()
    fit = fitting.fit(head, total(data, by_class=True), 0.01)
    new = rows(seed=1, n=9).x
    means, variances = fit.latent(fit.rotate(new))
    expected = dirichlet_oracle(data, torch.ones(N, dtype=torch.bool), 0.01 * N, new)
    assert close(means, expected[0])
    assert close(variances, expected[1])
    p = head.predict(fit, new)
    assert isinstance(p, Categorical)
    draws = means + variances.sqrt() * torch.randn(200_000, 1, C, dtype=torch.float64)
    assert close(p.probs, torch.softmax(draws, -1).mean(0), 0.05)


def test_rows_left_out_of_a_dirichlet_head() -> None:
    data = rows()
    head = heads.Dirichlet()
    p = head.left_out(head.prepare(total(data, by_class=True)), data.x, data.y, [0.01])[0]
    for i in (0, 17, 59):
        means, variances = dirichlet_oracle(data, torch.arange(N) != i, 0.01 * N, data.x[i : i + 1])
        assert close(p[0][i], heads._averaged_softmax(means, variances).log_probs[0])


def test_discriminant_is_linear_discriminant_analysis() -> None:
    """Without priors the coefficients are scikit-learn's, but for the degrees of freedom of the covariance."""
    data = rows()
    head = heads.Discriminant(strength=0.0, plain=True)
    fit = fitting.fit(head, total(data), 0.0)
    oracle = LinearDiscriminantAnalysis(solver="lsqr").fit(data.x.numpy(), data.y.numpy())
    weight, _ = head.linear(fit)
    factor = N / (N + D + 3)
    expected = torch.as_tensor(oracle.coef_)
    assert close(factor * (weight - weight.mean(0)), expected - expected.mean(0), 1e-6)


def student_scores(z: Tensor, y: Tensor, new: Tensor, penalty: float, strength: float) -> Tensor:
    """log n_c + the log-density of scipy's multivariate t, the predictive of a normal-inverse-Wishart model."""
    counts = torch.stack([(y == c).double().sum() + strength for c in range(C)])
    centres = torch.stack([z[y == c].sum(0) / counts[c] for c in range(C)])
    scale = penalty * np.eye(D) + (z.T @ z - (centres.T * counts) @ centres).numpy()
    freedom = D + 2 + len(z) - D + 1
    scores = [
        np.log(float(counts[c]))
        + scipy.stats.multivariate_t(centres[c].numpy(), scale * float(1 + 1 / counts[c]) / freedom, freedom).logpdf(
            new.numpy()
        )
        for c in range(C)
    ]
    return torch.as_tensor(np.stack([np.atleast_1d(s) for s in scores], 1))


def test_discriminant_predicts_a_student_t() -> None:
    data = rows()
    head = heads.Discriminant()
    fit = fitting.fit(head, total(data), 0.05)
    new = rows(seed=1, n=9).x
    scores = student_scores(scaled(data), data.y, (new - data.x.mean(0)) / data.x.std(0, correction=0), 0.05 * N, 1.0)
    p = head.predict(fit, new)
    assert isinstance(p, Categorical)
    assert close(p.log_probs, torch.log_softmax(scores, 1))


def test_rows_left_out_of_a_discriminant() -> None:
    data = rows()
    head = heads.Discriminant()
    p = head.left_out(head.prepare(total(data)), data.x, data.y, [0.05])[0]
    z = scaled(data)
    for i in (0, 17, 59):
        others = torch.arange(N) != i
        scores = student_scores(z[others], data.y[others], z[i : i + 1], 0.05 * N, 1.0)
        assert close(p[0][i], torch.log_softmax(scores, 1)[0], 1e-7)


def test_evidence_of_a_discriminant_is_the_chain_of_its_predictions() -> None:
    """log p(z₁ … z_n | y) by the chain rule, at two λ: their difference is that of `log_evidence`."""
    data = rows()
    z, y = scaled(data), data.y
    chain = []
    for share in (0.02, 0.2):
        value = 0.0
        for i in range(N):
            before = student_scores(z[:i], y[:i], z[i : i + 1], share * N, 1.0)
            counts = (y[:i] == y[i]).sum() + 1.0
            value += float(before[0, y[i]]) - float(counts.log())
        chain.append(value)
    head = heads.Discriminant()
    fit = head.prepare(total(data))
    assert head.log_evidence(fit, 0.2) - head.log_evidence(fit, 0.02) == pytest.approx(chain[1] - chain[0], rel=1e-6)


def test_evidence_of_a_dirichlet_head_is_that_of_its_gaussian_processes() -> None:
    data = rows()
    head = heads.Dirichlet()
    fit = head.prepare(total(data, by_class=True))
    z = scaled(data)
    values = []
    for share in (0.001, 0.1):
        value = 0.0
        for c in range(C):
            alpha = 0.01 + (y := (data.y == c).double()) * 1.0
            noise = torch.log1p(1 / alpha)
            cov = torch.diag(noise) + z @ z.T / (share * N) + 1e7
            value += float(
                torch.distributions.MultivariateNormal(torch.zeros_like(y), cov).log_prob(alpha.log() - noise / 2)
            )
        values.append(value)
    difference = head.log_evidence(fit, 0.1) - head.log_evidence(fit, 0.001)
    assert difference == pytest.approx(values[1] - values[0], rel=1e-3)


def test_a_constant_feature_and_an_absent_class_do_no_harm() -> None:
    data = rows()
    x = torch.cat([data.x, torch.full((N, 1), 3.0, dtype=torch.float64)], 1)
    absent = Data(x, data.y.clamp(max=1), data.w)
    for head in (heads.OneHot(), heads.Discriminant(), heads.Dirichlet()):
        p = head.predict(fitting.fit(head, total(absent, C, head.by_class)), x)
        assert isinstance(p, Categorical)
        assert bool(torch.isfinite(p.log_probs).all())
        assert float(p.probs[:, 2].mean()) < 0.2


@pytest.mark.parametrize("signal", [0.0, 3.0])
def test_a_rare_class_has_its_base_rate_where_features_say_nothing(signal: float) -> None:
    """1 : 1000 classes: scored on the rows themselves, no worse than the base rate; it was 0.0280 for 0.0083."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20_000, 4, generator=g, dtype=torch.float64)
    odds = math.log(0.001) - signal**2 / 2 + signal * x[:, 0]
    y = (torch.rand(20_000, generator=g, dtype=torch.float64) < odds.sigmoid()).long()
    fit = fitting.fit(heads.OneHot(), total(Data.of(x, y), 2))
    p = heads.OneHot().predict(fit, x)
    assert isinstance(p, Categorical)
    rate = float(y.double().mean())
    base = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
    assert float(-p.log_probs.gather(1, y.unsqueeze(1)).mean()) < 1.01 * base
    if not signal:
        assert float(p.log_probs[:, 1].exp().mean()) == pytest.approx(rate, rel=0.1)
