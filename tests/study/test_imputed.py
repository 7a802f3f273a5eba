"""Multiple imputation as a way with missing values: in columns.toml, in runs and in agreements."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import studies
import torch
from rounds import replies, rows, same_numbers, server_key

import consilience as co
from consilience.data.reading import Reading, read_reading
from consilience.data.sites import Sites
from consilience.distributions.posterior import Dense
from consilience.errors import InputError
from consilience.inference import Laplace, MultipleImputation, Newton
from consilience.study.coordinator import pool
from consilience.study.effects import model_effects
from consilience.study.model import read_model
from consilience.study.protocol.columns import Column, imputed_marks
from consilience.study.rows import training_rows

COLUMNS = (
    studies.COLUMNS[0],
    dataclasses.replace(studies.COLUMNS[1], missing="impute"),
    dataclasses.replace(studies.COLUMNS[2], missing="refuse"),
)
LAPLACE = ("inference.mode=Newton", "inference.dense=True")
SENDERS = {"gaussian_product": LAPLACE, "hierarchical": ()}


@pytest.fixture
def tables(tmp_path: Path) -> str:
    """Two numbers, one of them missing in a third of the rows, and a disease that both make likelier."""
    rng = np.random.default_rng(0)
    for name in ("east", "north", "west"):
        lines = ["age,lactate,ill"]
        for _ in range(60):
            age = rng.normal()
            lactate = 0.7 * age + rng.normal()
            ill = int(age + lactate + rng.logistic() > 0)
            cell = "" if rng.random() < 0.3 else f"{lactate:.3f}"
            lines.append(f"{age:.3f},{cell},{ill}")
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "*.csv")


def test_a_run_imputes_as_its_inference_would(tables: str) -> None:
    laplace = Laplace(mode=Newton(steps=2), dense=True)
    sites = co.from_csv(tables, target="ill", missing="impute:3", calibration=0)
    by_mean = dataclasses.replace(sites, imputations=0)
    task = co.classification(co.models.linear(sites.features, 2))
    asked = MultipleImputation(laplace, marks="1:2", tables=3)

    found = co.run(co.methods.GaussianProduct(inference=laplace), task, sites, engine="sequential", scored=False)
    explicit = co.run(co.methods.GaussianProduct(inference=asked), task, by_mean, engine="sequential", scored=False)

    assert same_numbers(found.state, explicit.state)
    assert "missing" not in {row.level for row in found.effects()}  # marks have no effect
    with pytest.raises(InputError, match="glm sends no Gaussian posterior"):
        co.run(co.methods.GLM(), task, sites)


@pytest.mark.parametrize("method", sorted(SENDERS))
def test_a_study_imputes_as_a_simulation_does(tmp_path: Path, method: str) -> None:
    words = {"method": method, "settings": SENDERS[method], "columns": COLUMNS, "smallest": 1, "imputations": 2}
    study = studies.study(tmp_path, hand_out="mixture", **words)
    agreed = study.agreement

    path = tmp_path / "one.model"
    path.write_bytes(pool(study, replies(study, tmp_path), server_key(tmp_path)).model)

    each = list(rows(study, tmp_path).values())
    train = tuple(training_rows(agreed, own.train).data for own in each)
    assert bool((train[0].x[:, 2] > 0).any())  # gaps that no rule of disclosure merged
    sites = Sites(train, train, None, None, None, 2, 6, "sepsis", "natural", tuple(s.name for s in study.sites))
    simulated = co.run(agreed.build_method(), agreed.build_task(), sites, engine="sequential", scored=False)
    model = read_model(path, study)
    found, expected = model.state.posterior, simulated.state.posterior  # type: ignore[union-attr]
    assert isinstance(found, Dense)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-5, atol=1e-6)  # inverses differ in their last digits
    torch.testing.assert_close(found.precision, expected.precision, rtol=1e-4, atol=1e-4)
    assert "missing" not in {row.level for row in model_effects(model, None)}


def test_what_cannot_be_imputed_is_refused(tmp_path: Path, tables: str) -> None:
    category = dataclasses.replace(studies.COLUMNS[2], missing="impute")
    with pytest.raises(InputError, match="draws are for numbers"):
        studies.agreement(tmp_path, columns=(*COLUMNS[:2], category), method="gaussian_product", settings=()).check()
    with pytest.raises(InputError, match="sends no Gaussian posterior"):
        studies.agreement(tmp_path, columns=COLUMNS, method="fedavg", settings=())
    with pytest.raises(InputError, match="two or more"):
        Reading(missing="impute:1")
    with pytest.raises(InputError, match="impute:20"):
        Reading(missing="mean:3")
    table = tmp_path / "ward.csv"
    table.write_text("ward,age,ill\na,1,0\n,2,1\nb,3,0\na,4,1\nb,5,0\na,6,1\n")
    with pytest.raises(InputError, match="is a category with missing values"):
        co.from_csv(str(table), target="ill", missing="impute", test=0.0, calibration=0)


def test_a_dictionary_says_impute(tmp_path: Path) -> None:
    path = tmp_path / "columns.toml"
    path.write_text('[columns]\nage = { type = "number", missing = "impute" }\nbmi = { type = "number" }\n')

    assert read_reading(path)[0].tables == 20
    path.write_text('[columns]\nage = { missing = "impute" }\nbmi = { missing = "mark" }\n')
    with pytest.raises(InputError, match="one way"):
        read_reading(path)


def test_marks_are_those_of_imputed_columns() -> None:
    columns = (Column("a", missing="mark"), Column("b", missing="impute"), Column("c"), Column("d", missing="impute"))

    assert imputed_marks(columns) == "2:3,5:6"


def test_studies_without_draws_keep_their_hash(tmp_path: Path) -> None:
    assert "imputations" not in studies.agreement(tmp_path).fields
