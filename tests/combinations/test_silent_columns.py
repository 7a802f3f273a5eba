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


LAPLACE = co.methods.GaussianProduct(co.inference.Laplace(mode=co.inference.Newton(), dense=True))
EVERYWHERE = {"glm": co.methods.GLM(), "product": LAPLACE, "hierarchical": co.methods.Hierarchical()}


def _with_constant(classes: int | None, columns: int) -> Sites:
    """Three sites of 80 rows, and a column that is the same in all of them."""
    generator = torch.Generator().manual_seed(3)
    parts = []
    for _ in range(3):
        x = torch.randn(80, 2, generator=generator, dtype=torch.float64) + torch.tensor([0.5, 0.0])
        latent = 0.3 + x[:, 0] + torch.randn(80, generator=generator, dtype=torch.float64)
        y = latent if classes is None else (latent > 0).long()
        x[:, 1] = 2.0
        parts.append(co.data.Data.of(x[:, :columns], y))
    rows = tuple(parts)
    names = ("age", "ward")[:columns]
    made = Sites(rows, rows, None, None, None, classes, columns, "y", "natural", ("a", "b", "c"))
    return replace(made, feature_names=names)


@pytest.mark.parametrize(
    ("method", "classes"),
    [
        *[(method, None) for method in EVERYWHERE],
        *[("glm", 2), ("product", 2), pytest.param("hierarchical", 2, marks=pytest.mark.slow)],
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_intercept_beside_a_constant_column_is_that_without_it(method: str, classes: int | None) -> None:
    """R: coef(lm(y ~ age + ward)) and coef(glm(…)) are NA for the ward, and else those of y ~ age."""
    found = []
    for columns in (2, 1):
        network = co.models.linear(columns, classes).to(torch.float64)
        prior = Isotropic(1e4)
        task = co.classification(network, prior) if classes else co.regression(network, 1.0, prior)
        table = co.run(EVERYWHERE[method], task, _with_constant(classes, columns), scored=False).effects()
        found.append({row.column: row for row in table})
    beside, without = found
    assert math.isnan(beside["ward"].error)
    for column in ("(Intercept)", "age"):
        free = method == "hierarchical"  # whose sites may differ in what the ward does, too
        assert beside[column].estimate == pytest.approx(without[column].estimate, abs=0.05 if free else 2e-3)
        if not free:
            assert beside[column].error == pytest.approx(without[column].error, rel=0.02)
