"""How figures are drawn: by matplotlib, as vectors, coloured by the page's own style sheet.

Colours are names the page resolves, such as `var(--ink)`, so a figure follows light, dark and print; text stays text in
the page's font.
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
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from consilience.report.schema.wording import human_bytes, metric, percent

WIDTH = 340  # units of the view box: a phone's width, so that text of 9 units stays readable there
_VARIABLES = ("ink", "muted", "rule", "wash", "accent", "second", "paper")  # the page's colours
_COLOURS = {f"#c0ffe{i}": name for i, name in enumerate(_VARIABLES)}  # what stands in for them while drawing
INK, MUTED, RULE, WASH, ACCENT, SECOND, PAPER = _COLOURS
DASHED = (0, (4, 3))
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
MANY_SITES = 30  # beyond these only every tenth is named
ROOM = 100.0  # times the lowest: on an axis that goes further labels at 1, 3, 10 and so on would touch
PERCENT = FuncFormatter(lambda x, _: percent(x))
BYTES = FuncFormatter(lambda x, _: human_bytes(x).replace(".0", ""))


def svg(name: str, alt: str, height: float, draw: Callable[[Figure], None]) -> str:
    """Draw a figure for the page.

    Args:
        name: What keeps the ids of this figure apart from those of others on the page.
        height: Its height in units of the view box, which is `WIDTH` wide.
        draw: Draws on an empty figure.

    Returns:
        One `<svg>` element.
    """
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


def mark(split: str) -> str:
    """Make a split's name fit for an id, to keep two figures of one kind apart.

    Args:
        split: The split's name, or nothing where there is one split only.

    Returns:
        The name with dashes for all but letters and digits.
    """
    return re.sub(r"\W", "-", split)


def wrap(name: str, width: int) -> str:
    """Break a name into lines; nothing of it is left out.

    Args:
        name: The name of a row.
        width: Characters in a line.
    """
    return "\n".join(textwrap.wrap(name, width)) or name


def line_height(names: Sequence[str], width: int, usual: float) -> float:
    """Choose the height of a line that has room for its name.

    Args:
        names: The names of all lines.
        width: Characters in a line of a wrapped name.
        usual: The height where names take two lines at most.

    Returns:
        The height in units of the view box.
    """
    most = max((wrap(name, width).count("\n") + 1 for name in names), default=1)
    return max(usual, 12.0 * most)


def shorten(name: str, most: int = 16) -> str:
    """Leave out the middle of a long name: names of sites often differ only at the end.

    Args:
        name: The name of a site or a class.

    Returns:
        The name, with an ellipsis where it was too long.
    """
    if len(name) <= most:
        return name
    return name[: most // 2] + "…" + name[-(most // 2 - 1) :]


def is_wide(values: Sequence[float]) -> bool:
    """Say whether values span so much that a logarithmic scale is needed.

    Args:
        values: What an axis shows.

    Returns:
        Whether the largest is more than eight times the smallest, and all are positive.
    """
    return bool(values) and min(values) > 0 and max(values) > 8 * min(values)


def site_axis(axes: Axes, sites: Sequence[str]) -> None:
    """Put sites from top to bottom, every name where there is room and every tenth otherwise."""
    step = 1
    if len(sites) > MANY_SITES:
        step = 10
    axes.set(ylim=(len(sites) - 0.5, -0.5), ylabel="site")
    axes.set_yticks(range(0, len(sites), step), [shorten(site) for site in sites[::step]])


def site_height(sites: int) -> float:
    """Choose the height of a figure with a line for each site.

    Returns:
        The height in units of the view box.
    """
    return 62 + min(18.0, max(3.0, 420 / sites)) * max(sites, 2)


def score_axis(axes: Axes, key: str, values: Sequence[float] = ()) -> None:
    """Put a score across, on a logarithmic scale where the values span much.

    Args:
        values: All values that will be drawn.
    """
    axes.set_xlabel(metric(key).name)
    axes.margins(x=0.08)
    if is_wide(values):
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        between: tuple[float, ...] = (1.0, 3.0)
        if high > ROOM * low:
            between = (1.0,)
        axes.xaxis.set_major_locator(LogLocator(subs=between, numticks=9))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        return
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if metric(key).percent:
        axes.xaxis.set_major_formatter(PERCENT)


def bytes_axis(axes: Axes, values: Sequence[float]) -> None:
    """Put bytes across, on a logarithmic scale.

    Args:
        values: All values that will be drawn.
    """
    axes.set_xscale("log")
    axes.set(xlim=(min(values) / 4, max(values) * 4), xlabel="bytes, up and down")
    axes.xaxis.set_major_locator(LogLocator(numticks=4))
    axes.xaxis.set_major_formatter(BYTES)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_formatter(NullFormatter())


def log_ticks(axis: Axis) -> None:
    """Put ticks at 1, 2, 5, 10 and so on, in plain figures.

    Args:
        axis: An axis with a logarithmic scale.
    """
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_locator(NullLocator())


def _tidy(tag: str, name: str) -> str:
    """One tag with unique ids, the page's colours and two decimals."""
    tag = re.sub(r'\bid="([^"]*)"', rf'id="{name}-\1"', tag)
    tag = re.sub(r'(?:xlink:)?href="#', f'href="#{name}-', tag).replace("url(#", f"url(#{name}-")
    tag = re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."), tag)
    return re.sub("|".join(_COLOURS), lambda colour: f"var(--{_COLOURS[colour[0]]})", tag)
