"""Table one: the sites' summaries side by side and added up."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from consilience.biostatistics.site_summary import BINS, WITHHELD, Summary, summarise
from consilience.biostatistics.spreadsheets import inert
from consilience.biostatistics.variables import Variable, all_rows, columns_of, variables_of
from consilience.data.sites import Sites
from consilience.errors import InputError

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
        at_least: Whether sites that withhold theirs are missing in it: a count is at least as large, and any other
            number is of the sites that show theirs.
        within: How far a quartile that was read off bins may be from that of the rows, or how far noise takes a number
            in 95 of 100 draws; 0 where it is exact.
    """

    column: str
    level: str
    statistic: str
    site: str
    value: float | None
    at_least: bool = False
    within: float = 0.0


Found: TypeAlias = Mapping[tuple[str, str, str, str], Entry]


@dataclass(frozen=True)
class TableOne:
    """What the columns hold, by site and over all.

    Attributes:
        variables: The columns.
        sites: The sites' names.
        smallest: The fewest rows of a cell that is shown.
        entries: Every number.
        noise: What is promised of the noise in it, one sentence; empty where it has none.

    Example:
        >>> import consilience as co
        >>> table = co.table_one(co.Problem("moons", sites=3, split="iid").build_sites())
        >>> table.sites
        ('0', '1', '2')
    """

    variables: tuple[Variable, ...]
    sites: tuple[str, ...]
    smallest: int
    entries: tuple[Entry, ...]
    noise: str = ""

    def value(self, column: str, statistic: str, site: str = OVERALL, level: str = "") -> float | None:
        """Look a number up.

        Args:
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
                rows.append([f"{name}{unit}: mean (SD)", *means])
                if (name, "", "median", OVERALL) in found:
                    middles = [self._middle(found, name, place) for place in places]
                    rows.append([f"{name}{unit}: median (quartiles)", *middles])
            for level in (*variable.levels, "missing"):
                cells = [self._share(found, name, level, place) for place in places]
                if level != "missing" or any(cell not in ("0", "≥ 0") for cell in cells):
                    rows.append([f"{name}: {level}", *cells])
        return rows

    @property
    def notes(self) -> list[str]:
        """What has to be known to read the table: sentences, none where nothing is withheld or approximate."""
        notes = []
        if self.noise:
            reach = {e.within for e in self.entries if e.statistic == "count" and e.site != OVERALL}
            notes.append(f"{self.noise} Noise takes a site's count by up to {max(reach):.0f} in 95 of 100 draws.")
        if self.smallest > 1:
            notes.append(
                f"{_small_counts(self.smallest)} are withheld, with others that would give them away by subtraction."
            )
        if any(entry.at_least for entry in self.entries if entry.statistic == "count"):
            notes.append("≥: sites that withhold their count are not in the sum.")
        if any(entry.at_least and entry.value is not None for entry in self.entries if entry.statistic != "count"):
            notes.append("*: without the sites that withhold theirs.")
        if self.noise:
            notes.append("withheld, ?: noise would leave nothing of it.")
        elif any(entry.within for entry in self.entries):
            notes.append(
                f"≈: quartiles are read off {BINS} bins of equal width over a column's agreed range. ?: a quartile in "
                "bins that were merged, as few rows are in them, is withheld."
            )
        if not self.noise and any(entry.value is None and entry.level == "missing" for entry in self.entries):
            notes.append(
                "Where the number of missing values is withheld, a mean is rounded so that it does not tell it."
            )
        return notes

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
        if not entry.value or not rows or entry.at_least:  # no share is known of what may be more
            return self._count(entry)
        return f"{self._count(entry)} ({100 * entry.value / rows:.0f} %)"

    def _spread(self, found: Found, name: str, place: str) -> str:
        mean = found[name, "", "mean", place]
        deviation = found[name, "", "deviation", place]
        if mean.value is None or deviation.value is None:
            return "withheld"
        return f"{_short(mean.value, 4)} ({_short(deviation.value, 3)}){_mark(mean)}"

    def _middle(self, found: Found, name: str, place: str) -> str:
        first, middle, third = (found[name, "", statistic, place] for statistic in QUARTILES)
        if middle.value is None:
            return "withheld"
        about = ""
        if middle.within:
            about = "≈ "
        return f"{about}{_digits(middle)} ({_digits(first)} to {_digits(third)}){_mark(middle)}"


def _mark(entry: Entry) -> str:
    """What stands behind a number that some sites are missing in."""
    if entry.at_least:
        return " *"
    return ""


def _short(value: float, digits: int) -> str:
    """A number with so many digits, and all of those before the point."""
    if 10**digits <= abs(value) < 1e12:
        return f"{value:.0f}"
    return f"{value:.{digits}g}"


def _digits(entry: Entry) -> str:
    """A quartile with the digits that are known."""
    if entry.value is None:
        return "?"
    if not entry.within:
        return _short(entry.value, 4)
    decimals = max(0, -math.floor(math.log10(_step(entry.within))))
    return f"{entry.value:.{decimals}f}"


def _small_counts(smallest: int) -> str:
    """Which counts are withheld."""
    if smallest == 2:
        return "Counts of 1"
    return f"Counts from 1 to {smallest - 1}"


def _step(width: float) -> float:
    """The place of the last digit that may be shown: that of the first digit of half a bin."""
    return float(10.0 ** math.floor(math.log10(width / 2)))


def table_one(sites: Sites, smallest: int = 10) -> TableOne:
    """Describe the rows of a simulation, whatever their role, as sites of a study would describe theirs.

    Rows that the server has are at no site, and not described. Quartiles are those of the rows, as nothing has to leave
    a site for them; counts and means are withheld as in a study.

    Args:
        sites: The sites with their rows.
        smallest: The fewest rows of a cell that is shown.

    Raises:
        InputError: Rows are images, or a site has too few.

    Example:
        >>> import consilience as co
        >>> sites = co.Problem("moons", sites=3, split="iid").build_sites()
        >>> co.table_one(sites).to_csv().splitlines()[0]
        'column,level,statistic,site,value,at_least,within'
    """
    variables = variables_of(sites)
    columns = {name: columns_of(sites, part) for name, part in zip(sites.names, all_rows(sites), strict=True)}
    summaries = {name: summarise(variables, part, smallest) for name, part in columns.items()}
    table = combine(variables, summaries, smallest)
    entries = [entry for entry in table.entries if entry.statistic not in QUARTILES]
    for j, variable in enumerate(variables):
        if not variable.levels:
            values = {name: part[j].values[~part[j].gaps].numpy() for name, part in columns.items()}
            shown = {name: own for name, own in values.items() if int(summaries[name].told[j])}
            entries += _exact_quartiles(variable.name, shown, list(columns))
    return replace(table, entries=tuple(entries))


def _exact_quartiles(name: str, values: Mapping[str, Any], sites: Sequence[str]) -> list[Entry]:
    """Quartiles of the values themselves; none of a column with two values, whose mean says it all."""
    whole = np.concatenate([np.zeros(0), *values.values()])
    if len(np.unique(whole)) <= 2:
        return []
    entries = []
    for statistic, share in QUARTILES.items():
        found = float(np.quantile(whole, share))
        entries.append(Entry(name, "", statistic, OVERALL, found, len(values) < len(sites)))
        for site in sites:
            own = None
            if site in values:
                own = float(np.quantile(values[site], share))
            entries.append(Entry(name, "", statistic, site, own))
    return entries


def combine(variables: Sequence[Variable], summaries: Mapping[str, Summary], smallest: int) -> TableOne:
    """Put the sites' summaries side by side and add them up.

    Args:
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
    """Means and SDs: Σ nₖ mₖ / n, and Σ (nₖ − 1) sₖ² + Σ nₖ (mₖ − m)² over n − 1."""
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


class Curve(NamedTuple):
    """How many values lie up to each edge of the bins, as far as it is shown.

    Attributes:
        least: At least so many, [BINS + 1].
        most: At most so many, [BINS + 1].
        between: Where these differ, a straight line between the edges that are shown, [BINS + 1].
    """

    least: Any
    most: Any
    between: Any


def _quartiles(variable: Variable, j: int, parts: Mapping[str, Summary]) -> list[Entry]:
    """Quartiles from the counts in bins; none of a column whose values all lie in the first and the last bin."""
    edges = np.linspace(variable.low, variable.high, BINS + 1)
    curves = {}
    for site, part in parts.items():
        counts = part.cumulative[j].numpy()
        shown = counts != WITHHELD
        if shown.any():
            places = np.flatnonzero(shown)
            least = counts[places[np.searchsorted(places, np.arange(BINS + 1), "right") - 1]]
            most = counts[places[np.searchsorted(places, np.arange(BINS + 1))]]
            curves[site] = Curve(least, most, np.interp(edges, edges[shown], counts[shown]))
    if curves and all(curve.between[1] == curve.between[-2] for curve in curves.values()):
        return []
    whole = None
    if curves:
        whole = Curve(*(np.sum(leaves, 0) for leaves in zip(*curves.values(), strict=True)))
    width = (variable.high - variable.low) / BINS
    entries = []
    for statistic, share in QUARTILES.items():
        partial = len(curves) < len(parts)
        value = quantile(edges, whole, share)
        entries.append(Entry(variable.name, "", statistic, OVERALL, value, partial, width))
        for site in parts:
            value = quantile(edges, curves.get(site), share)
            entries.append(Entry(variable.name, "", statistic, site, value, within=width))
    return entries


def quantile(edges: Any, curve: Curve | None, share: float) -> float | None:
    """Find where a share of the values lies, on a straight line within its bin.

    It lies above every edge that fewer values than that are up to, and at or below the first that as many are.

    Args:
        curve: How many values lie up to each; None where nothing is shown.

    Returns:
        The value; None where the bin is not known.
    """
    if curve is None or curve.most[-1] <= 0:
        return None
    goal = share * curve.most[-1]
    last = int(np.searchsorted(curve.least, goal))
    first = int(np.searchsorted(curve.most, goal))
    if first != last:
        return None
    low, high = curve.between[last - 1], curve.between[last]
    found = edges[last - 1] + (edges[last] - edges[last - 1]) * (goal - low) / (high - low)
    step = _step(float(edges[1] - edges[0]))
    return float(round(float(found) / step) * step)
