"""Scores, and sets by their thresholds: against MAPIE on pooled rows, and by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from mapie.classification import SplitConformalClassifier
from mapie.regression import SplitConformalRegressor
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from torch import Tensor

from consilience.distributions.predictive import Categorical, Normal
from consilience.errors import InputError
from consilience.key import Key
from consilience.prediction_sets.kinds import Calibration, find_guarantee, own_guarantee, site_table
from consilience.prediction_sets.measured import measure_groups
from consilience.prediction_sets.nonconformity import Score, class_scores, draws, number_scores, row_scores, score_from
from consilience.prediction_sets.sets import Guarantee, contains, prediction_intervals, prediction_sets

Array = np.ndarray[Any, Any]


class Told(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Its rows are its probabilities."""

    def __init__(self) -> None:
        self.classes_ = np.arange(4)

    def fit(self, x: Array, y: Array) -> Told:
        return self

    def predict_proba(self, x: Array) -> Array:
        return x

    def predict(self, x: Array) -> Array:
        found: Array = x.argmax(1)
        return found

    def __sklearn_is_fitted__(self) -> bool:
        return True


class Mean(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Its first column is its mean."""

    def __init__(self) -> None:
        self.fitted_ = True

    def fit(self, x: Array, y: Array) -> Mean:
        return self

    def predict(self, x: Array) -> Array:
        found: Array = x[:, 0]
        return found


def rows(seed: int = 0) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.ones(4), 300)
    return probs, np.array([generator.choice(4, p=p) for p in probs])


def pooled(scores: Tensor, sizes: list[int], kind: str = "hinge") -> Guarantee:
    """By counts on a grid of the scores themselves, so that nothing is rounded."""
    plan = Calibration("pooled", 0.9, Score(kind), scores.sort().values)
    tables = [site_table(plan, part, part) for part in scores.split(sizes)]
    return find_guarantee(plan, torch.stack(tables).sum(0), sizes, [str(n) for n in sizes])


@pytest.mark.parametrize("sizes", [[200], [20, 60, 120]])
def test_sets_of_pooled_rows_are_mapies(sizes: list[int]) -> None:
    """MAPIE takes the ⌈c (N + 1)⌉-th score; with c = 0.9 (N + K)/(N + 1) that is the rank for K sites."""
    probs, y = rows()
    confidence = 0.9 * (200 + len(sizes)) / 201
    mapie = SplitConformalClassifier(Told(), confidence_level=confidence, conformity_score="lac", prefit=True)
    _, expected = mapie.conformalize(probs[:200], y[:200]).predict_set(probs[200:])
    p = Categorical(torch.tensor(probs).log())
    labels = torch.tensor(y)
    scores = row_scores(Score("hinge"), Categorical(p.log_probs[:200]), labels[:200], torch.zeros(200), 0.9)

    sets = prediction_sets(Categorical(p.log_probs[200:]), pooled(scores, sizes))

    assert (sets.numpy() == expected[:, :, 0]).all()


def test_intervals_of_pooled_rows_are_mapies() -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(300, 1))
    y = x[:, 0] + generator.standard_t(3, size=300)
    mapie = SplitConformalRegressor(Mean(), confidence_level=0.9, prefit=True).conformalize(x[:200], y[:200])
    _, expected = mapie.predict_interval(x[200:])
    p = Normal(torch.tensor(x[:, 0]), torch.full((300,), 0.5).double(), torch.tensor(0.5).double())
    scores = number_scores(Score("residual"), p, torch.tensor(y), 0.9)[:200]
    guarantee = pooled(scores, [200], "residual")

    low, high = prediction_intervals(Normal(p.mean[200:], p.var[200:], p.noise), guarantee)

    assert torch.stack([low, high], 1).numpy() == pytest.approx(expected[:, :, 0], abs=1e-12)


def test_adaptive_scores_add_up_the_classes_above() -> None:
    p = Categorical(torch.tensor([[0.2, 0.5, 0.3]]).log())
    u = torch.tensor([0.5])

    aps = class_scores(Score("aps"), p, u)
    raps = class_scores(Score("raps", 0.1, 1), p, u)

    assert aps[0].tolist() == pytest.approx([0.9, 0.25, 0.65])
    assert raps[0].tolist() == pytest.approx([0.9 + 0.2, 0.25, 0.65 + 0.1])


def test_adaptive_scores_of_a_true_model_are_uniform() -> None:
    """Romano, Sesia and Candès 2020: with the random part, P(score ≤ t) = t where p is the truth."""
    probs, y = rows(2)
    u = draws(Key(0), 0, 300)
    scores = row_scores(Score("aps"), Categorical(torch.tensor(probs).log()), torch.tensor(y), u, 0.9)

    assert float((scores <= 0.9).double().mean()) == pytest.approx(0.9, abs=4 * (0.09 / 300) ** 0.5)
    assert float(scores.mean()) == pytest.approx(0.5, abs=4 * (1 / 12 / 300) ** 0.5)


def test_calibration_and_prediction_draw_different_numbers() -> None:
    assert not torch.equal(draws(Key(0), 0, 50, site=1), draws(Key(0), 1, 50, site=1))
    assert not torch.equal(draws(Key(0), 0, 50, site=1), draws(Key(0), 0, 50, site=2))
    assert torch.equal(draws(Key(0), 1, 50)[:20], draws(Key(0), 1, 20))


def test_quantile_residuals_widen_every_interval_by_the_same() -> None:
    p = Normal(torch.tensor([0.0, 10.0]), torch.tensor([1.0, 4.0]), torch.tensor(0.0))
    guarantee = Guarantee("pooled", 0.9, "quantile", (0.5,), ("",), (20,), ("a",), 0.8)

    low, high = prediction_intervals(p, guarantee)

    assert (high - low).tolist() == pytest.approx([2 * 1.644854 + 1, 4 * 1.644854 + 1], abs=1e-5)


def test_strange_numbers_score_infinitely_and_are_in_an_infinite_set() -> None:
    p = Categorical(torch.tensor([[0.0, -math.inf], [math.nan, math.nan]]))
    everything = Guarantee("class", 0.9, "hinge", (0.5, math.inf), ("a", "b"), (9, 9), ("s",), 0.8)
    flat = Normal(torch.tensor([0.0, 1.0]), torch.zeros(2), torch.tensor(0.0))

    assert class_scores(Score("hinge"), p, torch.zeros(2)).tolist() == [[0.0, 1.0], [math.inf, math.inf]]
    assert prediction_sets(p, everything).tolist() == [[True, True], [False, True]]
    assert number_scores(Score("residual"), flat, torch.tensor([0.0, 2.0]), 0.9).tolist() == [0.0, math.inf]
    wide = Guarantee("pooled", 0.9, "residual", (math.inf,), ("",), (9,), ("s",), 0.8)
    assert prediction_intervals(flat, wide)[0].tolist() == [-math.inf, -math.inf]


def test_each_site_has_its_own_threshold() -> None:
    plan = Calibration("own", 0.9, Score("hinge"), torch.zeros(2))
    guarantee = own_guarantee(plan, [torch.full((9,), 0.2), torch.full((9,), 0.7)], ["north", "south"])
    p = Categorical(torch.tensor([[0.6, 0.4]]).log())

    assert prediction_sets(p, guarantee, "north").tolist() == [[False, False]]
    assert prediction_sets(p, guarantee, "south").tolist() == [[True, True]]
    with pytest.raises(InputError, match="one of north, south"):
        prediction_sets(p, guarantee)


def test_several_numbers_a_row_are_refused() -> None:
    p = Normal(torch.zeros(3, 2), torch.ones(3, 2), torch.tensor(0.1))

    with pytest.raises(InputError, match="one number a row"):
        number_scores(Score("residual"), p, torch.zeros(3, 2), 0.9)


def test_a_score_is_for_its_kind_of_predictions() -> None:
    assert score_from("raps:0.2:3", "classification") == Score("raps", 0.2, 3)
    assert str(score_from("raps:0.2:3", "classification")) == "raps:0.2:3"
    wrong = {"residual": "classification", "aps": "regression", "raps:x": "classification", "aps:1": "classification"}
    for text, kind in wrong.items():
        with pytest.raises(InputError):
            score_from(text, kind)
    with pytest.raises(InputError, match="this predicts counts"):
        score_from(None, "counts")
    with pytest.raises(InputError, match="for classes, numbers and times"):
        row_scores(
            Score("hinge"), Normal(torch.zeros(1), torch.ones(1), torch.ones(1)), torch.zeros(1), torch.zeros(1), 0.9
        )


@pytest.mark.parametrize("name", ["hinge", "aps", "raps", "residual", "quantile"])
@pytest.mark.parametrize("grid", [2, 3, 30, 1000])
def test_a_grid_ascends_to_the_largest_score(name: str, grid: int) -> None:
    edges = Score(name).edges(grid, 4)

    assert len(edges) == grid and bool((edges.diff() > 0).all())
    largest = {"hinge": 1.0, "aps": 1.0, "raps": 1.3, "residual": 1000.0, "quantile": 1000.0}[name]
    assert float(edges[-1]) == pytest.approx(largest)


def test_a_model_that_is_sure_and_wrong_keeps_small_sets() -> None:
    """A fifth of the rows have p(y) = 10⁻⁹: 90 % sets must hold such classes, and not those of 10⁻¹⁵."""
    score = Score("hinge")
    plan = Calibration("pooled", 0.9, score, score.edges(1000, 3))
    scores = torch.full((100,), 0.01, dtype=torch.float64)
    scores[80:] = 1 - 1e-9
    guarantee = find_guarantee(plan, site_table(plan, scores, scores), [100], ["one"])

    p = Categorical(torch.tensor([[0.999, 1e-9, 1e-15]], dtype=torch.float64).log())
    assert prediction_sets(p, guarantee).tolist() == [[True, True, False]]


def test_the_least_covered_group_comes_first() -> None:
    guarantee = Guarantee("pooled", 0.9, "hinge", (0.55,), ("",), (20,), ("a",), 0.8)
    p = Categorical(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]).log())
    inside, sizes = contains(p, torch.tensor([0, 1, 0]), guarantee)
    groups = {"a": torch.tensor([True, True, False]), "b": torch.tensor([False, False, True]), "none": inside & ~inside}

    found = measure_groups(inside, sizes, groups)

    assert [(c.name, c.rows, c.coverage, c.size) for c in found] == [("b", 1, 0.0, 1.0), ("a", 2, 1.0, 1.5)]
    assert found[0].interval == pytest.approx((0, 0.975))
