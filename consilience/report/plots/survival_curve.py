"""A survival curve as a picture."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from consilience.distributions.curves import Curve
from consilience.report.plots.drawing import ACCENT, svg
from consilience.report.schema.wording import number, percent


def draw_curve(found: Curve, unit: str) -> str:
    """Draw a Kaplan–Meier curve with its 95 % interval.

    Args:
        unit: What the times are, for the axis.

    Returns:
        One `<svg>` element.
    """
    times = [0.0, *found.times.tolist()]
    survival = [1.0, *found.survival.tolist()]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        low, high = ([1.0, *leaf.tolist()] for leaf in (found.low, found.high))
        axes.fill_between(times, low, high, step="post", color=ACCENT, alpha=0.18, linewidth=0)
        axes.step(times, survival, where="post", color=ACCENT)
        axes.set(xlabel=unit, ylabel="without an event", ylim=(0, 1.02), xlim=(0, times[-1]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.grid(True)

    shown = list(zip(times, survival, strict=True))[:: max(len(times) // 8, 1)]
    listed = "; ".join(f"{number(t)}: {percent(s)}" for t, s in shown)
    return svg("curve", f"Share without an event by {unit}. {listed}.", 300, draw)
