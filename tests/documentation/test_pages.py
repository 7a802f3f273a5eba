"""The tables on the pages are what the stored results say."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import protocols
from benchmarks.__main__ import BEGIN, END, conditions, parts_done, write_page
from consilience.benchmark.reproduce import module
from consilience.data import datasets
from consilience.data.splits.text import parse
from consilience.metrics.paired import Difference, difference

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where experiments are found


def cells(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads((ROOT / "experiments" / name).read_text())["cells"]
    return {(c["row"], c["column"]): c for c in found if c["ours"] is not None}


def test_hasan2023_tables_are_those_of_its_results() -> None:
    summary, page = module("hasan2023/summary"), (ROOT / "experiments/hasan2023/README.md").read_text()
    found = cells("hasan2023/results/accuracy.json")
    assert len(found) > 100
    assert summary.accuracies(found) in page and summary.distances(found) in page
    assert summary.regression() in page
    for row in summary.CALIBRATED:
        for score in ("nll", "ece"):
            values = [found[row, column]["scores"][score] for column in summary.COLUMNS]
            assert f"| {row} | {' | '.join(f'{v:.3f}' for v in values)} |" in page


def test_the_released_tables_of_hasan_are_those_of_their_results() -> None:
    summary, page = module("hasan2023/summary"), (ROOT / "experiments/hasan2023/README.md").read_text()
    assert summary.released(summary.read_released()) in page
    assert summary.regression("regression_released") in page
    summary, page = module("hasan2024/summary"), (ROOT / "experiments/hasan2024/README.md").read_text()
    assert summary.page(summary.read_cells(summary.RESULTS)) in page


def test_intervals_of_hasan2023_allow_for_seeds_that_share_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    summary = module("hasan2023/summary")
    ratios = []

    def record(a: Any, b: Any, overlap: float = 0.0) -> Difference:
        ratios.append(overlap)
        return difference(a, b, overlap)

    monkeypatch.setattr(summary, "difference", record)
    seed = {row: {"nll": 0.1 * len(row)} for pair in summary.PAIRS for row in pair}
    summary.pairs({column: [seed] * 3 for column in summary.COLUMNS})

    assert ratios and set(ratios) == {1 / 6}  # 10 000 test rows, 60 000 training rows


def test_the_evidence_tables_are_those_of_its_results() -> None:
    summary, page = module("evidence/summary"), (ROOT / "docs/evidence.md").read_text()
    found = cells("evidence/results/table.json")
    rows = summary.OURS | summary.RIVALS | summary.BOUNDS
    lines = [line.replace("**", "") for line in page.splitlines()]
    for column in summary.MAIN:
        there = [found[row, column]["scores"]["nll"] if (row, column) in found else None for row in rows.values()]
        if any(v is not None for v in there):
            shown = " | ".join("–" if v is None else f"{v:.3f}" for v in there)
            assert any(line.startswith(f"| {column} (") and line.endswith(f") | {shown} |") for line in lines), column


def test_the_tables_of_resistant_rules_are_those_of_their_results() -> None:
    robust, page = module("robust/table"), (ROOT / "docs/one-site.md").read_text()
    trials = json.loads((ROOT / "experiments/robust/results/table.json").read_text())
    for name in robust.DATA:
        assert "\n".join(robust.table(trials, name)) in page


def test_a_benchmark_renews_its_own_table_and_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "speed.md"
    page.write_text(f"Before.\n\n{BEGIN}\n\n### {protocols.TITLE}\n\nold\n\n### Engines\n\nkept\n\n{END}\n\nAfter.\n")
    scored = {"ours": {"distilled β": 0.5}, "plain": {"distilled β": 0.6}}
    part = {"rows": "real rows", "client_steps": 7, "seconds": {"ours": 1.0, "plain": 6.0}, "ratio": 6.0, "nll": scored}
    machine = {"cores": 2, "threads": 1, "load_before": 0.1, "load_after": 0.2, "seconds": 9.0}
    facts = {**machine, "versions": {"torch": "2"}, "scale": 0.1, "repeats": 3}
    found = {"parts": {"protocols": {"facts": facts, "results": {"wine": part}}}}

    write_page(page, found)
    text = page.read_text()

    assert "| wine, 7 client steps, real rows | 1.00 | 6.00 | 6.0 | 0.500 | 0.600 |" in text
    assert "old" not in text and "### Engines\n\nkept" in text
    assert text.startswith("Before.") and text.endswith("After.\n")
    assert "2 cores, 1 thread(s), load 0.1 before and 0.2 after, torch 2, scale 0.1, 3 alternating runs" in text
    write_page(page, found)
    assert page.read_text() == text


def test_an_interrupted_benchmark_goes_on_and_a_finished_one_begins_anew(tmp_path: Path) -> None:
    options = Namespace(out=tmp_path / "bench.json", scale=0.1, repeats=3, peers=False, threads=1)
    assert parts_done(options, ["floor"]) == {}
    part = {"facts": conditions(options), "results": {}}
    other = {"facts": {**part["facts"], "repeats": 2}, "results": {}}
    options.out.write_text(json.dumps({"parts": {"floor": part, "sums": other, "unknown": part}}))
    assert parts_done(options, ["floor", "sums"]) == {"floor": part}
    assert parts_done(options, ["floor"]) == {}


def test_the_evidence_intervals_allow_for_rows_that_seeds_share() -> None:
    """Where a seed splits the table anew; from the scores of every seed, as far as they are stored."""
    summary, page = module("evidence/summary"), (ROOT / "docs/evidence.md").read_text()
    found = cells("evidence/results/table.json")
    sites = datasets.load("digits").split(parse("dirichlet:0.1"), 5, calibration=30, inputs=200)
    assert summary.overlap("digits/dirichlet:0.1/5") == len(sites.all_test.x) / sum(len(d.x) for d in sites.train)
    assert summary.overlap("mnist/dirichlet:0.1/5") == 0
    for column in (*summary.MAIN, *summary.SHIFTED):
        ours = found.get(("Evidence, as it comes", column))
        if ours is not None and ours["seeds"] >= 3:
            rivals = [found[row, column]["per_seed"] for row in summary.CLOSEST.values()]
            pairs = [difference(ours["per_seed"], theirs, summary.overlap(column)) for theirs in rivals]
            assert f"| {column} (10) | {' | '.join(summary.interval(d) for d in pairs)} |" in page, column


def test_the_hospitals_page_has_fedavg_at_the_rate_that_was_best_on_validation_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("summary", "table", "partial"):  # which import each other by these names
        monkeypatch.setitem(sys.modules, name, module(f"hospitals/{name}"))
    rates = module("hospitals/rates")
    found = json.loads((ROOT / "experiments/hospitals/results/rates.json").read_text())

    assert found["rate"] == float(min(found["validation"], key=found["validation"].get))
    assert rates.table(found) in (ROOT / "docs/hospitals.md").read_text()


@pytest.mark.parametrize("name", ["table1", "table8", "table9"])
def test_dhondt2024_tables_are_those_of_its_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    summary, page = module("dhondt2024/summary"), (ROOT / "experiments/dhondt2024/README.md").read_text()

    for mark, found in summary.tables(name).items():
        assert found.count("\n") > 1 and summary.renew(page, mark, found) == page
