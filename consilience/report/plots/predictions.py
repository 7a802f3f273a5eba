"""Figures about single predictions: sources of uncertainty, predicted against observed values, and examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.metrics.findings import Example, Predicted, UncertaintyPart
from consilience.report.plots.drawing import ACCENT, DASHED, INK, MUTED, PAPER, RULE, SECOND, svg, wrap
from consilience.report.schema.wording import count, number, percent

PARTS = {
    "aleatoric": ("aleatoric", MUTED),
    "within": ("epistemic, within sites", ACCENT),
    "disagreement": ("epistemic, between sites", SECOND),
}
MOST_BARS = 24


def uncertainty(parts: Sequence[UncertaintyPart], unit: str) -> str:
    """Draw the mean uncertainty of a test row as stacked bars: aleatoric, within sites, between sites.

    Args:
        parts: The mean uncertainty over all rows and over parts of them.
        unit: What it is measured in.

    Returns:
        One `<svg>` element.
    """
    bars = parts[:MOST_BARS]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        left = [0.0] * len(bars)
        look: dict[str, Any] = {"edgecolor": PAPER, "linewidth": 0.6}
        for key, (label, colour) in PARTS.items():
            widths = [getattr(part, key) for part in bars]
            axes.barh(range(len(bars)), widths, 0.62, left=left, color=colour, label=label, **look)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(bars)), [wrap(part.name, 18) for part in bars])
        axes.set_ylim(len(bars) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"mean uncertainty of a row, {unit}")
        axes.grid(True, axis="x")
        figure.legend(loc="outside upper left", ncols=1)

    def describe(part: UncertaintyPart) -> str:
        return ", ".join(f"{key} {number(getattr(part, key))}" for key in PARTS)

    listed = "; ".join(f"{part.name}: {describe(part)}" for part in bars)
    return svg("uncertainty", f"Mean uncertainty in {unit}. {listed}.", 96 + 22 * max(len(bars), 2), draw)


def predicted_section(predicted: Predicted) -> str:
    """Draw observed against predicted values: means of bins with intervals, and single rows where those may be shown.

    Args:
        predicted: Bins of predictions, at least one, and single rows of public data.

    Returns:
        One `<svg>` element.
    """
    bins = predicted.bins
    points = predicted.points or ()

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ends = [v for b in bins for v in (b.predicted, *b.interval)] + [v for p in points for v in (p[0], p[2])]
        low = min(ends)
        high = max(ends)
        axes.plot([low, high], [low, high], color=MUTED, linewidth=0.8, linestyle=DASHED)
        means = [mean for mean, _, _ in points]
        lows = [mean - 1.96 * deviation for mean, deviation, _ in points]
        highs = [mean + 1.96 * deviation for mean, deviation, _ in points]
        axes.vlines(means, lows, highs, color=RULE, linewidth=1)
        axes.plot([p[0] for p in points], [p[2] for p in points], ".", color=MUTED, markersize=3)
        spans = [b.interval for b in bins]
        axes.vlines([b.predicted for b in bins], [low for low, _ in spans], [high for _, high in spans], color=ACCENT)
        axes.plot([b.predicted for b in bins], [b.observed for b in bins], "o", color=ACCENT, markersize=5)
        margin = 0.08 * (high - low)
        axes.set(xlabel="predicted", ylabel="observed", ylim=(low - margin, high + margin))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(True)

    listed = "; ".join(f"predicted {number(b.predicted)}, observed {number(b.observed)}" for b in bins)
    alt = f"Observed against predicted values, in bins of {count(bins[0].rows)} rows. {listed}."
    return svg("predicted", alt, 300, draw)


def examples(rows: Sequence[Example], names: Sequence[str] | None) -> str:
    """Draw single test rows as images, a line for each kind, with prediction and true class below each.

    Args:
        names: The names of the classes, if they have names.

    Returns:
        One `<svg>` element.
    """
    kinds: dict[str, list[Example]] = {}
    for row in rows:
        kinds.setdefault(row.kind, []).append(row)
    across = max(len(members) for members in kinds.values())

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(kinds), across, squeeze=False)
        for (kind, members), line in zip(kinds.items(), grid, strict=True):
            for axes, row in zip(line, members, strict=False):
                _draw_example(axes, row, names)
            for axes in line[len(members) :]:
                axes.set_axis_off()
            line[0].set_title(kind, fontsize=9)

    listed = "; ".join(f"{row.kind}: {', '.join(_describe(row, names))}" for row in rows)
    return svg("examples", f"Single test rows. {listed}.", 112 * len(kinds), draw)


def _draw_example(axes: Axes, row: Example, names: Sequence[str] | None) -> None:
    image = row.image
    assert image is not None
    extent = (0, len(image[0]), len(image), 0)
    axes.imshow(image, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest", extent=extent)
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel("\n".join(_describe(row, names)), fontsize=8, color=INK)


def _describe(row: Example, names: Sequence[str] | None) -> tuple[str, str]:
    predicted, true = str(row.predicted), str(row.true)
    if names:
        predicted, true = str(names[row.predicted]), str(names[row.true])
    return f"pred. {predicted} ({percent(row.confidence)})", f"true {true}"
