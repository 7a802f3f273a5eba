"""Every example runs as printed, and fits on a screen."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))


def test_the_promised_examples_are_there() -> None:
    promised = {"quickstart", "own_model", "own_files", "own_method", "pool_again", "figure"}
    assert promised <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
@pytest.mark.usefixtures("hurried")
def test_an_example_fits_on_a_screen_and_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one step an epoch."""
    monkeypatch.chdir(tmp_path)

    run_example(path, capsys)

    assert len(path.read_text().splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_trains(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As printed."""
    monkeypatch.chdir(tmp_path)

    run_example(path, capsys)


def run_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path))

    assert capsys.readouterr().out  # it says something
    written = {"quickstart": "quickstart/report.html", "figure": "figure.pdf", "pool_again": "pool_again/run.json"}
    assert path.stem not in written or os.path.getsize(written[path.stem]) > 1000
