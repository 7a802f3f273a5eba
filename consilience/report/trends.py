"""How scores move with heterogeneity, and what they cost in bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from consilience.communication import mean_curve, sent
from consilience.report.plots import ACCENT, INK, MUTED, RULE, WIDTH, around, bytes_axis, drawn, marked
from consilience.report.words import Json, human_bytes, metric, score, value

COLOURS = ("#1f5a96", "#b3261e", "#2e7d32", "#c05a00", "#6b4fa0", "#0f8a8a", "#a0862c", "#7a7a7a")
ACROSS = 3  # panels in a row


def degree(split: str) -> tuple[str, float] | None:
    """(«h», 0.3) for «heterogeneous:0.3», («α», 0.1) for «dirichlet:0.1»; an even split has h = 0."""
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
    return drawn("heterogeneity", f"{metric(key).name} against heterogeneity. {told}.", 34 + 118 * down, draw)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def curves(rows: Sequence[Json], key: str, of: str = "") -> str:
    """A score against the floats sent so far: a line a row, a dot where there is one round only."""
    lines = []
    for row in rows:
        points = [p for p in mean_curve(row["curves"]) if p.get(key) is not None]
        if points:
            lines.append((str(row.get("name", "–")), [sent(p, "floats") for p in points], [p[key] for p in points]))
    lines.sort(key=lambda line: -line[2][-1])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        for i, (_, x, y) in enumerate(lines):
            style = "o" if len(x) == 1 else "-"
            axes.plot(x, y, style, color=COLOURS[i % len(COLOURS)], markersize=6, linewidth=1.4)
        seen = [v for _, _, y in lines for v in y]
        if min(seen) > 0 and max(seen) > 8 * min(seen):
            _logarithmic(axes)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: human_bytes(x).removesuffix("B").strip()))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="floats, up and down", ylabel=metric(key).name)
        axes.grid(True, axis="y")
        several = [line for line in lines if len(line[1]) > 1]
        for i, (name, x, y) in enumerate(lines):
            look: dict[str, Any] = {"va": "center", "fontsize": 8, "color": COLOURS[i % len(COLOURS)]}
            if len(x) == 1:
                axes.annotate(name, (x[0], y[0]), (8, 0), textcoords="offset points", **look)
                continue
            beside = 1 - (several.index((name, x, y)) + 0.5) / len(several)  # in order of the last scores
            line = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "relpos": (0, 0.5)}
            label = "\n".join(textwrap.wrap(name, 22)[:2])
            axes.annotate(label, (x[-1], y[-1]), (1.06, beside), textcoords="axes fraction", arrowprops=line, **look)

    told = "; ".join(f"{name} ends at {score(key, y[-1])} after {x[-1]:.3g} floats" for name, x, y in lines)
    height = min(150 + 24 * len(lines), WIDTH)
    return drawn(f"curves-{key}{marked(of)}", f"{metric(key).name} against floats sent. {told}.", height, draw)


def cost(rows: Sequence[Json], key: str, of: str = "") -> str:
    """A proper score against the bytes that crossed, with every row's name beside its dot."""
    moved = [(r, (r.get("up_bytes") or 0) + (r.get("down_bytes") or 0)) for r in rows]
    points = [(n, v, r) for r, n in moved if n > 0 and (v := value(r, key)) is not None]
    points.sort(key=lambda point: -point[1])
    height = 70 + 24 * max(len(points), 4)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for n, v, r in points:
            span, colour = around(r, key), MUTED if r.get("needs") == "bound" else ACCENT
            if span is not None and None not in span:
                axes.vlines(n, span[0], span[1], color=colour, linewidth=1.2)
            axes.plot(n, v, "o", color=colour, markersize=5)
        bytes_axis(axes, [n for n, _, _ in points])
        values = [v for _, v, _ in points]
        if min(values) > 0 and max(values) > 8 * min(values):
            _logarithmic(axes)
        else:
            axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set_ylabel(metric(key).name)
        axes.grid(True, axis="y")
        many = len(points)
        for i, (n, v, r) in enumerate(points):  # names in order of the scores, evenly spaced: they cannot overlap
            beside = 1 - (i + 0.5) / many
            axes.annotate(
                "\n".join(textwrap.wrap(str(r.get("name", "–")), 22)[:2]),
                (n, v),
                (1.06, beside),
                textcoords="axes fraction",
                va="center",
                fontsize=8,
                color=INK,
                arrowprops={
                    "arrowstyle": "-",
                    "color": MUTED,
                    "linewidth": 0.5,
                    "relpos": (0, 0.5),
                    "shrinkA": 1,
                    "shrinkB": 3,
                },
            )

    told = "; ".join(f"{r.get('name', '–')} {score(key, v)} for {human_bytes(n)}" for n, v, r in points)
    return drawn(f"cost{marked(of)}", f"{metric(key).name} against bytes. {told}.", min(height, WIDTH), draw)
