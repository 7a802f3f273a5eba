"""Predictions of run folders and models for tables as people have them."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import Invoke

import consilience as co

HEAD = "patient,age,ward,pressure,died"


def records(seed: int, count: int = 40) -> list[str]:
    """The old die more often; one row in ten lacks its pressure."""
    draw = random.Random(seed)
    lines = []
    for i in range(count):
        age, ward = draw.uniform(30, 90), draw.choice("xyz")
        pressure = "" if draw.random() < 0.1 else f"{draw.uniform(80, 160):.0f}"
        lines.append(f"P{seed}-{i},{age:.1f},{ward},{pressure},{'yes' if age + draw.gauss(0, 10) > 60 else 'no'}")
    return lines


def write(path: Path, head: str, lines: list[str]) -> Path:
    path.write_text("\n".join([head, *lines, ""]))
    return path


@pytest.fixture
def made(tmp_path: Path) -> co.Result:
    (tmp_path / "hospitals").mkdir()
    for k, name in enumerate(("north", "south", "west")):
        write(tmp_path / "hospitals" / f"{name}.csv", HEAD, records(k))
    sites = co.from_csv(str(tmp_path / "hospitals" / "*.csv"), "died", missing="mean", drop=["patient"])
    task = co.classification(co.models.linear(sites.features, 2))
    result = co.run(co.methods.FedAvg(co.SGD(epochs=5)), task, sites, rounds=2, engine="sequential")
    result.save(tmp_path / "run")
    return result


def test_a_run_folder_predicts_a_table_with_ids_gaps_and_a_bad_row(
    made: co.Result, invoke: Invoke, tmp_path: Path
) -> None:
    lines = ["A,50,x,,", "B,80,y,120,", "C,old,x,120,", "D,60,q,120,", "E,60,z,99,"]
    write(tmp_path / "new.csv", "who,age,ward,pressure,note", lines)

    code, out, err = invoke("predict", "run", "new.csv", "--id", "who", "--out", "p.csv")

    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert code == 1 and "2 of 5 rows were not predicted" in out and "Traceback" not in err
    assert "new.csv, line 4: 'old' in column 'age' is not a finite number" in out
    assert "new.csv, line 5: 'q' in column 'ward' was not seen in training (x, y, z)" in out
    assert [row["who"] for row in rows] == list("ABCDE") and [row["row"] for row in rows] == list("12345")
    assert [row["decision"] == "not predicted" for row in rows] == [False, False, True, True, False]
    # by hand: a gap has the mean of the training rows and a mark, a category a 1 in its place
    mean = next(column.fill for column in made.sites.columns or () if column.name == "pressure")
    x = torch.tensor([[50, 1, 0, 0, mean, 1], [80, 0, 1, 0, 120, 0], [60, 0, 0, 1, 99, 0]], dtype=torch.float64)
    expected = made.predict(x).probs
    assert expected is not None and made.class_names == ("no", "yes")
    found = [[float(row["p(no)"]), float(row["p(yes)"])] for row in rows if row["p(no)"]]
    assert found == [pytest.approx(row, abs=1e-6) for row in expected.tolist()]


def test_tables_of_every_kind_are_read_alike(made: co.Result, tmp_path: Path) -> None:
    loaded = co.load(tmp_path / "run")
    rows = [{"age": 50, "ward": "x", "pressure": None}, {"age": 80.5, "ward": "y", "pressure": 120}]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    path = write(tmp_path / "new.csv", "ward,pressure,age", ["x,NA,50", "y,120.0,80.5"])
    frame = pytest.importorskip("pandas").DataFrame(rows)

    by_rows, *others = (loaded.predict(table).probs for table in (rows, columns, path, str(path), frame))

    assert by_rows is not None
    assert all(other is not None and torch.equal(by_rows, other) for other in others)
    with pytest.raises(co.InputError, match="'q' in column 'ward' was not seen"):
        loaded.predict([{**rows[0], "ward": "q"}])
    with pytest.raises(co.InputError, match="no column 'age'"):
        loaded.predict([{"ages": 50, "ward": "x", "pressure": 100}])
    spelt = loaded.predict([{"AGE": 50, "Ward ": "x", "pressure": None}]).probs
    assert spelt is not None and torch.allclose(spelt, by_rows[:1])


def test_what_cannot_be_asked_of_a_run_folder_is_refused(made: co.Result, invoke: Invoke, tmp_path: Path) -> None:
    write(tmp_path / "new.csv", HEAD, records(9, 3))
    for words, sentence in (
        (("--study", "s.toml"), "--study is for the file"),
        (("--abstain", "80"), "not a probability"),
        (("--id", "whom"), "There is no column called 'whom'"),
    ):
        code, _, err = invoke("predict", "run", "new.csv", *words)
        assert code == 2 and sentence in " ".join(err.split()), err
    write(tmp_path / "bad.csv", HEAD, ["P,old,x,100,"])
    code, _, err = invoke("predict", "run", "bad.csv")
    assert code == 2 and "No row of bad.csv can be used" in err


def test_names_of_columns_are_enough_for_arrays() -> None:
    x = np.random.default_rng(0).normal(size=(60, 2))
    sites = co.from_arrays(x, x[:, 0] > 0, feature_names=["a", "b"]).split(co.splits.iid(), 2, calibration=0)
    result = co.run(co.methods.FedAvg(co.SGD(epochs=1)), co.classification(co.models.linear(2, 2)), sites, rounds=1)

    by_name = result.predict({"b": x[:3, 1], "a": x[:3, 0]}).probs
    by_place = result.predict(x[:3]).probs

    assert by_name is not None and by_place is not None and torch.allclose(by_name, by_place, atol=1e-6)
    unnamed = co.from_arrays(x, x[:, 0] > 0).split(co.splits.iid(), 2, calibration=0)
    result = co.run(co.methods.FedAvg(co.SGD(epochs=1)), co.classification(co.models.linear(2, 2)), unnamed, rounds=1)
    with pytest.raises(co.InputError, match="without names of columns"):
        result.predict([{"a": 1.0, "b": 2.0}])


def test_small_networks_predict_with_one_thread(made: co.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads wait for each other; they are given back after it."""
    counts = []
    predictive = type(made.method).predictive
    monkeypatch.setattr(
        type(made.method), "predictive", lambda *a: counts.append(torch.get_num_threads()) or predictive(*a)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        made.predict([{"age": 50, "ward": "x", "pressure": 100}])
        after = torch.get_num_threads()
    finally:
        torch.set_num_threads(before)

    assert counts == [1] and after == 2


def test_a_run_folder_predicts_sets_of_its_own_level_alone(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "hospitals").mkdir()
    for k, name in enumerate(("north", "south", "west")):
        write(tmp_path / "hospitals" / f"{name}.csv", HEAD, records(k))
    table = str(tmp_path / "hospitals" / "*.csv")
    sites = co.from_csv(table, "died", missing="mean", drop=["patient"], conformal=0.3)
    task = co.classification(co.models.linear(sites.features, 2))
    co.run(co.methods.ExactPooling(), task, sites, level=0.8).save(tmp_path / "run")
    write(tmp_path / "new.csv", "age,ward,pressure", ["50,x,", "80,y,120"])

    own, _, _ = invoke("predict", "run", "new.csv", "--set", "0.8", "--out", "p.csv")
    other, _, refused = invoke("predict", "run", "new.csv", "--set", "0.9", "--out", "q.csv")

    assert own == 0 and "set80" in (tmp_path / "p.csv").read_text()
    assert other == 2 and "run it again with --level 0.9" in refused.replace("\n", " ")
    assert not (tmp_path / "q.csv").exists()
