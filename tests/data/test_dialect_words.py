"""How files are written is said in one line: by run, compare, recommend and studies, and kept in run.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import Invoke

from consilience.data.inspection import describe_files, summarise_files
from consilience.data.reading import Reading

ROWS = [(31 + 3 * i % 40, 1.5 + i / 4, ("no", "yes")[i % 2]) for i in range(24)]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Three files of the same rows: commas; semicolons, decimal commas and a byte-order mark; tabs, and gaps."""
    folder = tmp_path / "h"
    folder.mkdir()
    head = ("age", "dose", "ill")
    plain = [",".join(map(str, row)) for row in (head, *ROWS)]
    german = [";".join(str(cell).replace(".", ",") for cell in row) for row in (head, *ROWS)]
    tabbed = ["\t".join(map(str, row)) for row in (head, *ROWS)]
    tabbed[3] = "\t".join(("?", "NA", "no"))
    (folder / "a.csv").write_text("\n".join(plain) + "\n")
    (folder / "b.csv").write_text("\n".join(german) + "\n", encoding="utf-8-sig")
    (folder / "c.csv").write_text("\n".join(tabbed) + "\n")
    return folder


def test_each_file_is_described(tables: Path) -> None:
    words = describe_files(sorted(tables.iterdir()))
    assert words == {
        "a.csv": "commas between cells, decimal points, UTF-8",
        "b.csv": "semicolons between cells, decimal commas, UTF-8 with a byte-order mark",
        "c.csv": "tabs between cells, decimal points, UTF-8, missing: ? NA",
    }
    assert summarise_files(words).count(";") == 2  # one line, a part for each file
    assert summarise_files({"x": "same", "y": "same"}) == "2 files: same."
    forced = describe_files([tables / "a.csv"], Reading(unknown=("31",)))
    assert forced["a.csv"].endswith("missing: 31")


def test_run_says_it_and_remembers(tables: Path, invoke: Invoke, tmp_path: Path) -> None:
    words = ("--data", "h", "--target", "ill", "--missing", "mean", "--calibration", "0")
    code, shown, error = invoke("run", "glm", *words, "--no-bounds", "--rounds", "1", "--out", "r")
    assert code == 0, error
    assert "Read a.csv: commas between cells, decimal points, UTF-8; b.csv: semicolons" in shown
    kept = json.loads((tmp_path / "r" / "run.json").read_text())["dialects"]
    assert kept == describe_files(sorted(tables.iterdir()))
    code, shown, _ = invoke("recommend", *words[:-2])
    assert code == 0 and "Read a.csv: commas" in shown
    code, shown, _ = invoke("study", "new", "trial", "--like", "h/b.csv", "--target", "ill")
    assert code == 0 and "Read b.csv: semicolons between cells, decimal commas" in shown
