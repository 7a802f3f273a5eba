"""The table of CONTRIBUTING.md is true: what it names is where it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and "`" in line]
ELSEWHERE = {"EXPERIMENT"}  # in the file that is added


def files_of(row: str) -> list[Path]:
    """Files and folders of a row; a file without its folder lies in one that the row names, or beside a named file."""
    words = [word for word in re.findall(r"`([^`\s]+)`", row) if re.search(r"/|\.py$", word) and "<" not in word]
    whole = [ROOT / word for word in words if "/" in word]
    folders = [path if path.is_dir() else path.parent for path in whole]
    bare = [next((f / w for f in folders if (f / w).exists()), ROOT / w) for w in words if "/" not in w]
    return [*whole, *bare]


def test_every_path_is_there() -> None:
    named = re.findall(r"`((?:consilience|tests|docs|experiments)/[^`\s<>*]+)`", TEXT)
    assert len(named) > 40
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_what_a_row_names_is_in_its_files(row: str) -> None:
    files = files_of(row)
    assert not [path for path in files if not path.exists()]
    sources = [p for path in files for p in (path.glob("*.py") if path.is_dir() else [path]) if p.suffix == ".py"]
    text = "\n".join(p.read_text(encoding="utf-8") for p in sources)
    for name in set(re.findall(r"`([A-Z]{3,}|test_\w+|File|Picture|hear)`", row)) - ELSEWHERE:
        assert re.search(rf"(?m)^(?:(?:def|class) )?{name}\b", text), f"{name} is in none of {files}"
