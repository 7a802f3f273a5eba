"""The notebooks, and the tables that they and the README read."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from tiny import copy_tracked

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def code_of(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What a fresh clone has in examples/."""
    copy_tracked("examples", tmp_path)
    return tmp_path


def test_there_is_a_notebook_for_own_models_one_for_researchers_and_one_for_statisticians() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["posteriors", "researcher", "statistician"]


SAMPLED = "posteriors"  # whose models NumPyro compiles


@pytest.mark.parametrize(
    "notebook",
    [pytest.param(path, marks=pytest.mark.slow if path.stem == SAMPLED else ()) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_the_cells_of_a_notebook_run_in_order(
    notebook: Path, clone: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(clone / "examples" / "notebooks")
    names: dict[str, Any] = {"__name__": "__main__"}

    for cell in code_of(notebook):
        exec(compile(cell, notebook.name, "exec"), names)

    assert capsys.readouterr().out
    if notebook.stem == "statistician":  # what its text says comes out
        age = names["age"]
        assert age.ratio_low**10 < 3.49 < age.ratio_high**10  # e^(10/8)
        assert Path("clinics-run/report.html").is_file()
    elif notebook.stem == SAMPLED:  # the issue's own bounds: 0.1 SDs, with the error of 2 000 draws, and 15 %
        assert float(names["distance"].max()) < 0.15 and float(abs(names["wider"]).max()) < 0.15
        assert "Do not use this pool" in names["wrong"].verdict and "site 3 most" in names["wrong"].verdict
    else:
        assert len(names["rounds"]) == 3
        assert {row["row"] for row in names["rows"]} >= {"fedavg[inference.epochs=1]"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_no_outputs_and_fits(notebook: Path) -> None:
    content = json.loads(notebook.read_text(encoding="utf-8"))

    assert content["nbformat"] == 4
    assert all(not cell.get("outputs") for cell in content["cells"])
    assert all(len(line) <= 120 for cell in code_of(notebook) for line in cell.splitlines())
    for target in re.findall(r"\]\(([^)]+)\)", notebook.read_text(encoding="utf-8")):
        assert (notebook.parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_in_a_kernel(notebook: Path, clone: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    folder = clone / "examples" / "notebooks"
    read = nbformat.read(folder / notebook.name, as_version=4)
    nbformat.validate(read)

    nbclient.NotebookClient(read, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()

    assert any(cell.get("outputs") for cell in read.cells)


def test_the_tables_of_the_clinics_are_what_their_program_writes(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "clinics"

    runpy.run_path(str(folder / "make.py"))["write"](tmp_path)

    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.csv")}
    assert written == {path.name: path.read_bytes() for path in folder.glob("*.csv")}
    assert sorted(written) == ["north.csv", "south.csv", "west.csv"]


def test_the_files_that_the_readme_reads_are_shipped(tmp_path: Path) -> None:
    """`test_documentation.py` runs its lines in a folder with the tables that git knows."""
    copy_tracked("examples/clinics", tmp_path)

    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert len(list(tmp_path.glob("examples/clinics/*.csv"))) == 3
    for pattern in re.findall(r'"(examples/[^"]*\.csv)"', readme):
        assert list(tmp_path.glob(pattern)), pattern
