"""Figures about single predictions: where doubt comes from, predictions against the truth, and telling examples."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.report.plots import ACCENT, INK, MUTED, PAPER, RULE, SECOND, svg
from consilience.report.wording import Json, count, number, percent

PARTS = {
    "aleatoric": ("in the outcome (aleatoric)", MUTED),
    "within": ("within sites (epistemic)", ACCENT),
    "disagreement": ("between sites (disagreement)", SECOND),
}
MOST_BARS = 24


def uncertainty(parts: Sequence[Json], unit: str) -> str:
    """The mean doubt of a test row as stacked bars: in the outcome, within sites, between sites."""
    shown = parts[:MOST_BARS]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        left = [0.0] * len(shown)
        for key, (label, colour) in PARTS.items():
            wide = [p[key] for p in shown]
            axes.barh(
                range(len(shown)), wide, 0.62, left=left, color=colour, edgecolor=PAPER, linewidth=0.6, label=label
            )
            left = [a + b for a, b in zip(left, wide, strict=True)]
        axes.set_yticks(range(len(shown)), ["\n".join(textwrap.wrap(p["of"], 18)[:2]) for p in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"mean uncertainty of a row, {unit}")
        axes.grid(True, axis="x")
        figure.legend(loc="outside upper left", ncols=1)

    told = "; ".join(f"{p['of']}: {', '.join(f'{key} {number(p[key])}' for key in PARTS)}" for p in shown)
    return svg("uncertainty", f"Mean uncertainty in {unit}. {told}.", 96 + 22 * max(len(shown), 2), draw)


def predicted_section(found: Json) -> str:
    """Predictions against the truth: means of bins with their intervals, and single rows where those may be shown."""
    bins, points = found["bins"], found.get("points") or []

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ends = [v for b in bins for v in (b["said"], *b["interval"])] + [v for p in points for v in (p[0], p[2])]
        low, high = min(ends), max(ends)
        axes.plot([low, high], [low, high], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        for said, deviation, _ in points:
            axes.vlines(said, said - 1.96 * deviation, said + 1.96 * deviation, color=RULE, linewidth=1)
        axes.plot([p[0] for p in points], [p[2] for p in points], ".", color=MUTED, markersize=3)
        axes.vlines(
            [b["said"] for b in bins], [b["interval"][0] for b in bins], [b["interval"][1] for b in bins], color=ACCENT
        )
        axes.plot([b["said"] for b in bins], [b["seen"] for b in bins], "o", color=ACCENT, markersize=5)
        around = 0.08 * (high - low)
        axes.set(xlabel="predicted", ylabel="true", ylim=(low - around, high + around))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.grid(True)

    told = "; ".join(f"said {number(b['said'])}, was {number(b['seen'])}" for b in bins)
    return svg(
        "predicted", f"Predictions against the truth, in bins of {count(bins[0]['rows'])} rows. {told}.", 300, draw
    )


def examples(found: Sequence[Json], names: Sequence[str] | None) -> str:
    """A row of pictures for each kind of example, with what was said and what is true below each."""
    kinds = list(dict.fromkeys(e["kind"] for e in found))
    across = max(sum(e["kind"] == kind for e in found) for kind in kinds)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(kinds), across, squeeze=False)
        for kind, line in zip(kinds, grid, strict=True):
            own = [e for e in found if e["kind"] == kind]
            for axes, e in zip(line, own, strict=False):
                _example(axes, e, names)
            for axes in line[len(own) :]:
                axes.set_axis_off()
            line[0].set_title(kind, fontsize=9)

    told = "; ".join(f"{e['kind']}: {_told(e, names)}" for e in found)
    return svg("examples", f"Single test rows. {told}.", 112 * len(kinds), draw)


def _example(axes: Axes, e: Json, names: Sequence[str] | None) -> None:
    image = e["image"]
    axes.imshow(image, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest", extent=(0, len(image[0]), len(image), 0))
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel("\n".join(_told(e, names).split(", ")), fontsize=8, color=INK)


def _told(e: Json, names: Sequence[str] | None) -> str:
    name = (lambda c: str(names[c])) if names else str
    return f"said {name(e['said'])} ({percent(e['confidence'])}), is {name(e['true'])}"
