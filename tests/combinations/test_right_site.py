"""A site that something is wrong with is the one that is named, by its name; where none is to blame, none is."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

import consilience as co
from consilience import tree
from consilience.data.sites import Data, Sites
from consilience.distributions.prior import Isotropic
from consilience.glm.site_likelihoods import read_off
from consilience.messages import Client, Reply
from consilience.method import State
from consilience.task import Task

NAMES = ("ada", "bob", "cyd", "dan", "eve")


def sites(number: bool, constant_column: bool = False, constant_target: float | None = None) -> Sites:
    """Five sites of 60 rows, the fourth of which may have a column of zeros or one target only."""
    rng = np.random.default_rng(0)
    parts = []
    for name in NAMES:
        x = rng.normal(size=(60, 3))
        linear = x @ np.array([1, -0.5, 0.3])
        if number:
            y = linear + rng.normal(size=60)
        else:
            y = rng.random(60) < 1 / (1 + np.exp(-linear))
        if name == "dan" and constant_column:
            x[:, 1] = 0
        if name == "dan" and constant_target is not None:
            y = np.full(60, constant_target)
        target = torch.tensor(y).float() if number else torch.tensor(y).long()
        parts.append(Data.of(torch.tensor(x).float(), target))
    own = tuple(parts)
    classes = None if number else 2
    return Sites(own, own, None, None, None, classes, 3, "y", "natural", NAMES, feature_names=("p", "q", "r"))


def task(number: bool, variance: float = 1.0) -> Task:
    if number:
        return co.regression(co.models.linear(3), prior=Isotropic(variance))
    return co.classification(co.models.linear(3, 2), prior=Isotropic(variance))


@pytest.mark.parametrize("method", ["glm", "exact", "hierarchical", "fedavg"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_cell_that_is_no_number_is_named_with_its_site(method: str, bad: float) -> None:
    """`hierarchical` said that prior and rows leave weights open, others "Site 3", which is the fourth."""
    made = sites(number=False)
    made.train[3].x[3, 1] = bad
    with pytest.raises(co.InputError, match=r"^Site dan: column 1 \('q'\) is NaN or infinite in 1 training rows"):
        co.run(method, task(number=False), made, scored=False)


class Silent(co.methods.FedAvg):
    """FedAvg, one site of which sends no numbers."""

    def local(self, task: Task, message: State, client: Client) -> Reply:
        reply = super().local(task, message, client)
        if float(client.data.y.sum()) > 0:
            return reply
        return reply._replace(send=tree.map(lambda leaf: leaf * math.nan, reply.send))


def test_who_diverges_is_called_by_name() -> None:
    made = sites(number=False, constant_target=0)
    with pytest.raises(co.Diverged, match=r"^Site dan, round 1"):
        co.run(Silent(), task(number=False), made, rounds=1, scored=False, engine="sequential")


def test_nobody_is_blamed_for_a_prior_that_says_nothing() -> None:
    """A precision of 1e-6 beside 10 is rounding in 32 bits: whose matrix has an inverse is chance, and was blamed."""
    made = sites(number=False, constant_column=True)
    with pytest.raises(co.Diverged, match=r"^Prior and rows leave some weights open"):
        co.run("gaussian_product", task(number=False, variance=1e6), made, scored=False)


def test_a_wide_prior_and_rounding_leave_partial_pooling_its_sites() -> None:
    """32 bits took 4e-6 from a Λ of 85, more than a prior of variance 1e6 knows: no pool, and two sites were blamed."""
    run = co.run("hierarchical", task(False, 1e6), sites(number=False), scored=False, effects=False)
    taken = 4e-6 * torch.eye(8)
    said = [r._replace(payload=r.payload._replace(precision=r.payload.precision - taken)) for r in run.replies]
    state = run.method.aggregate(run.task, run.state, said, run.server)
    own = [read_off(run.task, found, ())["pooled"] for found in (run.state, state)]
    slopes = [belief.mean[3:6] - belief.mean[:3] for belief in own]
    assert torch.allclose(slopes[0], slopes[1], rtol=1e-3)


@pytest.mark.parametrize("method", ["glm", "exact", "hierarchical"])
@pytest.mark.parametrize("constant", [0.0, 5.0])
def test_numbers_that_are_all_the_same_at_a_site_say_nothing_of_how_sites_differ(method: str, constant: float) -> None:
    """Nothing is left over, so that its standard errors would be 0: R's lm calls such a fit essentially perfect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        effects = co.run(method, task(number=True), sites(True, constant_target=constant), scored=False).effects()
    for row in effects:
        assert math.isfinite(row.estimate) and math.isfinite(row.error)
        assert row.sites == 4 and row.tau is not None and row.tau < 0.5


def test_a_search_for_variances_comes_back_from_far_away() -> None:
    """One in 66 worlds like this one tried variances where rounding is all there is, and site 0 was blamed."""
    draws = torch.Generator().manual_seed(1065)
    x = torch.randn(1200, 3, generator=draws)
    site = torch.arange(1200) % 8
    score = (x * (2 * torch.randn(8, 3, generator=draws))[site]).sum(1)
    y = score + 0.5 * torch.randn(1200, generator=draws)
    made = co.from_arrays(x, y, site).split(co.splits.natural(), conformal=0.3, test=0.3, calibration=0, seed=1065)
    found = co.run("hierarchical", co.regression(co.models.linear(3)), made, seed=1065, scored=False, effects=False)
    noise = float((found.state.log_noise / 2).exp()) * made.target_scale
    assert noise == pytest.approx(0.5, rel=0.1)  # 588 rows less 32 weights: a deviation of 3 %
