"""The report of a paper's experiment: every cell, ours beside theirs, and only what may be compared in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reports import cell, read, results
from tiny import Invoke

from consilience.report.reproduction_page import reproduction_page


def test_every_cell_is_there_and_only_the_comparable_are_put_into_words() -> None:
    page = reproduction_page(results())

    assert read(page).open == [] and "A &lt;toy&gt;" in page
    assert (
        "3 cells can be compared" in page and "the median absolute difference is 0.25" in page
    )  # of 0.25, 2 and 0: the median
    assert "2 of the 3 with known spreads are within two standard errors" in page  # 1.118 and 0.01, not 8.944
    assert "Not comparable, because the data differ from the paper&#39;s: b." in page and ">different data<" in page
    assert "1 cell of the paper has not been run yet" in page and ">not run<" in page
    for text in ("1.25", "± 0.10", "± 0.20", "+1.1", "+8.9", "+17.9", ">0.0<", "−4.00", "0.500"):
        assert text in page, text
    assert "0 to 3" in page and "Ours against the paper" in page
    assert "http" not in page.replace("http://www.w3.org", "")


def test_a_smaller_scale_and_few_seeds_are_told() -> None:
    page = reproduction_page(results(scale="quick", seeds=[0]))

    assert "can be compared" not in page and "at a smaller scale" in page
    assert "Run at the scale &#39;quick&#39;" in page and "Only 1 seed" in page


def test_without_a_paper_ours_stand_alone() -> None:
    alone = [cell("mixture", "a", 1.0, None), cell("beta", "a", 2.0, None)]
    page = reproduction_page(results(cells=alone))

    assert "no numbers to compare" in page and "Difference" not in page and "<figure>" not in page


KEPT = sorted(Path(__file__).parents[2].glob("experiments/*/results/*.json"))


@pytest.mark.parametrize("file", KEPT, ids=str)
@pytest.mark.usefixtures("blank_figures")
def test_the_results_that_are_kept_can_be_shown(file: Path) -> None:
    check_page(file)


@pytest.mark.slow
@pytest.mark.parametrize("file", KEPT, ids=str)
def test_the_results_that_are_kept_can_be_drawn(file: Path) -> None:
    check_page(file)


def check_page(file: Path) -> None:
    kept = json.loads(file.read_text())
    if "cells" in kept:
        page = reproduction_page(kept)
        assert read(page).open == [] and len(page) < 5_000_000
        for row in {c["row"] for c in kept["cells"]}:
            assert row.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;") in page


def test_the_report_is_written_again_from_its_numbers(tmp_path: Path, invoke: Invoke) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "results.json").write_text(json.dumps(results()))

    code, said, _ = invoke("report", "toy")

    assert code == 0 and "toy/report.html" in said
    assert (tmp_path / "toy" / "report.html").read_text() == reproduction_page(results())
