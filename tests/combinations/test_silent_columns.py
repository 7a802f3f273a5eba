"""Columns that no row tells anything of, under a prior that says nothing either: named, as R names them with NA."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import consilience as co
from consilience.data.sites import Sites
from consilience.distributions.prior import Isotropic
from consilience.errors import Diverged


def _sites(wards: tuple[float, ...]) -> Sites:
    """Times that depend on age; the ward is one at each site. For R: age + ward + strata(site)."""
    generator = torch.Generator().manual_seed(1)
    parts = []
    for ward in wards:
        age = torch.randn(60, generator=generator)
        days = torch.empty(60).exponential_(generator=generator) * torch.exp(-0.5 * age) + 0.01
        dead = (torch.rand(60, generator=generator) < 0.7).float()
        x = torch.stack([age, torch.full_like(age, ward)], 1)
        parts.append(co.data.Data.of(x, torch.stack([days, dead], 1)))
    names = ("a", "b", "c")
    made = Sites(tuple(parts), tuple(parts), None, None, None, None, 2, "days", "natural", names)
    return replace(made, feature_names=("age", "ward"), outcome="survival")


def test_column_that_is_constant_within_strata_is_named() -> None:
    """R: coef(coxph(Surv(days, dead) ~ age + ward + strata(site))) is NA for ward, on tables of this form."""
    task = co.survival(co.models.linear(2, None), Isotropic(1e6))
    with pytest.raises(
        Diverged, match=r"Column 'ward' is constant at each site.*R's coxph prints NA.*leave it out"
    ) as raised:
        co.run(co.methods.GLM(), task, _sites((-1.2, 0.0, 1.2)), rounds=3)
    assert "learning rate" not in str(raised.value)


def test_column_that_is_constant_within_strata_is_no_obstacle_under_a_usual_prior() -> None:
    task = co.survival(co.models.linear(2, None), Isotropic(1.0))
    result = co.run(co.methods.GLM(), task, _sites((-1.2, 0.0, 1.2)), rounds=5)
    age, ward = result.effects()
    assert age.error < 0.2
    assert math.isnan(ward.error)  # R: NA
