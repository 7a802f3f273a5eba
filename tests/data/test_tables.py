"""Tables from files: one site a file, columns of numbers and categories, and what cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from consilience.data import cells
from consilience.data.formats import read_table
from consilience.data.splits.features import Noise, shifted
from consilience.data.splits.labels import dirichlet, natural, sorted_feature
from consilience.data.tables import from_csv
from consilience.errors import InputError


def written(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return str(folder / "*.csv")


def hospital(first: int, rows: int = 20, header: str = "age,sex,disease") -> str:
    """Row i: age i, sex by turns, disease for every third."""
    order = header.split(",")
    lines = []
    for i in range(first, first + rows):
        cells = {"age": str(i), "sex": "fm"[i % 2], "disease": "yes" if i % 3 == 0 else "no"}
        lines.append(",".join(cells[name] for name in order))
    return "\n".join([header, *lines]) + "\n"


def test_csv_round_trip(tmp_path: Path) -> None:
    pattern = written(tmp_path, {"ulm": hospital(0, header="disease,sex,age"), "bonn": hospital(100, rows=10)})

    sites = from_csv(pattern, target="disease", test=0.2, calibration=6, seed=0, standardise=False)

    assert (sites.names, sites.split, sites.classes, sites.features) == (("bonn", "ulm"), "natural", 2, 3)
    assert (sites.class_names, sites.feature_names) == (("no", "yes"), ("age", "sex=f", "sex=m"))
    assert [len(d.x) for d in sites.test] == [2, 4]  # a fifth of 10 and of 20
    assert sites.calibration is not None
    every = torch.cat([sites.pooled().train[0].x, sites.all_test.x, sites.calibration.x])
    assert sorted(every[:, 0].tolist()) == [*range(20), *range(100, 110)]
    for d in (*sites.train, *sites.test, sites.calibration):
        age = d.x[:, 0].long()
        assert torch.equal(d.y, (age % 3 == 0).long())
        assert torch.equal(d.x[:, 1:], torch.stack([age % 2 == 0, age % 2 == 1], 1).float())
    assert (sites.train[0].x[:, 0] >= 100).all()
    assert not sites.public


def test_csv_is_standardised_by_training_rows(tmp_path: Path) -> None:
    pattern = written(tmp_path, {"ulm": hospital(0), "bonn": hospital(100)})

    sites = from_csv([tmp_path / "ulm.csv", tmp_path / "bonn.csv"], "disease", calibration=5)
    plain = from_csv(pattern, "disease", calibration=5, standardise=False)

    train = sites.pooled().train[0].x
    assert sites.names == ("ulm", "bonn")  # files given by name keep their order
    assert train.mean(0).abs().max() < 1e-5
    assert torch.allclose(train.std(0, correction=0), torch.ones(3), atol=1e-5)
    assert plain.feature_shift is None


def test_large_numbers_keep_their_digits_until_they_are_scaled(tmp_path: Path) -> None:
    seconds = [1_700_000_000 + i for i in range(100)]  # float32 holds every 128th
    pattern = written(tmp_path, {"ulm": "\n".join(["second,t", *(f"{s},{s}" for s in seconds)])})

    sites = from_csv(pattern, "t", calibration=0)

    train = sites.train[0]
    assert (train.x.dtype, train.y.dtype, train.w.dtype) == (torch.float32,) * 3
    assert len(train.x.unique()) == len(train.y.unique()) == 80
    back = train.y.double() * sites.target_scale + sites.target_shift
    # y is rounded to float32 at about 1, so to 2⁻²⁴, and its scale is about 29.
    assert (back - back.round()).abs().max() < 1e-5
    assert set(back.round().long().tolist()) <= set(seconds)
    (tmp_path / "ulm.csv").write_text("\n".join(["second,t", *(f"{s if s % 4 else ''},{s}" for s in seconds)]))
    sites = from_csv(pattern, "t", calibration=0, missing="mean")
    assert len(sites.train[0].x[:, 0].unique()) == int((sites.train[0].x[:, 1] < 0).sum()) + 1  # gaps are the mean


def test_csv_with_a_split_of_ones_own(tmp_path: Path) -> None:
    pattern = written(tmp_path, {"all": hospital(0, rows=100)})

    sites = from_csv(pattern, "disease", split=dirichlet(0.5), sites=4)

    assert (len(sites), sites.split, sites.names) == (4, "dirichlet:0.5", ("0", "1", "2", "3"))
    assert sites.fingerprint() == from_csv(pattern, "disease", sites=4).fingerprint()  # what is usual for classes
    assert from_csv(pattern, "age", sites=4).split == "iid"


@pytest.mark.parametrize(
    ("targets", "task", "classes", "names"),
    [
        (["1", "2", "10"], None, 3, ("1", "2", "10")),
        (["1", "1.0", "2"], None, 2, ("1", "2")),
        (['"0,500"', '"1,500"', "2"], "classification", 3, ("0,500", "1,500", "2")),
        (["none", "flu", "flu"], None, 2, ("flu", "none")),
        (["0.5", "1.5", "2"], None, None, None),
        (["0.5", "1.5", "2"], "classification", 3, ("0.5", "1.5", "2")),
        (["1", "2", "10"], "regression", None, None),
        ([str(i) for i in range(21)], None, None, None),
        ([f"t{i}" for i in range(21)], "classification", 21, tuple(sorted(f"t{i}" for i in range(21)))),
    ],
)
def test_csv_targets(
    tmp_path: Path, targets: list[str], task: Any, classes: int | None, names: tuple[str, ...] | None
) -> None:
    lines = [f"{i},{targets[i % len(targets)]}" for i in range(63)]
    pattern = written(tmp_path, {"ulm": "\n".join(["x,t", *lines])})

    sites = from_csv(pattern, "t", task=task, calibration=5)

    assert (sites.classes, sites.class_names) == (classes, names)


def test_csv_missing_cells_are_filled_with_the_training_mean(tmp_path: Path) -> None:
    lines = [f"{'' if i % 4 == 1 else i},{'NA' if i % 4 == 2 else 'fm'[i % 2]},{i % 2}" for i in range(40)]
    pattern = written(tmp_path, {"ulm": "\n".join(["age,sex,t", *lines])})

    sites = from_csv(pattern, "t", calibration=4, missing="mean", standardise=False)

    assert sites.feature_names == ("age", "sex=f", "sex=m", "age missing", "sex missing")
    train = sites.train[0].x
    mean = train[train[:, 3] == 0, 0].mean()
    for d in (*sites.train, *sites.test):
        assert torch.allclose(d.x[d.x[:, 3] == 1, 0], mean)
        assert (d.x[d.x[:, 4] == 1, 1:3] == 0).all()  # no category where sex is missing
    every = torch.cat([sites.train[0].x, sites.all_test.x, sites.calibration.x if sites.calibration else train[:0]])
    assert every[:, 3:].sum(0).tolist() == [10, 10]  # a quarter of 40 rows each


def test_gaps_are_filled_before_features_move(tmp_path: Path) -> None:
    lines = [f"{'' if i % 4 == 0 else 200 + i},{'NA' if i % 4 == 1 else 'fm'[i % 2]},{i % 2}" for i in range(40)]
    text = "\n".join(["chol,sex,t", *lines])
    pattern = written(tmp_path, {"bonn": text, "ulm": text})
    ask: dict[str, Any] = {"target": "t", "calibration": 0, "missing": "mean", "standardise": False}

    plain = from_csv(pattern, **ask)
    noisy = from_csv(pattern, split=shifted(natural(), Noise(0.1)), **ask)

    marks = [3, 4]
    for a, b in zip((*plain.train, *plain.test), (*noisy.train, *noisy.test), strict=True):
        assert torch.equal(a.x[:, marks], b.x[:, marks])  # a mark is no measurement
        assert (a.x - b.x).abs().max() < 1  # ten deviations of the noise
    assert not torch.equal(plain.train[1].x, noisy.train[1].x)


@pytest.mark.parametrize("column", [None, 1])
def test_rows_are_not_sorted_by_gaps(tmp_path: Path, column: int | None) -> None:
    lines = [f"{i},{'' if i % 4 == 0 else 200 + i},{i % 2}" for i in range(40)]
    pattern = written(tmp_path, {"ulm": "\n".join(["age,chol,t", *lines])})

    with pytest.raises(InputError, match="'chol' has missing values"):
        from_csv(pattern, "t", split=sorted_feature(column), sites=2, missing="mean", calibration=0)
    sites = from_csv(pattern, "t", split=sorted_feature(0), sites=2, missing="mean", calibration=0)
    assert sites.train[0].x[:, 0].max() < sites.train[1].x[:, 0].min()


def test_csv_of_other_programmes(tmp_path: Path) -> None:
    lines = [f' {i} ; "a b" ;{i % 2}' for i in range(40)]
    (tmp_path / "ulm.csv").write_bytes("\r\n".join(["\ufeffid; note;t", *lines, "", ""]).encode("utf-8"))

    sites = from_csv(tmp_path / "ulm.csv", "t", delimiter=";", drop=["id"], calibration=4)

    assert (sites.features, sites.classes) == (1, 2)  # the mark at the start, blanks and blank lines do no harm


GOOD = hospital(0)


@pytest.mark.parametrize(
    ("files", "more", "says"),
    [
        ({}, {}, "No file matches"),
        ({"a": GOOD}, {"target": "diseas"}, "Did you mean 'disease'"),
        ({"a": GOOD}, {"drop": ["agge"]}, "Did you mean 'age'"),
        ({"a": GOOD}, {"drop": ["disease"]}, "cannot be dropped"),
        ({"a": GOOD}, {"drop": ["age", "sex"]}, "no column beside the target"),
        ({"a": hospital(0, rows=4)}, {}, "a.csv has 4 rows under its header: a site needs at least 5"),
        ({"a": ""}, {}, "a.csv is empty"),
        ({"a": GOOD, "b": hospital(0, header="age,disease")}, {}, "b.csv has no column 'sex'"),
        ({"a": hospital(0, header="age,disease"), "b": GOOD}, {}, "b.csv has a column 'sex'"),
        ({"a": GOOD.replace("\n7,", "\nseven,")}, {}, "a.csv, line 9: 'seven' in column 'age' is not a finite number"),
        ({"a": GOOD.replace("\n7,", "\ninf,")}, {}, "a.csv, line 9: 'inf' in column 'age' is not a finite number"),
        ({"a": GOOD.replace("\n7,", "\n,")}, {}, "a.csv, line 9: the cell in column 'age' is missing"),
        ({"a": GOOD.replace("\n7,m", "\n7,")}, {}, "delete the row or column, or pass missing='mean' (--missing mean)"),
        (
            {"a": GOOD.replace("\n7,m,no", "\n7,m,")},
            {"missing": "mean"},
            "a.csv, line 9: the target 'disease' is missing",
        ),
        ({"a": GOOD.replace("\n7,m,no", "\n7,m")}, {}, "a.csv, line 9 has 2 cells and the header 3"),
        ({"a": GOOD.replace("\n7,m", '\n7,"m')}, {}, "a.csv cannot be read as CSV from line 9 on"),
        ({"a": GOOD.replace("\n7,m", '\n7,"m').replace("\n9,m", '\n9,"m"')}, {}, "from line 9 on"),
        ({"a": GOOD.replace(",", ";")}, {"delimiter": ","}, "seems to separate its columns with ';'"),
        ({"a": GOOD.replace("sex", "age", 1)}, {}, "name every column once"),
        ({"a": GOOD.replace("yes", "no")}, {}, "'no' in every row"),
        ({"a": GOOD}, {"task": "regression"}, "not a finite number"),
        ({"a": GOOD}, {"task": "classify"}, "Did you mean 'classification'"),
        ({"a": GOOD}, {"missing": "drop"}, "no way with missing cells called 'drop'"),
        ({"a": GOOD}, {"calibration": 20}, "ask for fewer"),
        ({"a": "x,t\n" + "".join(f'"{i},500",{i % 2}\n' for i in range(9))}, {"target": "t"}, "has a comma"),
        ({"a": "x,t\n" + "".join(f'"{i}.000,5",{i % 2}\n' for i in range(9))}, {"target": "t"}, "has a comma"),
        (
            {"a": "x,t\n" + "".join(f'{i},"37,{i}"\n' for i in range(9))},
            {"target": "t", "decimal": "."},
            "'37,0' in column 't' has a",
        ),
        (
            {"a": "x,t\n" + "".join(f",{i % 2}\n" for i in range(9))},
            {"target": "t"},
            "every site: leave it out",
        ),
        ({"a": "x,t\n" + "".join(f"p{i},{i % 2}\n" for i in range(101))}, {"target": "t"}, "than 100: leave it out"),
        ({"a": "x,t\n" + "".join(f"{i},t{i}\n" for i in range(30))}, {"target": "t"}, "pass task='classification'"),
    ],
)
def test_tables_that_cannot_be_used(tmp_path: Path, files: dict[str, str], more: dict[str, Any], says: str) -> None:
    pattern = written(tmp_path, files)

    with pytest.raises(InputError) as caught:
        from_csv(pattern, **{"target": "disease", "calibration": 2, **more})
    assert says in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes(GOOD.replace("yes", "ä").encode("latin-1"))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "latin.csv").write_text(GOOD)

    (tmp_path / "odd.csv").write_bytes(b"a,b\n\x81,2\n")  # in Windows-1252 this byte means nothing
    with pytest.raises(InputError, match=r"odd\.csv is not UTF-8 text"):
        from_csv(tmp_path / "odd.csv", "b")
    (tmp_path / "sub" / "latin.tsv").write_text(GOOD)
    with pytest.raises(InputError, match="Two files are called 'latin'"):
        from_csv([tmp_path / "sub" / "latin.csv", tmp_path / "sub" / "latin.tsv"], "disease")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(InputError, match=r"empty\.csv is empty"):
        from_csv(tmp_path / "empty.csv", "disease")
    with pytest.raises(InputError, match="There is no file"):
        from_csv([tmp_path / "other.csv"], "disease")


def test_predictions_beside_tables_are_no_site(tmp_path: Path) -> None:
    pattern = written(tmp_path, {"ulm": hospital(0), "bonn": hospital(100)})
    before = from_csv(pattern, "disease", calibration=2).names
    (tmp_path / "ulm.predictions.csv").write_text("row,p\n1,0.5\n")

    assert from_csv(pattern, "disease", calibration=2).names == before
    assert from_csv(tmp_path, "disease", calibration=2).names == before
    with pytest.raises(InputError, match=r"ulm\.predictions\.csv has 1 row"):  # one that is named is read
        from_csv(tmp_path / "ulm.predictions.csv", "disease", calibration=2)


def test_files_of_one_name_are_known_by_their_folders(tmp_path: Path) -> None:
    for town in ("bonn", "ulm"):
        (tmp_path / town).mkdir()
        (tmp_path / town / "rows.csv").write_text(GOOD)
    sites = from_csv(f"{tmp_path}/*/rows.csv", "disease", calibration=2)
    assert sites.names == ("bonn", "ulm")
    (tmp_path / "ulm" / "rows.csv").write_text(GOOD + "1\n")
    with pytest.raises(InputError, match=r"ulm/rows\.csv, line"):
        from_csv(f"{tmp_path}/*/rows.csv", "disease", calibration=2)


@pytest.mark.parametrize("day", ["{}.3.2024", "2024-03-0{}", "2024-03-0{}T00:00:00"])
def test_dates_are_counted_from_an_agreed_day_or_refused(tmp_path: Path, day: str) -> None:
    rows = [f"{day.format(1 + i % 9)},{i},{i % 2}" for i in range(40)]
    pattern = written(tmp_path, {"ulm": "\n".join(["day,x,t", *rows])})
    with pytest.raises(InputError, match=r"'day' holds dates.*since = .*--drop day"):
        from_csv(pattern, "t", calibration=4)
    (tmp_path / "columns.toml").write_text('[columns]\nday = { type = "number", since = "2024-02-28" }\n')
    sites = from_csv(pattern, "t", calibration=0, test=0, standardise=False, columns=tmp_path / "columns.toml")
    assert sites.train[0].x[:, 0].tolist() == [2.0 + i % 9 for i in range(40)]  # 29 February stands between
    (tmp_path / "ulm.csv").write_text("\n".join(["day,x,t", *rows, "soon,3,1"]))
    with pytest.raises(InputError, match=r"ulm\.csv, line 42: 'soon' in column 'day' is no date"):
        from_csv(pattern, "t", columns=tmp_path / "columns.toml")


def test_numbers_can_be_read_as_categories(tmp_path: Path) -> None:
    pattern = written(tmp_path, {"ulm": "\n".join(["code,t", *(f"{i % 3},{i % 2}" for i in range(40))])})

    sites = from_csv(pattern, "t", text=["code"], calibration=4)

    assert sites.feature_names == ("code=0", "code=1", "code=2")


def test_one_number_is_one_category_however_it_is_spelt(tmp_path: Path) -> None:
    spelt = (("7", "10", "0.5", "007"), ("7.0", "10.00", "0.50", "007"))
    ulm, bonn = ("\n".join(["code,t", *(f"{c},{i}" for c in codes for i in (0, 1, 0))]) for codes in spelt)
    pattern = written(tmp_path, {"ulm": ulm, "bonn": bonn})

    sites = from_csv(pattern, "t", text=["code"], calibration=0)

    assert sites.feature_names == ("code=0.5", "code=007", "code=10", "code=7")


ODD = (
    "\ufeffid, size ,note,y\n"
    "1,1.5,plain,no\n"
    '2,2,"two\nlines",yes\n'
    "\n"
    '3,٣,"with ""quotes"", and a comma",no\n'
    " , , , \n"
    "4,NA,mark\x1finside,yes\n"
    "5,1e3,  blanks  ,no\n"
    "6,-0.25,zwölf,yes\n"
)


def test_an_odd_table_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text(ODD, encoding="utf-8")
    table = read_table(path, fewest=1)
    notes = ["plain", "two\nlines", 'with "quotes", and a comma', "mark\x1finside", "blanks", "zwölf"]
    assert [cell.text for cell in table.columns["note"]] == notes
    assert [cell.line for cell in table.columns["note"]] == [2, 4, 6, 8, 9, 10]
    assert table.columns["note"][-1] == cells.Cell("zwölf", "odd.csv", 10)
    assert table.blank == 5
    sizes = table.columns["size"]
    assert sizes.empty().tolist() == [False, False, False, True, False, False]
    assert [cells.number(cell.text) for cell in sizes] == [1.5, 2.0, 3.0, None, 1000.0, -0.25]
    assert sizes.numbers()[[0, 1, 2, 4, 5]].tolist() == [1.5, 2.0, 3.0, 1000.0, -0.25]
    assert str(sizes.first(sizes.empty())) == "odd.csv, line 8"


@pytest.mark.parametrize("text", ["1_000", "inf", "nan", "1e999", "0x10", "1,5"])
def test_a_column_of_numbers_reads_what_a_cell_does(text: str) -> None:
    texts = ["1", text, "2.5"]
    column = cells.Cells.of([cells.Cell(each, "a.csv", 2) for each in texts])
    block = cells.Cells([cells.Block(pl.Series(texts), column.blocks[0].source)])
    for values in (column.numbers(), block.numbers()):
        assert values[[0, 2]].tolist() == [1.0, 2.5]
        assert bool(values[1] != values[1])  # not a number


def test_a_short_row_and_an_open_quote_are_named_by_their_line(tmp_path: Path) -> None:
    path = tmp_path / "odd.csv"
    path.write_text("a,b\n1,2\n1,2\n1,2\n1\n1,2,3\n")
    with pytest.raises(InputError, match="line 5 has 1 cells and the header 2"):
        read_table(path)
    path.write_text('a,b\n1,2\n1\n1,2\n"1,2\n')
    with pytest.raises(InputError, match="cannot be read as CSV from line 5 on"):
        read_table(path)
