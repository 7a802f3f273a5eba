"""How scores move with heterogeneity, and what they cost in bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from consilience.metrics.communication import bytes_sent, mean_curve
from consilience.report.plots import (
    ACCENT,
    INK,
    MUTED,
    RULE,
    SECOND,
    WIDTH,
    around,
    bytes_axis,
    log_ticks,
    mark,
    svg,
)
from consilience.report.wording import Json, human_bytes, metric, score, value

COLOURS = (ACCENT, SECOND, INK, MUTED)  # the page's own, so that lines stand out in light, dark and print
DASHES: tuple[Any, ...] = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
ACROSS = 3  # panels in a row


def degree(split: str) -> tuple[str, float] | None:
    """('h', 0.3) for `heterogeneous:0.3`, ('α', 0.1) for `dirichlet:0.1`; an even split has h = 0."""
    kind, _, number = split.partition("@")[0].partition(":")
    if kind == "iid":
        return "h", 0.0
    names = {"heterogeneous": "h", "dirichlet": "α"}
    return (names[kind], float(number)) if kind in names and number else None


def degrees(splits: Sequence[str]) -> tuple[str, list[float]] | None:
    """What the splits vary and how much, where they differ in one number alone."""
    found = [degree(split) for split in splits]
    known = [pair for pair in found if pair is not None]
    kinds = {kind for kind, _ in known}
    return (kinds.pop(), [x for _, x in known]) if len(known) == len(found) > 1 and len(kinds) == 1 else None


def heterogeneity(parts: Sequence[Json], key: str) -> str:
    """A proper score against heterogeneity: a panel a row, with all other rows in grey behind it."""
    known = degrees([part["split"] for part in parts])
    assert known is not None
    kind, at = known
    names = [row["name"] for row in parts[0]["rows"]]
    lines = {}
    for name in names:
        own: list[Json] = [next((r for r in part["rows"] if r["name"] == name), {}) for part in parts]
        found = [(x, v, around(r, key)) for x, r in zip(at, own, strict=True) if (v := value(r, key)) is not None]
        lines[name] = sorted(found, key=lambda point: point[0])
    seen = [v for line in lines.values() for _, v, _ in line]
    down = -(-len(names) // ACROSS)

    def panel(axes: Axes, name: str) -> None:
        for other, line in lines.items():
            if other != name:
                axes.plot([p[0] for p in line], [p[1] for p in line], color=RULE, linewidth=1)
        own = lines[name]
        for x, _, span in own:
            if span is not None and None not in span:
                axes.vlines(x, span[0], span[1], color=ACCENT, linewidth=1.2)
        axes.plot([p[0] for p in own], [p[1] for p in own], "o-", color=ACCENT, markersize=3.5)
        axes.set_title("\n".join(textwrap.wrap(name, 20)[:2]), fontsize=8)

    def draw(figure: Figure) -> None:
        grid = list(figure.subplots(down, min(ACROSS, len(names)), sharex=True, sharey=True, squeeze=False).flat)
        for axes, name in zip(grid, names, strict=False):
            panel(axes, name)
        for axes in grid[len(names) :]:
            axes.set_axis_off()
        first = grid[0]
        if kind == "α":
            first.set_xscale("log")
            first.invert_xaxis()
        first.xaxis.set_minor_locator(NullLocator())
        first.set_xticks(sorted(at) if len(at) <= 4 else sorted(at)[:: len(at) // 3])
        first.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        first.yaxis.set_major_locator(MaxNLocator(4))
        if seen and min(seen) > 0 and max(seen) > 8 * min(seen):
            _logarithmic(first)
        for axes in grid[: len(names)]:
            axes.grid(True, axis="y")
        label = "heterogeneity h" if kind == "h" else "Dirichlet α (smaller: more heterogeneous)"
        figure.supxlabel(label, fontsize=9)
        figure.supylabel(metric(key).name, fontsize=9)

    told = "; ".join(
        f"{name}: {', '.join(f'{score(key, v)} at {x:g}' for x, v, _ in line)}" for name, line in lines.items()
    )
    return svg("heterogeneity", f"{metric(key).name} against heterogeneity. {told}.", 34 + 118 * down, draw)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    log_ticks(axes.yaxis)


def _apart(axes: Axes, key: str, values: Sequence[float]) -> None:
    """A score upwards, on a logarithmic scale where the values span much."""
    if min(values) > 0 and max(values) > 8 * min(values):
        _logarithmic(axes)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_ylabel(metric(key).name)
    axes.grid(True, axis="y")


def _named_beside(axes: Axes, points: Sequence[tuple[str, float, float]]) -> None:
    """Names to the right in the order of their points, evenly spaced: they cannot overlap."""
    line = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3}
    for i, (name, x, y) in enumerate(points):
        place = (1.06, 1 - (i + 0.5) / len(points))
        label = "\n".join(textwrap.wrap(name, 22)[:2])
        look: dict[str, Any] = {"va": "center", "fontsize": 8, "color": INK, "arrowprops": line}
        axes.annotate(label, (x, y), place, textcoords="axes fraction", **look)


def _height(many: int) -> float:
    return min(70 + 24 * max(many, 4), WIDTH)


def curves(rows: Sequence[Json], key: str, of: str = "") -> str:
    """A score against the floats sent so far: a line a row, a dot where there is one round only."""
    lines = []
    for row in rows:
        points = [p for p in mean_curve(row["curves"]) if p.get(key) is not None]
        if points:
            lines.append(
                (str(row.get("name", "–")), [bytes_sent(p, "floats") for p in points], [p[key] for p in points])
            )
    lines.sort(key=lambda line: -line[2][-1])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for i, (_, x, y) in enumerate(lines):
            colour, dashes = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
            style = {"marker": "o"} if len(x) == 1 else {"linestyle": dashes}
            axes.plot(x, y, color=colour, markersize=5, linewidth=1.4, **style)
        _float_axis(axes, [v for _, x, _ in lines for v in x])
        _apart(axes, key, [v for _, _, y in lines for v in y])
        _named_beside(axes, [(name, x[-1], y[-1]) for name, x, y in lines])

    told = "; ".join(f"{name} ends at {score(key, y[-1])} after {x[-1]:.3g} floats" for name, x, y in lines)
    alt = f"{metric(key).name} against floats sent. {told}."
    return svg(f"curves-{key}{mark(of)}", alt, _height(len(lines)), draw)


def _float_axis(axes: Axes, values: Sequence[float]) -> None:
    bytes_axis(axes, values)
    axes.set_xlabel("floats, up and down")
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: human_bytes(x).removesuffix("B").strip().replace(".0", ""))
    )


def cost(rows: Sequence[Json], key: str, of: str = "") -> str:
    """A proper score against the bytes that crossed, with every row's name beside its dot."""
    moved = [(r, (r.get("up_bytes") or 0) + (r.get("down_bytes") or 0)) for r in rows]
    points = [(n, v, r) for r, n in moved if n > 0 and (v := value(r, key)) is not None]
    points.sort(key=lambda point: -point[1])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for n, v, r in points:
            span, colour = around(r, key), MUTED if r.get("needs") == "bound" else ACCENT
            if span is not None and None not in span:
                axes.vlines(n, span[0], span[1], color=colour, linewidth=1.2)
            axes.plot(n, v, "o", color=colour, markersize=5)
        bytes_axis(axes, [n for n, _, _ in points])
        _apart(axes, key, [v for _, v, _ in points])
        _named_beside(axes, [(str(r.get("name", "–")), n, v) for n, v, r in points])

    told = "; ".join(f"{r.get('name', '–')} {score(key, v)} for {human_bytes(n)}" for n, v, r in points)
    return svg(f"cost{mark(of)}", f"{metric(key).name} against bytes. {told}.", _height(len(points)), draw)
