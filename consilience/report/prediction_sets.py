"""The figures of prediction sets: coverage with exact intervals, and size, by site and by class."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.prediction_sets.measured import Covered
from consilience.report.page import Picture
from consilience.report.plots.drawing import ACCENT, DASHED, MUTED, PERCENT, SECOND, site_axis, site_height, svg
from consilience.report.schema.numbers import count, number, percent
from consilience.report.schema.prediction_sets import SetsReport, sets_title
from consilience.report.schema.run_findings import RunReport

MOST_IN_WORDS = 20  # groups that an alternative text lists


def sets_pictures(run: RunReport) -> list[Picture]:
    """Show what a run's prediction sets did, and which guarantee they have.

    Returns:
        A figure by site and one by class, where there are test rows.
    """
    sets = run.sets
    if sets is None or sets.refused or not sets.by_site:
        return []
    pictures = [_picture(sets, sets.by_site, "site", run.is_regression)]
    if sets.by_class:
        pictures.append(_picture(sets, sets.by_class, "class", run.is_regression))
    return pictures


def _picture(sets: SetsReport, groups: Sequence[Covered], what: str, is_regression: bool) -> Picture:
    size = "classes in a set"
    if is_regression:
        size = "width of an interval"
    if sets.is_of_times:
        size = "lower bound"
    caption = (
        f"The share of each {what}'s test rows whose prediction set holds the truth, the least first; bars are exact "
        f"95 % intervals (Clopper and Pearson), the dashed line is the level. Beside it, the mean {size}."
    )
    if what == "site":
        caption += (
            f" The guarantee, {sets_title(sets)}: {sets.promise} This holds on average over calibration rows, if "
            f"{sets.assumption}. Given these {count(sets.rows)} rows, coverage is at least {percent(sets.least, 1)} "
            "with 95 % confidence where rows are exchangeable."
        )
    headings = [what.capitalize(), "Test rows", "Covered", "95 % interval", f"Mean {size}"]
    rows = [[c.name, count(c.rows), percent(c.coverage, 1), _interval(c), number(c.size)] for c in groups]
    title = f"Prediction sets for {percent(sets.level)}, by {what}"
    return Picture(title, Markup(_draw(sets, groups, what, size)), caption, headings, rows)


def _interval(covered: Covered) -> str:
    low, high = (percent(end, 1) for end in covered.interval)
    return f"{low.removesuffix(' %')}–{high}"


def _draw(sets: SetsReport, groups: Sequence[Covered], what: str, size: str) -> str:
    names = [covered.name for covered in groups]
    places = list(range(len(groups)))

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        for place, covered in zip(places, groups, strict=True):
            left.plot(covered.interval, [place, place], color=ACCENT, linewidth=1)
        first = [covered.coverage for covered in groups]
        left.plot(first[1:], places[1:], "o", color=ACCENT, markersize=4.5)
        left.plot(first[:1], places[:1], "D", color=SECOND, markersize=4.5)
        left.axvline(sets.level, color=MUTED, linewidth=0.8, linestyle=DASHED)
        left.set_xlim(right=1.02)
        left.set_xlabel("covered")
        left.xaxis.set_major_locator(MaxNLocator(4))
        left.xaxis.set_major_formatter(PERCENT)
        finite = [(covered.size, place) for place, covered in zip(places, groups, strict=True)]
        finite = [pair for pair in finite if math.isfinite(pair[0])]
        right.plot([value for value, _ in finite], [place for _, place in finite], "o", color=ACCENT, markersize=4.5)
        right.set_xlabel(size)
        right.xaxis.set_major_locator(MaxNLocator(3))
        right.set_xlim(0, 1.15 * max([value for value, _ in finite], default=1.0))
        for axes in (left, right):
            site_axis(axes, names)
            axes.set_ylabel("")
            axes.grid(True, axis="x")
        left.set_ylabel(what)

    listed = "; ".join(f"{what} {c.name}: {percent(c.coverage)} of {count(c.rows)}" for c in groups[:MOST_IN_WORDS])
    listed += "; …" * (len(groups) > MOST_IN_WORDS)
    return svg(f"sets-{what}", f"Coverage of prediction sets. {listed}.", site_height(len(groups)), draw)
