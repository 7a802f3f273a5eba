"""Sets from folds: MAPIE's CV+ on pooled rows, and what Barber et al. promise, from a run for each fold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mapie.classification import CrossConformalClassifier
from mapie.regression import CrossConformalRegressor
from scipy import stats
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import KFold

import consilience as co
from consilience.benchmark.folds import assign_folds
from consilience.distributions.predictive import Categorical, Normal
from consilience.errors import InputError
from consilience.prediction_sets.cross import CrossGuarantee, check_folds, cross_intervals, cross_sets
from consilience.prediction_sets.nonconformity import Score, number_scores, row_scores
from consilience.prediction_sets.score_counts import count_scores

FOLDS = KFold(4)
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(160, 3))
NUMBERS = X @ np.array([1.0, -1.0, 0.5]) + DRAW.standard_t(3, size=160)
CLASSES = np.digitize(X[:, 0] + 0.8 * DRAW.normal(size=160), [-0.5, 0.5])


def normal(mean: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Normal:
    return Normal(torch.tensor(mean), torch.full((len(mean),), 0.5).double(), torch.tensor(0.5).double())


def test_intervals_from_folds_are_mapies() -> None:
    mapie = CrossConformalRegressor(LinearRegression(), confidence_level=0.9, method="plus", cv=FOLDS)
    _, expected = mapie.fit_conformalize(X[:120], NUMBERS[:120]).predict_interval(X[120:])
    models = []
    scores = []
    for kept, left in FOLDS.split(X[:120]):
        model = LinearRegression().fit(X[kept], NUMBERS[kept])
        scores.append(
            number_scores(Score("residual"), normal(model.predict(X[left])), torch.tensor(NUMBERS[left]), 0.9)
        )
        models.append(normal(model.predict(X[120:])))
    edges = torch.cat(scores).sort().values  # so that nothing is rounded
    tables = torch.stack([count_scores(part, edges) for part in scores])

    low, high = cross_intervals(CrossGuarantee(0.9, Score("residual"), edges, tables), models)

    assert torch.stack([low, high], 1).numpy() == pytest.approx(expected[:, :, 0], abs=1e-9)


def test_sets_from_folds_are_mapies() -> None:
    mapie = CrossConformalClassifier(LogisticRegression(), confidence_level=0.9, conformity_score="lac", cv=FOLDS)
    mapie.fit_conformalize(X[:120], CLASSES[:120])
    _, expected = mapie.predict_set(X[120:], agg_scores="crossval")
    models = []
    scores = []
    for kept, left in FOLDS.split(X[:120]):
        model = LogisticRegression().fit(X[kept], CLASSES[kept])
        p = Categorical(torch.tensor(model.predict_log_proba(X[left])))
        scores.append(row_scores(Score("hinge"), p, torch.tensor(CLASSES[left]), torch.zeros(len(left)), 0.9))
        models.append(Categorical(torch.tensor(model.predict_log_proba(X[120:]))))
    edges = torch.cat(scores).sort().values
    tables = torch.stack([count_scores(part, edges) for part in scores])

    sets = cross_sets(CrossGuarantee(0.9, Score("hinge"), edges, tables), models, torch.zeros(40))

    assert (sets.numpy() == expected[:, :, 0]).all()


def test_the_promise_is_barbers() -> None:
    """n = 100, F = 10, α = 0.1: 1 − 0.2 − min{2 · 0.9/11, 0.9/11} = 0.7182; leaving one out, F = n: 1 − 2α."""
    edges = torch.tensor([0.5], dtype=torch.float64)
    ten = CrossGuarantee(0.9, Score("hinge"), edges, torch.full((10, 2), 5))
    each = CrossGuarantee(0.9, Score("hinge"), edges, torch.tensor([[1, 0]] * 100))

    assert ten.promised == pytest.approx(0.8 - 0.9 / 11)
    assert each.promised == pytest.approx(0.8)
    assert "At least 71.8 % of rows" in str(ten)


def test_a_coarse_grid_only_enlarges_intervals() -> None:
    scores = torch.tensor(DRAW.gamma(1.0, size=90))
    models = [normal(DRAW.normal(size=20)) for _ in range(3)]
    ends = []
    for edges in (scores.sort().values, Score("residual").edges(12, None)):
        tables = torch.stack([count_scores(part, edges) for part in scores.split(30)])
        ends.append(cross_intervals(CrossGuarantee(0.8, Score("residual"), edges, tables), models))

    assert bool((ends[1][0] <= ends[0][0]).all()) and bool((ends[1][1] >= ends[0][1]).all())


def test_folds_of_all_sites_are_equal() -> None:
    assigned = torch.cat(assign_folds([7, 12, 4], 4, seed=1))

    assert sorted(torch.bincount(assigned).tolist()) == [5, 6, 6, 6]


def test_a_federation_has_sets_from_folds_without_rows_set_aside() -> None:
    """200 new rows: covered are no fewer than promised, beyond 4 standard errors."""
    x = DRAW.normal(size=(320, 3))
    y = (x[:, 0] + 0.5 * DRAW.normal(size=320) > 0).astype(int)
    data = co.from_arrays(x, y, np.arange(320) % 3, standardise=False)
    sites = data.split(co.splits.natural(), calibration=0, test=0.6, seed=0)
    task = co.classification(co.models.linear(sites.features, sites.classes))

    found = co.cross_conformal(co.methods.ExactPooling(), task, sites, 0.9, folds=4)

    test = sites.all_test
    sets = found.predict(test.x)
    assert isinstance(sets, torch.Tensor) and found.guarantee.rows == sum(len(part.y) for part in sites.train)
    inside = sets.gather(1, test.y.unsqueeze(1)).double()
    low = stats.binom.ppf(0.001, len(inside), found.guarantee.promised) / len(inside)
    assert float(inside.mean()) >= low
    assert float(sets.double().sum(1).mean()) < 1.6  # of two classes
    aside = data.split(co.splits.natural(), calibration=0, test=0.6, conformal=0.3)
    with pytest.raises(InputError, match="without conformal="):
        co.cross_conformal(co.methods.ExactPooling(), task, aside)


def test_what_folds_cannot_promise_is_refused() -> None:
    with pytest.raises(InputError, match="not between 0 and 1"):
        check_folds(90, 100, 5)
    with pytest.raises(InputError, match="from 2 to the number of rows"):
        check_folds(0.9, 100, 1)
    with pytest.raises(InputError, match="too few for sets of 99 %"):
        check_folds(0.99, 50, 5)
