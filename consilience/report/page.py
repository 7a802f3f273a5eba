"""What every page is made of: cells, pictures, facts and the template, with nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from consilience.report import plots
from consilience.report import wording as words
from consilience.report.wording import FEW_ROWS, Json, count, human_bytes, interval, score


class Cell(NamedTuple):
    """A number in a table, with its interval below it."""

    text: str
    span: str = ""
    best: bool = False
    grey: bool = False
    under: str = ""
    arrow: str = ""


class Picture(NamedTuple):
    """A figure, what it shows, and the same numbers as a table for those who prefer to read them."""

    title: str
    svg: Markup
    caption: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def render(**content: Any) -> str:
    loader = PackageLoader("consilience", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["tied"] = lambda text: re.sub(r"(?<=\d) (?=%|[kMGT]?B\b|s\b|min\b|h\b)", "\u00a0", text)
    return environment.get_template("page.html.jinja").render(**content)


def alert(alert: Any) -> str:
    return join_words(*(f"{k}: {v}" for k, v in alert.items())) if isinstance(alert, dict) else str(alert)


def caution(page: Json, parts: Sequence[Json]) -> str:
    """The warning that stands below greyed ECEs."""
    shown = [k for part in parts for k in part.get("metrics") or {} if is_greyed(k, page)]
    return words.ece_note(page) if shown else ""


def known_fields(*facts: tuple[str, str]) -> list[tuple[str, str]]:
    return [f for f in facts if f[1]]


def join_words(*parts: Any) -> str:
    return ", ".join(str(p) for p in parts if p not in {None, ""})


def role_counts(rows: Json | None) -> str:
    return ", ".join(f"{count(n)} {role}" for role, n in (rows or {}).items() if n)


def both(part: Json) -> list[str]:
    """Bytes up and down."""
    return [human_bytes(part.get("up_bytes")), human_bytes(part.get("down_bytes"))]


def seconds(s: float | None) -> str:
    if s is None:
        return ""
    return f"{s:.1f} s" if s < 120 else f"{s / 60:.0f} min" if s < 7200 else f"{s / 3600:.1f} h"


def seeds_words(seeds: Sequence[int]) -> str:
    """'0 to 9', or a list."""
    run = len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if run else ", ".join(str(s) for s in seeds)


def is_greyed(key: str, page: Json) -> bool:
    return "ece" in key and (words.test_rows(page) or FEW_ROWS) < FEW_ROWS


def cell(key: str, part: Json, best: bool = False, grey: bool = False) -> Cell:
    """A score with its arrow, and below it its interval or its standard error over seeds."""
    span = interval(key, (part.get("intervals") or {}).get(key)) or words.error(part, key).replace("±", "± ")
    return Cell(score(key, (part.get("metrics") or {}).get(key)), span, best, grey, arrow=words.arrow(part, key))


def tempered_note(page: Json) -> str:
    scalar = "one factor on the variance" if words.regression(page) else "one temperature"
    if page.get("best"):  # each site's own model
        scalar = f"{scalar} for each site's model, of which the mean is shown"
    return f"Tempered: {scalar}, fitted on the calibration rows."


def labels_picture(
    given: Sequence[Sequence[int | None]],
    sites: Sequence[str],
    names: Sequence[str] | None,
    of: str = "",
    least: int | None = None,
) -> Picture:
    """Rows of each class at each site; a count of None is smaller than may be shown."""
    wide = max(len(row) for row in given)
    given = [[*row, *[0] * (wide - len(row))] for row in given]
    counts = [[n or 0 for n in row] for row in given]
    classes = [str(n) for n in names] if names and len(names) == wide else [str(c) for c in range(wide)]
    top = max([n for row in counts for n in row] + [0])
    caption = "Training rows of each class at each site: the stronger the colour, the more; "
    caption += f"the fullest cell holds {count(top)}."
    caption += f" Counts below {least} are left blank." if least else ""
    cells = [[f"< {least}" if n is None else count(n) for n in row] for row in given]
    sums = ["–" if None in row else count(sum(whole)) for row, whole in zip(given, counts, strict=True)]
    rows = [[site, *row, total] for site, row, total in zip(sites, cells, sums, strict=True)]
    drawn = Markup(plots.labels(counts, sites, classes, of))
    title = f"Who holds what, {of}" if of else "Who holds what"
    return Picture(title, drawn, caption, ["Site", *classes, "All"], rows if wide * len(sites) <= 1000 else ())


def details(page: Json) -> list[tuple[str, list[tuple[str, str]]]]:
    """Settings and versions as flat lists."""
    blocks = [("Settings", page.get("settings")), ("Versions", page.get("versions"))]
    return [(title, flat(values)) for title, values in blocks if values]


def flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A nested dict as (dotted name, value) pairs."""
    if not isinstance(values, dict):
        return [(prefix, "none" if values is None else str(values))]
    return [pair for k, v in values.items() for pair in flat(v, f"{prefix}.{k}" if prefix else str(k))]
