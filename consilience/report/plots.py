"""Vector plots for the report, drawn by matplotlib and coloured by the page's own style sheet.

Every function returns one `<svg>` element with its alternative text. Colours are names the page resolves, such as
`var(--ink)`, so a figure follows light, dark and print; text stays text in the page's font.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from consilience.report.wording import Json, count, human_bytes, interval, metric, percent, score, value

WIDTH = 340  # units of the view box: a phone's width, so that text of 9 units stays readable there
_VARIABLES = ("ink", "muted", "rule", "wash", "accent", "second", "paper")  # the page's colours
_COLOURS = {f"#c0ffe{i}": name for i, name in enumerate(_VARIABLES)}  # what stands in for them while drawing
INK, MUTED, RULE, WASH, ACCENT, SECOND, PAPER = _COLOURS
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "consilience", "text.parse_math": False, "font.size": 9, "text.color": INK,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "axes.linewidth": 0.6, "axes.facecolor": "none",
    "axes.spines.top": False, "axes.spines.right": False, "axes.labelsize": 9, "axes.titlesize": 9,
    "axes.titlelocation": "left", "axes.titlecolor": INK, "axes.formatter.useoffset": False, "figure.facecolor": "none",
    "grid.color": RULE, "grid.linewidth": 0.6, "axes.axisbelow": True, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.major.size": 2.5, "ytick.major.size": 0,
    "legend.frameon": False, "legend.fontsize": 8.5, "legend.handlelength": 1.2, "lines.linewidth": 1.4,
}  # fmt: skip
_SHADES = ((0.05, 0.10), (0.15, 0.20), (0.3, 0.32), (0.5, 0.44), (0.75, 0.82), (1, 1))  # up to this share, this opacity
_PERCENT = FuncFormatter(lambda x, _: percent(x))
BYTES = FuncFormatter(lambda x, _: human_bytes(x).replace(".0", ""))


def svg(name: str, alt: str, height: float, draw: Callable[[Figure], None]) -> str:
    """Run `draw` on an empty figure and return it as an element for the page."""
    out = io.StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters the measuring font lacks; the reader's font draws them
        figure = Figure(figsize=(WIDTH / 72, height / 72), layout="constrained")
        draw(figure)
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    body = re.search(r"<svg[^>]*>(.*)</svg>", out.getvalue(), re.DOTALL)
    assert body is not None
    inner = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body[1], flags=re.DOTALL)
    inner = re.sub(r"<[^>]*>", lambda tag: _tidy(tag[0], name), inner)  # inside tags only: texts stay as written
    alt = html.escape(alt, quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{alt}">{inner}</svg>'


def mark(of: str) -> str:
    """What keeps the ids of two figures of one kind apart."""
    return re.sub(r"\W", "-", of)


def _tidy(tag: str, name: str) -> str:
    """One tag with unique ids, the page's colours and two decimals."""
    tag = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', tag)
    tag = re.sub(r'(?:xlink:)?href="#', f'href="#{name}-', tag).replace("url(#", f"url(#{name}-")
    tag = re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."), tag)
    return re.sub("|".join(_COLOURS), lambda colour: f"var(--{_COLOURS[colour[0]]})", tag)


def _agreement(axes: Axes, points: Sequence[tuple[float, float, Sequence[float] | None]], small: bool = False) -> None:
    """Said against seen, with intervals and the diagonal of perfect agreement."""
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
    spans = [(x, *span) for x, _, span in points if span is not None and interval("ece", span)]
    axes.vlines([s[0] for s in spans], [s[1] for s in spans], [s[2] for s in spans], color=ACCENT, linewidth=1.2)
    said, seen = [x for x, _, _ in points], [y for _, y, _ in points]
    axes.plot(said, seen, "o-", color=ACCENT, linewidth=1, markersize=2.5 if small else 4.5)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    form = FuncFormatter(lambda x, _: f"{100 * x:.0f}") if small else _PERCENT
    axes.xaxis.set_major_formatter(form)
    axes.yaxis.set_major_formatter(form)
    axes.grid(True)


def _filled(bins: Sequence[Json]) -> list[tuple[float, float, Sequence[float] | None]]:
    full = [b for b in bins if b.get("confidence") is not None and b.get("accuracy") is not None]
    return [(b["confidence"], b["accuracy"], b.get("interval")) for b in full]


def reliability(bins: Sequence[Json]) -> str:
    """Confidence against accuracy with Wilson intervals, over a histogram of the confidences with counts."""

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
        _agreement(upper, _filled(bins))
        upper.set_ylabel("right")
        heights = [b.get("count") or 0 for b in bins]
        for b, n in zip(bins, heights, strict=True):
            lower.bar(b["low"], n, b["high"] - b["low"], align="edge", color=ACCENT, edgecolor=PAPER, linewidth=0.8)
            if n and len(bins) <= 20:
                middle = (b["low"] + b["high"]) / 2
                label = count(n) if n < 1000 else f"{n / 1000:.0f}k"
                lower.annotate(label, (middle, n), (0, 1.5), textcoords="offset points", ha="center", fontsize=7.5)
        lower.set(xlabel="confidence", ylabel="rows", yticks=[], ylim=(0, 1.3 * max([*heights, 1])))
        lower.spines["left"].set_visible(False)

    pairs = "; ".join(f"said {percent(c)}, right {percent(a)}" for c, a, _ in _filled(bins))
    return svg("reliability", f"Reliability diagram. {pairs or 'No predictions'}.", 340, draw)


def coverage(levels: Sequence[Json]) -> str:
    """Nominal against observed coverage of the predictive intervals."""
    points = [(c["level"], c["observed"], c.get("interval")) for c in levels if c.get("observed") is not None]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _agreement(axes, points)
        axes.set(xlabel="nominal coverage", ylabel="observed coverage")

    pairs = "; ".join(f"the {percent(x)} intervals hold {percent(y)} of the rows" for x, y, _ in points)
    return svg("coverage", f"Coverage curve. {pairs or 'No levels'}.", 300, draw)


def reliabilities(rows: Sequence[Json]) -> str:
    """A small reliability diagram for every row of a comparison."""
    across = min(3, len(rows))
    down = -(-len(rows) // across)

    def draw(figure: Figure) -> None:
        grid = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
        for axes, row in zip(grid, rows, strict=False):
            _agreement(axes, _filled(row["reliability"]), small=True)
            axes.set_title("\n".join(textwrap.wrap(str(row.get("name", "–")), 22)[:2]), fontsize=8)
        for axes in grid[len(rows) :]:
            axes.set_axis_off()
        figure.supxlabel("confidence, %", fontsize=9)
        figure.supylabel("right, %", fontsize=9)

    names = ", ".join(str(row.get("name", "–")) for row in rows)
    return svg("reliabilities", f"Reliability diagrams of {names}.", 30 + 128 * down, draw)


def labels(counts: Sequence[Sequence[int]], sites: Sequence[str], classes: Sequence[str], of: str = "") -> str:
    """How many rows of each class every site holds: sites down, classes across."""
    many, top = len(sites), max([n for row in counts for n in row] + [1])
    alt = f"Rows per class at {count(many, 'site')} and {count(len(classes), 'class').replace('classs', 'classes')}; "
    return shade(
        f"labels{mark(of)}", alt + f"the largest cell holds {count(top, 'row')}.", counts, sites, classes, count
    )


def shade(
    name: str,
    alt: str,
    values: Sequence[Sequence[float]],
    sites: Sequence[str],
    classes: Sequence[str],
    shown: Callable[[Any], str],
) -> str:
    """One number for each site and class, the larger the stronger its colour."""
    many, top = len(sites), max([n for row in values for n in row] + [1e-9])
    tall = min(24.0, max(5.0, 600 / many))
    written = many <= 30 and len(classes) <= 12

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.set_facecolor(WASH)
        for shade, (_, opacity) in enumerate(_SHADES):
            cells = [c for i, row in enumerate(values) for c in _runs(row, i, shade, top)]
            if cells:
                path = Path.make_compound_path(*cells)
                axes.add_patch(PathPatch(path, facecolor=ACCENT, alpha=opacity, linewidth=0))
        for i, row in enumerate(values):
            for j, n in enumerate(row):
                if n and written:
                    colour = PAPER if _shade(n, top) >= 4 else INK
                    axes.text(j, i, shown(n), ha="center", va="center", fontsize=8, color=colour)
        site_axis(axes, sites)
        axes.set(xlim=(-0.5, len(classes) - 0.5), xlabel="class")
        step = 1 if len(classes) <= 12 else 5 if len(classes) <= 30 else 10
        long = max([len(c) for c in classes] + [0]) > (3 if len(classes) > 6 else 8)
        names = [_short(c, 14) for c in classes[::step]]
        axes.set_xticks(range(0, len(classes), step), names, rotation=90 if long and step == 1 else 0)

    return svg(name, alt, 60 + tall * max(many, 2), draw)


def _shade(n: float, top: float) -> int:
    return next(i for i, (share, _) in enumerate(_SHADES) if n <= share * top or i == len(_SHADES) - 1)


def _runs(row: Sequence[float], y: int, shade: int, top: float) -> list[Path]:
    """The cells of one shade in one row, neighbours joined, as rectangles."""
    hit = [n > 0 and _shade(n, top) == shade for n in row]
    starts = [j for j, h in enumerate(hit) if h and not (j and hit[j - 1])]
    ends = [j for j, h in enumerate(hit) if h and not (j + 1 < len(hit) and hit[j + 1])]
    edge = 0.5
    boxes = [[(a - edge, y - edge), (b + edge, y - edge), (b + edge, y + edge), (a - edge, y + edge), (0, 0)]
             for a, b in zip(starts, ends, strict=True)]  # fmt: skip
    return [Path(b, [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY]) for b in boxes]


def _short(name: str, most: int = 16) -> str:
    """A long name without its middle: names of sites often differ only at the end."""
    return name if len(name) <= most else name[: most // 2] + "…" + name[-(most // 2 - 1) :]


def site_axis(axes: Axes, sites: Sequence[str]) -> None:
    """Sites from top to bottom, every name where there is room and every tenth otherwise."""
    step = 1 if len(sites) <= 30 else 10
    axes.set(ylim=(len(sites) - 0.5, -0.5), ylabel="site")
    axes.set_yticks(range(0, len(sites), step), [_short(s) for s in sites[::step]])


def site_height(many: int) -> float:
    return 62 + min(18.0, max(3.0, 420 / many)) * max(many, 2)


def score_axis(axes: Axes, key: str, values: Sequence[float] = ()) -> None:
    """A score across, on a logarithmic scale where the values span much."""
    axes.set_xlabel(metric(key).name)
    axes.margins(x=0.08)
    if values and min(values) > 0 and max(values) > 8 * min(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=9))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        return
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if metric(key).percent:
        axes.xaxis.set_major_formatter(_PERCENT)


def rounds(history: Sequence[Json], keys: Sequence[str]) -> str:
    """Scores over the rounds, one panel each."""

    def draw(figure: Figure) -> None:
        panels = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
        for axes, key in zip(panels, keys, strict=True):
            found = [(h.get("round", i + 1), h[key]) for i, h in enumerate(history) if h.get(key) is not None]
            x, y = [p[0] for p in found], [p[1] for p in found]
            axes.plot(x, y, "o-", color=ACCENT, markersize=3 if len(x) <= 50 else 0)
            axes.set_title(metric(key).name)
            axes.yaxis.set_major_locator(MaxNLocator(4))
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            if metric(key).percent:
                axes.yaxis.set_major_formatter(_PERCENT)
            axes.grid(True, axis="y")
        panels[-1].set_xlabel("round")

    def told(key: str) -> str:
        return f"{metric(key).name} from {score(key, history[0].get(key))} to {score(key, history[-1].get(key))}"

    alt = f"Scores over {count(len(history), 'round')}: {', '.join(told(k) for k in keys)}."
    return svg("rounds", alt, 40 + 120 * len(keys), draw)


def ranking(groups: Sequence[tuple[str, str, Sequence[Json]]], key: str, of: str = "") -> str:
    """A proper score of every row, plain with its interval and tempered, beside the bytes it cost."""
    rows = [(group == "bound", row) for group, _, members in groups for row in members]
    gaps = [sum(len(m) for _, _, m in groups[:g]) - 0.5 for g in range(1, len(groups))]
    costs = [((r.get("up_bytes") or 0) + (r.get("down_bytes") or 0), i) for i, (_, r) in enumerate(rows)]
    costs = [(n, i) for n, i in costs if n > 0]

    def draw(figure: Figure) -> None:
        panels: Any = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2]) if costs else [figure.subplots()]
        axes = panels[0]
        for i, (bound, row) in enumerate(rows):
            colour, span = MUTED if bound else ACCENT, around(row, key)
            plain, soft = value(row, key), value(row, key, tempered=True)
            if span is not None and interval(key, span):
                axes.hlines(i - 0.14, span[0], span[1], color=colour, linewidth=1.2)
            if plain is not None:
                axes.plot(plain, i - 0.14, "o", color=colour, markersize=5)
            if soft is not None:
                axes.plot(soft, i + 0.16, "D", markerfacecolor=PAPER, markeredgecolor=SECOND, markersize=4.5)
        names = ["\n".join(textwrap.wrap(str(r.get("name", "–")), 20)[:2]) for _, r in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        seen = [v for _, r in rows for t in (False, True) if (v := value(r, key, t)) is not None]
        score_axis(axes, key, seen)
        axes.plot([], [], "o", color=ACCENT, markersize=5, label="plain")
        axes.plot([], [], "D", markerfacecolor=PAPER, markeredgecolor=SECOND, markersize=4.5, label="tempered")
        figure.legend(loc="outside upper left", ncols=2)
        if costs:
            panels[1].plot([n for n, _ in costs], [i for _, i in costs], "s", color=ACCENT, markersize=4.5)
            bytes_axis(panels[1], [n for n, _ in costs])
        for panel in panels:
            panel.grid(True, axis="y")
            for gap in gaps:
                panel.axhline(gap, color=MUTED, linewidth=0.6)

    told = "; ".join(f"{r.get('name', '–')} {score(key, value(r, key))}" for _, r in rows)
    return svg(f"ranking{mark(of)}", f"{metric(key).name} of every row: {told}.", 70 + 26 * max(len(rows), 2), draw)


def around(row: Json, key: str) -> Sequence[float] | None:
    """A score's interval, or one standard error either way."""
    plain, error = value(row, key), (row.get("errors") or {}).get(key)
    known = (row.get("intervals") or {}).get(key)
    return known if known or plain is None or error is None else (plain - error, plain + error)


def log_ticks(axis: Axis) -> None:
    """1, 2, 5, 10 … in plain figures."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_locator(NullLocator())


def bytes_axis(axes: Axes, values: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.set(xlim=(min(values) / 4, max(values) * 4), xlabel="bytes, up and down")
    axes.xaxis.set_major_locator(LogLocator(numticks=4))
    axes.xaxis.set_major_formatter(BYTES)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())
