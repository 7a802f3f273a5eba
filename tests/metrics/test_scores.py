"""Scores and calibration, against scikit-learn, scipy, torchmetrics and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, log_loss, roc_auc_score
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from consilience import metrics
from consilience.distributions.predictive import Categorical, Normal
from consilience.errors import Diverged, InputError
from consilience.metrics.calibration import (
    coverage_curve,
    ece,
    ece_adaptive,
    ece_classwise,
    ece_debiased,
    expected_ece_if_calibrated,
    intercept_and_slope,
    reliability,
    wilson,
)
from consilience.metrics.scores import BETTER, intervals, scores
from consilience.metrics.single import rank_positives

DOUBLE = torch.float64


def predictions(rows: int, classes: int, seed: int = 0, sharpness: float = 1.0) -> tuple[Categorical, Tensor]:
    """Labels drawn from softmax(z), predictions softmax(sharpness · z): calibrated when the sharpness is 1."""
    generator = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(rows, classes, generator=generator, dtype=DOUBLE)
    y = torch.multinomial(z.softmax(-1), 1, generator=generator).squeeze(-1)
    return Categorical(torch.log_softmax(sharpness * z, -1)), y


def regression(rows: int, seed: int = 0) -> tuple[Normal, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mean, a, b = torch.randn(3, rows, generator=generator, dtype=DOUBLE)
    p = Normal(mean, a.exp(), b.exp())
    return p, mean + p.total.sqrt() * torch.randn(rows, generator=generator, dtype=DOUBLE)


def binary(probs: list[float], y: list[int]) -> tuple[Categorical, Tensor]:
    one = torch.tensor(probs, dtype=DOUBLE)
    return Categorical(torch.stack([1 - one, one], 1).log()), torch.tensor(y)


# Scores of classes


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_class_scores_agree_with_scikit_learn(classes: int) -> None:
    p, y = predictions(300, classes)
    probs, labels = p.probs.numpy(), y.numpy()

    found = scores(p, y)

    assert found["nll"] == pytest.approx(log_loss(labels, probs), abs=1e-12)
    assert found["accuracy"] == pytest.approx((probs.argmax(1) == labels).mean(), abs=1e-12)
    assert found["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, probs.argmax(1)), abs=1e-12)
    brier = sum(((probs[i] - np.eye(classes)[labels[i]]) ** 2).sum() for i in range(300)) / 300  # its definition
    assert found["brier"] == pytest.approx(brier, abs=1e-12)
    auroc = roc_auc_score(labels, probs[:, 1] if classes == 2 else probs, multi_class="ovr")
    assert found["auroc"] == pytest.approx(auroc, abs=1e-12)
    assert all(type(value) is float for value in found.values())


def test_tied_scores_count_half_in_auroc() -> None:
    probs, labels = [0.2, 0.5, 0.5, 0.5, 0.9, 0.2], [0, 0, 1, 1, 1, 1]
    p, y = binary(probs, labels)

    # Of 4 · 2 pairs: three beat the 0.2 and one ties it, 3½; one beats the 0.5, two tie it and one loses, 2: 5.5 / 8.
    assert scores(p, y)["auroc"] == pytest.approx(5.5 / 8, abs=1e-12)
    assert roc_auc_score(labels, probs) == pytest.approx(5.5 / 8)


def test_auroc_ranks_probabilities_that_round_to_one() -> None:
    logits = torch.tensor([[0.0, 40.0], [0.0, 50.0], [0.0, 60.0]])  # 1 − p is 4e-18 and less: all 1.0 in float32

    found = scores(Categorical(torch.log_softmax(logits, -1)), torch.tensor([0, 1, 1]))

    assert found["auroc"] == 1.0


def test_auroc_leaves_out_classes_that_do_not_occur() -> None:
    p, y = predictions(200, 4)
    kept = y != 3
    p, y = Categorical(p.log_probs[kept]), y[kept]
    one_by_one = [roc_auc_score((y == c).numpy(), p.probs[:, c].numpy()) for c in range(3)]

    assert scores(p, y)["auroc"] == pytest.approx(np.mean(one_by_one), abs=1e-12)


def test_scores_undefined_on_the_rows_are_left_out() -> None:
    one_class = scores(*binary([0.2, 0.6, 0.7], [1, 1, 1]))
    separated = scores(*binary([0.2, 0.6, 0.7], [0, 1, 1]))
    certain = scores(*binary([0.0, 1.0, 0.5], [0, 1, 1]))

    assert not {"auroc", "calibration_intercept", "calibration_slope"} & one_class.keys()
    assert "calibration_intercept" in separated
    assert "calibration_slope" not in separated  # its likelihood grows without end
    assert "calibration_intercept" not in certain  # logits of ± ∞
    for found in (one_class, separated, certain):
        assert all(math.isfinite(value) for value in found.values())


def test_a_label_of_probability_zero_costs_infinitely_much() -> None:
    p, y = binary([0.0, 0.5, 0.5, 0.5, 0.5, 0.5], [1, 0, 1, 0, 1, 0])

    low, high = intervals(p, y)["nll"]

    assert scores(p, y)["nll"] == math.inf
    assert low == pytest.approx(math.log(2))  # resamples without the first row, one in three
    assert high == math.inf


@given(st.integers(1, 40), st.integers(2, 5), st.integers(0, 10**6))
@settings(max_examples=40)
def test_class_scores_stay_in_their_ranges_and_ignore_the_order_of_rows(rows: int, classes: int, seed: int) -> None:
    p, y = predictions(rows, classes, seed)
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))

    found = scores(p, y)
    shuffled = scores(Categorical(p.log_probs[order]), y[order])

    assert found == pytest.approx(shuffled, abs=1e-9, rel=1e-6)
    assert found.keys() <= BETTER.keys()
    for name in ("accuracy", "balanced_accuracy", "ece", "ece_adaptive", "ece_classwise", "auroc"):
        assert -1e-12 <= found.get(name, 0) <= 1 + 1e-12
    assert 0 <= found["brier"] <= 2
    assert found["ece_debiased"] <= found["ece"] + 1e-12  # a folded normal's mean is at least the gap


# Scores of numbers


def test_number_scores_agree_with_scipy() -> None:
    p, y = regression(200)
    mean, sd = p.mean.numpy(), p.total.sqrt().numpy()

    found = scores(p, y)

    assert found["nll"] == pytest.approx(-stats.norm.logpdf(y.numpy(), mean, sd).mean(), abs=1e-12)
    assert found["rmse"] == pytest.approx(math.sqrt(((y.numpy() - mean) ** 2).mean()), abs=1e-12)
    assert found["sharpness"] == pytest.approx(sd.mean(), abs=1e-12)
    for level in (50, 80, 95):
        low, high = stats.norm.interval(level / 100, mean, sd)
        assert found[f"coverage{level}"] == pytest.approx(((low <= y.numpy()) & (y.numpy() <= high)).mean())


@pytest.mark.parametrize(("mean", "sd", "y"), [(0.0, 1.0, 0.0), (1.0, 0.5, 2.5), (-2.0, 3.0, -4.0)])
def test_crps_is_the_integral_of_the_squared_distance_of_distribution_functions(
    mean: float, sd: float, y: float
) -> None:
    p = Normal(torch.tensor([mean], dtype=DOUBLE), torch.tensor([sd**2 / 4]), torch.tensor([3 * sd**2 / 4]))

    below, _ = integrate.quad(lambda x: stats.norm.cdf(x, mean, sd) ** 2, mean - 12 * sd, y)
    above, _ = integrate.quad(lambda x: stats.norm.sf(x, mean, sd) ** 2, y, mean + 12 * sd)

    assert scores(p, torch.tensor([y]))["crps"] == pytest.approx(below + above, abs=1e-6)


def test_a_column_of_means_is_scored_like_a_vector() -> None:
    p, y = regression(50)
    column = Normal(p.mean.unsqueeze(1), p.var.unsqueeze(1), p.noise.unsqueeze(1))

    assert scores(column, y) == pytest.approx(scores(p, y), abs=1e-12)


def test_several_outputs_are_averaged_and_their_nll_is_summed() -> None:
    p, y = regression(50)
    twice = Normal(*(torch.stack([part, part], 1) for part in p))

    one, two = scores(p, y), scores(twice, torch.stack([y, y], 1))

    assert two.pop("nll") == pytest.approx(2 * one.pop("nll"))
    assert two == pytest.approx(one)


# Calibration


@pytest.mark.parametrize("sharpness", [1.0, 2.5])
def test_ece_agrees_with_torchmetrics(sharpness: float) -> None:
    p, y = predictions(400, 5, sharpness=sharpness)

    theirs = multiclass_calibration_error(p.probs, y, num_classes=5, n_bins=15, norm="l1")

    assert ece(p, y) == pytest.approx(float(theirs), abs=1e-6)
    assert scores(p, y)["ece"] == ece(p, y)


def test_classwise_ece_averages_one_binary_error_per_class() -> None:
    p, y = predictions(400, 3, sharpness=2)

    # torchmetrics' binary error bins the probability of class 1, which is what a class's own error does.
    one_by_one = [
        binary_calibration_error(p.probs[:, c].contiguous(), (y == c).long(), n_bins=15, norm="l1") for c in range(3)
    ]
    assert ece_classwise(p, y) == pytest.approx(float(torch.stack(one_by_one).mean()), abs=1e-6)


def test_adaptive_bins_hold_equally_many_rows() -> None:
    p, y = predictions(300, 4)  # calibrated, so that gaps have both signs and the bins matter
    confidence, label = p.probs.max(-1)
    order = confidence.argsort()

    # 15 bins of the 20 next confidences each.
    off = (confidence - (label == y).double())[order].reshape(15, 20)
    assert ece_adaptive(p, y) == pytest.approx(float(off.sum(1).abs().sum() / 300), abs=1e-12)


def test_adaptive_bins_keep_equal_confidences_together() -> None:
    p, y = binary([0.8] * 20, [1] * 16 + [0] * 4)  # calibrated exactly; in bins cut through the rows it would not be

    assert ece_adaptive(p, y) == pytest.approx(0, abs=1e-12)


def test_debiased_ece_subtracts_what_resampled_accuracies_gain() -> None:
    p, y = predictions(500, 4, sharpness=1.5)
    confidence, label = (t.numpy() for t in p.probs.max(-1))
    hit, where = label == y.numpy(), np.ceil(confidence * 15).astype(int)
    rng, plain, gained = np.random.default_rng(0), 0.0, 0.0

    # The authors' procedure (Kumar et al. 2019, section 5) by simulation instead of the folded normal's mean.
    for b in np.unique(where):
        n, c, a = (where == b).sum(), confidence[where == b].mean(), hit[where == b].mean()
        drawn = rng.normal(a, math.sqrt(a * (1 - a) / n), 200_000)
        plain += n / 500 * abs(c - a)
        gained += n / 500 * (np.abs(c - drawn).mean() - abs(c - a))

    assert ece_debiased(p, y) == pytest.approx(plain - gained, abs=2e-4)  # 14 bins' Monte Carlo errors ≤ 1e-4 each
    assert ece(p, y) == pytest.approx(plain, abs=1e-12)


def test_debiasing_leaves_a_calibrated_model_two_minus_root_two_of_its_ece() -> None:
    # A calibrated bin's gap is |σZ|, mean σ√(2/π); its estimated bias is E|σZ + σZ'| − E|σZ| = (√2 − 1) σ√(2/π). So
    # the plug-in correction takes away √2 − 1 = 41 % of the bias where there is nothing but bias.
    pairs = [predictions(3000, 3, seed) for seed in range(150)]

    plain, debiased = (sum(f(p, y) for p, y in pairs) / 150 for f in (ece, ece_debiased))

    assert plain > 0.015
    assert debiased / plain == pytest.approx(2 - math.sqrt(2), abs=0.04)


def test_debiasing_reaches_the_truth_where_every_bin_is_off() -> None:
    # Confidence 0.9, accuracy 0.7: the error is 0.2, and |confidence − accuracy| has no bias so far from 0.
    generator = torch.Generator().manual_seed(0)
    p = Categorical(torch.tensor([[0.1, 0.9]], dtype=DOUBLE).log().expand(200, 2))
    found = [ece_debiased(p, (torch.rand(200, generator=generator) < 0.7).long()) for _ in range(200)]

    # Standard error of the mean: √(0.7 · 0.3 / 200 / 200) = 0.0023; three of them.
    assert sum(found) / 200 == pytest.approx(0.2, abs=0.007)


def test_expected_ece_of_a_calibrated_model_follows_its_closed_form() -> None:
    # All confidences 0.8 in one bin of 400 rows: E|Z| √(0.8 · 0.2 / 400) = 0.798 · 0.02 = 0.01596.
    p, _ = binary([0.8] * 400, [1] * 400)

    found = expected_ece_if_calibrated(p, draws=4000)

    # Standard error: sd of |Z| is 0.603, 0.603 · 0.02 / √4000 = 0.0002; four of them.
    assert found == pytest.approx(math.sqrt(2 / math.pi) * 0.02, abs=8e-4)


def test_expected_ece_is_what_calibrated_models_show_and_grows_as_rows_shrink() -> None:
    shown = [ece(*predictions(360, 10, seed)) for seed in range(100)]
    expected = [expected_ece_if_calibrated(predictions(360, 10, seed)[0], draws=100) for seed in range(20)]
    few = expected_ece_if_calibrated(predictions(25, 10)[0])

    error = float(np.std(shown)) / 10 + float(np.std(expected)) / math.sqrt(20)  # of the difference, at most
    assert np.mean(shown) == pytest.approx(np.mean(expected), abs=3 * error)
    assert few > 2 * np.mean(expected)


def test_reliability_bins_add_up_to_the_ece() -> None:
    p, y = predictions(300, 4, sharpness=2)

    diagram = reliability(p, y)

    assert len(diagram) == 15
    assert sum(b.count for b in diagram) == 300
    gap = sum(b.count * abs(b.confidence - b.accuracy) for b in diagram if b.confidence is not None) / 300
    assert gap == pytest.approx(ece(p, y), abs=1e-12)
    for b in diagram:
        if b.count:
            assert b.low < b.confidence <= b.high
            assert b.interval[0] <= b.accuracy <= b.interval[1]
        else:
            assert (b.confidence, b.accuracy, b.interval) == (None, None, None)
    assert diagram[0].count == 0  # the top one of four classes has at least 1/4


@given(st.integers(1, 500), st.data())
@settings(max_examples=30)
def test_wilson_interval_agrees_with_scipy(n: int, data: st.DataObject) -> None:
    hits = data.draw(st.integers(0, n))

    theirs = stats.binomtest(hits, n).proportion_ci(0.95, method="wilson")

    assert wilson(hits / n, n) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_slope_agrees_with_unpenalised_logistic_regression() -> None:
    p, y = predictions(400, 2, sharpness=1.7)
    x = (p.log_probs[:, 1] - p.log_probs[:, 0]).numpy()

    _, slope = intercept_and_slope(p, y)
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=1000).fit(x[:, None], y.numpy())

    coefficients = torch.tensor([theirs.intercept_[0], theirs.coef_[0, 0]], dtype=DOUBLE)
    logits = torch.from_numpy(x)
    cost = lambda b: torch.nn.functional.softplus(b[0] + b[1] * logits).sum() - (y * (b[0] + b[1] * logits)).sum()
    var = torch.linalg.inv(torch.autograd.functional.hessian(cost, coefficients))[1, 1]  # of the slope, by autograd
    assert slope is not None
    assert slope.high - slope.low == pytest.approx(2 * 1.959964 * math.sqrt(float(var)), rel=1e-4)
    assert slope.value == pytest.approx(theirs.coef_[0, 0], abs=1e-5)
    assert scores(p, y)["calibration_slope"] == slope.value
    assert slope.low < 1 / 1.7 < slope.high  # labels were drawn from the logits divided by 1.7


def test_intercept_makes_the_mean_probability_the_rate() -> None:
    p, y = predictions(400, 2, sharpness=1.7)
    x = p.log_probs[:, 1] - p.log_probs[:, 0]

    intercept, _ = intercept_and_slope(p, y)

    # The score equation of a logistic regression with the logit as an offset: Σ σ(a + x) = Σ y.
    assert intercept is not None
    assert float(torch.sigmoid(intercept.value + x).mean()) == pytest.approx(float(y.double().mean()), abs=1e-10)


@pytest.mark.parametrize(("size", "known"), [(1e15, True), (1e17, False), (math.inf, False)])
def test_log_odds_without_digits_for_an_intercept_have_none(size: float, known: bool) -> None:
    # The intercept is near −size, where doubles lie 0.125 (1e15) or 16 (1e17) apart.
    x, y = torch.tensor([size] * 5 + [-size], dtype=DOUBLE), torch.tensor([0, 1, 0, 0, 0, 0])
    p = Categorical(torch.nn.functional.logsigmoid(torch.stack([-x, x], 1)))

    intercept, _ = intercept_and_slope(p, y)

    assert (intercept is not None) == known
    assert ("calibration_intercept" in scores(p, y)) == known


def test_a_shifted_and_stretched_model_is_found_out() -> None:
    generator = torch.Generator().manual_seed(1)
    x = 2 * torch.randn(20_000, generator=generator, dtype=DOUBLE)
    y = (torch.rand(20_000, generator=generator, dtype=DOUBLE) < torch.sigmoid(x)).long()
    shifted = torch.nn.functional.logsigmoid(torch.stack([-(x + 1), x + 1], 1))
    stretched = torch.nn.functional.logsigmoid(torch.stack([-2 * x, 2 * x], 1))

    intercept, _ = intercept_and_slope(Categorical(shifted), y)
    _, slope = intercept_and_slope(Categorical(stretched), y)

    assert intercept is not None
    assert slope is not None
    assert intercept.value == pytest.approx(-1, abs=0.08)  # four standard errors of 1/√(20 000 · 0.13) = 0.02
    assert slope.value == pytest.approx(0.5, abs=0.03)


def test_large_logits_do_not_break_the_recalibration() -> None:
    x = torch.tensor([-900.0, -20.0, 5.0, 30.0, 800.0, -3.0], dtype=DOUBLE)
    p = Categorical(torch.nn.functional.logsigmoid(torch.stack([-x, x], 1)))

    intercept, slope = intercept_and_slope(p, torch.tensor([0, 1, 0, 1, 1, 0]))

    assert intercept is not None
    assert slope is not None
    assert all(math.isfinite(v) for v in (*intercept, *slope))


def test_coverage_curve_of_the_true_distribution_follows_the_levels() -> None:
    curve = coverage_curve(*regression(4000), levels=[0.1, 0.5, 0.9])

    for level, observed, (low, high) in curve:
        assert observed == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 4000))
        assert low < observed < high


# Intervals


def test_every_score_has_an_interval_and_the_seed_decides_it() -> None:
    for p, y in (predictions(80, 2), predictions(80, 4), regression(80)):
        found = intervals(p, y, resamples=100, seed=3)

        assert found.keys() == scores(p, y).keys()
        assert found == intervals(p, y, resamples=100, seed=3)
        assert found != intervals(p, y, resamples=100, seed=4)
        for name, value in scores(p, y).items():
            assert found[name][0] <= value <= found[name][1]


def test_accuracy_interval_is_the_binomial_one() -> None:
    p, y = predictions(400, 3)
    accuracy = scores(p, y)["accuracy"]

    low, high = intervals(p, y, resamples=4000)["accuracy"]

    # A resample's hits are Binomial(400, accuracy); one hit is 0.0025, the ends' Monte Carlo error about that.
    expected = stats.binom.ppf([0.025, 0.975], 400, accuracy) / 400
    assert (low, high) == pytest.approx(tuple(expected), abs=0.0051)


def test_rmse_and_nll_intervals_agree_with_scipy() -> None:
    p, y = regression(150)
    ours = intervals(p, y, resamples=4000)
    per_row = -stats.norm.logpdf(y.numpy(), p.mean.numpy(), p.total.sqrt().numpy())
    squares = ((y - p.mean) ** 2).numpy()

    for name, rows, f in (("nll", per_row, np.mean), ("rmse", squares, lambda v, axis=-1: np.sqrt(v.mean(axis)))):
        theirs = stats.bootstrap((rows,), f, n_resamples=4000, method="percentile", rng=np.random.default_rng(0))
        width = theirs.confidence_interval.high - theirs.confidence_interval.low
        assert ours[name] == pytest.approx(tuple(theirs.confidence_interval), abs=0.06 * width)


def test_auroc_of_a_resample_is_the_auroc_of_its_rows() -> None:
    p, y = predictions(60, 2)
    drawn = torch.randint(60, (60,), generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=60).double().unsqueeze(1)

    found = float(rank_positives(p.log_probs[:, 1], y == 1, counts))

    assert found == pytest.approx(roc_auc_score(y[drawn].numpy(), p.log_probs[drawn, 1].numpy()), abs=1e-12)


@pytest.mark.parametrize("trials", [50, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("sharpness", "coverage"), [(1.0, 0.95), (1.5, 0.92)])
def test_ece_intervals_hold_the_truth(sharpness: float, coverage: float, trials: int) -> None:
    # The truth is the error of a very large sample. The least is three standard errors over the trials below a coverage
    # of 0.95 (calibrated) and 0.92 (not). Plain percentiles never hold 0, as no resample has an ECE of 0; with those of
    # the debiased error in place of the pivot the second coverage is 0.79.
    truth = 0.0 if sharpness == 1 else ece(*predictions(200_000, 3, 10**6, sharpness))

    found = [intervals(*predictions(100, 3, seed, sharpness), resamples=200)["ece"] for seed in range(trials)]

    least = coverage - 3 * math.sqrt(coverage * (1 - coverage) / trials)
    assert sum(low <= truth <= high for low, high in found) / trials >= least


def test_calibration_intervals_of_a_model_far_off_leave_zero_out() -> None:
    found = intervals(*predictions(1000, 10, sharpness=3), resamples=200)

    assert all(found[name][0] > 0 for name in ("ece", "ece_debiased", "ece_adaptive", "ece_classwise"))


# One score at a time


@pytest.mark.parametrize("name", ["accuracy", "balanced_accuracy", "nll", "brier", "auroc", "ece", "ece_adaptive"])
@pytest.mark.parametrize("classes", [2, 4])
def test_a_score_of_classes_by_itself_is_the_one_among_all(name: str, classes: int) -> None:
    p, y = predictions(150, classes)

    assert getattr(metrics, name)(p, y) == scores(p, y)[name]


@pytest.mark.parametrize("name", ["rmse", "nll", "crps", "sharpness"])
def test_a_score_of_numbers_by_itself_is_the_one_among_all(name: str) -> None:
    p, y = regression(150)

    assert getattr(metrics, name)(p, y) == scores(p, y)[name]


def test_coverage_by_itself_is_the_one_among_all() -> None:
    p, y = regression(150)

    assert metrics.coverage(p, y) == scores(p, y)["coverage95"]
    assert metrics.coverage(p, y, level=0.5) == scores(p, y)["coverage50"]


def test_a_score_of_another_kind_is_refused_and_one_that_is_undefined_is_nan() -> None:
    with pytest.raises(InputError, match="'accuracy' is not a score of a Normal: choose among rmse, nll"):
        metrics.accuracy(*regression(5))  # type: ignore[arg-type]
    assert math.isnan(metrics.auroc(*binary([0.2, 0.7], [1, 1])))


# What is refused, and the names


def test_rows_that_cannot_be_scored_are_refused() -> None:
    p, y = predictions(5, 3)

    with pytest.raises(InputError, match="5 predictions and 4 labels"):
        scores(p, y[:4])
    with pytest.raises(InputError, match="from 0 to 2"):
        scores(p, y + 3)
    with pytest.raises(Diverged, match="NaN"):
        scores(Categorical(p.log_probs * math.nan), y)
    with pytest.raises(InputError, match="not positive"):
        scores(Normal(torch.zeros(2), torch.zeros(2), torch.zeros(2)), torch.zeros(2))
    with pytest.raises(InputError, match="do not fit"):
        scores(Normal(torch.zeros(2, 3), torch.ones(2, 3), torch.ones(2, 3)), torch.zeros(2))
    with pytest.raises(InputError, match="two classes"):
        intercept_and_slope(p, y)


def test_every_score_has_a_direction() -> None:
    produced = scores(*predictions(80, 2)).keys() | scores(*regression(10)).keys()
    produced |= {"deviance", "concordance", "ibs"}  # of counts and times: see test_events.py

    assert produced == BETTER.keys()
    assert all(BETTER[name] == -1 for name in ("nll", "brier", "crps"))
