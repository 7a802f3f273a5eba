"""Exact pooling: the answer of pooled data for any split, on every engine."""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import tiny
import torch

import consilience as co
from consilience import tree
from consilience.data import Data
from consilience.distributions.payload import nbytes
from consilience.distributions.predictive import Categorical, log_prob, tempered
from consilience.errors import InputError
from consilience.glm import fitting, heads, sums
from consilience.messages import Received
from consilience.methods import METHODS
from consilience.methods.exact import ExactPooling, least_share
from consilience.methods.exact_tuned import GRID, SAME, ExactTuned, choose_setting
from consilience.models.maps import features, on_features
from consilience.serialisation.settings import configure, describe, restore

SPLITS = (co.splits.iid(), co.splits.dirichlet(0.05), co.splits.dirichlet(1.0))


def problem(split: co.splits.Split, sites: int, width: int = 40) -> tuple[co.Task, co.Sites]:
    digits = co.datasets.digits()
    few = dataclasses.replace(digits, x=digits.x[:700], y=digits.y[:700])
    rows = few.split(split, sites, test=0.3, seed=3).to(torch.float64)
    network = on_features(features(f"relu:{width}", 64), co.models.linear(width, 10)).double()
    return co.classification(network), rows


def predictions(method: co.Method, split: co.splits.Split, sites: int, engine: str = "sequential") -> torch.Tensor:
    task, rows = problem(split, sites)
    result = co.run(method, task, rows, engine=engine, scored=False)
    p = method.predictive(task, result.state)(co.datasets.digits().x[:50].double())
    assert isinstance(p, Categorical)
    return p.log_probs


@cache
def pooled_predictions(method: co.Method) -> torch.Tensor:
    """With all rows at one site."""
    return predictions(method, SPLITS[0], 1)


def test_runs_saved_before_the_floor_predict_as_they_did() -> None:
    task, _ = problem(SPLITS[0], 3)
    saved = {key: value for key, value in describe(ExactPooling()).items() if key not in ("floor", "rates")}
    before = restore(saved)
    assert before.chosen_head(task) == heads.OneHot(floor=False, rates=False)
    assert describe(before) == saved
    assert restore(describe(ExactPooling())) == ExactPooling(floor=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["sequential", "vectorised", "parallel"])
@pytest.mark.parametrize(
    "method", [ExactPooling(), ExactPooling(heads.Discriminant()), ExactPooling(heads.Dirichlet()), ExactTuned()]
)
def test_the_split_does_not_matter(method: co.Method, engine: str) -> None:
    pooled = pooled_predictions(method)
    for sites, split in ((3, SPLITS[1]), (7, SPLITS[2])):
        assert torch.allclose(predictions(method, split, sites, engine), pooled, rtol=1e-8, atol=1e-8)


def test_a_model_without_a_site_is_that_of_the_others() -> None:
    task, rows = problem(SPLITS[1], 4)
    method = ExactPooling()
    result = co.run(method, task, rows)
    without = method.aggregate(task, result.state, [r for r in result.replies if r.client != 2], None)
    rest = sums.subtract(result.state.totals, result.replies[2].payload)
    assert tree.all_finite(rest)
    for a, b in zip(rest, without.totals, strict=True):
        assert torch.allclose(a, b, rtol=1e-8, atol=1e-8 * float(b.abs().max()) if b.numel() else 0.0)
    refit = fitting.fit(heads.OneHot(), rest)
    x = rows.all_test.x
    a = heads.OneHot().predict(refit, features("relu:40", 64).double()(x))
    b = method.predictive(task, without)(x)
    assert torch.allclose(a[0], b[0], rtol=1e-6, atol=1e-6)


def test_rows_left_out_choose_what_a_search_over_them_would() -> None:
    """Every row's score by a fit to the totals without it, for one candidate; the sums equal the sites' message."""
    task, rows = problem(co.splits.iid(), 2, width=12)
    method = ExactTuned((heads.OneHot(),))
    result = co.run(method, task, rows)
    message = sum(r.payload for r in result.replies)
    index, share, temperature = result.state.chosen.tolist()
    assert index == 0
    chosen = GRID.index((share, temperature))
    assert float(message.max() - message.flatten()[chosen]) <= SAME * sum(len(data.y) for data in rows.train)
    expected = 0.0
    phi = features("relu:12", 64).double()
    for data in rows.train:
        left_out = heads.OneHot().left_out(heads.OneHot().prepare(result.state.totals), phi(data.x), data.y, [share])
        expected += float(log_prob(tempered(left_out[0], temperature), data.y).sum())
    assert float(message.flatten()[chosen]) == pytest.approx(expected, rel=1e-10)


def test_where_lambda_does_not_matter_rounding_does_not_choose_it() -> None:
    totals = sums.summarise(lambda x: x, problem(co.splits.iid(), 1)[1].train[0], 10)
    rows = float(totals.counts.sum())
    scores = torch.full((2, len(GRID)), -rows, dtype=torch.float64)
    flat = [i for i, (share, t) in enumerate(GRID) if t == 1 and share < 1e-5]
    scores[1, flat] = -0.5 * rows
    for best in (flat[0], flat[1], flat[-1]):  # whichever is ahead by rounding
        scores[1, best] += 1e-9
        assert choose_setting(scores, totals) == (1, GRID[flat[-1]][0], 1.0)
    scores[1, flat[0]] += 2 * SAME * rows
    assert choose_setting(scores, totals) == (1, GRID[flat[0]][0], 1.0)


def test_the_end_of_a_grid_is_told() -> None:
    """Targets that features say nothing about have the largest λ; a choice inside the grid is not worth a word."""
    rows = co.datasets.sine(n_per_site=12).split(co.splits.natural(), test=0.25, seed=1).to(torch.float64)
    unrelated = [Data.of(d.x, torch.tensor([1.0, -1.0, -1.0, 1.0]).repeat(len(d.x))[: len(d.x)]) for d in rows.train]
    sites = dataclasses.replace(rows, train=unrelated)
    x = sites.all_test.x
    task = co.regression(co.models.linear(sites.features).double())
    for method in (ExactPooling(), ExactTuned()):
        diagnosis = method.diagnose(task, co.run(method, task, sites, scored=False).state, x)
        assert diagnosis["at_end_of_range"] == {"λ/n": pytest.approx(fitting.SHARES[-1], rel=1e-3)}
    fixed = ExactPooling(share=fitting.SHARES[-1])
    assert "at_end_of_range" not in fixed.diagnose(task, co.run(fixed, task, sites, scored=False).state, x)
    task, sites = problem(co.splits.iid(), 2, width=12)
    for method in (ExactPooling(), ExactTuned()):
        assert "at_end_of_range" not in method.diagnose(task, co.run(method, task, sites, scored=False).state, x)


def test_sums_in_lower_precision_keep_lambda_above_their_rounding() -> None:
    """MNIST's rows chose λ/n = 1e-10: single precision leaves nothing of a Gram matrix there."""
    totals = sums.summarise(lambda x: x, problem(co.splits.iid(), 1)[1].train[0], 10)
    assert least_share("float64", totals) == fitting.LEAST < 4e-7 < least_share("float32", totals)
    assert least_share("float32", totals) < least_share("float16", totals)


def test_other_weights_are_refused() -> None:
    task, rows = tiny.classification()
    with pytest.raises(InputError, match="one linear layer on fixed features"):
        co.run(ExactPooling(), task, rows)


def test_heads_for_another_problem_and_too_many_features_are_refused() -> None:
    task, rows = problem(SPLITS[0], 2)
    with pytest.raises(InputError, match="Ridge is for regression"):
        co.run(ExactPooling(heads.Ridge()), task, rows)
    with pytest.raises(InputError, match="GB for Gram matrices"):
        sums.check_memory(16_000, 62, True)
    with pytest.raises(InputError, match=r"10,000 features need about 5 GB .* 330 s .* at most 8,756, or learn on"):
        sums.check_memory(10_000, 2, False)  # which gave no answer in 100 s
    with pytest.raises(InputError, match="positive number"):
        co.run(ExactPooling(share=-1.0), task, rows)
    with pytest.raises(InputError, match="not a precision"):
        co.run(ExactPooling(wire="int8"), task, rows)


def test_small_sites_are_warned_of_what_a_gram_matrix_shows() -> None:
    task, rows = problem(co.splits.iid(), 40)
    assert any("up to a rotation" in text for text in co.run(ExactPooling(), task, rows).report["warnings"])
    assert not co.run(ExactPooling(), *problem(co.splits.iid(), 2)).report["warnings"]


def test_half_precision_costs_little_and_bytes_say_so() -> None:
    task, rows = problem(co.splits.iid(), 2)
    whole = co.run(ExactPooling(), task, rows)
    half = co.run(ExactPooling(wire="float16"), task, rows)
    assert abs(half.metrics["nll"] - whole.metrics["nll"]) < 0.02
    assert nbytes(half.replies[0].payload) < 0.4 * nbytes(whole.replies[0].payload)


def test_lies_about_sums_are_doubted() -> None:
    task, rows = problem(co.splits.iid(), 2)
    result = co.run(ExactPooling(), task, rows)
    honest: Received = result.replies[0]
    assert ExactPooling().doubt(task, (), honest.payload) is None
    lie = honest.payload._replace(gram=-honest.payload.gram)
    assert ExactPooling().doubt(task, (), lie) is not None


def test_heads_are_settings() -> None:
    method = configure(METHODS["exact"](), ["head=Discriminant", "head.strength=2"])
    assert method == ExactPooling(heads.Discriminant(2))


def test_sites_can_choose_the_penalty_after_the_round() -> None:
    task, rows = problem(co.splits.iid(), 2)
    method = ExactPooling()
    state = co.run(method, task, rows).state
    knob = method.knob(state)
    assert knob is not None
    x = rows.all_test.x
    for value, swept in zip(knob.values, method.sweep(task, state, x), strict=True):
        direct = heads.OneHot().predict(
            fitting.fit(heads.OneHot(), state.totals, value), features("relu:40", 64).double()(x)
        )
        assert torch.allclose(swept[0], direct[0], rtol=1e-9, atol=1e-9)
