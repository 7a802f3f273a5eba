"""Table one of a study with ε: sums with noise that are paid for, drawn once, and near the truth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import studies
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import Invoke

from consilience.biostatistics.noisy_table import combine_noisy, sum_rows, width_of
from consilience.biostatistics.site_summary import BINS
from consilience.biostatistics.variables import Column, Variable
from consilience.errors import InputError
from consilience.privacy.dp.accountant import epsilon_of, mu_of
from consilience.study.budget import read_budget
from consilience.study.protocol.envelope import Header, seal
from consilience.study.protocol.members import Study
from consilience.study.protocol.signature import read_key
from consilience.study.protocol.text import study_text
from consilience.study.table_one import agreed_variables, read_tables

PRIVATE: dict[str, Any] = {"method": "exact", "settings": (), "epsilon": 3.0, "delta": 1e-3, "table_epsilon": 2.0}
VARIABLES = [
    Variable("age", low=0.0, high=100.0),
    Variable("ward", ("a", "b", "c")),
    Variable("dose", low=-1.0, high=9),
]


class Site:
    """The commands of three sites."""

    def __init__(self, folder: Path, invoke: Invoke, **words: Any) -> None:
        self.folder, self.invoke = folder, invoke
        self.study = self.write("a", **words)
        self.records = {site.name: studies.rows(site.number, 90) for site in self.study.sites}
        for name, records in self.records.items():
            studies.table(folder / f"{name}.csv", records)

    def write(self, name: str, **words: Any) -> Study:
        made = studies.study(self.folder, seed=len(name), **{**PRIVATE, **words})
        (self.folder / f"{name}.toml").write_text(study_text(made))
        return made

    def run(self, *words: str) -> str:
        code, out, err = self.invoke(*words)
        assert code in (0, 2)
        return err if code else out

    def describe(self, name: str, table: str = "", study: str = "a") -> str:
        return self.run("site", "describe", f"{study}.toml", table or f"{name}.csv", "--key", f"{name}.key")


@pytest.fixture
def site(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path, invoke)


def test_a_table_with_noise_is_near_the_truth_and_says_how_near(site: Site) -> None:
    for name in studies.NAMES:
        assert "stays here" not in site.describe(name)
    shown = site.run("study", "describe", "a.toml", *(f"{name}.table" for name in studies.NAMES), "--csv", "t.csv")
    table, refused = read_tables(site.study, [site.folder / f"{name}.table" for name in studies.NAMES])

    assert not refused and "Every number has noise, for ε = 2 at δ = 0.001 for each row" in shown.replace("\n", " ")
    ages = [float(row["age"]) for records in site.records.values() for row in records]
    dead = sum(row["died"] == "yes" for records in site.records.values() for row in records)
    found = {entry[:4]: entry for entry in table.entries}
    mean, count = found["age", "", "mean", "all"], found["died", "yes", "count", "all"]
    assert mean.value is not None and abs(mean.value - sum(ages) / len(ages)) < 3 * mean.within < 20
    assert count.value is not None and abs(count.value - dead) < 3 * count.within < 60
    assert all(entry.within for entry in table.entries if entry.statistic in ("count", "rows"))


def test_it_is_paid_for_beside_the_reply_and_no_second_study_is(site: Site) -> None:
    site.write("bb")
    site.describe("north")
    assert (site.folder / "north.table").exists()
    assert "Nothing is sent" not in site.run("site", "fit", "a.toml", "north.csv", "--key", "north.key")
    budget = read_budget(site.folder / "north.ledger")

    both = epsilon_of(1e-3, math.hypot(mu_of(3.0, 1e-3), mu_of(2.0, 1e-3)))
    assert budget.epsilon == pytest.approx(both) and 3 < both < 5
    assert budget.spent().epsilon(1e-3) == pytest.approx(both)
    assert "Nothing is sent: ε would become" in site.describe("north", study="bb")


def test_noise_is_drawn_once_and_other_rows_are_refused(site: Site) -> None:
    site.describe("north")
    first = (site.folder / "north.table").read_bytes()
    site.describe("north")
    assert (site.folder / "north.table").read_bytes() == first
    assert len(read_budget(site.folder / "north.ledger").releases) == 1

    studies.table(site.folder / "fewer.csv", site.records["north"][1:])
    assert "table one of other rows" in site.describe("north", "fewer.csv")
    next(site.folder.glob("north-*.kept-table")).unlink()
    assert "from other rows" in site.describe("north", "fewer.csv")
    assert (site.folder / "north.table").read_bytes() == first


def test_without_a_share_none_is_sent(site: Site) -> None:
    site.write("bb", table_epsilon=0.0)

    assert "agree on table_epsilon under [privacy]" in site.describe("north", study="bb")
    with pytest.raises(InputError, match=r"belongs to epsilon"):
        studies.study(site.folder, method="exact", settings=(), table_epsilon=1.0).agreement.check()


def test_sums_of_more_rows_than_a_site_has_are_not_used(site: Site) -> None:
    variables = agreed_variables(site.study.agreement)
    width = sum(width_of(v) for v in variables)
    assert width == 2 * (BINS + 3) + 4 + 3  # age, lactate; ward, died
    paths = []
    for number, name in enumerate(studies.NAMES):
        header = Header("table", site.study.agreement.hash, "sepsis", name, 1, {"number": number})
        paths.append(site.folder / f"{name}.table")
        sums = torch.full((width,), 1e6 if name == "west" else 5.0).double()
        paths[-1].write_bytes(seal({"noisy": sums}, header, read_key(site.folder / f"{name}.key")))

    table, refused = read_tables(site.study, paths)

    assert table.sites == ("north", "south")
    assert len(refused) == 1 and "its sums are of more rows than its site may have" in refused[0]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([1.0, 0.5, 0.25]))
def test_no_row_adds_more_than_its_length(seed: int, weight: float) -> None:
    """Neighbours by brute force: whatever a row holds, sums with it and without are at most its weight apart."""
    draw = torch.Generator().manual_seed(seed)
    numbers = 400 * torch.rand(1, generator=draw).double() - 200
    extreme = torch.tensor([[-math.inf], [math.inf], [0.0], [100.0], [float(numbers)]])[seed % 5].double()
    gap = torch.rand(3, 1, generator=draw) < 0.2
    level = torch.randint(3, (1,), generator=draw)
    columns = [Column(extreme, gap[0]), Column(level.double(), gap[1]), Column(numbers, gap[2])]

    added = sum_rows(VARIABLES, columns, torch.full((1,), weight)).values

    assert float(added.norm()) <= weight * (1 + 1e-12)


def test_the_longest_row_is_as_long_as_counted_on() -> None:
    """A bound that no row reaches would waste noise."""
    columns = [Column(torch.tensor([end]).double(), torch.zeros(1, dtype=torch.bool)) for end in (100.0, 1.0, 9.0)]
    assert float(sum_rows(VARIABLES, columns, torch.ones(1)).values.norm()) == pytest.approx(1.0)


def test_without_noise_counts_means_and_quartiles_are_those_of_the_rows() -> None:
    draw = torch.Generator().manual_seed(1)
    age, ward = 100 * torch.rand(400, generator=draw).double(), torch.randint(3, (400,), generator=draw)
    none = torch.zeros(400, dtype=torch.bool)
    some = none.clone()
    some[:30] = True
    columns = [Column(age, some), Column(ward.double(), none), Column(age / 12.5, none)]
    sums = sum_rows(VARIABLES, columns, torch.ones(400)).values

    table = combine_noisy(VARIABLES, {"a": sums, "b": 2 * sums}, 1e-9, "")

    assert table.value("", "rows") == 1200 and table.value("age", "count", "b", "missing") == 60
    assert table.value("ward", "count", "a", "b") == int((ward == 1).sum())
    assert table.value("age", "mean") == pytest.approx(float(age[30:].mean()))
    assert table.value("age", "deviation", "a") == pytest.approx(float(age[30:].std(correction=0)))
    assert table.value("age", "median") == pytest.approx(float(age[30:].median()), abs=5)


def test_intervals_hold_95_of_100_and_what_noise_drowns_is_not_shown() -> None:
    """500 draws; [92, 98] % is beyond four deviations of a binomial."""
    ward = torch.arange(300) % 3
    none = torch.zeros(300, dtype=torch.bool)
    age = torch.linspace(20, 90, 300).double()
    columns = [Column(age, none), Column(ward.double(), none), Column(age / 12.5, none)]
    sums = sum_rows(VARIABLES, columns, torch.ones(300)).values
    draw = torch.Generator().manual_seed(0)
    held = dict.fromkeys(("mean", "count", "rows"), 0)
    for _ in range(500):
        table = combine_noisy(VARIABLES, {"a": sums + 3 * torch.randn(len(sums), generator=draw).double()}, 3.0, "")
        found = {entry[:4]: entry for entry in table.entries}
        for statistic, key, truth in (
            ("mean", ("age", "", "mean", "a"), float(age.mean())),
            ("count", ("ward", "b", "count", "a"), 100.0),
            ("rows", ("", "", "rows", "a"), 300.0),
        ):
            entry = found[key]
            assert entry.value is not None
            held[statistic] += abs(entry.value - truth) <= entry.within + 0.5
    assert all(460 <= count <= 490 for count in held.values()), held

    drowned = combine_noisy(VARIABLES, {"a": sums / 30}, 3.0, "said")
    assert drowned.value("age", "mean") is None and drowned.value("age", "median") is None
    assert "noise would leave nothing of it" in " ".join(drowned.notes)
