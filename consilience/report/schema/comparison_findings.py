"""A comparison's report as a typed value: `compare.json` is read once, and pages, tables and figures use its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from consilience.disk.typed import Rows, Share, Size, checked
from consilience.errors import InputError
from consilience.metrics.calibration import Bin
from consilience.metrics.findings import Scores, Site
from consilience.report.schema import wording as words
from consilience.report.schema.run_findings import NUMBERS, read, read_sites
from consilience.report.schema.wording import BASELINE, BASELINES, BOUND, Json, group_rows, metric, score_keys


@dataclass(frozen=True)
class ComparisonRow:
    """One method of a comparison, over all seeds of a split.

    Attributes:
        name: Its name for people.
        word: Its name on the command line.
        needs: What the server needs: a key of `wording.GROUPS`.
        rounds: How many rounds it ran.
        passes: How many passes over its rows a site made.
        up: Bytes from the sites to the server.
        down: Bytes from the server to the sites.
        scores: Its scores, averaged over seeds.
        tempered: The same after tempering; None where nothing was tempered.
        reliability: Bins of its reliability diagram.
        curves: For each seed, its scores against what was sent so far.
        settings: Its settings.
        per_site: The calibration at every site, where it was kept.
    """

    name: str
    word: str | None
    needs: str
    rounds: Rows | None
    passes: Size | None
    up: Size | None
    down: Size | None
    scores: Scores
    tempered: Scores | None
    reliability: Sequence[Bin]
    curves: Mapping[Any, Sequence[Json]]
    settings: Json
    per_site: Sequence[Site] = ()

    @property
    def is_bound(self) -> bool:
        """Whether it is a bound or a baseline, which do not compete."""
        return self.needs in {BOUND, BASELINE}

    @property
    def bytes(self) -> float:
        """Bytes sent and received together."""
        return (self.up or 0) + (self.down or 0)

    def part(self, tempered: bool) -> Scores:
        """Select the scores before or after tempering.

        Args:
            tempered: Whether to take those after tempering.

        Returns:
            The scores, empty where nothing was tempered.
        """
        if tempered:
            return self.tempered or Scores()
        return self.scores


@dataclass(frozen=True)
class Group:
    """Rows of a table whose server needs the same.

    Attributes:
        key: What it needs: a key of `wording.GROUPS`.
        title: The same in words.
        rows: The rows.
    """

    key: str
    title: str
    rows: Sequence[ComparisonRow]

    @property
    def is_bound(self) -> bool:
        """Whether these are the bounds or the baselines, which do not compete."""
        return self.key in {BOUND, BASELINE}

    def is_best(self, row: ComparisonRow, key: str, tempered: bool) -> bool:
        """Say whether a row has the lowest value of a proper score in the group.

        Args:
            row: A row of the group.
            tempered: Whether to compare the scores after tempering.

        Returns:
            Whether it is best; never of bounds, nor where nothing competes.
        """
        values = [value for r in self.rows if (value := r.part(tempered).value(key)) is not None]
        if self.is_bound or len(values) < 2 or not metric(key).proper:
            return False
        return row.part(tempered).value(key) == min(values)


@dataclass(frozen=True)
class SplitTable:
    """The table of one split.

    Attributes:
        split: The split's name.
        sentence: What the table says, in a sentence.
        reference: The row that the others are paired with.
        rows: Its rows, in the order in which they were asked for.
        communication: What it takes to reach the reference's scores.
        labels: Rows of each class at each site.
        site_names: The sites' names, where there is one for each.
        class_names: The names of the classes, if they have names.
        seeds: The seeds.
    """

    split: str
    sentence: str
    reference: str | None
    rows: Sequence[ComparisonRow]
    communication: Sequence[Json]
    labels: Sequence[Sequence[Rows]]
    site_names: Sequence[str]
    class_names: Sequence[str] | None
    seeds: Sequence[int]

    @property
    def groups(self) -> list[Group]:
        """Its rows, by what the server needs."""
        return [Group(*group) for group in group_rows(self.rows, lambda row: row.needs)]

    @property
    def is_paired(self) -> bool:
        """Whether any row has a paired difference from the reference."""
        return any(row.scores.differences for row in self.rows)

    @property
    def has_errors(self) -> bool:
        """Whether any row has standard errors over seeds."""
        return any(row.scores.errors for row in self.rows)


@dataclass(frozen=True)
class ComparisonReport:
    """What `compare.json` says of a comparison.

    Attributes:
        content: The JSON itself, for what is shown as it stands.
        title: Its title.
        tables: One table for each split.
        is_regression: Whether numbers are predicted rather than classes.
        test_rows: How many test rows there are, if that is known.
        ece_if_calibrated: The expected ECE of a perfectly calibrated model on these rows.
        seeds: The seeds.
        reference: The row that the others are paired with.
        warnings: Warnings raised while it ran.
        point: The key of the plain score.
        ranks: Keys of the proper scores that rank.
        beside: Keys of the scores shown beside them.
    """

    content: Json
    title: str
    tables: Sequence[SplitTable]
    is_regression: bool
    test_rows: Rows | None
    ece_if_calibrated: Share | None
    seeds: Sequence[int]
    reference: str | None
    warnings: Sequence[Any]
    point: str
    ranks: Sequence[str]
    beside: Sequence[str]

    @property
    def rows(self) -> list[ComparisonRow]:
        """The rows of all tables."""
        return [row for table in self.tables for row in table.rows]


def read_comparison(comparison: Json) -> ComparisonReport:
    """Read a comparison's report.

    Args:
        comparison: What `compare.json` holds, or part of it.

    Returns:
        The report; what is missing is empty or None.

    Raises:
        InputError: There are no rows.
    """
    tables = [_read_table(part) for part in words.parts(comparison)]
    rows = [row for table in tables for row in table.rows]
    present = {key for row in rows for key in row.scores.metrics}
    point, ranks, beside = score_keys(present)
    seeds = comparison.get("seeds") or []
    if not seeds and comparison.get("seed") is not None:
        seeds = [comparison["seed"]]
    report = ComparisonReport(
        content=comparison,
        title=str(comparison.get("title") or "Comparison"),
        tables=tables,
        is_regression=comparison.get("task") in NUMBERS or "rmse" in present,
        test_rows=(comparison.get("rows_of_data") or {}).get("test"),
        ece_if_calibrated=comparison.get("ece_if_calibrated"),
        seeds=seeds,
        reference=comparison.get("reference"),
        warnings=comparison.get("warnings") or [],
        point=point,
        ranks=ranks,
        beside=beside,
    )
    return checked(report)


def _read_table(part: Json) -> SplitTable:
    rows = part.get("rows")
    if not rows or not isinstance(rows, list):
        raise InputError("The comparison has no rows: compare at least one method.")
    labels = part.get("labels") or []
    names = part.get("site_names") or []
    if len(names) != len(labels):
        names = range(len(labels))
    table = SplitTable(
        split=str(part.get("split")),
        sentence=str(part.get("sentence") or ""),
        reference=part.get("reference"),
        rows=[*(each for row in rows for each in _read_rows(row, part.get("sites"))), *_read_baselines(part)],
        communication=part.get("communication") or [],
        labels=labels,
        site_names=[str(name) for name in names],
        class_names=part.get("class_names"),
        seeds=part.get("seeds") or [],
    )
    return checked(table)


def _read_baselines(part: Json) -> list[ComparisonRow]:
    """The baselines, as rows."""
    lines = part.get("baselines") or {}
    is_regression = part.get("task") in NUMBERS
    return [
        _read_row({**lines[key], "name": words.baseline_name(key, is_regression), "needs": BASELINE})
        for key in BASELINES
        if lines.get(key)
    ]


def _read_rows(row: Json, sites: int | None) -> list[ComparisonRow]:
    """A row; two where the sites have models of their own: on their own rows, and on all rows or the common one."""
    whole = _read_row(row)
    newcomer = row.get("newcomer")
    if newcomer:
        common = _read_row({**row, **newcomer, "reliability": None, "calibration": None, "curves": None})
        return [
            replace(whole, name=words.scope(whole.name, own=True)),
            replace(common, name=words.newcomer_name(whole.name)),
        ]
    own = row.get("own_rows")
    if not own:
        return [whole]
    alone = _read_row({**row, **own, "reliability": None, "calibration": None})
    return [
        replace(alone, name=words.scope(whole.name, own=True)),
        replace(whole, name=words.scope(whole.name, False, row.get("models"), sites)),
    ]


def _read_row(row: Json) -> ComparisonRow:
    tempered = row.get("tempered") or None
    made = ComparisonRow(
        name=str(row.get("name", "–")),
        word=row.get("row"),
        needs=str(row.get("needs", "nothing")),
        rounds=row.get("rounds"),
        passes=row.get("passes"),
        up=row.get("up_bytes"),
        down=row.get("down_bytes"),
        scores=read(Scores, row),
        tempered=tempered and read(Scores, tempered),
        reliability=[read(Bin, b) for b in row.get("reliability") or []],
        curves=row.get("curves") or {},
        settings=row.get("settings") or {},
        per_site=read_sites(row.get("calibration")),
    )
    return checked(made)
