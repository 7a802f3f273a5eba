"""Outcomes that vary more than the model says: noticed by their number, and not where all is well."""

from __future__ import annotations

import pytest
import torch

from consilience.data.sites import Data, Sites
from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Normal
from consilience.metrics.dispersion import describe_dispersion
from consilience.report.schema.run_findings import read_run
from consilience.report.schema.warnings import doubts

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
