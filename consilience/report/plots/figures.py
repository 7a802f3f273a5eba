"""Figures of runs and comparisons: calibration, who holds which classes, scores over rounds and against their cost.

Every function returns one `<svg>` element with its alternative text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, MaxNLocator

from consilience.metrics.calibration import Bin, Coverage
from consilience.metrics.findings import Site, Span, finite_ends
from consilience.report.plots.drawing import (
    ACCENT,
    DASHED,
    INK,
    MANY_SITES,
    MUTED,
    PAPER,
    PERCENT,
    SECOND,
    WASH,
    bytes_axis,
    line_height,
    mark,
    score_axis,
    shorten,
    site_axis,
    svg,
    wrap,
)
from consilience.report.schema.comparison_findings import ComparisonRow, Group
from consilience.report.schema.run_findings import Round
from consilience.report.schema.wording import count, metric, percent, score

Point: TypeAlias = tuple[float, float, Span | None]  # nominal and observed rate, and the latter's interval
_SHADES = ((0.05, 0.10), (0.15, 0.20), (0.3, 0.32), (0.5, 0.44), (0.75, 0.82), (1, 1))  # up to this share, this opacity
_DARK = 4  # from this shade on, text on a cell is light
NAME_WIDTH = 20  # characters of a row's name in one line of a figure
MANY_CLASSES = 12  # beyond these only some are named


def reliability(bins: Sequence[Bin]) -> str:
    """Draw a reliability diagram over a histogram of the confidences.

    Args:
        bins: Bins of the confidence, with accuracies and their Wilson intervals.

    Returns:
        The figure.
    """

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        _draw_agreement(upper, _points(bins))
        upper.set_ylabel("accuracy")
        _draw_histogram(lower, bins)

    pairs = "; ".join(f"confidence {percent(c)}, accuracy {percent(a)}" for c, a, _ in _points(bins))
    return svg("reliability", f"Reliability diagram. {pairs or 'No predictions'}.", 340, draw)


def reliabilities(
    rows: Sequence[ComparisonRow | Site], of: str = "confidence", observed: str = "accuracy", name: str = ""
) -> str:
    """Draw a small reliability diagram for every row of a comparison, or for every site.

    Args:
        rows: Rows with bins, or sites with bins.
        of: What the bins are of.
        observed: What it is held against.
        name: What keeps several figures of this kind apart.

    Returns:
        The figure.
    """
    panels = [(row.name, _points(row.reliability)) for row in rows]
    alt = f"Reliability diagrams of {', '.join(row.name for row in rows)}."
    return _agreements(f"reliabilities{mark(name)}", alt, panels, of, observed)


def coverages(sites: Sequence[Site], name: str = "") -> str:
    """Draw a small coverage curve for every site.

    Args:
        sites: Sites with the coverage at several levels.
        name: What keeps several figures of this kind apart.

    Returns:
        The figure.
    """
    panels = [(site.name, _levels(site.coverage)) for site in sites]
    alt = f"Coverage curves of {', '.join(site.name for site in sites)}."
    return _agreements(f"coverages{mark(name)}", alt, panels, "nominal coverage", "observed coverage")


def _agreements(name: str, alt: str, panels: Sequence[tuple[str, Sequence[Point]]], across: str, up: str) -> str:
    """A small diagram of agreement for each name; names are never cut."""
    columns = min(3, len(panels))
    down = -(-len(panels) // columns)
    width = 54 // columns
    titles = [wrap(title, width) for title, _ in panels]
    height = 104 + line_height([title for title, _ in panels], width, 24)

    def draw(figure: Figure) -> None:
        # All panels have the same limits. Axes that share them would tell each other of every change, many times.
        grid = list(figure.subplots(down, columns, squeeze=False).flat)
        for axes, title, (_, points) in zip(grid, titles, panels, strict=False):
            _draw_agreement(axes, points, markersize=2.5)
            whole = FuncFormatter(lambda x, _: f"{100 * x:.0f}")
            axes.xaxis.set_major_formatter(whole)
            axes.yaxis.set_major_formatter(whole)
            axes.set_title(title, fontsize=8)
            axes.label_outer()
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        figure.supxlabel(f"{across}, %", fontsize=9)
        figure.supylabel(f"{up}, %", fontsize=9)

    return svg(name, alt, 30 + height * down, draw)


def coverage(levels: Sequence[Coverage]) -> str:
    """Draw observed against nominal coverage of the predictive intervals.

    Args:
        levels: The coverage at several levels.

    Returns:
        The figure.
    """
    points = _levels(levels)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _draw_agreement(axes, points)
        axes.set(xlabel="nominal coverage", ylabel="observed coverage")

    pairs = "; ".join(f"the {percent(x)} intervals cover {percent(y)} of the rows" for x, y, _ in points)
    return svg("coverage", f"Coverage curve. {pairs or 'No levels'}.", 300, draw)


def labels(counts: Sequence[Sequence[int]], sites: Sequence[str], classes: Sequence[str], split: str = "") -> str:
    """Draw how many rows of each class every site holds: sites down, classes across.

    Args:
        counts: Rows of each class at each site, [sites, classes].
        classes: The names of the classes.
        split: The split's name, where a page has several.

    Returns:
        The figure.
    """
    largest = max([n for row in counts for n in row] + [1])
    classes_words = count(len(classes), "class").replace("classs", "classes")
    alt = f"Rows per class at {count(len(sites), 'site')} and {classes_words}; "
    alt += f"the largest cell holds {count(largest, 'row')}."
    return shade(f"labels{mark(split)}", alt, counts, sites, classes, count)


def shade(
    name: str,
    alt: str,
    values: Sequence[Sequence[float]],
    sites: Sequence[str],
    classes: Sequence[str],
    write: Callable[[Any], str],
) -> str:
    """Draw one number for each site and class: the larger, the stronger its colour.

    Args:
        name: What keeps the figure's ids apart from those of others.
        values: Numbers of at least zero, [sites, classes].
        classes: The names of the classes.
        write: Writes a number into its cell, where there is room.

    Returns:
        The figure.
    """
    largest = max([n for row in values for n in row] + [1e-9])
    row_height = min(24.0, max(5.0, 600 / len(sites)))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_facecolor(WASH)
        _draw_cells(axes, values, largest)
        if len(sites) <= MANY_SITES and len(classes) <= MANY_CLASSES:
            _write_cells(axes, values, largest, write)
        site_axis(axes, sites)
        _class_axis(axes, classes)

    return svg(name, alt, 60 + row_height * max(len(sites), 2), draw)


def rounds(history: Sequence[Round], keys: Sequence[str]) -> str:
    """Draw scores over the rounds, one panel each.

    Args:
        history: The scores after each round.
        keys: Which scores to draw.

    Returns:
        The figure.
    """

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
        for axes, key in zip(panels, keys, strict=True):
            _draw_rounds(axes, history, key)
        panels[-1].set_xlabel("round")

    def describe(key: str) -> str:
        first, last = (score(key, entry.scores.value(key)) for entry in (history[0], history[-1]))
        return f"{metric(key).name} from {first} to {last}"

    alt = f"Scores over {count(len(history), 'round')}: {', '.join(describe(key) for key in keys)}."
    return svg("rounds", alt, 40 + 120 * len(keys), draw)


def ranking(groups: Sequence[Group], key: str, split: str = "") -> str:
    """Draw a proper score of every row, untempered with its interval and tempered, beside the bytes it cost.

    Args:
        groups: The rows by what the server needs; lines part the groups.
        split: The split's name, where a page has several.

    Returns:
        The figure.
    """
    rows = [row for group in groups for row in group.rows]
    gaps = [sum(len(group.rows) for group in groups[:g]) - 0.5 for g in range(1, len(groups))]
    costs = [(row.bytes, i) for i, row in enumerate(rows) if row.bytes > 0]

    def draw(figure: Figure) -> None:
        if costs:
            panels = list(figure.subplots(1, 2, sharey=True, width_ratios=[3, 2]))
            panels[1].plot([n for n, _ in costs], [i for _, i in costs], "s", color=ACCENT, markersize=4.5)
            bytes_axis(panels[1], [n for n, _ in costs])
        else:
            panels = [figure.subplots()]
        _draw_ranking(panels[0], rows, key)
        figure.legend(loc="outside upper left", ncols=2)
        for panel in panels:
            panel.grid(True, axis="y")
            for gap in gaps:
                panel.axhline(gap, color=MUTED, linewidth=0.6)

    listed = "; ".join(f"{row.name} {score(key, row.scores.value(key))}" for row in rows)
    height = 70 + line_height([row.name for row in rows], NAME_WIDTH, 26) * max(len(rows), 2)
    return svg(f"ranking{mark(split)}", f"{metric(key).name} of every row: {listed}.", height, draw)


def _levels(levels: Sequence[Coverage]) -> list[Point]:
    return [(level.level, level.observed, level.interval) for level in levels if level.observed is not None]


def _points(bins: Sequence[Bin]) -> list[Point]:
    return [(b.confidence, b.accuracy, b.interval) for b in bins if b.confidence is not None and b.accuracy is not None]


def _draw_agreement(axes: Axes, points: Sequence[Point], markersize: float = 4.5) -> None:
    """Observed against nominal rates, with intervals and the diagonal of perfect agreement."""
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=DASHED)
    spans = [(x, *ends) for x, _, span in points if (ends := finite_ends(span)) is not None]
    if spans:
        axes.vlines(*zip(*spans, strict=True), color=ACCENT, linewidth=1.2)
    nominal = [x for x, _, _ in points]
    observed = [y for _, y, _ in points]
    axes.plot(nominal, observed, "o-", color=ACCENT, linewidth=1, markersize=markersize)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.xaxis.set_major_formatter(PERCENT)
    axes.yaxis.set_major_formatter(PERCENT)
    axes.grid(True)


def _draw_histogram(axes: Axes, bins: Sequence[Bin]) -> None:
    for b in bins:
        axes.bar(b.low, b.count, b.high - b.low, align="edge", color=ACCENT, edgecolor=PAPER, linewidth=0.8)
        if b.count and len(bins) <= 20:
            middle = ((b.low + b.high) / 2, b.count)
            label = count(b.count)
            if b.count >= 1000:
                label = f"{b.count / 1000:.0f}k"
            axes.annotate(label, middle, (0, 1.5), textcoords="offset points", ha="center", fontsize=7.5)
    highest = max([b.count for b in bins] + [1])
    axes.set(xlabel="confidence", ylabel="rows", yticks=[], ylim=(0, 1.3 * highest))
    axes.spines["left"].set_visible(False)


def _draw_cells(axes: Axes, values: Sequence[Sequence[float]], largest: float) -> None:
    """All cells of a shade as one shape, which keeps the page small."""
    for shade, (_, opacity) in enumerate(_SHADES):
        cells = [cell for i, row in enumerate(values) for cell in _runs(row, i, shade, largest)]
        if cells:
            path = Path.make_compound_path(*cells)
            axes.add_patch(PathPatch(path, facecolor=ACCENT, alpha=opacity, linewidth=0))


def _write_cells(axes: Axes, values: Sequence[Sequence[float]], largest: float, write: Callable[[Any], str]) -> None:
    for i, row in enumerate(values):
        for j, n in enumerate(row):
            if not n:
                continue
            colour = INK
            if _shade(n, largest) >= _DARK:
                colour = PAPER
            axes.text(j, i, write(n), ha="center", va="center", fontsize=8, color=colour)


def _class_axis(axes: Axes, classes: Sequence[str]) -> None:
    """Classes across, as many names as fit; long ones upright."""
    axes.set(xlim=(-0.5, len(classes) - 0.5), xlabel="class")
    step = 1
    if len(classes) > 30:
        step = 10
    elif len(classes) > MANY_CLASSES:
        step = 5
    fitting = 8
    if len(classes) > 6:
        fitting = 3
    rotation = 0
    if step == 1 and any(len(name) > fitting for name in classes):
        rotation = 90
    names = [shorten(name, 14) for name in classes[::step]]
    axes.set_xticks(range(0, len(classes), step), names, rotation=rotation)


def _shade(n: float, largest: float) -> int:
    return next((i for i, (share, _) in enumerate(_SHADES) if n <= share * largest), len(_SHADES) - 1)


def _runs(row: Sequence[float], y: int, shade: int, largest: float) -> list[Path]:
    """The cells of one shade in one row, neighbours joined, as rectangles."""
    hits = [False, *(n > 0 and _shade(n, largest) == shade for n in row), False]
    edges = [j for j in range(len(row) + 1) if hits[j] != hits[j + 1]]  # where a run starts or ends, in turn
    lines = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]
    boxes = []
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        left, right, top, bottom = start - 0.5, end - 0.5, y - 0.5, y + 0.5
        boxes.append(Path([(left, top), (right, top), (right, bottom), (left, bottom), (0, 0)], lines))
    return boxes


def _draw_rounds(axes: Axes, history: Sequence[Round], key: str) -> None:
    entries = [(entry.number, y) for entry in history if (y := entry.scores.metrics.get(key)) is not None]
    markersize = 3
    if len(entries) > 50:
        markersize = 0
    axes.plot([x for x, _ in entries], [y for _, y in entries], "o-", color=ACCENT, markersize=markersize)
    axes.set_title(metric(key).name)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if metric(key).percent:
        axes.yaxis.set_major_formatter(PERCENT)
    axes.grid(True, axis="y")


def _draw_ranking(axes: Axes, rows: Sequence[ComparisonRow], key: str) -> None:
    """Dots for the scores, diamonds for those after tempering, a line for each row."""
    diamond: dict[str, Any] = {"markerfacecolor": PAPER, "markeredgecolor": SECOND, "markersize": 4.5}
    values = []
    for i, row in enumerate(rows):
        colour = ACCENT
        if row.is_bound:
            colour = MUTED
        ends = row.scores.error_bar(key)
        if ends is not None:
            axes.hlines(i - 0.14, *ends, color=colour, linewidth=1.2)
        untempered = row.scores.value(key)
        if untempered is not None:
            axes.plot(untempered, i - 0.14, "o", color=colour, markersize=5)
            values.append(untempered)
        tempered = row.part(tempered=True).value(key)
        if tempered is not None:
            axes.plot(tempered, i + 0.16, "D", **diamond)
            values.append(tempered)
    axes.set_yticks(range(len(rows)), [wrap(row.name, NAME_WIDTH) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    score_axis(axes, key, values)
    axes.plot([], [], "o", color=ACCENT, markersize=5, label="untempered")
    axes.plot([], [], "D", label="tempered", **diamond)
