"""Figures with a line for each site: scores, rows, bytes."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from consilience.metrics.findings import Scores, Site, Traffic
from consilience.report.plots.drawing import (
    ACCENT,
    BYTES,
    DASHED,
    MANY_SITES,
    MUTED,
    SECOND,
    score_axis,
    site_axis,
    site_height,
    svg,
)
from consilience.report.schema.wording import count, human_bytes, metric, percent, score

MOST_IN_WORDS = 20  # sites that an alternative text lists


def site_scores(sites: Sequence[Site], overall: Scores, keys: Sequence[str], weakest: str | None = None) -> str:
    """Draw each site's scores as dots beside the score over all test rows.

    Args:
        overall: The scores over all rows, drawn as dashed lines.
        keys: Which scores to draw, a panel each.
        weakest: The name of the site that a diamond marks, if any.

    Returns:
        One `<svg>` element.
    """
    names = [site.name for site in sites]

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
        for axes, key in zip(panels, keys, strict=True):
            _draw_scores(axes, sites, key, weakest)
            whole = overall.metrics.get(key)
            if whole is not None:
                axes.axvline(whole, color=MUTED, linewidth=0.8, linestyle=DASHED)
            score_axis(axes, key)
            site_axis(axes, names)
            axes.grid(True, axis=_grid_direction(len(sites)))
        for axes in panels[1:]:
            axes.set_ylabel("")

    def describe(site: Site) -> str:
        return ", ".join(f"{metric(key).name} {score(key, site.scores.value(key))}" for key in keys)

    listed = _list_sites([f"site {site.name}: {describe(site)}" for site in sites])
    return svg("sites", f"Scores per site. {listed}.", site_height(len(sites)), draw)


def site_bytes(traffic: Sequence[Traffic]) -> str:
    """Draw what each site sent and received.

    Returns:
        One `<svg>` element.
    """
    up = [site.up or 0 for site in traffic]
    down = [site.down or 0 for site in traffic]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        aside = 0.17 * any(down)  # one bar of a site above the line, one below
        _draw_bars(axes, -aside, up, 0.3, ACCENT, "up: sent by the site")
        if any(down):
            _draw_bars(axes, aside, down, 0.3, SECOND, "down: received")
        site_axis(axes, [site.site for site in traffic])
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(BYTES)
        axes.grid(True, axis="x")
        figure.legend(loc="outside upper left", ncols=2)

    most_up = human_bytes(max([*up, 0]))
    most_down = human_bytes(max([*down, 0]))
    alt = f"Bytes per site: at most {most_up} sent and {most_down} received by one site."
    return svg("bytes", alt, 20 + site_height(len(traffic)), draw)


def site_rows(sites: Sequence[Site]) -> str:
    """Draw how many rows each site trained on.

    Args:
        sites: The sites; one that withholds its count has no bar.

    Returns:
        One `<svg>` element.
    """
    names = [site.name for site in sites]
    rows = [site.train or 0 for site in sites]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _draw_bars(axes, 0, rows, 0.5, ACCENT, "")
        site_axis(axes, names)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_xlabel("training rows")
        axes.grid(True, axis="x")

    def describe(site: Site) -> str:
        if site.train:
            return count(site.train)
        return "withheld"

    listed = _list_sites([f"site {site.name}: {describe(site)}" for site in sites])
    return svg("rows", f"Training rows per site. {listed}.", site_height(len(names)), draw)


def site_influence(sites: Sequence[Site], most: float | None = None) -> str:
    """Draw how much of the pooled model is each site's.

    Args:
        sites: The sites; one whose influence was not measured has no bar.
        most: The influence that was agreed on, a dashed line; None: nothing was.

    Returns:
        One `<svg>` element.
    """
    names = [site.name for site in sites]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.barh(range(len(names)), [site.influence or 0 for site in sites], 0.5, color=ACCENT)
        if most is not None:
            axes.axvline(most, color=MUTED, linewidth=0.8, linestyle=DASHED)
        site_axis(axes, names)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.set_xlabel("influence on the pooled model")
        axes.grid(True, axis="x")

    listed = _list_sites([f"site {site.name}: {percent(site.influence)}" for site in sites])
    return svg("influence", f"Influence per site. {listed}.", site_height(len(names)), draw)


def _draw_scores(axes: Axes, sites: Sequence[Site], key: str, weakest: str | None) -> None:
    """A dot for each site that has the score; all dots are one artist, which a thousand sites need."""
    places = [i for i, site in enumerate(sites) if site.scores.value(key) is not None]
    marked = [i for i in places if sites[i].name == weakest]
    others = [i for i in places if sites[i].name != weakest]
    for chosen, marker, colour in ((others, "o", ACCENT), (marked, "D", SECOND)):
        values = [sites[i].scores.value(key) or 0.0 for i in chosen]
        axes.plot(values, chosen, marker, color=colour, markersize=4.5)


def _draw_bars(axes: Axes, aside: float, lengths: Sequence[float], thickness: float, colour: str, label: str) -> None:
    """A bar to the right for each site, `aside` from its line; all bars are one artist."""
    low = [i + aside - thickness / 2 for i in range(len(lengths))]
    corners = [
        [(0, y), (length, y), (length, y + thickness), (0, y + thickness)]
        for y, length in zip(low, lengths, strict=True)
    ]
    bars = PolyCollection(corners, facecolors=colour, edgecolors="none", label=label)
    bars.sticky_edges.x.append(0)
    axes.add_collection(bars)
    axes.autoscale_view()


def _grid_direction(sites: int) -> str:
    """Lines lead from a name to its dot, where every site has a name."""
    if sites <= MANY_SITES:
        return "y"
    return "x"


def _list_sites(words: Sequence[str]) -> str:
    """Words about the first sites, and whether there are more."""
    return "; ".join(words[:MOST_IN_WORDS]) + "; …" * (len(words) > MOST_IN_WORDS)
