"""Outcomes that vary more than the model says: noticed by their number, and not where all is well."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import studies
import torch
from event_studies import COUNTS, make_rows, make_study, play

from consilience.data.sites import Data, Sites
from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Normal
from consilience.metrics.dispersion import describe_dispersion
from consilience.report.schema.run_findings import read_run
from consilience.report.schema.warnings import doubts
from consilience.study.coordinator import pool
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.target import Target
from consilience.study.spread import _rounded

DOUBLE = torch.float64


def sites_of(*targets: torch.Tensor) -> Sites:
    parts = tuple(Data.of(torch.zeros(len(y), 1, dtype=DOUBLE), y) for y in targets)
    names = tuple(f"s{k}" for k in range(len(parts)))
    return Sites(parts, parts, None, None, None, None, 1, "y", "natural", names)


@pytest.mark.parametrize("over", [0.0, 0.5])
def test_a_negative_binomial_is_too_wide_for_a_poisson(over: float) -> None:
    """Mean 5 and variance 5 + 0.5 · 5²: a dispersion of 3.5."""
    generator = torch.Generator().manual_seed(0)
    rate = torch.full((4000,), 5.0, dtype=DOUBLE)
    if over:
        torch.manual_seed(0)
        rate = torch.distributions.Gamma(1 / over, 1 / (over * 5)).sample((4000,)).double()
    y = torch.poisson(rate, generator=generator)

    found = describe_dispersion(Counts(torch.full((4000,), 5.0, dtype=DOUBLE), torch.zeros(4000)), y, sites_of(y))

    if not over:
        assert found == {}
        return
    assert found["dispersion"] == pytest.approx(3.5, rel=0.15)
    (said,) = [line for line in doubts(read_run({"diagnostics": found})) if "over-dispersed" in line]
    assert "3.5 times" in said or "3." in said


def test_a_site_with_twice_the_noise_is_named() -> None:
    generator = torch.Generator().manual_seed(1)
    quiet, loud = (s * torch.randn(300, generator=generator, dtype=DOUBLE) for s in (1.0, 2.0))
    p = Normal(torch.zeros(600, dtype=DOUBLE), torch.zeros(600), torch.ones(600))

    found = describe_dispersion(p, torch.cat([quiet, loud]), sites_of(quiet, loud))

    assert found["loudest_site"][0] == "s1"
    assert found["loudest_site"][1] == pytest.approx(4.0, rel=0.3)
    assert any("at site s1" in line for line in doubts(read_run({"diagnostics": found})))
    assert describe_dispersion(p, torch.cat([quiet, quiet]), sites_of(quiet, quiet)) == {}


def noisy(folder: Path, target: Target, method: str, change: Callable[[int, dict[str, str]], None]) -> list[str]:
    """What the report of a study warns of, whose sites' rows are changed."""
    study = make_study(folder, target, method, rounds=1, settings=(), roles="content", test=0.0)
    for site in study.sites:
        rows = make_rows(site.number)
        for row in rows:
            change(site.number, row)
        studies.table(folder / f"{site.name}.csv", rows)
    play(study, folder)
    replies = [folder / f"{site.name}.reply" for site in study.sites]
    return pool(study, replies, read_key(folder / "server.key")).account["warnings"]


@pytest.mark.parametrize("over", [False, True])
def test_a_study_warns_of_counts_that_vary_more_than_a_poisson(tmp_path: Path, over: bool) -> None:
    """Gamma rates of mean 3 and deviation 3: a variance of 3 + 9, four times the mean."""
    draw = random.Random(4)

    def change(site: int, row: dict[str, str]) -> None:
        rate = draw.gammavariate(1, 3) if over else 3.0
        row["visits"], row["years"] = str(int(np.random.default_rng(draw.getrandbits(32)).poisson(rate))), "1"

    said = [line for line in noisy(tmp_path, COUNTS, "glm", change) if "over-dispersed" in line]
    assert len(said) == over
    if over:
        ratio = float(said[0].partition("variance that is ")[2].split()[0])
        assert ratio == pytest.approx(4, rel=0.4)  # of 240 rows, of which the standard error is 0.7


@pytest.mark.parametrize("loud", [False, True])
def test_a_study_names_the_site_whose_noise_is_another_one(tmp_path: Path, loud: bool) -> None:
    """Noise of 10, 10 and 20: at the last the variance is twice what it is on average."""
    draw = random.Random(5)

    def change(site: int, row: dict[str, str]) -> None:
        row["sugar"] = f"{100 + 0.2 * float(row['age']) + (1 + (loud and site == 2)) * 10 * draw.gauss(0, 1):.3f}"

    target = Target("sugar", unit="mg", range=(-200.0, 400.0), centre=100.0, spread=15.0)
    said = [line for line in noisy(tmp_path, target, "exact", change) if "noise of sites differs" in line]
    assert len(said) == loud
    if loud:
        assert "at site west squared errors are " in said[0]
        assert float(said[0].partition("errors are ")[2].split()[0]) == pytest.approx(2, rel=0.2)


def test_a_number_about_one_row_stays_at_its_site() -> None:
    squares = torch.ones(100)
    assert _rounded(squares, 97) == 1.03
    squares[3] = 150.0
    assert _rounded(squares, 97) is None
