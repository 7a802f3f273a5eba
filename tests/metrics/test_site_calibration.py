"""Calibration at every site: what runs write, what reports show of it, and what they may not tell."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from reports import classification
from torch import Tensor

import consilience as co
from consilience.disk.typed import plain
from consilience.distributions.predictive import Categorical, Normal
from consilience.metrics.calibration import Bin, merge_small_bins, outcome_reliability
from consilience.metrics.site_calibration import MOST_SITES, Calibration, calibration_by_site, site_calibration
from consilience.report.run_page import run_page
from consilience.report.suppression import suppress


def invented(n: int, seed: int, slope: float = 0.7, shift: float = 0.4) -> tuple[Categorical, Tensor]:
    """A model whose log-odds x are wrong by a slope and a shift: the outcome has log-odds shift + slope · x."""
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(n, generator=generator, dtype=torch.float64)
    y = (torch.rand(n, generator=generator, dtype=torch.float64) < torch.sigmoid(shift + slope * x)).long()
    return Categorical(torch.stack([-x / 2, x / 2], 1).log_softmax(1)), y


def test_intercept_and_slope_of_each_site_are_those_of_statsmodels() -> None:
    (p, y), (q, z) = invented(300, 0), invented(150, 1)

    sites = calibration_by_site([p, q], torch.cat([y, z]))

    for (probs, truth), site in zip([(p, y), (q, z)], sites, strict=True):
        logit = (probs.log_probs[:, 1] - probs.log_probs[:, 0]).numpy()
        free = sm.Logit(truth.numpy(), sm.add_constant(logit)).fit(disp=0, tol=1e-12)
        held = sm.GLM(truth.numpy(), np.ones(len(truth)), sm.families.Binomial(), offset=logit).fit(tol=1e-14)
        assert site.intervals is not None
        assert site.intervals["calibration_slope"] == pytest.approx(free.conf_int()[1], abs=1e-6)
        assert site.intervals["calibration_intercept"] == pytest.approx(held.conf_int()[0], abs=1e-6)


def test_the_bins_are_of_the_outcome_and_hold_every_row() -> None:
    p, y = invented(300, 0)

    bins = outcome_reliability(p, y)

    prob = p.probs[:, 1].numpy()
    for b in bins:
        inside = (prob > b.low) & (prob <= b.high)
        assert b.count == inside.sum()
        assert b.confidence == pytest.approx(prob[inside].mean())
        assert b.accuracy == pytest.approx(y.numpy()[inside].mean())
    assert sum(b.count for b in bins) == 300
    with pytest.raises(co.InputError, match="two classes"):
        outcome_reliability(Categorical(torch.zeros(3, 3).log_softmax(1)), torch.zeros(3).long())


def test_numbers_have_coverage_and_nothing_is_told_without_rows_or_of_very_many_sites() -> None:
    mean = torch.zeros(200)
    y = torch.randn(200, generator=torch.Generator().manual_seed(0))
    p = Normal(mean, torch.zeros(200), torch.ones(200))

    levels = site_calibration(p, y).coverage

    shares = [float((y.abs() <= reach).double().mean()) for reach in (0.67448975, 1.28155157, 1.95996398)]  # Φ⁻¹
    assert [level.observed for level in levels] == pytest.approx(shares)
    empty = Normal(mean[:0], mean[:0], mean[:0])
    assert calibration_by_site([p, empty], y)[1] == Calibration()
    assert calibration_by_site([p] * (MOST_SITES + 1), y.repeat(MOST_SITES + 1)) == [Calibration()] * (MOST_SITES + 1)


@pytest.mark.parametrize("smallest", [1, 5, 10, 40, 200])
@pytest.mark.parametrize("seed", range(5))
def test_no_small_count_follows_from_merged_bins(smallest: int, seed: int) -> None:
    p, y = invented(180, seed)

    bins = merge_small_bins(outcome_reliability(p, y), smallest)

    events = [round(b.count * (b.accuracy or 0)) for b in bins]
    assert all(n >= smallest and b.count - n >= smallest for b, n in zip(bins, events, strict=True))
    if bins:  # nothing was left out, so nothing can be found by subtraction
        assert sum(b.count for b in bins) == 180
        assert sum(events) == int(y.sum())
        assert (bins[0].low, bins[-1].high) == (0, 1)
        assert sum(b.count * (b.confidence or 0) for b in bins) == pytest.approx(float(p.probs[:, 1].sum()))
    else:
        assert min(int(y.sum()), 180 - int(y.sum())) < smallest


def binary_run() -> dict[str, Any]:
    """A run of two classes at three sites: a large one, one with few rows, and one with three events."""
    run = {**classification(sites=3, classes=2), "class_names": ["healthy", "disease"]}
    for site, (n, seed, shift) in zip(run["per_site"], [(400, 0, 0.0), (90, 1, 0.0), (60, 2, -6.0)], strict=True):
        p, y = invented(n, seed, shift=shift)
        site |= {"test": n, **plain(site_calibration(p, y))}
        site["metrics"] |= {"calibration_intercept": 0.1234, "calibration_slope": 0.987}
    return run


def by_site(page: str) -> str:
    return page.split("<h2>Calibration by site</h2>", 1)[1].split("<h2>Communication", 1)[0]


def test_the_page_shows_each_site_and_refuses_or_greys_few_rows() -> None:
    shown = by_site(run_page(binary_run()))

    assert "How often disease was seen" in shown
    assert shown.count("0.987 (") == 2
    assert shown.count("too few rows") == 2  # intercept and slope of the site with three events
    grey = re.findall(r'<tr class="grey"><th scope="row">(\d)</th>', shown)
    assert grey == ["1", "2"]


def test_a_page_without_small_counts_tells_none_by_its_calibration() -> None:
    run = suppress({**binary_run(), "smallest_count": 10})

    for site in run["per_site"]:
        for b in site["reliability"]:
            events = round(b["count"] * b["accuracy"])
            assert min(events, b["count"] - events) >= 10
    rare = run["per_site"][2]
    assert rare["reliability"] == []
    assert rare["intervals"] == {}
    assert "calibration_slope" not in rare["metrics"]
    shown = by_site(run_page({**binary_run(), "smallest_count": 10}))
    assert "Neighbouring bins are merged" in shown
    assert "0.987 (" in shown


def test_bins_of_all_rows_are_merged_too() -> None:
    run = {**classification(), "smallest_count": 10}
    counted = [b for b in run["reliability"] if b["count"]]
    assert any(round(b["count"] * (1 - b["accuracy"])) < 10 for b in counted)  # a small count would follow

    merged = suppress(run)["reliability"]

    assert all(round(b["count"] * (1 - b["accuracy"])) >= 10 for b in merged)
    assert sum(b["count"] for b in merged) in {0, sum(b["count"] for b in counted)}


def test_merging_needs_rows_of_both_kinds() -> None:
    bins = [Bin(0, 0.5, 50, 0.2, 0.0, None), Bin(0.5, 1, 50, 0.8, 0.1, None)]

    assert merge_small_bins(bins, 6) == []
    (one,) = merge_small_bins(bins, 5)
    assert one[:4] == (0, 1, 100, pytest.approx(0.5))
