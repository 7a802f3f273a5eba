"""Rows that stay in their files: the same numbers as rows that are read whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import consilience as co
from consilience.data import streams
from consilience.data.quantiles import find_quantiles
from consilience.data.reading import Reading
from consilience.data.sites import Data, Sites
from consilience.data.streams import stream_sites
from consilience.errors import InputError
from consilience.models.hats import LEVELS

ROWS = 400
SLOW = pytest.mark.slow
TARGETS = {"died": "classification", "weight": "regression", "visits": "counts"}


def frame(seed: int) -> pl.DataFrame:
    """A column of every kind: numbers, large ones, gaps, categories, a constant, codes."""
    draw = np.random.default_rng(seed)
    age = draw.normal(50, 12, ROWS).round(1)
    ward = draw.choice(["east", "north", "west"], ROWS)
    dose = np.where(draw.random(ROWS) < 0.1, None, draw.exponential(3, ROWS).round(2))
    slope = 0.05 * (age - 50) + (ward == "west")
    return pl.DataFrame(
        {
            "age": age,
            "ward": ward,
            "dose": pl.Series([None if v is None else float(v) for v in dose], dtype=pl.Float64),
            "stamp": 1.7e9 + draw.normal(0, 50, ROWS),
            "same": np.ones(ROWS),
            "code": draw.choice([1, 2, 7], ROWS),
            "died": np.where(draw.random(ROWS) < 1 / (1 + np.exp(-slope)), "yes", "no"),
            "weight": (70 + 4 * slope + draw.normal(0, 3, ROWS)).round(3),
            "visits": draw.poisson(np.exp(0.3 * slope)),
        }
    )


def write(folder: Path, ending: str, files: int = 2) -> str:
    for k in range(files):
        path = folder / f"s{k}.{ending}"
        if ending == "parquet":
            frame(k).write_parquet(path)
        else:
            frame(k).write_csv(path)
    return str(folder / f"*.{ending}")


def reading_for(target: str) -> Reading:
    others = tuple(name for name in TARGETS if name != target)
    return Reading(missing="mean", text=("code",), drop=others, task=TARGETS[target])


def both(folder: Path, ending: str, target: str, batch: int = 37, test: float = 0.0) -> tuple[Sites, Sites]:
    """The same rows in their files, and read whole."""
    pattern, reading = write(folder, ending), reading_for(target)
    streamed = stream_sites(pattern, target, reading, test=test, batch=batch)
    others = list(reading.drop)
    whole = co.data.from_table(
        pattern, target, task=TARGETS[target], missing="mean", text=["code"], drop=others, test=0, calibration=0
    )
    return streamed, whole


def rows_of(part: Data) -> torch.Tensor:
    return torch.cat([*part.x.split(50)])


@pytest.mark.parametrize(
    ("target", "ending"),
    [
        ("died", "csv"),
        ("visits", "parquet"),
        pytest.param("died", "parquet", marks=SLOW),
        pytest.param("weight", "csv", marks=SLOW),
        pytest.param("weight", "parquet", marks=SLOW),
        pytest.param("visits", "csv", marks=SLOW),
    ],
)
def test_features_and_targets_are_those_of_rows_read_whole(tmp_path: Path, ending: str, target: str) -> None:
    streamed, whole = both(tmp_path, ending, target)
    assert streamed.streamed and not whole.streamed
    assert streamed.feature_names == whole.feature_names and streamed.class_names == whole.class_names
    assert streamed.names == whole.names and streamed.outcome == whole.outcome
    for one, other in zip(streamed.train, whole.train, strict=True):
        torch.testing.assert_close(rows_of(one), other.x, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(one.y.double(), other.y.double(), rtol=1e-6, atol=1e-6)
        assert float(one.size) == float(other.size)
    assert streamed.columns is not None and whole.columns is not None
    for mine, theirs in zip(streamed.columns, whole.columns, strict=True):
        assert mine.fill == pytest.approx(theirs.fill, rel=1e-6)
        assert replace(mine, fill=0.0) == replace(theirs, fill=0.0)


def test_classes_are_named_as_in_a_whole_read(tmp_path: Path) -> None:
    for k, values in enumerate(([0.1, 2, 10], ["b", "a", "B"], [True, False, True])):
        path = tmp_path / f"t{k}.parquet"
        pl.DataFrame({"x": range(30), "y": values * 10}).write_parquet(path)
        streamed = stream_sites(str(path), "y", Reading(task="classification"), test=0, batch=7)
        (whole,) = co.data.from_table([path], "y", task="classification", sites=1, test=0, calibration=0).train
        names = co.data.from_table([path], "y", task="classification", sites=1, calibration=0).class_names
        assert streamed.class_names == names and streamed.train[0].y.tolist() == whole.y.tolist()


def test_quantiles_are_found_exactly_in_two_passes(tmp_path: Path) -> None:
    streamed, _ = both(tmp_path, "parquet", "died")
    at_hand = replace(streamed, train=tuple(Data.of(rows_of(part), part.y) for part in streamed.train))
    found = find_quantiles(streamed, LEVELS)
    assert found == find_quantiles(at_hand, LEVELS)
    assert any(found) and () in found


def fitted(method: Any, sites: Sites, **network: Any) -> list[torch.Tensor]:
    problem = co.Problem(sites=sites, **network)
    result = co.run(method, problem)
    effects = result.report.get("effects", {"effects": []})
    table = [float(row[name]) for row in effects["effects"] for name in ("estimate", "error") if row[name] is not None]
    assert bool(table) == (method == "glm")
    return [torch.tensor(table, dtype=torch.float64), *numbers_of(result)]


def numbers_of(result: co.Result) -> list[torch.Tensor]:
    """What is predicted for new rows of the table."""
    p = result.predict(frame(5).drop(*TARGETS))
    return [torch.as_tensor(value).double() for value in p if isinstance(value, torch.Tensor | np.ndarray)]


@pytest.mark.parametrize(
    ("method", "target", "ending"),
    [
        ("exact", "weight", "parquet"),
        ("glm", "weight", "csv"),
        pytest.param("exact", "died", "csv", marks=SLOW),
        pytest.param("exact_tuned", "weight", "csv", marks=SLOW),
        pytest.param("exact_tuned", "died", "parquet", marks=SLOW),
        pytest.param("glm", "died", "parquet", marks=SLOW),
        pytest.param("glm", "visits", "csv", marks=SLOW),
    ],
)
def test_models_are_those_of_rows_read_whole(tmp_path: Path, method: str, target: str, ending: str) -> None:
    streamed, whole = both(tmp_path, ending, target)
    network = {"features": "hats:60"} if method.startswith("exact") else {"model": "linear"}
    for one, other in zip(fitted(method, streamed, **network), fitted(method, whole, **network), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_roles_do_not_depend_on_what_is_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "BLOCK", 64)
    some, _ = both(tmp_path, "csv", "weight", batch=29, test=0.3)
    more, _ = both(tmp_path, "csv", "weight", batch=1000, test=0.3)
    for one, other in zip((*some.train, *some.test), (*more.train, *more.test), strict=True):
        torch.testing.assert_close(rows_of(one), rows_of(other), rtol=1e-6, atol=1e-6)
    share = sum(len(part.y) for part in some.test) / (2 * ROWS)
    assert share == pytest.approx(0.3, abs=0.06)
    assert sum(len(part.y) for part in (*some.test, *some.train)) == 2 * ROWS
    monkeypatch.setattr(streams, "MOST_TEST", 40)
    few, _ = both(tmp_path, "csv", "weight", test=0.3)
    assert 10 < sum(len(part.y) for part in few.test) < 80


REFUSED = [
    ("age", [*range(9), None], "bad.csv, line 11: the cell in column 'age' is missing"),
    ("age", [*range(9), "x"], "bad.csv, line 11: 'x' in column 'age' is not a finite number"),
    ("age", [*"abcdefghi", "3"], "bad.csv, line 2: 'a' in column 'age' is not a finite number"),
    ("y", [0, 1] * 4 + [1, None], "bad.csv, line 11: the target 'y' is missing"),
    ("y", ["a"] * 10, "The target 'y' is 'a' in every row"),
]


@pytest.mark.parametrize(("name", "values", "sentence"), REFUSED)
def test_a_cell_that_cannot_be_used_is_named(tmp_path: Path, name: str, values: Sequence[Any], sentence: str) -> None:
    table = {"age": [*range(10)], "y": [0, 1] * 5, name: [*values]}
    lines = [",".join("" if v is None else str(v) for v in row) for row in zip(*table.values(), strict=True)]
    (tmp_path / "bad.csv").write_text("\n".join([",".join(table), *lines]) + "\n")
    with pytest.raises(InputError) as error:
        stream_sites(str(tmp_path / "bad.csv"), "y", Reading(), batch=3)
    assert sentence in str(error.value)


def test_what_needs_all_rows_is_refused(tmp_path: Path) -> None:
    pattern = write(tmp_path, "parquet", 1)
    problem = co.Problem(pattern, "died", reading=reading_for("died"), stream=True)
    with pytest.raises(InputError, match="fedavg with these settings needs all rows in memory"):
        co.run("fedavg", problem)
    with pytest.raises(InputError, match="leave sites out"):
        co.run("exact", replace(problem, sites=3))
    with pytest.raises(InputError, match="risk sets"):
        stream_sites(pattern, None, Reading(), time="weight", event="visits")
    (tmp_path / "s0.parquet").write_bytes((tmp_path / "s0.parquet").read_bytes()[:-200])
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        co.run("exact", problem)


def test_large_files_are_read_in_parts_where_the_method_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LARGE", 1000)
    problem = co.Problem(write(tmp_path, "parquet"), "died", reading=reading_for("died"), model="linear")
    assert problem.streams and problem.settle([co.methods.ExactPooling()]).build_sites().streamed
    settled = problem.settle([co.methods.ExactPooling(), co.methods.FedAvg()])
    assert not settled.streams and not settled.build_sites().streamed
    assert not replace(problem, split="iid").streams and not replace(problem, stream=False).streams


@pytest.mark.slow
def test_a_run_scores_and_comes_back_without_its_rows(tmp_path: Path) -> None:
    pattern = write(tmp_path, "parquet")
    problem = co.Problem(pattern, "died", reading=reading_for("died"), stream=True, features="hats:40")
    result = co.run("exact", problem, out=tmp_path / "run")
    assert result.report["metrics"]["nll"] < 0.7
    again = co.load(tmp_path / "run")
    for one, other in zip(numbers_of(again), numbers_of(result), strict=True):
        torch.testing.assert_close(one, other)
