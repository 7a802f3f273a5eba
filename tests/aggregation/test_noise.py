"""The noise of averaged models: as a variance, so that a few close fits do not make everyone sure."""

from __future__ import annotations

import math

import pytest
import torch
from scattered import scattered

import consilience as co
from consilience.distributions.likelihood import LOG_NOISE
from consilience.distributions.posterior import Point
from consilience.methods import METHODS
from consilience.metrics.baselines import lines_to_beat
from consilience.report.schema.wording import beaten_by_base_rate
from consilience.serialisation.settings import configure, describe, restore


def test_variances_are_averaged_as_variances_and_weights_as_weights() -> None:
    sites = [
        Point({"w": torch.tensor([1.0]), LOG_NOISE: torch.tensor([math.log(0.01)])}),
        Point({"w": torch.tensor([4.0]), LOG_NOISE: torch.tensor([math.log(4.0)])}),
    ]
    shares = torch.tensor([1.0, 2.0])

    pooled = co.aggregation.pooled_variance(sites, shares).params

    assert float(pooled["w"]) == pytest.approx(3.0)
    assert float(pooled[LOG_NOISE].exp()) == pytest.approx((0.01 + 2 * 4.0) / 3)
    plain = co.aggregation.average(sites, shares).params
    assert float(plain[LOG_NOISE].exp()) == pytest.approx(0.01 ** (1 / 3) * 4.0 ** (2 / 3))
    classes = [Point({"w": torch.tensor([1.0])}), Point({"w": torch.tensor([4.0])})]
    assert float(co.aggregation.pooled_variance(classes, shares).params["w"]) == pytest.approx(3.0)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi"])
def test_the_rule_can_be_named(name: str) -> None:
    changed = configure(METHODS[name](), ["rule=pooled_variance"])
    assert restore(describe(changed)) == changed and describe(changed)["rule"] == "pooled_variance"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scattered_sites_are_surrounded_as_well_as_by_the_overall_mean() -> None:
    """And without the rule the table says what is wrong."""
    sites = scattered(1).split(co.splits.natural(), calibration=20, seed=1)
    task = co.regression(co.models.linear(sites.features, 1))
    base = lines_to_beat(sites)["base_rate"]["metrics"]

    scores = {
        rule: co.run(co.methods.FedAvg(rule=rule), task, sites, rounds=2, seed=1).metrics
        for rule in (co.aggregation.average, co.aggregation.pooled_variance)
    }

    plain = scores[co.aggregation.average]
    assert plain["rmse"] < base["rmse"] and plain["nll"] > base["nll"]
    assert "do not use its intervals" in beaten_by_base_rate(plain, base)
    assert scores[co.aggregation.pooled_variance]["nll"] < min(base["nll"], plain["nll"] - 0.3)
    assert beaten_by_base_rate(scores[co.aggregation.pooled_variance], base) == ""
