"""What every page is made of: cells, pictures, facts and the template, with nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from consilience.metrics.findings import Scores
from consilience.report.plots import figures
from consilience.report.schema.folders import hide_folders
from consilience.report.schema.run_findings import seed_error
from consilience.report.schema.wording import FEW_ROWS, Json, count, human_bytes, interval, score

Facts: TypeAlias = list[tuple[str, str]]
MOST_CELLS = 1000  # of a table of labels beside its figure


class Cell(NamedTuple):
    """A number in a table.

    Attributes:
        text: The number.
        span: Its interval or standard error, in small type below it.
        best: Whether it is the best of its group.
        grey: Whether it is shown in grey.
        under: A second line in small type.
        arrow: The arrow of its difference from the reference.
    """

    text: str
    span: str = ""
    best: bool = False
    grey: bool = False
    under: str = ""
    arrow: str = ""


class Picture(NamedTuple):
    """A figure, and the same numbers as a table for those who prefer to read them.

    Attributes:
        title: The title above it.
        svg: The figure.
        caption: What it shows.
        headings: The headings of the table.
        rows: The rows of the table; none where there is no table.
        grey: Which rows of the table are shown in grey; empty for none.
        is_open: Whether the figure is unfolded when the page is opened.
        shows_table: Whether the table is.
    """

    title: str
    svg: Markup
    caption: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    grey: Sequence[bool] = ()
    is_open: bool = True
    shows_table: bool = False


def render(**content: Any) -> str:
    """Fill in the template of all pages.

    Args:
        **content: What `page.html.jinja` names.

    Returns:
        One HTML page.
    """
    return _template().render(**content)


@cache
def _template() -> Template:
    """The template of all pages, compiled once."""
    loader = PackageLoader("consilience", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["tied"] = _tie_units
    environment.filters["shareable"] = hide_folders
    return environment.get_template("page.html.jinja")


def write_warning(warning: Any) -> str:
    """Write a warning, which some reports hold as a mapping.

    Args:
        warning: A sentence, or named parts of one.

    Returns:
        One line.
    """
    if isinstance(warning, Mapping):
        return join_words(*(f"{key}: {value}" for key, value in warning.items()))
    return str(warning)


def known_fields(*facts: tuple[str, str]) -> Facts:
    """Leave out the facts that are not known.

    Returns:
        Those whose text is not empty.
    """
    return [fact for fact in facts if fact[1]]


def join_words(*parts: Any) -> str:
    """Join what is known with commas.

    Args:
        *parts: Texts and numbers; None and empty texts are left out.

    Returns:
        One line.
    """
    return ", ".join(str(part) for part in parts if part not in {None, ""})


def count_or_nothing(n: float | None, noun: str = "") -> str:
    """Write a count where there is one.

    Args:
        n: The count, or None.
        noun: What is counted, in the singular.

    Returns:
        The count; empty where it is None.
    """
    if n is None:
        return ""
    return count(n, noun)


def role_counts(rows: Mapping[str, int | None] | None) -> str:
    """Write how many rows have each role, as '1 407 train, 360 test'.

    Returns:
        One line, without roles that have no rows.
    """
    return ", ".join(f"{count(n)} {role}" for role, n in (rows or {}).items() if n)


def both_ways(up: float | None, down: float | None) -> list[str]:
    """Write bytes up and down.

    Args:
        up: Bytes from sites to the server.
        down: Bytes from the server to sites.

    Returns:
        Two cells of a table.
    """
    return [human_bytes(up), human_bytes(down)]


def seconds(s: float | None) -> str:
    """Write a duration in seconds, minutes or hours.

    Args:
        s: The duration in seconds, or None.

    Returns:
        The duration; empty where it is None.
    """
    if s is None:
        return ""
    if s < 120:
        return f"{s:.1f} s"
    if s < 7200:
        return f"{s / 60:.0f} min"
    return f"{s / 3600:.1f} h"


def seed_fact(seeds: Sequence[int]) -> tuple[str, str]:
    """Write the seeds as a fact.

    Returns:
        'Seed' or 'Seeds', and the seeds as '0 to 9' or as a list.
    """
    if len(seeds) == 1:
        return "Seed", str(seeds[0])
    if len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1)):
        return "Seeds", f"{seeds[0]} to {seeds[-1]}"
    return "Seeds", ", ".join(str(seed) for seed in seeds)


def is_greyed(key: str, test_rows: int | None) -> bool:
    """Say whether a score is unreliable on so few rows.

    Args:
        test_rows: How many test rows there are; None where that is not known.

    Returns:
        Whether it is an ECE over few rows.
    """
    return "ece" in key and test_rows is not None and test_rows < FEW_ROWS


def cell(key: str, scores: Scores, best: bool = False, grey: bool = False) -> Cell:
    """Make the cell of a score, with its interval or its standard error over seeds below it.

    Args:
        scores: The scores of a run or a row.
        best: Whether it is the best of its group.
        grey: Whether it is shown in grey.
    """
    span = interval(key, scores.interval(key)) or seed_error(scores, key).replace("±", "± ")
    return Cell(score(key, scores.value(key)), span, best, grey, arrow=scores.arrow(key))


def labels_picture(
    labels: Sequence[Sequence[int | None]],
    sites: Sequence[str],
    names: Sequence[str] | None,
    split: str = "",
    smallest: int | None = None,
) -> Picture:
    """Show how many rows of each class each site holds.

    Args:
        labels: Rows of each class at each site; None is a count smaller than may be shown.
        names: The names of the classes, if they have names.
        split: The split's name, where a page has several.
        smallest: The smallest count that may be shown, if small ones may not.

    Returns:
        The figure and its table.
    """
    width = max(len(row) for row in labels)
    labels = [[*row, *[0] * (width - len(row))] for row in labels]
    counts = [[n or 0 for n in row] for row in labels]
    classes = [str(c) for c in range(width)]
    if names and len(names) == width:
        classes = [str(name) for name in names]
    largest = max([n for row in counts for n in row] + [0])
    caption = f"Training rows of each class at each site; stronger colour means more rows (at most {count(largest)})."
    if smallest and smallest > 1:
        caption += f" Counts from 1 to {smallest - 1} are left blank."
    rows: list[list[str]] = []
    if width * len(sites) <= MOST_CELLS:
        rows = [[site, *_label_cells(row, smallest)] for site, row in zip(sites, labels, strict=True)]
    title = "Class counts by site"
    if split:
        title += f", {split}"
    return Picture(
        title, Markup(figures.labels(counts, sites, classes, split)), caption, ["Site", *classes, "All"], rows
    )


def details(content: Json) -> list[tuple[str, Facts]]:
    """List the settings and versions of a report.

    Args:
        content: What `run.json` or `compare.json` holds.

    Returns:
        Titles and pairs of name and value.
    """
    blocks = [("Settings", content.get("settings")), ("Versions", content.get("versions"))]
    return [(title, flat(values)) for title, values in blocks if values]


def flat(values: Any, prefix: str = "") -> Facts:
    """Flatten a nested mapping.

    Args:
        values: A mapping, or a single value.
        prefix: The dotted name of what is flattened.

    Returns:
        Dotted names and values.
    """
    if values is None:
        return [(prefix, "none")]
    if not isinstance(values, Mapping):
        return [(prefix, str(values))]
    pairs = []
    for key, value in values.items():
        name = f"{prefix}.{key}".removeprefix(".")
        pairs += flat(value, name)
    return pairs


def _tie_units(text: str) -> str:
    """Keep numbers and their units on one line."""
    return re.sub(r"(?<=\d) (?=%|[kMGT]?B\b|s\b|min\b|h\b)", "\u00a0", text)


def _label_cells(row: Sequence[int | None], smallest: int | None) -> list[str]:
    """A site's counts and their sum, which is left out where a count was."""
    cells = [f"< {smallest}" if n is None else count(n) for n in row]
    known = [n for n in row if n is not None]
    if len(known) < len(row):
        return [*cells, "–"]
    return [*cells, count(sum(known))]
