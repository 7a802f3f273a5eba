"""Table one: the sites' summaries side by side and added up."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from consilience.data.sites import Sites
from consilience.effects.spreadsheets import inert
from consilience.errors import InputError
from consilience.summaries.summary import BINS, WITHHELD, Summary, summarise
from consilience.summaries.variables import Variable, columns_of, variables_of

OVERALL = "all"
QUARTILES = {"first quartile": 0.25, "median": 0.5, "third quartile": 0.75}


class Entry(NamedTuple):
    """A number of the table.

    Attributes:
        column: The column's name.
        level: The level, `missing`, or empty for a number.
        statistic: count, mean, deviation, median, first quartile, third quartile or rows.
        site: Whose it is; `all` for the sites together.
        value: The number; None where it is withheld or not known.
        at_least: Whether it is a sum in which withheld counts are missing.
    """

    column: str
    level: str
    statistic: str
    site: str
    value: float | None
    at_least: bool = False


Found: TypeAlias = Mapping[tuple[str, str, str, str], Entry]


@dataclass(frozen=True)
class TableOne:
    """What the columns hold, by site and over all.

    Attributes:
        variables: The columns.
        sites: The sites' names.
        smallest: The fewest rows of a cell that is shown.
        entries: Every number.
    """

    variables: tuple[Variable, ...]
    sites: tuple[str, ...]
    smallest: int
    entries: tuple[Entry, ...]

    def value(self, column: str, statistic: str, site: str = OVERALL, level: str = "") -> float | None:
        """Look a number up.

        Args:
            column: The column's name.
            statistic: Such as mean or count.
            site: The site's name; `all` for the sites together.
            level: A level, or `missing`.

        Returns:
            The number; None where it is withheld or not known.

        Raises:
            InputError: There is no such entry.
        """
        for entry in self.entries:
            if entry[:4] == (column, level, statistic, site):
                return entry.value
        raise InputError(f"The table has no {statistic} of '{column}' {level} at '{site}'.")

    def to_csv(self) -> str:
        """Write the table as CSV, a line for each number.

        Returns:
            The text; what is withheld is empty.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(Entry._fields)
        for entry in self.entries:
            writer.writerow([*(inert(text) for text in entry[:4]), *entry[4:]])
        return text.getvalue()

    def to_frame(self) -> Any:
        """Make a data frame, a line for each number.

        Returns:
            The frame.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise InputError("A data frame needs pandas: `pip install pandas`, or use to_csv().") from error
        return pandas.DataFrame(self.entries, columns=list(Entry._fields))

    def lines(self) -> list[list[str]]:
        """Write the table for people: a line for each column and level, all sites together first.

        Returns:
            Texts; the first is the name of the line.
        """
        places = (OVERALL, *self.sites)
        found = {entry[:4]: entry for entry in self.entries}
        rows = [["rows", *(self._count(found["", "", "rows", place]) for place in places)]]
        for variable in self.variables:
            name = variable.name
            if not variable.levels:
                unit = ""
                if variable.unit:
                    unit = f", {variable.unit}"
                means = [self._spread(found, name, place) for place in places]
                rows.append([f"{name}{unit}: mean (deviation)", *means])
                rows.append([f"{name}{unit}: median (quartiles)", *(self._middle(found, name, p) for p in places)])
            for level in (*variable.levels, "missing"):
                cells = [self._share(found, name, level, place) for place in places]
                if level != "missing" or any(cell not in ("0", "≥ 0") for cell in cells):
                    rows.append([f"{name}: {level}", *cells])
        return rows

    def __str__(self) -> str:
        """The table for people, in aligned columns."""
        rows = [["", OVERALL, *self.sites], *self.lines()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = []
        for row in rows:
            cells = [text.rjust(width) for text, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join([row[0].ljust(widths[0]), *cells]).rstrip())
        return "\n".join(lines)

    def _count(self, entry: Entry) -> str:
        if entry.value is None:
            return "withheld"
        least = ""
        if entry.at_least:
            least = "≥ "
        return f"{least}{entry.value:.0f}"

    def _share(self, found: Found, name: str, level: str, place: str) -> str:
        entry = found[name, level, "count", place]
        rows = found["", "", "rows", place].value
        if not entry.value or not rows:
            return self._count(entry)
        return f"{self._count(entry)} ({100 * entry.value / rows:.0f} %)"

    def _spread(self, found: Found, name: str, place: str) -> str:
        mean = found[name, "", "mean", place].value
        deviation = found[name, "", "deviation", place].value
        if mean is None or deviation is None:
            return "withheld"
        return f"{mean:.4g} ({deviation:.3g})"

    def _middle(self, found: Found, name: str, place: str) -> str:
        first, middle, third = (found[name, "", statistic, place].value for statistic in QUARTILES)
        if first is None or middle is None or third is None:
            return "withheld"
        return f"{middle:.4g} ({first:.4g} to {third:.4g})"


def table_one(sites: Sites, smallest: int = 10) -> TableOne:
    """Describe the training rows of a simulation as sites of a study would describe theirs.

    Args:
        sites: The sites with their rows.
        smallest: The fewest rows of a cell that is shown.

    Returns:
        The table.

    Raises:
        InputError: Rows are images, or a site has too few.
    """
    variables = variables_of(sites)
    summaries = {}
    for name, part in zip(sites.names, sites.train, strict=True):
        summaries[name] = summarise(variables, columns_of(sites, part), smallest)
    return combine(variables, summaries, smallest)


def combine(variables: Sequence[Variable], summaries: Mapping[str, Summary], smallest: int) -> TableOne:
    """Put the sites' summaries side by side and add them up.

    Args:
        variables: The columns.
        summaries: One for each site, by name.
        smallest: The fewest rows of a cell that is shown.

    Returns:
        The table.
    """
    parts = dict(summaries)
    entries = [Entry("", "", "rows", OVERALL, float(sum(int(part.rows) for part in parts.values())))]
    entries += [Entry("", "", "rows", name, float(part.rows)) for name, part in parts.items()]
    for j, variable in enumerate(variables):
        levels = [*enumerate(variable.levels), (-1, "missing")]
        for place, level in levels:
            entries += _counts(variable.name, level, {name: int(part.cells[j, place]) for name, part in parts.items()})
        if not variable.levels:
            entries += _moments(variable.name, j, parts)
            entries += _quartiles(variable, j, parts)
    return TableOne(tuple(variables), tuple(parts), smallest, tuple(entries))


def _counts(name: str, level: str, counts: Mapping[str, int]) -> list[Entry]:
    known = [count for count in counts.values() if count != WITHHELD]
    total = None
    if known:
        total = float(sum(known))
    entries = [Entry(name, level, "count", OVERALL, total, len(known) < len(counts))]
    for site, count in counts.items():
        value = None
        if count != WITHHELD:
            value = float(count)
        entries.append(Entry(name, level, "count", site, value))
    return entries


def _known(part: Summary, j: int) -> float:
    """How many values stand behind a mean: all rows where the few gaps are withheld."""
    missing = int(part.cells[j, -1])
    return float(int(part.rows) - max(missing, 0))


def _moments(name: str, j: int, parts: Mapping[str, Summary]) -> list[Entry]:
    """Means and deviations: Σ nₖ mₖ / n, and Σ (nₖ − 1) sₖ² + Σ nₖ (mₖ − m)² over n − 1."""
    told = {site: part for site, part in parts.items() if int(part.told[j])}
    mean = None
    deviation = None
    if told:
        counts = np.array([_known(part, j) for part in told.values()])
        means = np.array([float(part.moments[j, 0]) for part in told.values()])
        spreads = np.array([float(part.moments[j, 1]) for part in told.values()])
        mean = float((counts * means).sum() / counts.sum())
        squares = ((counts - 1) * spreads**2 + counts * (means - mean) ** 2).sum()
        deviation = math.sqrt(squares / (counts.sum() - 1))
    partial = len(told) < len(parts)
    entries = [
        Entry(name, "", "mean", OVERALL, mean, partial),
        Entry(name, "", "deviation", OVERALL, deviation, partial),
    ]
    for site, part in parts.items():
        pair: tuple[float | None, float | None] = (None, None)
        if site in told:
            pair = (float(part.moments[j, 0]), float(part.moments[j, 1]))
        entries += [Entry(name, "", "mean", site, pair[0]), Entry(name, "", "deviation", site, pair[1])]
    return entries


def _quartiles(variable: Variable, j: int, parts: Mapping[str, Summary]) -> list[Entry]:
    """Quartiles between the edges of the bins, as if values lay evenly there."""
    edges = np.linspace(variable.low, variable.high, BINS + 1)
    curves = {}
    for site, part in parts.items():
        counts = part.cumulative[j].numpy()
        shown = counts != WITHHELD
        if shown.any():
            curves[site] = np.interp(edges, edges[shown], counts[shown])
    entries = []
    whole = None
    if curves:
        whole = np.sum(list(curves.values()), 0)
    for statistic, share in QUARTILES.items():
        entries.append(
            Entry(variable.name, "", statistic, OVERALL, _quantile(edges, whole, share), len(curves) < len(parts))
        )
        for site in parts:
            entries.append(Entry(variable.name, "", statistic, site, _quantile(edges, curves.get(site), share)))
    return entries


def _quantile(edges: Any, curve: Any, share: float) -> float | None:
    """Where a cumulative count first reaches a share of its total; straight lines between the edges."""
    if curve is None or curve[-1] <= 0:
        return None
    goal = share * curve[-1]
    i = int(np.searchsorted(curve, goal))
    if i == 0:
        return float(edges[0])
    low, high = curve[i - 1], curve[i]
    return float(edges[i - 1] + (edges[i] - edges[i - 1]) * (goal - low) / (high - low))
