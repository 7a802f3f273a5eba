"""Figures of a comparison: how scores change with heterogeneity, and what they cost in communication."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from consilience.metrics.communication import bytes_sent, mean_curve
from consilience.report.plots.drawing import (
    ACCENT,
    INK,
    MUTED,
    RULE,
    SECOND,
    WIDTH,
    bytes_axis,
    is_wide,
    line_height,
    log_ticks,
    mark,
    svg,
    wrap,
)
from consilience.report.schema.comparison_findings import ComparisonRow, SplitTable
from consilience.report.schema.wording import human_bytes, metric, score

COLOURS = (ACCENT, SECOND, INK, MUTED)  # the page's own, so that lines stand out in light, dark and print
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
ACROSS = 3  # panels in a row
IN_PANEL = 18  # characters of a name in one line above a panel
BESIDE = 22  # the same beside a figure
DEGREES = {"heterogeneous": "h", "dirichlet": "α"}  # splits with one number, and what it is called


class Point(NamedTuple):
    """A score at one degree of heterogeneity.

    Attributes:
        x: The degree.
        y: The score.
        ends: The ends of its interval, or of one standard error either way.
    """

    x: float
    y: float
    ends: tuple[float, float] | None


def degree(split: str) -> tuple[str, float] | None:
    """Read how heterogeneous a split is.

    Args:
        split: The split's name, as `dirichlet:0.1`.

    Returns:
        The degree's symbol and value, as ('α', 0.1); an even split has h = 0. None for other splits.
    """
    kind, _, number = split.partition("@")[0].partition(":")
    if kind == "iid":
        return "h", 0.0
    if kind not in DEGREES or not number:
        return None
    return DEGREES[kind], float(number)


def degrees(splits: Sequence[str]) -> tuple[str, list[float]] | None:
    """Read what several splits vary.

    Returns:
        The symbol and the values, where the splits differ in one number alone; otherwise None.
    """
    known = [pair for split in splits if (pair := degree(split)) is not None]
    symbols = {symbol for symbol, _ in known}
    if len(known) < len(splits) or len(known) < 2 or len(symbols) > 1:
        return None
    return symbols.pop(), [x for _, x in known]


def heterogeneity(tables: Sequence[SplitTable], key: str) -> str:
    """Draw a proper score against heterogeneity: a panel for each row, with all other rows in grey behind it.

    Args:
        tables: The tables of splits that differ in one number alone.

    Returns:
        One `<svg>` element.
    """
    varied = degrees([table.split for table in tables])
    assert varied is not None
    symbol, values = varied
    names = [row.name for row in tables[0].rows]
    lines = {name: _line(tables, values, name, key) for name in names}
    down = -(-len(names) // ACROSS)

    def draw(figure: Figure) -> None:
        grid = list(figure.subplots(down, min(ACROSS, len(names)), sharex=True, sharey=True, squeeze=False).flat)
        for axes, name in zip(grid, names, strict=False):
            _draw_panel(axes, lines, name)
        for axes in grid[len(names) :]:
            axes.set_axis_off()
        _degree_axis(grid[0], symbol, values)
        grid[0].yaxis.set_major_locator(MaxNLocator(4))
        if is_wide([point.y for line in lines.values() for point in line]):
            _log_scores(grid[0])
        label = "heterogeneity h"
        if symbol == "α":
            label = "Dirichlet α (smaller: more heterogeneous)"
        figure.supxlabel(label, fontsize=9)
        figure.supylabel(metric(key).name, fontsize=9)

    def describe(line: Sequence[Point]) -> str:
        return ", ".join(f"{score(key, point.y)} at {point.x:g}" for point in line)

    listed = "; ".join(f"{name}: {describe(line)}" for name, line in lines.items())
    height = 34 + (94 + line_height(names, IN_PANEL, 24)) * down
    return svg("heterogeneity", f"{metric(key).name} against heterogeneity. {listed}.", height, draw)


def curves(rows: Sequence[ComparisonRow], key: str, split: str = "") -> str:
    """Draw a score against the floats sent so far: a line for each row, a dot where there is one round only.

    Args:
        split: The split's name, where a page has several.

    Returns:
        One `<svg>` element.
    """
    lines = []
    for row in rows:
        points = [point for point in mean_curve(row.curves) if point.get(key) is not None]
        if points:
            floats = [bytes_sent(point, "floats") for point in points]
            lines.append((row.name, floats, [point[key] for point in points]))
    lines.sort(key=lambda line: -line[2][-1])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (_, x, y) in enumerate(lines):
            style: dict[str, Any] = {"linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}
            if len(x) == 1:
                style = {"marker": "o"}
            axes.plot(x, y, color=COLOURS[i % len(COLOURS)], markersize=5, linewidth=1.4, **style)
        _float_axis(axes, [v for _, x, _ in lines for v in x])
        _vertical_scores(axes, key, [v for _, _, y in lines for v in y])
        _name_beside(axes, [(name, x[-1], y[-1]) for name, x, y in lines])

    listed = "; ".join(f"{name} ends at {score(key, y[-1])} after {x[-1]:.3g} floats" for name, x, y in lines)
    alt = f"{metric(key).name} against floats sent and received. {listed}."
    return svg(f"curves-{key}{mark(split)}", alt, _height([name for name, _, _ in lines]), draw)


def cost(rows: Sequence[ComparisonRow], key: str, split: str = "") -> str:
    """Draw a proper score against the bytes sent and received, with every row's name beside its dot.

    Args:
        rows: The rows of a table.
        split: The split's name, where a page has several.

    Returns:
        One `<svg>` element.
    """
    points = [(row, y) for row in rows if row.bytes > 0 and (y := row.scores.value(key)) is not None]
    points.sort(key=lambda point: -point[1])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for row, y in points:
            colour = ACCENT
            if row.is_bound:
                colour = MUTED
            ends = row.scores.error_bar(key)
            if ends is not None:
                axes.vlines(row.bytes, *ends, color=colour, linewidth=1.2)
            axes.plot(row.bytes, y, "o", color=colour, markersize=5)
        bytes_axis(axes, [row.bytes for row, _ in points])
        _vertical_scores(axes, key, [y for _, y in points])
        _name_beside(axes, [(row.name, row.bytes, y) for row, y in points])

    listed = "; ".join(f"{row.name} {score(key, y)} for {human_bytes(row.bytes)}" for row, y in points)
    return svg(
        f"cost{mark(split)}",
        f"{metric(key).name} against bytes. {listed}.",
        _height([row.name for row, _ in points]),
        draw,
    )


def _line(tables: Sequence[SplitTable], values: Sequence[float], name: str, key: str) -> list[Point]:
    """A row's scores over the splits, by degree."""
    points = []
    for table, x in zip(tables, values, strict=True):
        row = next((row for row in table.rows if row.name == name), None)
        if row is None:
            continue
        y = row.scores.value(key)
        if y is not None:
            points.append(Point(x, y, row.scores.error_bar(key)))
    return sorted(points, key=lambda point: point.x)


def _draw_panel(axes: Axes, lines: Mapping[str, Sequence[Point]], name: str) -> None:
    for other, line in lines.items():
        if other != name:
            axes.plot([point.x for point in line], [point.y for point in line], color=RULE, linewidth=1)
    line = lines[name]
    for x, _, ends in line:
        if ends is not None:
            axes.vlines(x, *ends, color=ACCENT, linewidth=1.2)
    axes.plot([point.x for point in line], [point.y for point in line], "o-", color=ACCENT, markersize=3.5)
    axes.set_title(wrap(name, IN_PANEL), fontsize=8)
    axes.grid(True, axis="y")


def _degree_axis(axes: Axes, symbol: str, values: Sequence[float]) -> None:
    """Heterogeneity grows to the right: α falls, on a logarithmic scale."""
    if symbol == "α":
        axes.set_xscale("log")
        axes.invert_xaxis()
    step = 1
    if len(values) > 4:
        step = len(values) // 3
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted(values)[::step])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _log_scores(axes: Axes) -> None:
    axes.set_yscale("log")
    log_ticks(axes.yaxis)


def _vertical_scores(axes: Axes, key: str, values: Sequence[float]) -> None:
    """A score upwards, on a logarithmic scale where the values span much."""
    if is_wide(values):
        _log_scores(axes)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylabel(metric(key).name)
    axes.grid(True, axis="y")


def _name_beside(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Names to the right in the order of their points, evenly spaced: they cannot overlap."""
    line = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
    look: dict[str, Any] = {"va": "center", "fontsize": 8, "color": INK, "arrowprops": line}
    for i, (name, x, y) in enumerate(points):
        place = (1.06, 1 - (i + 0.5) / len(points))
        axes.annotate(wrap(name, BESIDE), (x, y), place, textcoords="axes fraction", **look)


def _float_axis(axes: Axes, values: Sequence[float]) -> None:
    def write(x: float, _: int | None) -> str:
        return human_bytes(x).removesuffix("B").strip().replace(".0", "")

    bytes_axis(axes, values)
    axes.set_xlabel("floats, up and down")
    axes.xaxis.set_major_formatter(FuncFormatter(write))


def _height(names: Sequence[str]) -> float:
    line = line_height(names, BESIDE, 24)
    if line > 24:
        return 70 + line * max(len(names), 4)
    return min(70 + line * max(len(names), 4), WIDTH)
