"""One columns.toml, read by a run and by a study: ranges, spellings and `?` mean the same in both."""

from __future__ import annotations

from pathlib import Path

import pytest

import consilience as co
from consilience.data.cells import Cell, Cells
from consilience.data.encoding import rows_of_table
from consilience.errors import InputError
from consilience.study.proposal import proposal
from consilience.study.protocol.agreement import Agreement, from_fields
from consilience.study.protocol.columns import Column, bad_rows, inspect
from consilience.study.protocol.text import agreement_text
from consilience.study.protocol.toml import read_columns

COLUMNS = """
[target]
name = "sick"
classes = ["0", "1"]

[columns]
"age" = { type = "number", range = [0, 110], centre = 55, spread = 12.5 }
"sex" = { type = "category", levels = ["Female", "female", "male"] }
"bmi" = { type = "number", range = [0, 60], centre = 29, spread = 5.5, missing = "mark", fill = 29 }

[same]
"sex" = { "female" = "Female" }
"""
SEXES = ("female", "Female", "male")


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Three sites with two spellings of one category, and a `?`."""
    (tmp_path / "columns.toml").write_text(COLUMNS)
    for site in "abc":
        rows = [f"{40 + i},{SEXES[i % 3]},{20 + i / 3:g},{i * 7 % 5 > 2:d}" for i in range(30)]
        rows[4] = "44,Female,?,1"
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,sex,bmi,sick", *rows]) + "\n")
    return tmp_path


def _read(tables: Path) -> co.Sites:
    return co.from_csv([tables / f"{site}.csv" for site in "abc"], columns=tables / "columns.toml", test=0)


def _spoil(path: Path, line: int, text: str) -> None:
    """Put another age into a line of a table."""
    lines = path.read_text().splitlines()
    lines[line - 1] = text + lines[line - 1][lines[line - 1].index(",") :]
    path.write_text("\n".join(lines) + "\n")


def test_run_refuses_what_lies_outside_its_range_by_file_line_and_cell(tables: Path) -> None:
    _spoil(tables / "b.csv", 7, "250")
    with pytest.raises(InputError, match=r"^b\.csv, line 7: '250' in column 'age' is outside its range, 0 to 110"):
        _read(tables)


def test_range_of_the_target_is_enforced_too(tables: Path) -> None:
    text = COLUMNS.replace('name = "sick"\nclasses = ["0", "1"]', 'name = "age"\nrange = [0, 60]')
    text = text.replace('"age" = { type = "number", range = [0, 110], centre = 55, spread = 12.5 }\n', "")
    (tables / "columns.toml").write_text(text)
    with pytest.raises(InputError, match=r"^a\.csv, line 23: '61' in column 'age' is outside its range, 0 to 60"):
        _read(tables)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_saved_run_predicts_no_row_outside_its_range(tables: Path, tmp_path: Path) -> None:
    """The rows beside it are predicted; a table in memory and a run that was saved and read again refuse it too."""
    sites = _read(tables)
    task = co.classification(co.models.linear(sites.features, 2))
    result = co.run(co.methods.GLM(), task, sites, rounds=3)
    result.save(tmp_path / "run")
    _spoil(tables / "c.csv", 3, "250")
    for known in (result, co.load(tmp_path / "run")):
        encoded = rows_of_table(tables / "c.csv", known.sites.columns or ())
        assert list(encoded.bad) == [1]
        assert "c.csv, line 3: '250' in column 'age' is outside its range, 0 to 110" in encoded.bad[1]
        assert len(encoded.x) == 29
        with pytest.raises(InputError, match=r"row 1|line 1"):
            known.predict({"age": [250], "sex": ["male"], "bmi": [25]})


def _agree(tables: Path) -> Agreement:
    target, columns = read_columns(tables / "columns.toml")
    return proposal("ward", "0" * 64, target, columns)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_study_reads_the_same_spellings_and_question_marks_as_a_run(tables: Path) -> None:
    agreement = _agree(tables)
    sex = agreement.columns[1]
    assert sex.levels == ("Female", "male")
    found = inspect(tables / "a.csv", agreement.columns, agreement.target).sound()
    assert found.missing == {"age": 0, "sex": 0, "bmi": 1, "sick": 0}
    assert not bad_rows(agreement.columns, found)
    assert sex.features([*found.cells["sex"]]).sum(0).tolist() == [20, 10]
    assert [name for name in _read(tables).feature_names or () if name.startswith("sex")] == ["sex=Female", "sex=male"]


def test_spellings_are_signed_and_older_agreements_keep_their_hash(tables: Path) -> None:
    agreement = _agree(tables)
    assert 'same = [["female", "Female"]]' in agreement_text(agreement, "")
    assert from_fields(agreement.fields).hash == agreement.hash
    assert all("same" not in column for column in agreement.fields["columns"] if column["name"] != "sex")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"sex" = { "female" = "Female" }', '"gender" = { "f" = "Female" }', "which is none of"),
        ('"sex" = { "female" = "Female" }', '"age" = { "4O" = "40" }', r"\[same\] is for categories"),
        ('"sex" = { "female" = "Female" }', '"sex" = { "female" = "woman" }', "'woman' must be one of its levels"),
    ],
)
def test_study_refuses_spellings_that_it_cannot_honour(tables: Path, old: str, new: str, sentence: str) -> None:
    (tables / "columns.toml").write_text(COLUMNS.replace(old, new))
    with pytest.raises(InputError, match=sentence):
        _agree(tables)


def test_question_mark_is_a_level_where_it_is_agreed_as_one() -> None:
    cells = Cells.of([Cell("?", "a.csv", 2), Cell("no", "a.csv", 3)])
    assert not Column("smoker", "category", levels=("?", "no")).gaps(cells).any()
    assert Column("smoker", "category", levels=("no", "yes")).gaps(cells).tolist() == [True, False]
