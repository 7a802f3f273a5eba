"""Every format people have gives the same rows, and bad files of every format one sentence."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyreadstat
import pytest
import xlsxwriter
from tiny import Invoke

import consilience as co
from consilience.data.reading import Reading
from consilience.data.streams import stream_sites

COLUMNS: dict[str, list[Any]] = {
    "age": [30.5 + i % 40 for i in range(60)],
    "stays": [i * 7 % 5 for i in range(60)],
    "sex": ["mf"[i % 2] for i in range(60)],
    "smokes": [None if i == 7 else ["no", "yes"][i % 3 == 0] for i in range(60)],
    "dose": [None if i % 9 == 4 else i % 13 / 4 for i in range(60)],
    "died": ["no" if i % 3 else "yes" for i in range(60)],
}
FRAME = pl.DataFrame(COLUMNS)


def write_excel(frame: pl.DataFrame, path: Path) -> None:
    book = xlsxwriter.Workbook(path)
    sheet = book.add_worksheet("Ward A")
    for j, name in enumerate(frame.columns):
        sheet.write_column(0, j, [name, *frame[name].to_list()])
    book.close()


def write_sqlite(frame: pl.DataFrame, path: Path) -> None:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE patients ({', '.join(map(repr, frame.columns))})")
    marks = ", ".join("?" * frame.width)
    connection.executemany(f"INSERT INTO patients VALUES ({marks})", frame.rows())
    connection.commit()
    connection.close()


def write_duckdb(frame: pl.DataFrame, path: Path) -> None:
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as connection:
        connection.register("given", frame.to_arrow())
        connection.execute("CREATE TABLE patients AS SELECT * FROM given")


def write_utf16(frame: pl.DataFrame, path: Path) -> None:
    path.write_text(frame.write_csv(), encoding="utf-16")


def write_german(frame: pl.DataFrame, path: Path) -> None:
    path.write_text(frame.write_csv(separator=";", decimal_comma=True, null_value="NA"), encoding="utf-8-sig")


WRITE: dict[str, Callable[[pl.DataFrame, Path], Any]] = {
    "north.csv": lambda frame, path: frame.write_csv(path),
    "quoted.csv": lambda frame, path: frame.write_csv(path, quote_style="always", line_terminator="\r\n"),
    "german.csv": write_german,
    "utf16.tsv": write_utf16,
    "north.xlsx": write_excel,
    "north.parquet": lambda frame, path: frame.write_parquet(path),
    "north.feather": lambda frame, path: frame.write_ipc(path),
    "north.ndjson": lambda frame, path: frame.write_ndjson(path),
    "north.sav": lambda frame, path: pyreadstat.write_sav(frame.to_pandas(), str(path)),
    "north.dta": lambda frame, path: pyreadstat.write_dta(frame.to_pandas(), str(path)),
    "north.db": write_sqlite,
    "north.duckdb": write_duckdb,
}
FRAMES: dict[str, Callable[[pl.DataFrame], Any]] = {
    "polars": lambda frame: frame,
    "lazy": lambda frame: frame.lazy(),
    "categories": lambda frame: frame.with_columns(pl.col("sex").cast(pl.Categorical)),
    "pandas": lambda frame: frame.to_pandas(),
    "nullable": lambda frame: frame.to_pandas().convert_dtypes(),
    "pyarrow": lambda frame: frame.to_arrow(),
}
ASK: dict[str, Any] = {"target": "died", "missing": "mean", "calibration": 5, "seed": 3}


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> co.Sites:
    path = tmp_path_factory.mktemp("same") / "north.csv"
    FRAME.write_csv(path)
    return co.from_table(path, sites=2, **ASK)


@pytest.mark.parametrize("name", WRITE)
def test_every_format_gives_the_same_rows(name: str, tmp_path: Path, same: co.Sites) -> None:
    WRITE[name](FRAME, tmp_path / name)
    sites = co.from_table(tmp_path / name, sites=2, **ASK)
    assert sites.feature_names == same.feature_names and sites.fingerprint() == same.fingerprint()
    assert sites.columns == same.columns


@pytest.mark.parametrize("kind", FRAMES)
def test_every_data_frame_gives_the_same_rows(kind: str, same: co.Sites) -> None:
    sites = co.from_frame(FRAMES[kind](FRAME), sites=2, **ASK)
    assert sites.fingerprint() == same.fingerprint()
    grouped = co.from_frame(FRAMES[kind](FRAME), group="sex", **ASK)
    assert grouped.names == ("f", "m")


def test_types_that_come_with_a_format_are_used(tmp_path: Path) -> None:
    typed = FRAME.with_columns(
        code=pl.Series([str(i % 3) for i in range(60)]),  # texts, not numbers
        price=pl.col("age").cast(pl.Decimal(10, 2)),
        insured=pl.col("stays") > 2,
    ).drop("smokes", "dose")
    typed.write_parquet(tmp_path / "typed.parquet")
    sites = co.from_table(tmp_path / "typed.parquet", "died", calibration=0)
    names = ("code=0", "code=1", "code=2", "price", "insured=false", "insured=true")
    assert sites.feature_names == ("age", "stays", "sex=f", "sex=m", *names)
    for odd, words in (
        (pl.Series([datetime.date(2024, 1, 1 + i % 9) for i in range(60)]), "holds dates"),
        (pl.Series([[i] for i in range(60)]), "values of the type List"),
        (pl.Series([datetime.timedelta(i) for i in range(60)]), "values of the type Duration"),
    ):
        typed.with_columns(odd=odd).write_parquet(tmp_path / "typed.parquet")
        with pytest.raises(co.InputError, match=f"'odd'.*{words}"):
            co.from_table(tmp_path / "typed.parquet", "died", calibration=0)
    typed.with_columns(seen=pl.Series([datetime.datetime(2024, 1, 1, 12)] * 30 + [None] * 30)).write_parquet(
        tmp_path / "typed.parquet"
    )
    (tmp_path / "columns.toml").write_text('[columns]\nage = {}\nseen = { since = "2023-12-31" }\n')
    how: dict[str, Any] = {"columns": tmp_path / "columns.toml", "missing": "mean", "standardise": False, "test": 0}
    dated = co.from_table(tmp_path / "typed.parquet", "died", calibration=0, **how)
    assert dated.train[0].x[:, 1].unique().tolist() == [1.5]


def test_labels_of_spss_are_categories_where_every_value_has_one(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        {"sex": [1.0, 2.0] * 10, "grade": [1.0, 2.0, 3.0, 999.0] * 5, "y": [0.5 * i for i in range(20)]}
    )
    labels = {"sex": {1: "male", 2: "female"}, "grade": {999: "refused"}}
    pyreadstat.write_sav(rows, str(tmp_path / "a.sav"), variable_value_labels=labels)
    sites = co.from_table(tmp_path / "a.sav", "y", calibration=0, unknown=["999.0"], missing="mean")
    assert sites.feature_names == ("sex=female", "sex=male", "grade", "grade missing")


def test_sheets_and_tables_are_named_behind_a_hash(tmp_path: Path) -> None:
    book = xlsxwriter.Workbook(tmp_path / "all.xlsx")
    for name in ("North", "South"):
        sheet = book.add_worksheet(name)
        for j, column in enumerate(FRAME.columns):
            sheet.write_column(2, 1 + j, [column, *FRAME[column].to_list()])  # not in the corner
        sheet.write(70, 0, " ")
    book.close()
    sites = co.from_table(f"{tmp_path}/all.xlsx#North,{tmp_path}/all.xlsx#South", **ASK)
    assert sites.names == ("North", "South")
    with pytest.raises(co.InputError, match=r"all\.xlsx has 2 sheets \(North, South\): name one behind a #"):
        co.from_table(tmp_path / "all.xlsx", **ASK)
    with pytest.raises(co.InputError, match=r"no sheet of all\.xlsx#Nort called 'Nort'\. Did you mean 'North'"):
        co.from_table(f"{tmp_path}/all.xlsx#Nort", **ASK)
    write_sqlite(FRAME, tmp_path / "ward.db")
    before = (tmp_path / "ward.db").read_bytes()
    assert co.from_table(f"sqlite:///{tmp_path}/ward.db#patients", sites=2, **ASK).names == ("0", "1")
    with pytest.raises(co.InputError, match=r"no table of ward\.db called 'nurses'"):
        co.from_table(f"{tmp_path}/ward.db#nurses", **ASK)
    assert (tmp_path / "ward.db").read_bytes() == before


def test_latin_1_is_found_and_said_and_can_be_named(tmp_path: Path) -> None:
    rows = "\n".join(["ward,y", *(f"{['Süd', 'Nord'][i % 2]},{i % 2}" for i in range(20))])
    (tmp_path / "a.csv").write_bytes(rows.encode("latin-1"))
    with pytest.warns(UserWarning, match=r"a\.csv is not UTF-8 and is read as Windows-1252"):
        sites = co.from_table(tmp_path / "a.csv", "y", calibration=0)
    assert sites.feature_names == ("ward=Nord", "ward=Süd")
    (tmp_path / "columns.toml").write_text('[files]\nencoding = "cp1251"\n[target]\nname = "y"\n')
    named = co.from_table(tmp_path / "a.csv", columns=tmp_path / "columns.toml", calibration=0)
    assert named.feature_names == ("ward=Nord", "ward=Sьd")
    with pytest.raises(co.InputError, match="encoding='klingon' is unknown"):
        co.from_table(tmp_path / "a.csv", "y", encoding="klingon")


def test_odd_texts_after_many_numbers_are_found_with_their_line(tmp_path: Path) -> None:
    rows = [f"{i % 17}.5,{i % 2}" for i in range(3000)]
    rows[2500] = "n/a,1"
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["x,y", *rows]))
    sites = co.from_table(path, "y", missing="mean", calibration=0, test=0)
    assert int((sites.train[0].x[:, 1] > 0).sum()) == 1
    rows[2600] = "high,0"
    path.write_text("\n".join(["x,y", *rows]))
    with pytest.raises(co.InputError, match=r"a\.csv, line 2602: 'high' in column 'x' is not a finite number"):
        co.from_table(path, "y", missing="mean", calibration=0)
    rows[2600] = "1.50,0,3"
    path.write_text("\n".join(["x,y", *rows]))
    with pytest.raises(co.InputError, match=r"a\.csv, line 2602 has 3 cells and the header 2"):
        co.from_table(path, "y", drop=["z"], missing="mean", calibration=0)


def truncated(name: str, path: Path) -> None:
    WRITE[name](FRAME, path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def empty(name: str, path: Path) -> None:
    path.touch()


def duplicate(name: str, path: Path) -> None:
    """As far as a format can hold two columns of one name."""
    if path.suffix in (".csv", ".tsv"):
        WRITE[name](FRAME, path)
        encoding = "utf-16" if name == "utf16.tsv" else "utf-8-sig"
        path.write_text(path.read_text(encoding=encoding).replace("stays", "age", 1), encoding=encoding)
    elif path.suffix == ".xlsx":
        book = xlsxwriter.Workbook(path)
        sheet = book.add_worksheet()
        for j, column in enumerate(["age", "age", "died"]):
            sheet.write_column(0, j, [column, *range(20)])
        book.close()
    elif path.suffix == ".ndjson":
        path.write_text('{"age": 1, "age": 2, "died": 0}\n' * 20)
    else:
        pytest.skip("the format holds one column of a name")


def wide(name: str, path: Path) -> None:
    if path.suffix in (".sav", ".dta", ".db", ".duckdb"):
        pytest.skip("its writer takes fewer columns, or minutes")
    WRITE[name](pl.DataFrame({f"x{j}": [j % 7, 1, 2, 3, 4] for j in range(10_000)}), path)


def mixed(name: str, path: Path) -> None:
    ages: list[Any] = [*range(20, 60), "old", *range(19)]
    if path.suffix == ".xlsx":
        book = xlsxwriter.Workbook(path)
        sheet = book.add_worksheet()
        sheet.write_column(0, 0, ["age", *ages])
        sheet.write_column(0, 1, ["died", *COLUMNS["died"]])
        book.close()
    elif path.suffix == ".db":
        write_sqlite(pl.DataFrame({"age": pl.Series(ages, dtype=pl.Object), "died": COLUMNS["died"]}), path)
    elif path.suffix == ".ndjson":
        path.write_text(
            "".join(json.dumps({"age": a, "died": d}) + "\n" for a, d in zip(ages, COLUMNS["died"], strict=True))
        )
    elif path.suffix in (".csv", ".tsv"):
        WRITE[name](pl.DataFrame({"age": [str(age) for age in ages], "died": COLUMNS["died"]}), path)
    else:
        pytest.skip("a column of the format has one type")


BAD: dict[str, tuple[Callable[[str, Path], None], str]] = {
    "truncated": (truncated, r"cells and the header|cannot be read as|is missing|not text in|close every quote"),
    "empty": (empty, "is empty"),
    "duplicate": (duplicate, r"without a name of its own \('age'\)"),
    "wide": (wide, "has 10,000 columns, more than 5,000"),
    "mixed": (mixed, r"(line|row) (41|42): 'old' in column 'age' is not a finite number"),
}


@pytest.mark.parametrize("name", WRITE)
@pytest.mark.parametrize("fault", BAD)
def test_a_bad_table_of_any_format_gets_one_sentence(fault: str, name: str, tmp_path: Path) -> None:
    make, words = BAD[fault]
    make(name, tmp_path / name)
    with pytest.raises(co.InputError, match=words) as caught:
        co.from_table(tmp_path / name, "died", calibration=0)
    assert "\n" not in str(caught.value) and name in str(caught.value) + "age"


@pytest.mark.parametrize("name", ["north.csv", "quoted.csv", "north.parquet"])
@pytest.mark.parametrize("fault", BAD)
def test_a_bad_table_gets_one_sentence_where_it_is_read_in_parts(fault: str, name: str, tmp_path: Path) -> None:
    make, words = BAD[fault]
    make(name, tmp_path / name)
    with pytest.raises(co.InputError, match=f"{words}|can only be read whole") as caught:
        stream_sites(str(tmp_path / name), "died", Reading(), batch=16)
    assert "\n" not in str(caught.value)
    assert ("can only be read whole" in str(caught.value)) == (fault == "truncated" and name.endswith(".csv"))


@pytest.mark.parametrize(
    "name", ["north.xlsx", *(pytest.param(f"north.{end}", marks=pytest.mark.slow) for end in ("parquet", "db", "csv"))]
)
def test_the_command_line_reads_every_format(name: str, invoke: Invoke, tmp_path: Path) -> None:
    WRITE[name](FRAME, tmp_path / name)
    code, out, err = invoke("inspect", name, "--target", "died")
    assert code == 0 and "smokes" in out, err
    words = "--target died --missing mean --sites 2 --model linear --calibration 0 --no-bounds"
    code, _, err = invoke("run", "exact", "--data", name, *words.split(), "--out", "r")
    assert code == 0, err
    WRITE[name](FRAME.with_columns(sex=pl.lit("x")), tmp_path / name)
    code, _, err = invoke("predict", "r", name)
    assert code == 2 and err.count("\n") == 1 and "'x' in column 'sex' was not seen in training" in err
    (tmp_path / name).write_bytes(b"")
    code, _, err = invoke("predict", "r", name)
    assert code == 2 and err.count("\n") == 1 and "is empty" in err


def test_a_transport_file_of_sas_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    frame = FRAME.select("age", "sex", died=(pl.col("died") == "yes").cast(pl.Int8)).to_pandas()
    path = tmp_path / "a.xpt"
    pyreadstat.write_xport(frame, str(path))
    assert len(co.from_table(path, "died", calibration=0, test=0).train[0].x) == len(FRAME)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(co.InputError, match=r"a\.xpt is not made of records of 80 bytes: it was cut short"):
        co.from_table(path, "died", calibration=0)


def test_a_saved_run_reads_dates_as_it_did_in_training(invoke: Invoke, tmp_path: Path) -> None:
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(i % 50) for i in range(60)]
    FRAME.select("age", "died", seen=pl.Series(days)).write_parquet(tmp_path / "a.parquet")
    (tmp_path / "columns.toml").write_text('[columns]\nage = {}\nseen = { since = "2023-12-31" }\n')
    words = "--target died --columns columns.toml --sites 2 --model linear --calibration 0 --no-bounds"
    code, _, err = invoke("run", "exact", "--data", "a.parquet", *words.split(), "--out", "r")
    assert code == 0, err
    code, _, err = invoke("predict", "r", "a.parquet")
    assert code == 0, err
    assert co.load(tmp_path / "r").sites.columns[1].since == "2023-12-31"
