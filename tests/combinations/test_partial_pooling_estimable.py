"""Partial pooling × effects that no row tells: not estimable, as R's lm and glm have NA, and not the prior."""

from __future__ import annotations

import math

import pytest
import torch

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.methods.hierarchical import Hierarchical

DOUBLE = torch.float64


def sites_of(classes: int | None, columns: str) -> Sites:
    """Five sites of 60 rows; the third column is one more, the second again, or the same everywhere."""
    generator = torch.Generator().manual_seed(6)
    parts = []
    for _ in range(5):
        x = torch.randn(60, 3, generator=generator, dtype=DOUBLE)
        if columns == "collinear":
            x[:, 2] = x[:, 1]
        elif columns == "constant":
            x[:, 2] = 0.0
        latent = x[:, 0] - 0.5 * x[:, 1] + 0.3 * torch.randn(60, generator=generator, dtype=DOUBLE)
        y = latent if classes is None else (latent > 0.2 * torch.randn(60, generator=generator, dtype=DOUBLE)).long()
        parts.append(Data.of(x, y))
    names = tuple(f"s{k}" for k in range(5))
    rows = tuple(parts)
    return Sites(rows, rows, None, None, None, classes, 3, "y", "natural", names, feature_names=("a", "b", "c"))


@pytest.mark.parametrize("classes", [None, 2])
@pytest.mark.parametrize(("columns", "unknown"), [("whole", ""), ("collinear", "bc"), ("constant", "c")])
def test_what_no_row_tells_is_not_estimable(classes: int | None, columns: str, unknown: str) -> None:
    sites = sites_of(classes, columns)
    network = co.models.linear(3, classes).to(DOUBLE)
    task = co.classification(network) if classes else co.regression(network)

    table = co.run(Hierarchical(), task, sites, scored=False).effects()

    found = {row.column: row for row in table if row.column in ("a", "b", "c")}
    assert {name for name, row in found.items() if math.isnan(row.error)} == set(unknown)
    assert all(math.isnan(found[name].estimate) for name in unknown)
    assert any(note.startswith("Not estimable") for note in table.notes) == bool(unknown)
