"""What rows leave open, as R would say it: NA for a column that depends on others, a warning where one separates."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import nn

import consilience as co
from consilience.biostatistics.effects import Effects
from consilience.data.sites import Data, Sites
from consilience.distributions.prior import Flat, Isotropic
from consilience.errors import InputError
from consilience.inference import Laplace, Newton, VariationalGaussian
from consilience.methods.gaussian_product import GaussianProduct


def made(kind: str, link: str = "logit", rows: int = 120) -> Sites:
    """Four sites with a column x that matters and a column z of some kind."""
    rng = np.random.default_rng(0)
    parts = []
    for k in range(4):
        x = rng.normal(size=rows)
        y = (rng.random(rows) < 1 / (1 + np.exp(-x))).astype(int)
        z = {
            "usual": rng.normal(size=rows),
            "constant": np.ones(rows),
            "depends": 2 * x,
            "separates": (rng.random(rows) < 0.2).astype(float),
            "opposed": (rng.random(rows) < 0.2).astype(float),
            "stratum": np.full(rows, float(k % 2)),
        }[kind]
        if kind == "separates" or (kind == "opposed" and k % 2):
            y[z > 0] = 1
        elif kind == "opposed":
            y[z > 0] = 0
        targets = torch.tensor(y)
        if link == "hazard":
            times = 1 + np.floor(100 * rng.exponential(np.exp(-x)))
            targets = torch.tensor(np.stack([times, (rng.random(rows) < 0.7).astype(float)], 1))
        parts.append(Data.of(torch.tensor(np.stack([x, z], 1)), targets))
    own = tuple(parts)
    names = ("a", "b", "c", "d")
    outcome = "survival" * (link == "hazard")
    classes = 2 if link == "logit" else None
    return Sites(
        own, own, None, None, None, classes, 2, "y", "natural", names, feature_names=("x", "z"), outcome=outcome
    )


def effects(sites: Sites, prior: co.Prior) -> Effects:
    task = co.classification(nn.Linear(2, 2).double(), prior)
    if sites.outcome:
        task = co.survival(nn.Linear(2, 1).double(), prior, times=(10.0, 50.0))
    return co.run(co.methods.GLM(), task, sites, rounds=8, scored=False).effects()


@pytest.mark.parametrize("prior", [Flat(), Isotropic(1.0), Isotropic(1e4), Isotropic(1e6)], ids=str)
@pytest.mark.parametrize(
    ("kind", "link", "unknown"),
    [
        ("usual", "logit", []),
        ("constant", "logit", ["z"]),
        ("depends", "logit", ["x", "z"]),
        ("separates", "logit", ["z"]),
        ("stratum", "hazard", ["z"]),
    ],
)
def test_what_rows_leave_open_is_named_whatever_the_prior(
    kind: str, link: str, unknown: list[str], prior: co.Prior
) -> None:
    table = effects(made(kind, link), prior)
    assert [row.column for row in table if math.isnan(row.estimate)] == unknown
    named = [note for note in table.notes if note.startswith("Not estimable")]
    assert named == [] or named[0].startswith(f"Not estimable: {', '.join(unknown)}.")
    assert bool(named) == bool(unknown)


def test_an_effect_that_all_rows_tell_and_no_site_is_estimated() -> None:
    """A level with one outcome at two sites and the other at the others: R's glm on all rows has an estimate."""
    sites = made("opposed")
    table = effects(sites, Flat())
    x = np.concatenate([part.x.numpy() for part in sites.train])
    oracle = sm.Logit(np.concatenate([part.y.numpy() for part in sites.train]), sm.add_constant(x)).fit(disp=0)
    np.testing.assert_allclose([row.estimate for row in table], oracle.params, rtol=1e-5)
    np.testing.assert_allclose([row.error for row in table], oracle.bse, rtol=1e-5)
    assert [row.sites for row in table] == [4, 4, 0]


@pytest.mark.parametrize(
    "method",
    [co.methods.GaussianProduct(inference=Laplace(mode=Newton(), dense=True)), co.methods.Hierarchical()],
    ids=["gp", "mixed"],
)
def test_a_flat_prior_of_classes_is_refused_in_one_sentence(method: co.Method) -> None:
    """In single precision, as a run has it: the level that all logits share has no precision."""
    sites = made("usual")
    parts = tuple(Data(part.x.float(), part.y, part.w.float()) for part in sites.train)
    sites = replace(sites, train=parts, test=parts)
    with pytest.raises(InputError, match="leaves some weights open"):
        co.run(method, co.classification(nn.Linear(2, 2), Flat()), sites, rounds=1, scored=False)


METHODS = {
    "glm": co.methods.GLM(),
    "product": co.methods.GaussianProduct(inference=VariationalGaussian()),
    "mixed": co.methods.Hierarchical(),
}


@pytest.mark.parametrize("name", ["glm", "product", pytest.param("mixed", marks=pytest.mark.slow)])
def test_separation_is_named_by_every_method_and_in_its_folder(tmp_path: Path, name: str) -> None:
    """Where everybody with z has the outcome: 9.9 ± 4.6 by glm, 25 ± 3.5 by a product, unsaid."""
    sites = made("separates", rows=200)
    z = torch.cat([part.x[:, 1] for part in sites.train])
    parts = tuple(Data.of(torch.stack([part.x[:, 0], part.x[:, 1] / z.std()], 1), part.y) for part in sites.train)
    task = co.classification(nn.Linear(2, 2).double(), Isotropic(100.0))
    run = co.run(METHODS[name], task, replace(sites, train=parts, test=parts), out=tmp_path / "run")
    tables = [run.effects(), co.load(tmp_path / "run").effects(), co.load(tmp_path / "run").effects(0.9)]
    for table in tables:
        assert [row.column for row in table if math.isnan(row.estimate)] == ["z"]
    assert str(tables[0]) == str(tables[1])


@pytest.mark.parametrize(("kind", "doubted"), [("separates", True), ("usual", False)])
def test_separation_that_a_prior_hides_is_doubted(kind: str, doubted: bool) -> None:
    """Under a prior of variance 1 no rule tells it from an effect; no true odds ratio of these columns is above 3."""
    sites = made(kind, rows=800)
    method = co.methods.GaussianProduct(inference=VariationalGaussian())
    table = co.run(method, co.classification(nn.Linear(2, 2).double()), sites, scored=False).effects()
    assert not any(math.isnan(row.estimate) for row in table)
    assert [note for note in table.notes if "above 100" in note and ": z." in note] == [*table.notes[-1:]] * doubted


def test_no_half_a_run_is_left_where_all_rows_cannot_be_fitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`effects` said of it: continue it with `co.run(…, resume=True)`."""
    sites = made("usual")
    train, test = (
        tuple(Data(*(leaf[rows] for leaf in p)) for p in sites.train) for rows in (slice(80), slice(80, 120))
    )
    real = GaussianProduct.aggregate

    def fails(self: GaussianProduct, task: co.Task, state: Any, replies: Any, server: Any) -> Any:
        if (tmp_path / "run" / "all-rows").exists():
            raise torch.linalg.LinAlgError("no inverse")
        return real(self, task, state, replies, server)

    monkeypatch.setattr(GaussianProduct, "aggregate", fails)
    task = co.classification(nn.Linear(2, 2).double())
    run = co.run(
        GaussianProduct(Laplace(mode=Newton(), dense=True)),
        task,
        replace(sites, train=train, test=test),
        out=tmp_path / "run",
    )
    assert not (tmp_path / "run" / "all-rows").exists()
    assert str(co.load(tmp_path / "run").effects()) == str(run.effects())
