"""Methods × rare classes × seeds: what is scored is what is predicted, and only the seed changes what is random."""

from __future__ import annotations

import pytest
import tiny
import torch

import consilience as co
from consilience.method import is_personal
from consilience.method.which import has_common

NAMES = ("fedavg", "gaussian_product", "glm", "hierarchical", "local_only")


def rare(seed: int = 0) -> tuple[co.Task, co.Sites]:
    """Three classes of which one has six rows, all at one site."""
    draws = torch.Generator().manual_seed(7)
    x = torch.randn(300, 2, generator=draws)
    y = (x[:, 0] + 0.5 * torch.randn(300, generator=draws) > 0).long()
    y[:6] = 2
    site = torch.arange(300) % 3
    site[:6] = 0
    sites = co.from_arrays(x, y, [f"s{k}" for k in site]).split(co.splits.natural(), conformal=0.3, seed=seed)
    torch.manual_seed(0)
    return co.classification(co.models.linear(sites.features, sites.classes)), sites


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "hierarchical" else ()) for name in NAMES]
)
def test_scores_sets_and_parts_are_those_of_what_is_predicted(name: str) -> None:
    task, sites = rare()
    first, again, other = (
        co.run(tiny.method(name), task, sites, rounds=1, engine="sequential", seed=seed) for seed in (0, 0, 1)
    )
    assert sites.feature_scale is not None and sites.feature_shift is not None

    assert first.metrics == again.metrics
    guarantee = first.report["guarantee"]
    assert guarantee["kind"] == "pooled"  # too few rows of one class for a promise by class
    by_site = {entry["name"]: entry["coverage"] for entry in guarantee["by_site"]}
    for k, (site, rows) in enumerate(zip(sites.names, sites.test, strict=True)):
        x = rows.x.double() * sites.feature_scale + sites.feature_shift
        p, q = (result.predict(x, level=0.9, site=site) for result in (first, again))
        assert p.probs is not None and q.probs is not None and p.sets is not None
        assert torch.equal(p.probs, q.probs)
        assert torch.isfinite(p.probs).all() and float(p.probs.min()) >= 0
        nll = float(-p.probs.gather(1, rows.y[:, None]).log().mean())
        assert nll == pytest.approx(first.report["per_site"][k]["metrics"]["nll"], rel=1e-3)
        assert float(p.sets.gather(1, rows.y[:, None]).double().mean()) == by_site[site]
        assert torch.allclose(p.aleatoric + p.epistemic, torch.special.entr(p.probs.double()).sum(1), atol=1e-5)
    drawn = name not in ("glm", "hierarchical")  # the others find a mode or a sum, from wherever they start
    assert (first.metrics["nll"] != pytest.approx(other.metrics["nll"], rel=1e-6)) == drawn
    assert ("newcomer_guarantee" in first.report) == (is_personal(first.method) and has_common(first.method))
