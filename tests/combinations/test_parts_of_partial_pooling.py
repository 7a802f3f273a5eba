"""Parts of uncertainty where sites have weights of their own: a newcomer's disagreement is how far sites differ."""

from __future__ import annotations

import pytest
import torch

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.methods.hierarchical import Hierarchical

DOUBLE = torch.float64


def sites_of(classes: int | None, tau: float) -> Sites:
    """Eight sites of 150 rows and two columns, whose weights differ by τ."""
    generator = torch.Generator().manual_seed(3)
    parts = []
    for _ in range(8):
        x = torch.randn(150, 2, generator=generator, dtype=DOUBLE)
        theta = 1.0 + tau * torch.randn(3, generator=generator, dtype=DOUBLE)
        latent = x @ theta[:2] + theta[2]
        y = latent + 0.5 * torch.randn(150, generator=generator, dtype=DOUBLE)
        if classes:
            y = (torch.rand(150, generator=generator, dtype=DOUBLE) < torch.sigmoid(latent)).long()
        parts.append(Data.of(x, y))
    names = tuple(f"s{k}" for k in range(8))
    return Sites(tuple(parts), tuple(parts), None, None, None, classes, 2, "y", "natural", names)


def run(classes: int | None, tau: float) -> co.Result:
    sites = sites_of(classes, tau)
    network = co.models.linear(2, classes).to(DOUBLE)
    task = co.classification(network) if classes else co.regression(network)
    return co.run(Hierarchical(), task, sites, scored=False)


def test_disagreement_about_a_number_is_the_variance_between_sites() -> None:
    """φᵀTφ, in closed form, and the parts are the variance of the observation."""
    result = run(None, 1.0)
    x = result.sites.train[0].x[:20]

    p = result.predict(x)

    typical = result.state.hierarchy.typical
    phi = torch.cat([x, torch.ones(20, 1, dtype=DOUBLE)], 1)
    assert torch.allclose(p.disagreement, (phi**2) @ typical, rtol=1e-6)
    assert torch.allclose(p.aleatoric + p.epistemic, p.var, rtol=1e-6)
    assert bool((p.disagreement <= p.epistemic).all())


def test_disagreement_about_a_class_is_seen_where_sites_differ_and_not_at_home() -> None:
    differ, alike = run(2, 1.5), run(2, 0.0)
    x = differ.sites.train[0].x[:40]

    common = differ.predict(x)

    assert float(common.disagreement.mean()) > 10 * float(alike.predict(x).disagreement.mean())
    assert float(common.disagreement.mean()) > 0.03
    assert torch.allclose(common.aleatoric + common.epistemic, torch.special.entr(common.probs).sum(1), atol=1e-6)
    assert bool((common.disagreement <= common.epistemic + 1e-12).all())
    assert float(differ.predict(x, site="s1").disagreement.max()) == pytest.approx(0, abs=1e-9)
