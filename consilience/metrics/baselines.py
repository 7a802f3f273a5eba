"""Baselines: what needs no federated method, fitted on the training rows and scored on the test rows."""

from __future__ import annotations

from typing import Any

import numpy
import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.data.sites import Data, Sites, concatenate
from consilience.distributions.counts import Counts
from consilience.distributions.curves import baseline, even_times, sum_times
from consilience.distributions.predictive import Categorical, Distribution, Normal
from consilience.distributions.survival import Survival
from consilience.metrics.evaluate import draw_evenly, in_units
from consilience.metrics.scores import scores

FIT_ROWS = 10_000  # training rows of the linear classifier at most, drawn evenly
PRECISION = 1.0  # of the linear model's weights, on standardised features
SMALLEST = 1e-12  # variance of a target that never changes


def lines_to_beat(sites: Sites) -> dict[str, Any]:
    """Score trivial predictions, and a linear model of all rows in one place.

    Returns:
        `base_rate` (the classes' frequencies, or the mean), `site_rate` (the same of a row's own site) and
        `pooled_linear`, unless rows are token ids, each with its `metrics`; none without training or test rows.
    """
    if not sites.train or sum(len(part.x) for part in sites.test) == 0:
        return {}
    rows = sites.all_test
    train = concatenate(sites.train)
    if sites.outcome:
        events = _event_rates(sites, train)
        return {name: {"metrics": scores(*in_units(p, rows, sites))} for name, p in events.items()}
    if sites.classes:
        models = _class_rates(sites, train.y)
    else:
        models = _means(sites, train.y.double())
    if train.x.is_floating_point() and not sites.streamed:  # token ids are names, not amounts
        models["pooled_linear"] = _linear(train, rows.x, sites.classes)
    return {name: {"metrics": scores(*in_units(p, rows, sites))} for name, p in models.items()}


def base_rate(sites: Sites) -> dict[str, float]:
    """Score the classes' frequencies, the mean, or the rate of all training rows, and nothing else.

    Returns:
        The scores, as `lines_to_beat` has them under `base_rate`; none without rows, or for times to an event.
    """
    if not sites.train or sites.outcome == "survival" or sum(len(part.x) for part in sites.test) == 0:
        return {}
    rows = sites.all_test
    train = concatenate(sites.train)
    if sites.outcome:
        models = _event_rates(sites, train)
    elif sites.classes:
        models = _class_rates(sites, train.y)
    else:
        models = _means(sites, train.y.double())
    return scores(*in_units(models["base_rate"], rows, sites))


def _class_rates(sites: Sites, y: Tensor) -> dict[str, Distribution]:
    """Frequencies of the classes: half a row of each is added, and a row of the overall ones at every site."""
    assert sites.classes is not None
    counts = torch.stack([torch.bincount(part.y.long(), minlength=sites.classes) for part in sites.train]).double()
    total = counts.sum(0) + 0.5
    overall = total / total.sum()
    by_site = (counts + overall) / (counts.sum(1, keepdim=True) + 1)
    return {
        "base_rate": Categorical(overall.log().expand(len(sites.all_test.x), -1)),
        "site_rate": Categorical(_by_row(by_site.log(), sites.test)),
    }


def _means(sites: Sites, y: Tensor) -> dict[str, Distribution]:
    """Means with the variance around them: a row of the overall mean is added at every site."""
    overall = y.mean(0)
    by_site = torch.stack([(part.y.double().sum(0) + overall) / (len(part.y) + 1) for part in sites.train])
    around = _variance(y - overall)
    around_site = _variance(y - _by_row(by_site, sites.train))
    mean = overall.expand(len(sites.all_test.y), *overall.shape)
    site_mean = _by_row(by_site, sites.test)
    return {
        "base_rate": Normal(mean, torch.zeros_like(mean), around.expand_as(mean)),
        "site_rate": Normal(site_mean, torch.zeros_like(site_mean), around_site.expand_as(site_mean)),
    }


def _event_rates(sites: Sites, train: Data) -> dict[str, Distribution]:
    """One rate of counts for all, and one a site with a unit of the overall one added; of times, one curve for all."""
    rows = len(sites.all_test.x)
    if sites.outcome == "survival":
        grid = even_times(train.y)
        hazard = baseline(grid, [sum_times(train.y, grid)])
        nothing = torch.zeros(rows, 0, dtype=torch.float64)
        zeros = torch.zeros(rows, dtype=torch.float64)
        return {"kaplan_meier": Survival(zeros, zeros, nothing, nothing).on(grid, hazard)}
    sums = torch.stack([_sum_counts(part.y) for part in sites.train])
    overall = sums[:, 0].sum() / sums[:, 1].sum()
    by_site = (sums[:, 0] + overall) / (sums[:, 1] + 1)
    rates = {"base_rate": overall.expand(rows), "site_rate": _by_row(by_site, sites.test)}
    return {name: Counts(rate, torch.zeros_like(rate)) for name, rate in rates.items()}


def _sum_counts(y: Tensor) -> Tensor:
    """All counts, and all exposures, or rows where there are none [2]."""
    both = y.double().reshape(len(y), -1)
    if both.shape[1] == 1:
        both = torch.cat([both, torch.ones_like(both)], 1)
    return both.sum(0)


def _by_row(by_site: Tensor, parts: tuple[Data, ...]) -> Tensor:
    """Every site's value for each of its rows."""
    return by_site.repeat_interleave(torch.tensor([len(part.x) for part in parts]), 0)


def _variance(residuals: Tensor) -> Tensor:
    return (residuals**2).mean(0).clamp(min=SMALLEST)


def _linear(train: Data, x: Tensor, classes: int | None) -> Distribution:
    """A linear model of all training rows in one place, its weights under a Gaussian prior."""
    rows = train.x.double().flatten(1)
    mean = rows.mean(0)
    scale = rows.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)

    def design(x: Tensor) -> Tensor:
        standard = (x.double().flatten(1) - mean) / scale
        return torch.cat([torch.ones(len(x), 1, dtype=torch.float64), standard], 1)

    if classes:
        drawn = draw_evenly(len(rows), FIT_ROWS)
        weights = _logistic(design(train.x[drawn]), train.y[drawn].long(), classes)
        return Categorical((design(x) @ weights).log_softmax(1))
    features = design(train.x)
    y = train.y.double()
    penalty = torch.full((features.shape[1],), PRECISION, dtype=torch.float64)
    penalty[0] = 0.0  # the intercept is free
    gram = features.T @ features + torch.diag(penalty)
    weights = torch.linalg.solve(gram, features.T @ y.reshape(len(y), -1)).reshape(-1, *y.shape[1:])
    noise = _variance(y - features @ weights)
    predicted = design(x) @ weights
    return Normal(predicted, torch.zeros_like(predicted), noise.expand_as(predicted))


def _logistic(features: Tensor, y: Tensor, classes: int) -> Tensor:
    """The most probable weights [D, C] of a softmax regression."""
    target = torch.nn.functional.one_hot(y, classes).double()
    shape = (features.shape[1], classes)

    def loss(flat: numpy.ndarray[Any, Any]) -> tuple[float, numpy.ndarray[Any, Any]]:
        weights = torch.from_numpy(flat).reshape(shape)
        outputs = features @ weights
        slopes = weights.clone()
        slopes[0] = 0.0  # the intercepts are free
        value = (outputs.logsumexp(1) - (target * outputs).sum(1)).sum() + 0.5 * PRECISION * (slopes**2).sum()
        gradient = features.T @ (outputs.softmax(1) - target) + PRECISION * slopes
        return float(value), gradient.flatten().numpy()

    start = numpy.zeros(shape[0] * shape[1])
    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 100})
    return torch.from_numpy(found.x).reshape(shape)
