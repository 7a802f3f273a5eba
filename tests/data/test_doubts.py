"""What a table may mean other than it says is said before anything is trained on it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from tiny import Invoke

import consilience as co
from consilience.data.cells import Cell, Cells
from consilience.data.doubts import is_date, is_id, look_alike, sentinels


def cells(*texts: str) -> Cells:
    return Cells.of([Cell(text, "t.csv", line) for line, text in enumerate(texts, 2)])


@pytest.mark.parametrize(
    ("texts", "groups"),
    [
        (["yes", "YES", "no"], [("YES", "yes")]),
        (["M", "male", "F", "female"], [("F", "female"), ("M", "male")]),
        (["type 1", "Type-1", "type 2"], [("Type-1", "type 1")]),
        (["a", "b"], []),
    ],
)
def test_categories_that_look_alike(texts: list[str], groups: list[tuple[str, ...]]) -> None:
    assert look_alike(texts) == groups


def test_ids_and_marks_for_missing_values() -> None:
    people = cells(*(str(4000 + 7 * i) for i in range(30)))
    follow = cells(*(str(i) for i in range(30)))
    two_sites = torch.arange(2).repeat_interleave(30)
    twice = cells(*(str(i % 30) for i in range(60)))
    blood = cells(*(str(100 + i) for i in range(30)), "-999", "-999")

    assert is_id("patient_id", people) and not is_id("salary", people)
    assert is_id("x", follow) and is_id("x", twice, two_sites) and not is_id("x", twice)
    assert not is_id("age", cells(*(f"{20 + i}.5" for i in range(30))))
    assert sentinels(blood, blood.numbers()) == [("-999", 2)]
    among_its_like = cells("0", "50", "99", "100")
    assert sentinels(among_its_like, among_its_like.numbers()) == []
    constant = cells("5", "5", "-999", "-999.0")
    assert sentinels(constant, constant.numbers()) == []  # one other value has no range to be far from
    assert is_date(cells("2024-01-31", "2024-02-01")) and not is_date(cells("2024", "2025"))


def write(path: Path, head: str, rows: list[str]) -> Path:
    path.write_text("\n".join([head, *rows, ""]))
    return path


def test_a_table_is_read_with_its_doubts(tmp_path: Path) -> None:
    rows = [f"{i},{-999 if i == 7 else 60 + i},{['yes', 'no', 'YES'][i % 3]}" for i in range(40)]
    path = write(tmp_path / "north.csv", "patient_id,pressure,died", rows)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        co.from_csv([path], "died", sites=2)

    said = [str(w.message) for w in caught]
    assert any("'patient_id' has a value of its own" in s and "--drop patient_id" in s for s in said)
    assert any("'pressure' holds -999 in 1 of 40 rows" in s and "--unknown=-999" in s for s in said)
    assert any("classes 'YES', 'yes', which look like one" in s for s in said)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": co.methods.FedAvg(co.SGD(epochs=0))}, "inference.epochs=0: at least 1"),
        ({"method": co.methods.FedAvg(co.SGD(epochs=-5))}, "inference.epochs=-5: at least 1"),
        ({"method": co.methods.FedBE(co.methods.FedAvg(co.SGD(rate=0.0)))}, "inner.inference.rate=0: a learning rate"),
        ({"keep_replies": "al"}, "keep_replies='al'"),
        ({"engine": co.Compute(threads=0)}, "threads=0"),
    ],
)
def test_settings_with_which_nothing_is_learned_are_refused(change: dict[str, object], sentence: str) -> None:
    task, sites = tiny.classification()
    arguments = {"method": tiny.method("fedavg"), **change}
    with pytest.raises(co.InputError, match=sentence.replace("[", r"\[")):
        co.run(task=task, sites=sites, **arguments)  # type: ignore[arg-type]


def test_sites_that_are_missing_are_refused() -> None:
    x = np.random.default_rng(0).normal(size=(30, 2))
    groups = np.where(np.arange(30) < 3, np.nan, np.arange(30) % 2)

    with pytest.raises(co.InputError, match="groups is missing in 3 rows"):
        co.FederatedClassifier().fit(x, x[:, 0] > 0, groups=groups)
    with pytest.raises(co.InputError, match="site is missing in 3 rows"):
        co.from_arrays(x, x[:, 0] > 0, groups)


def test_an_example_is_said_to_be_one(invoke: Invoke, tmp_path: Path) -> None:
    code, out, _ = invoke("study", "new", "mine")
    assert code == 0 and "invented example" in out and "age, cholesterol, sex" in out

    write(tmp_path / "t.csv", "id,bp,died", [f"{i},{60 + i},{['yes', 'no', 'YES'][i % 3]}" for i in range(40)])
    code, out, _ = invoke("study", "new", "other", "--like", "t.csv", "--target", "died")
    assert code == 0 and "invented" not in out
    assert "'YES', 'yes', which look like one: look at it before anybody signs" in " ".join(out.split())
