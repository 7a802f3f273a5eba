"""Table one: the numbers are those of the rows, and no small count can be found from what is shown."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import NAMES, rows, study, table
from typer.testing import CliRunner
from uncharged import table_file

import consilience as co
from consilience.biostatistics.site_summary import WITHHELD, summarise
from consilience.biostatistics.table_one import QUARTILES, Entry, TableOne, combine
from consilience.biostatistics.variables import Column, Variable, columns_of
from consilience.cli import app
from consilience.data.sites import Data, Sites
from consilience.disk.data_folder import VARIABLE
from consilience.errors import InputError
from consilience.privacy.disclosure.small_cells import coarsen, withhold
from consilience.report.table_one_page import table_one_page
from consilience.study.protocol.columns import inspect
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import study_text
from consilience.study.table_one import read_tables

COUNTS = st.lists(st.integers(0, 40), min_size=2, max_size=6)


@given(COUNTS, st.integers(1, 12))
@settings(max_examples=60)
def test_what_is_withheld_cannot_be_found_by_subtraction(counts: list[int], smallest: int) -> None:
    shown = withhold(counts, smallest)
    hidden = [count for count, seen in zip(counts, shown, strict=True) if seen is None]
    assert all(seen is None or seen == count for seen, count in zip(shown, counts, strict=True))
    assert all(seen == 0 or seen >= smallest for seen in shown if seen is not None)
    assert len(hidden) != 1
    assert not hidden or sum(hidden) >= smallest or len(hidden) == len(counts)


def test_cells_are_withheld_with_the_next_smallest() -> None:
    assert withhold([50, 3, 20, 30], 10) == [50, None, None, 30]  # 3 alone would be 103 less the others
    assert withhold([50, 3, 4, 20, 30], 10) == [50, None, None, None, 30]  # 3 and 4 are 7 rows together
    assert withhold([50, 6, 7, 20], 10) == [50, None, None, 20]
    assert withhold([50, 0, 20], 10) == [50, 0, 20]
    assert withhold([5, 0], 10) == [None, None]


@given(st.lists(st.integers(0, 15), min_size=2, max_size=12), st.integers(1, 12))
@settings(max_examples=60)
def test_no_bin_between_shown_edges_is_small(bins: list[int], smallest: int) -> None:
    cumulative = [0, *np.cumsum(bins).tolist()]
    shown = [count for count in coarsen(cumulative, smallest) if count is not None]
    between = np.diff(shown)
    assert shown[-1] == sum(bins)
    assert sum(bins) < smallest or all(count == 0 or count >= smallest for count in between)


def simulated() -> Sites:
    rng = np.random.default_rng(1)
    parts = []
    for k, n in enumerate((60, 80, 120)):
        x = np.column_stack([rng.normal(50 + 5 * k, 10, n), np.eye(3)[rng.choice(3, n, p=[0.5, 0.3, 0.2])]])
        parts.append(Data.of(torch.tensor(x), torch.tensor(rng.integers(0, 2, n))))
    train = tuple(Data(*(leaf[20:] for leaf in part)) for part in parts)
    test = tuple(Data(*(leaf[:20] for leaf in part)) for part in parts)
    sites = Sites(train, test, None, None, None, 2, 4, "sick", "natural", ("a", "b", "c"))
    return replace(sites, feature_names=("age", "ward=x", "ward=y", "ward=z"), class_names=("no", "yes")).standardised()


def test_the_numbers_are_those_of_all_rows() -> None:
    sites = simulated()
    found = co.table_one(sites)
    assert sites.feature_shift is not None and sites.feature_scale is not None
    parts = [torch.cat([test.x, train.x]) for test, train in zip(sites.test, sites.train, strict=True)]
    x = (torch.cat(parts) * sites.feature_scale + sites.feature_shift).numpy()
    age = x[:, 0]
    assert found.value("", "rows") == 260
    assert found.value("age", "mean") == pytest.approx(age.mean(), rel=1e-9)
    assert found.value("age", "deviation") == pytest.approx(age.std(ddof=1), rel=1e-9)
    assert found.value("ward", "count", level="y") == pytest.approx(x[:, 2].sum())
    for statistic, share in QUARTILES.items():
        assert found.value("age", statistic) == pytest.approx(np.quantile(age, share), rel=1e-6)
        assert found.value("age", statistic, "a") == pytest.approx(np.quantile(age[:60], share), rel=1e-6)
    assert found.value("age", "mean", "b") == pytest.approx(age[60:140].mean(), rel=1e-9)
    assert found.value("sick", "count", "c", "yes") == float(sites.train[2].y.sum() + sites.test[2].y.sum())


def test_a_table_is_written_for_programs_and_people() -> None:
    found = co.table_one(simulated())
    lines = list(csv.DictReader(io.StringIO(found.to_csv())))
    means = [float(line["value"]) for line in lines if line["statistic"] == "mean" and line["site"] == "all"]
    assert means == [found.value("age", "mean")]
    assert list(found.to_frame().columns) == [*Entry._fields]
    page = table_one_page(found, "<b>sepsis</b>")
    assert "&lt;b&gt;sepsis" in page and "ward: x" in page and "withheld" in page
    with pytest.raises(InputError, match="no mean of 'ward'"):
        found.value("ward", "mean")


def agreed(
    values: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]], high: float, smallest: int = 10
) -> TableOne:
    """Table one of a study with one column, over the agreed range from 0 to `high`."""
    variable = Variable("days", (), "", 0.0, high)
    summaries = {}
    for site, own in values.items():
        column = Column(torch.tensor(own), torch.zeros(len(own), dtype=torch.bool))
        summaries[site] = summarise([variable], [column], smallest)
    return combine([variable], summaries, smallest)


@given(st.integers(0, 10_000), st.sampled_from([1.0, 3000.0]), st.sampled_from([12, 60, 400]))
@settings(max_examples=40, deadline=None)
def test_a_shown_quartile_of_a_study_is_no_farther_off_than_a_bin(seed: int, high: float, rows: int) -> None:
    """The source of truth is the rows themselves: the value that a share of them does not exceed, R's type 1."""
    rng = np.random.default_rng(seed)
    values = {name: np.clip(rng.gamma(1.5, high / 12, rows), 0, high) for name in ("a", "b")}
    found = agreed(values, high)
    for name, own in {**values, "all": np.concatenate([*values.values()])}.items():
        for statistic, share in QUARTILES.items():
            shown = found.value("days", statistic, name)
            truth = np.quantile(own, share, method="inverted_cdf")
            assert (
                shown is None or abs(shown - truth) <= high / 20 * 1.25
            )  # a bin, and half a step of at most half a bin


def test_a_quartile_in_merged_bins_is_withheld() -> None:
    """51 patients followed for 0 to 1900 days, most of them for about 380, in a range of ten years: as at TCGA's
    region 5, where 1076 (537.8 to 1613) was printed for 382 (358 to 395)."""
    rng = np.random.default_rng(5)
    few = np.concatenate([rng.normal(380, 20, 35), rng.uniform(0, 1900, 16)])
    found = agreed({"few": few, "many": rng.uniform(0, 8605, 4000)}, 8605.0)
    assert found.value("days", "median", "few") == pytest.approx(380, abs=8605 / 20)
    assert found.value("days", "third quartile", "few") is None  # 13 patients in the bins above the first
    assert found.value("days", "median", "many") == pytest.approx(4300, abs=8605 / 20)
    (line,) = [line for line in found.lines() if line[0].startswith("days: median")]
    assert line[2].startswith("≈ ") and line[2].endswith(" to ?)")
    shown = line[3].removeprefix("≈ ").replace("(", "").replace(")", "").split()
    assert all(float(text) % 100 == 0 for text in shown if text != "to")  # half a bin is 215 days
    assert any("merged" in note for note in found.notes)


def test_two_values_have_no_quartiles() -> None:
    ones = np.repeat([0.0, 1.0], [30, 70])
    assert not [line for line in agreed({"a": ones}, 1.0).lines() if "median" in line[0]]
    parts = (Data.of(torch.tensor(ones).unsqueeze(1), torch.tensor(ones).long()),)
    sites = Sites(parts, (Data(*(leaf[:0] for leaf in parts[0])),), None, None, None, 2, 1, "y", "natural", ("a",))
    assert not [line for line in co.table_one(sites).lines() if "median" in line[0]]


def test_a_lower_bound_has_no_percentage() -> None:
    variable = Variable("ward", ("x", "y"))
    none = torch.zeros(100, dtype=torch.bool)
    summaries = {}
    for site, few in (("a", 40), ("b", 3)):
        summaries[site] = summarise([variable], [Column((torch.arange(100) < few).double(), none)], 10)
    found = combine([variable], summaries, 10)
    assert [line[1] for line in found.lines()] == ["200", "≥ 60", "≥ 40"]


def test_what_single_precision_makes_up_is_not_shown() -> None:
    x = torch.tensor([[0.0], [0.0], [1.0]], dtype=torch.float64).repeat(10, 1)
    parts = tuple(Data.of(x[:n].clone(), torch.zeros(n).long()) for n in (30, 12))
    none = tuple(Data(*(leaf[:0] for leaf in part)) for part in parts)
    sites = Sites(parts, none, None, None, None, 2, 1, "y", "natural", ("a", "b")).standardised().to(torch.float32)
    assert {float(value) for value in columns_of(sites, sites.train[0])[0].values} == {0.0, 1.0}


def test_everybody_is_described_and_nothing_is_said_to_be_withheld_where_nothing_is(tmp_path: Path) -> None:
    table(tmp_path / "a.csv", rows(0))
    found = CliRunner().invoke(
        app,
        [
            "describe",
            "--data",
            str(tmp_path / "a.csv"),
            "--target",
            "died",
            "--drop",
            "lactate",
            "--smallest",
            "1",
            "--sites",
            "1",
        ],
    )
    assert found.exit_code == 0, found.output
    assert found.output.split("rows")[1].split()[0] == str(len(rows(0)))
    assert "withheld" not in found.output and "from 1 to 0" not in found.output


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"set {VARIABLE} to the folder with the data files")
def test_times_at_tcga_are_those_of_its_file() -> None:
    """R 4: `quantile(days[region == 5])` is 358, 382, 395 of 51 patients, of whom 3 died."""
    found = co.table_one(co.datasets.load("tcga_brca").split(co.splits.natural(), calibration=0), smallest=1)
    assert [found.value("tcga_brca", statistic, "region 5") for statistic in QUARTILES] == [358, 382, 395]
    assert (found.value("", "rows"), found.value("", "rows", "region 5")) == (1088, 51)
    assert found.value("event", "count", "region 5", "seen") == 3


@pytest.mark.parametrize("missing", range(1, 10))
def test_a_mean_does_not_tell_how_many_values_are_missing(missing: int) -> None:
    """17 ones among 231 − m values: whatever m is, the rounded mean fits 17 ones among the values of any other m."""
    values = torch.zeros(231, dtype=torch.float64)
    values[:17] = 1
    gaps = torch.zeros(231, dtype=torch.bool)
    gaps[231 - missing :] = True
    found = summarise([Variable("fbs")], [Column(values, gaps)], 10)
    assert int(found.cells[0, -1]) == WITHHELD and bool((found.cumulative == WITHHELD).all())
    mean = float(found.moments[0, 0])
    assert mean == pytest.approx(0.075, abs=0.0026) and (mean / 0.005) == pytest.approx(round(mean / 0.005))


def test_means_that_count_a_few_rows_are_withheld() -> None:
    values = torch.zeros(100, dtype=torch.float64)
    values[:3] = 1  # a mean of 0.03 would say so
    found = summarise([Variable("rare")], [Column(values, torch.zeros(100, dtype=torch.bool))], 10)
    assert found.told.tolist() == [0] and found.moments.abs().sum() == 0
    with pytest.raises(InputError, match="smallest cell"):
        summarise([Variable("few")], [Column(values[:5], torch.zeros(5, dtype=torch.bool))], 10)


def files(folder: Path, **changes: object) -> tuple[object, list[Path]]:
    made = study(folder, **changes)
    (folder / "sepsis.toml").write_text(study_text(made))
    paths = []
    for k, name in enumerate(NAMES):
        inspection = inspect(table(folder / f"{name}.csv", rows(k)), made.agreement.columns, made.agreement.target)
        paths.append(folder / f"{name}.table")
        paths[-1].write_bytes(table_file(made, made.member(name), read_key(folder / f"{name}.key"), inspection))
    return made, paths


def test_a_study_adds_up_what_sites_send(tmp_path: Path) -> None:
    made, paths = files(tmp_path)
    found, refused = read_tables(made, paths)  # type: ignore[arg-type]
    assert not refused and found.sites == NAMES
    ages = np.array([float(record["age"]) for k in range(3) for record in rows(k)])
    assert found.value("age", "mean") == pytest.approx(ages.mean(), rel=1e-9)
    assert found.value("age", "deviation") == pytest.approx(ages.std(ddof=1), rel=1e-9)
    wards = [record["ward"] for record in rows(0)]
    assert found.value("ward", "count", "north", "a") == wards.count("a")
    assert found.value("lactate", "count", "north", "missing") is None  # 10 % of 60 rows: below ten


def test_tables_that_cannot_be_are_refused_and_too_few_are_not_added(tmp_path: Path) -> None:
    made, paths = files(tmp_path, fewest_sites=3)
    with pytest.raises(InputError, match="fewest sites"):
        read_tables(made, paths[:2])  # type: ignore[arg-type]
    paths[0].write_bytes(paths[1].read_bytes())
    with pytest.raises(InputError, match="2 tables can be used"):
        read_tables(made, paths)  # type: ignore[arg-type]


def test_the_commands_write_and_show_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, paths = files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        own = ["site", "describe", "sepsis.toml", f"{name}.csv", "--key", f"{name}.key"]
        written = CliRunner().invoke(app, own)
        assert written.exit_code == 0, written.output
    names = [path.name for path in paths]
    shown = CliRunner().invoke(app, ["study", "describe", "sepsis.toml", *names, "--csv", "t.csv", "--html", "t.html"])
    assert shown.exit_code == 0, shown.output
    assert "age, years:" in shown.output  # a narrow terminal breaks the line after it
    assert (tmp_path / "t.html").read_text().startswith("<!doctype html>")
    for k, name in enumerate(NAMES):
        known = [{**record, "lactate": record["lactate"].replace("?", "1")} for record in rows(k)]
        table(tmp_path / f"{name}.csv", known)
    alone = CliRunner().invoke(app, ["describe", "--data", "[nsw]*.csv", "--target", "died", "--smallest", "5"])
    assert alone.exit_code == 0, alone.output
    assert "ward: b" in alone.output
