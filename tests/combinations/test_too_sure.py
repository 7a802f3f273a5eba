"""Where one round of Gaussians is known to be too sure, it says so: in Python, in the report, and in a study."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from studies import FREE, study, table
from uncharged import fit as _fit

import consilience as co
from consilience.data.sites import Data, Sites
from consilience.errors import RunWarning
from consilience.inference import Laplace, Newton, VariationalGaussian
from consilience.methods.gaussian_product import GaussianProduct
from consilience.methods.hierarchical import Hierarchical
from consilience.study.coordinator import PooledFiles, pool
from consilience.study.protocol.columns import Column
from consilience.study.protocol.signature import read_key
from consilience.study.rows import parts, rows_of

DOUBLE = torch.float64
LAPLACE = GaussianProduct(Laplace(mode=Newton(), dense=True))


def sites_of(rows: int, slope: float, only: int = 0) -> Sites:
    """Six sites of three columns; as many rows of class 0 alone at one more."""
    generator = torch.Generator().manual_seed(4)
    parts = []
    for _ in range(6):
        x = torch.randn(rows, 3, generator=generator, dtype=DOUBLE)
        chances = torch.sigmoid(slope * x.sum(1) - 0.5)
        parts.append(Data.of(x, (torch.rand(rows, generator=generator, dtype=DOUBLE) < chances).long()))
    if only:
        x = torch.randn(only, 3, generator=generator, dtype=DOUBLE)
        parts.append(Data.of(x, torch.zeros(only, dtype=torch.long)))
    names = tuple(f"s{k}" for k in range(len(parts)))
    return Sites(tuple(parts), tuple(parts), None, None, None, 2, 3, "y", "natural", names)


def heard(method: co.Method, sites: Sites) -> list[str]:
    task = co.classification(co.models.linear(3, 2).to(DOUBLE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(co.run(method, task, sites, scored=False).report["warnings"])


@pytest.mark.parametrize(
    ("method", "rows", "slope", "warned"),
    [
        (LAPLACE, 25, 2.5, True),
        (LAPLACE, 25, 1.0, True),
        (LAPLACE, 25, 0.5, False),
        (LAPLACE, 100, 2.5, False),
        (Hierarchical(), 25, 2.5, True),
        (Hierarchical(), 25, 1.0, False),
        (Hierarchical(), 100, 2.5, False),
    ],
)
def test_strong_effects_at_small_sites_are_warned_of(method: co.Method, rows: int, slope: float, warned: bool) -> None:
    said = [text for text in heard(method, sites_of(rows, slope)) if "too narrow" in text]
    assert len(said) == warned
    if warned:
        assert "20 sites of 25 rows" in said[0] and "glm" in said[0]


@pytest.mark.parametrize("method", [LAPLACE, GaussianProduct(VariationalGaussian())], ids=["mode", "averaged"])
@pytest.mark.parametrize("only", [pytest.param(8, marks=pytest.mark.slow), 60])
def test_a_site_of_one_class_is_named(method: co.Method, only: int) -> None:
    said = [text for text in heard(method, sites_of(60, 1.0, only)) if "of one class" in text]
    assert len(said) == 1
    assert said[0].startswith("Site s6: ") and "intercept" in said[0]


def test_sites_of_both_classes_are_not() -> None:
    assert not [text for text in heard(LAPLACE, sites_of(60, 1.0)) if "of one class" in text]


def test_a_warning_says_so_in_python() -> None:
    task = co.classification(co.models.linear(3, 2).to(DOUBLE))
    with pytest.warns(RunWarning, match="of one class"):
        co.run(LAPLACE, task, sites_of(60, 1.0, 20), scored=False)


def test_worse_than_the_base_rate_is_said_in_python() -> None:
    """Labels by chance, and a learning rate that leaves weights far from 0; the better model says nothing."""
    generator = torch.Generator().manual_seed(0)
    parts = tuple(
        Data.of(torch.randn(80, 3, generator=generator), torch.randint(0, 2, (80,), generator=generator))
        for _ in range(3)
    )
    sites = Sites(parts, parts, None, None, None, 2, 3, "y", "natural", ("a", "b", "c"))
    task = co.classification(co.models.linear(3, 2))
    with pytest.warns(RunWarning, match="always predicting the classes' frequencies"):
        co.run(co.methods.FedAvg(co.inference.SGD(epochs=1, rate=30.0)), task, sites, rounds=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunWarning)
        co.run(co.methods.GLM(), task, sites, rounds=8)


def played(folder: Path, dead: int) -> PooledFiles:
    """A study of three sites of 60 patients, a column each; at the last one as many are dead."""
    names = ("north", "south", "west")
    wanted: dict[str, Any] = {
        **FREE,
        "method": "gaussian_product",
        "settings": ("inference=VariationalGaussian",),
        "model": "linear",
        "columns": (Column("age", "number", "years", (18.0, 100.0), 50.0, 15.0),),
        "choose": 0.0,
        "test": 0.0,
    }
    made = study(folder, names, **wanted)
    replies = []
    for k, name in enumerate(names):
        most = (25, 20, dead)[k]
        records = [{"age": f"{30 + i:.1f}", "died": ("no", "yes")[(7 * i) % 60 < most]} for i in range(60)]
        data, _ = rows_of(made.agreement, table(folder / f"{name}.csv", records), one_class=not dead)
        member = made.member(name)
        own = parts(made.agreement, member.number, data)
        replies.append(folder / f"{name}.reply")
        replies[-1].write_bytes(_fit(made, member, read_key(folder / f"{name}.key"), own).reply)
    return pool(made, replies, read_key(folder / "server.key"))


@pytest.mark.parametrize("dead", [0, 20])
def test_a_study_names_the_site_of_one_class(tmp_path: Path, dead: int) -> None:
    said = [text for text in played(tmp_path, dead).account["warnings"] if "of one class" in text]
    assert len(said) == (not dead)
    assert all(text.startswith("Site west: ") for text in said)
