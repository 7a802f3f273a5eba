"""Files as people have them: one reader finds how each is written, and a columns.toml says the rest once."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from tiny import Invoke

import consilience as co
from consilience.data.dialect import Dialect, sniff, to_points
from consilience.data.formats import read_table
from consilience.data.inspection import columns_text, look
from consilience.data.reading import Reading, read_reading, reading_from
from consilience.study.protocol.toml import read_columns

HEAD = ["Patient_ID", "age", "sex", "bp", "died"]


def record(i: int) -> list[str]:
    bp = {3: "?", 5: "NA"}.get(i, str(100 + i % 40))
    return [str(i + 1), f"{30.5 + i % 50}", "MF"[i % 2], bp, ["no", "yes"][i % 3 == 0]]


def write(path: Path, head: list[str], rows: list[list[str]], delimiter: str = ",", **how: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    text = "\n".join(delimiter.join(row) for row in [head, *rows]) + "\n"
    path.write_text(text, **how)  # type: ignore[arg-type]
    return path


@pytest.fixture
def hospitals(tmp_path: Path) -> Path:
    """The same rows three times: plain; with a BOM, semicolons and decimal commas; columns turned round and shouted."""
    rows = [record(i) for i in range(60)]
    write(tmp_path / "h" / "north.csv", HEAD, rows)
    commas = [[row[0], row[1].replace(".", ","), *row[2:]] for row in rows]
    write(tmp_path / "h" / "south.csv", HEAD, commas, ";", encoding="utf-8-sig")
    write(tmp_path / "h" / "west.csv", [name.upper() for name in HEAD[::-1]], [row[::-1] for row in rows], "\t")
    return tmp_path / "h"


def rows_at(sites: co.Sites, k: int) -> list[list[float]]:
    """All rows of a site with their labels, in an order of their own."""
    parts = (sites.train[k], sites.test[k])
    return sorted([*x, y] for part in parts for x, y in zip(part.x.tolist(), part.y.tolist(), strict=True))


def test_every_file_has_its_own_dialect_and_the_same_rows(hospitals: Path) -> None:
    sites = co.from_csv(hospitals, "died", drop=["Patient_ID"], missing="mean", calibration=0)

    assert [str(sniff(hospitals / f"{name}.csv")) for name in sites.names] == [
        "commas between cells",
        "semicolons between cells, decimal commas",
        "tabs between cells",
    ]
    assert sites.features == 5 and sites.feature_names == ("age", "sex=F", "sex=M", "bp", "bp missing")
    assert rows_at(sites, 0) == rows_at(sites, 1) == rows_at(sites, 2)


def test_numbers_with_commas() -> None:
    assert [to_points(t) for t in ("37,5", "1.234,5", "-0,25", "1.234", "a,b")] == [
        "37.5",
        "1234.5",
        "-0.25",
        "1.234",
        "a,b",
    ]


def test_a_thousand_is_not_taken_for_decimals(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ["x", "t"], [[f"{i},000", str(i)] for i in range(9)], ";")
    assert sniff(path) == Dialect(";", ".")
    assert read_table(path, decimal=",").columns["x"][3].text == "3.000"


def test_sites_in_a_column_and_several_patterns(hospitals: Path, tmp_path: Path) -> None:
    rows = [[*record(i), ["ulm", "bonn"][i % 2]] for i in range(60)]
    path = write(tmp_path / "all.csv", [*HEAD, "hospital"], rows)

    grouped = co.from_csv(path, "died", group="hospital", drop=["Patient_ID"], missing="mean", calibration=0)
    several = co.from_csv(
        f"{hospitals}/n*.csv,{hospitals}/w*.csv", "died", drop=["Patient_ID"], missing="mean", calibration=0
    )

    assert grouped.names == ("bonn", "ulm") and "hospital" not in str(grouped.feature_names)
    assert several.names == ("north", "west")
    with pytest.raises(co.InputError, match="There is no column called 'clinic'"):
        co.from_csv(path, "died", group="clinic")


def test_categories_known_in_advance(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", ["ward", "t"], [["ab"[i % 2], str(i % 2)] for i in range(20)])

    sites = co.from_csv(path, "t", categories={"ward": ["a", "b", "c"]}, calibration=0)

    assert sites.feature_names == ("ward=a", "ward=b", "ward=c")
    with pytest.raises(co.InputError, match="holds 'b', which is none of its categories a, c"):
        co.from_csv(path, "t", categories={"ward": ["a", "c"]}, calibration=0)


def test_what_was_looked_at_can_be_corrected_and_used(hospitals: Path, invoke: Invoke, tmp_path: Path) -> None:
    """The proposed file is read by runs and by studies, and says what spellings mean."""
    path = hospitals / "west.csv"
    path.write_text(path.read_text().replace("\tM\t", "\tmale\t"))
    code, out, _ = invoke("inspect", "--data", "h", "--target", "died", "--write", "columns.toml")
    assert code == 0 and "semicolons between cells, decimal commas" in out
    assert "id" in out and "north 2, south 2, west 2" in out and "'M', 'male'" in out

    text = (tmp_path / "columns.toml").read_text()
    (tmp_path / "columns.toml").write_text(text.replace('# [same]\n# "sex"', '[same]\n"sex"'))
    reading, target = read_reading(tmp_path / "columns.toml")
    sites = co.from_csv(hospitals, columns=tmp_path / "columns.toml", calibration=0)
    agreed, columns = read_columns(tmp_path / "columns.toml")

    assert target == "died" and reading.same == (("sex", "male", "M"),) and reading.drop == ("Patient_ID",)
    assert sites.feature_names == ("age", "sex=F", "sex=M", "bp", "bp missing")
    assert rows_at(sites, 0) == rows_at(sites, 2)
    assert agreed.classes == ("no", "yes") and [column.name for column in columns] == ["age", "sex", "bp"]


def test_the_command_line_reads_as_python_does(hospitals: Path, invoke: Invoke, tmp_path: Path) -> None:
    words = "--data h --target died --drop Patient_ID --missing mean --model linear --rounds 1 --no-bounds"
    made = ["run", "fedavg", "--set", "inference.epochs=1", *words.split(), "--calibration", "0", "--test", "0.3"]
    code, _, err = invoke(*made, "--out", "r")
    assert code == 0, err

    loaded = co.load(tmp_path / "r")
    sites = co.from_csv("h", "died", drop=["Patient_ID"], missing="mean", calibration=0, test=0.3)
    assert loaded.sites.columns == sites.columns
    code, _, err = invoke("run", "--resume", "r", "--drop", "Patient_ID")
    assert code == 0, err
    code, _, err = invoke("run", "--resume", "r", "--drop", "age")
    assert code == 2 and "--drop Patient_ID, not age" in err
    code, _, err = invoke("run", "fedavg", "--data", "digits", "--drop", "age")
    assert code == 2 and "for CSV files" in err
    words = "--data h --target died --drop Patient_ID --missing mean"
    code, out, err = invoke("describe", *words.split())
    assert code == 0 and "bp" in out and "Patient_ID" not in out, err


def test_a_reading_is_written_and_read() -> None:
    reading = Reading(drop=("a",), categories=(("w", ("x", "y")),), same=(("w", "X", "x"),), decimal=",")
    assert reading_from(reading.to_text()) == reading and Reading().to_text() == ""
    for change in ({"missing": "guess"}, {"decimal": ";"}, {"delimiter": "ab"}, {"task": "both"}):
        with pytest.raises(co.InputError):
            Reading(**change)  # type: ignore[arg-type]


def test_kinds_of_columns(tmp_path: Path) -> None:
    rows = [[f"2024-01-{1 + i % 28:02}", "x", "", str(i % 7), f"{i}" if i % 2 else "low"] for i in range(30)]
    path = write(tmp_path / "a.csv", ["seen", "unit", "none", "n", "mix"], rows)

    found = look([path])

    assert [seen.kind for seen in found.columns] == ["date", "constant", "empty", "number", "mixed"]
    assert found.columns[0].values == "2024-01-01 to 2024-01-28"
    german = write(tmp_path / "b.csv", ["seen"], [[day] for day in ("2.1.2024", "10.12.2023", "03.01.2024")])
    assert look([german]).columns[0].values == "10.12.2023 to 03.01.2024"
    assert "range = [0, 9]" in columns_text(found, None)  # what was never negative is not proposed to be
    assert '"n" = { type = "number"' in columns_text(found, None) and '"seen"' in columns_text(found, None)


def test_what_is_said_to_be_missing_or_left_out_is_written_and_not_advised_again(tmp_path: Path) -> None:
    rows = [f"{i},{(i * 7) % 13 / 2},{'?' if i == 3 else i % 5},{'ab'[i % 2]}" for i in range(30)]
    (tmp_path / "a.csv").write_text("\n".join(["no,dose,score,ward", *rows, "30,-999,1,a"]) + "\n")
    before = look([tmp_path / "a.csv"])
    reading = Reading(unknown=("?", "-999"), drop=("ward",))
    found = look([tmp_path / "a.csv"], reading=reading)
    text = columns_text(found, None, reading.drop)

    assert any("-999" in doubt for seen in before.columns for doubt in seen.doubts)
    assert not any("-999" in doubt or "'?'" in doubt for seen in found.columns for doubt in seen.doubts)
    assert 'drop = ["ward", "no"]' in text and 'unknown = ["-999"]' in text and 'unknown = ["?"]' in text
    (tmp_path / "columns.toml").write_text(text)
    assert read_reading(tmp_path / "columns.toml")[0].drop == ("ward", "no")


def test_advice_that_was_followed_is_not_given_again(tmp_path: Path) -> None:
    rows = [f"{i / 7:.2f},{'?' if i == 3 else ('1' if i % 2 else '1.0')},{'ab'[i % 2]}" for i in range(30)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["dose,score,y", *rows, "-999,2,a"]) + "\n")
    with pytest.warns(UserWarning, match="-999"):
        co.from_csv(path, "y", missing="mean", calibration=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        co.from_csv(path, "y", missing="mean", unknown=("?", "-999"), calibration=0)


def test_columns_that_nobody_named_are_said_to_be_left_out(tmp_path: Path, invoke: Invoke) -> None:
    write(tmp_path / "north.csv", HEAD, [record(i) for i in range(40)])
    toml = tmp_path / "columns.toml"
    columns = 'age = { type = "number" }\nsex = { type = "category", levels = ["F", "M"] }\n'
    toml.write_text(f'[target]\nname = "died"\n[columns]\n{columns}')
    files = str(tmp_path / "north.csv")
    words = "Not used: Patient_ID, bp (not in columns.toml)."

    said = invoke("inspect", files, "--columns", str(toml))
    assert words in " ".join(str(said).split())
    with pytest.warns(UserWarning, match=re.escape(words)):
        co.from_csv(files, columns=toml)

    toml.write_text(f'[files]\ndrop = ["Patient_ID", "bp"]\n{toml.read_text()}')
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        co.from_csv(files, columns=toml)  # who drops them by name has said so
