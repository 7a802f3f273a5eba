"""The forest plot: every site's own estimate of an effect, the pooled one, and what to expect at a new site."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from consilience.biostatistics.effects import Effect, Effects, Estimate, from_json
from consilience.biostatistics.heterogeneity import reach
from consilience.biostatistics.terms import INTERCEPT
from consilience.errors import refuse_damage
from consilience.report.meta_analysis import meta_pictures
from consilience.report.page import Picture
from consilience.report.plots.drawing import ACCENT, DASHED, INK, MUTED, SECOND, shorten, svg, wrap
from consilience.report.schema.wording import Json, percent

NEW_SITE = "a new site"
MOST_EFFECTS = 16  # that are drawn; the table has all
MOST_SITES = 20  # whose estimates are drawn one by one
ACROSS = 2
EXTREME = math.log(9999)  # of a ratio, beyond which none is written or drawn
UNKNOWN = "not estimable"  # of an effect that a site's rows do not determine
FAR = 5.0  # times the middle interval's half-width from the pooled estimate, beyond which intervals are cut off


class Line(NamedTuple):
    """A line of a panel.

    Attributes:
        name: Whose it is.
        middle: The estimate; None for an interval alone.
        low: Where its interval begins.
        high: Where it ends.
        colour: Its colour.
        marker: Its marker.
    """

    name: str
    middle: float | None
    low: float
    high: float
    colour: str
    marker: str


def effects_pictures(value: Json | None) -> list[Picture]:
    """Draw the effects of a report.

    Args:
        value: The table as the report has it; None where it has none.

    Returns:
        One figure with its table, and the sites' meta-analysis where it is known; or none.
    """
    if not value:
        return []
    with refuse_damage("The report does not hold what a table of effects holds: run or pool again."):
        effects = from_json(value)
    if not any(row.column != INTERCEPT and not math.isnan(row.error) for row in effects):
        return []
    table = Picture("Effects", Markup(forest(effects)), _caption(effects), _headings(effects), _table(effects))
    return [table, *meta_pictures(effects)]


def forest(effects: Effects) -> str:
    """Draw a small panel for each effect, sites from top to bottom.

    Returns:
        One `<svg>` element.
    """
    places = [
        i
        for i, estimate in enumerate(effects.estimates)
        if estimate.label.column != INTERCEPT and not math.isnan(estimate.error)
    ][:MOST_EFFECTS]
    rows = effects.rows
    panels = [_lines(effects, place, rows[place]) for place in places]
    names = [line.name for line in max(panels, key=len)]
    down = -(-len(panels) // ACROSS)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(down, ACROSS, squeeze=False)
        for k, (place, lines) in enumerate(zip(places, panels, strict=True)):
            axes = grid[k // ACROSS][k % ACROSS]
            _draw_panel(axes, lines, names, is_ratio=bool(effects.ratio), named=k % ACROSS == 0)
            axes.set_title(wrap(_title(effects, effects.estimates[place]), 26), fontsize=8)
        for k in range(len(panels), down * ACROSS):
            grid[k // ACROSS][k % ACROSS].set_axis_off()
        figure.supxlabel(effects.ratio or "effect, in the units of target and column", fontsize=9)

    listed = "; ".join(_describe(effects, row) for row in effects if row.column != INTERCEPT)
    return svg("effects", f"Forest plot of the effects. {listed}.", 24 + down * (58 + 11 * len(names)), draw)


def _lines(effects: Effects, place: int, row: Effect) -> list[Line]:
    """The sites' lines, the pooled one, and that of a newcomer."""
    label = effects.estimates[place].label
    lines = []
    if len(effects.by_site) <= MOST_SITES:
        for site, found in effects.by_site.items():
            own = next((estimate for estimate in found if estimate.label == label), None)
            if own is None:
                lines.append(Line(site, None, math.nan, math.nan, ACCENT, ""))
                continue
            wide = reach(own.error, effects.level)
            lines.append(Line(site, own.estimate, own.estimate - wide, own.estimate + wide, ACCENT, "o"))
    lines.append(Line("pooled", row.estimate, row.low, row.high, INK, "D"))
    if row.newcomer_low is not None and row.newcomer_high is not None:
        lines.append(Line(NEW_SITE, None, row.newcomer_low, row.newcomer_high, SECOND, ""))
    return lines


def _draw_panel(axes: Axes, lines: Sequence[Line], names: Sequence[str], is_ratio: bool, named: bool) -> None:
    places = {name: i for i, name in enumerate(names)}
    low, high = _ends(lines)
    if is_ratio:
        low, high = max(low, -EXTREME), min(high, EXTREME)
    for line in lines:
        y = places[line.name]
        if math.isnan(line.low):
            axes.text(0.02, y, UNKNOWN, transform=axes.get_yaxis_transform(), fontsize=6, color=MUTED, va="center")
            continue
        ends = [_shown(min(max(end, low), high), is_ratio) for end in (line.low, line.high)]
        axes.plot(ends, [y, y], color=line.colour, linewidth=1.2)
        if line.middle is not None and low <= line.middle <= high:
            axes.plot([_shown(line.middle, is_ratio)], [y], line.marker, color=line.colour, markersize=4)
    axes.axvline(_shown(0.0, is_ratio), color=MUTED, linewidth=0.8, linestyle=DASHED)
    axes.set_ylim(len(names) - 0.5, -0.5)
    labels = [""] * len(names)
    if named:
        labels = [shorten(name, 14) for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.set_xlim(_shown(low, is_ratio), _shown(high, is_ratio))
    axes.xaxis.set_major_locator(MaxNLocator(3))
    if is_ratio and high - low > math.log(6):
        axes.set_xscale("log")
        ticks = _ticks(low, high)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(True, axis="x")


def _ends(lines: Sequence[Line]) -> tuple[float, float]:
    """How far a panel reaches: no effect, the pooled estimate, and intervals as far as they are not absurdly wide."""
    pooled = next(line for line in lines if line.marker == "D")
    assert pooled.middle is not None
    widths = [(line.high - line.low) / 2 for line in lines if not math.isnan(line.low)]
    most = FAR * statistics.median(widths)
    low = min(0.0, max(pooled.middle - most, min(line.low for line in lines if not math.isnan(line.low))))
    high = max(0.0, min(pooled.middle + most, max(line.high for line in lines if not math.isnan(line.low))))
    edge = 0.04 * (high - low) or 0.1
    return low - edge, high + edge


def _ticks(low: float, high: float) -> list[float]:
    """Three or four round ratios between two ends, 1 among them."""
    decades = (high - low) / math.log(10)
    step = max(1, math.ceil(decades / 3))  # decades between two ticks
    first = math.ceil(low / math.log(10) / step)
    last = math.floor(high / math.log(10) / step)
    ticks = [10.0 ** (k * step) for k in range(first, last + 1)]
    if decades < 2:
        ticks += [tick for tick in (0.03, 0.3, 3.0, 30.0) if low <= math.log(tick) <= high]
    return sorted(ticks)


def _shown(value: float, is_ratio: bool) -> float:
    """A value as it is drawn and written; ratios that are neither are left at where they end."""
    if is_ratio:
        return math.exp(min(max(value, -700.0), 700.0))
    return value


def _title(effects: Effects, estimate: Estimate) -> str:
    label = estimate.label
    text = str(label)
    if len({other.label.outcome for other in effects.estimates}) > 1:
        text = f"{label.outcome}, {text}"
    return text


def _caption(effects: Effects) -> str:
    level = percent(effects.level)
    parts = []
    if effects.ratio:
        against = ""
        if effects.against:
            outcomes = " or ".join(dict.fromkeys(estimate.label.outcome for estimate in effects.estimates))
            against = f" for {outcomes} against {effects.against}"
        parts.append(f"{effects.ratio.capitalize()}s{against}, each with the other columns held fixed.")
    else:
        parts.append("The change of the target for one unit of a column, the other columns held fixed.")
    if effects.by_site:
        parts.append(f"Dots are the sites' own estimates with {level} intervals, the diamond is the pooled one.")
    else:
        parts.append(f"The diamond is the pooled estimate with its {level} interval.")
    if effects.newcomers:
        parts.append("The pooled estimate is the mean of the sites' effects, as far as it is known.")
    if any(row.newcomer_low is not None for row in effects):
        parts.append("The line below it is where the effect at a new site is expected.")
    if any(len(found) < len(effects) for found in effects.by_site.values()):
        parts.append(
            f"“{UNKNOWN}” means that the site's rows do not determine this effect, as where a level is missing, "
            "stands for only one outcome or depends on other columns; the site is left out of τ, I² and Q there."
        )
    parts.append("The dashed line is no effect; intervals far wider than others are cut off.")
    parts += effects.notes
    if len(effects) - 1 > MOST_EFFECTS:
        parts.append(f"The first {MOST_EFFECTS} of {len(effects) - 1} are drawn.")
    return " ".join(parts)


def _headings(effects: Effects) -> list[str]:
    name = effects.ratio.capitalize() or "Effect"
    level = percent(effects.level)
    between = []
    if any(row.sites for row in effects):
        between = differences(effects)
    return ["Effect", name, f"{level} interval", *effects.by_site, *between]


def differences(effects: Effects) -> list[str]:
    """Name the columns that say how much the sites differ.

    Returns:
        Their names; without the new site's where it has lines of its own.
    """
    names = ["τ", "I²", "p (Q)", "New site"]
    if effects.newcomers:
        return names[:-1]
    return names


def _table(effects: Effects) -> list[list[str]]:
    rows = effects.rows
    differ = any(row.sites for row in rows)
    lines = []
    for place, (estimate, row) in enumerate(zip(effects.estimates, rows, strict=True)):
        lines.append(_table_row(effects, estimate, row, differ))
        if effects.newcomers:
            cells = new_site(effects, place)
            lines.append([NEW_SITE, *cells[2:], *["–"] * (len(lines[-1]) - 3)])
    return lines


def new_site(effects: Effects, place: int) -> list[str]:
    """Write a new site's line under an effect.

    Args:
        effects: The table, whose newcomers are known.
        place: The effect's number in it, from 0.

    Returns:
        The coefficient, its standard error, the effect as it is shown, and its interval.
    """
    new = effects.newcomers[place]
    is_ratio = bool(effects.ratio)
    wide = reach(new.error, effects.level)
    ends = span(new.estimate - wide, new.estimate + wide, is_ratio)
    return [figure(new.estimate, False), figure(new.error, False), figure(new.estimate, is_ratio), ends]


def _table_row(effects: Effects, estimate: Estimate, row: Effect, differ: bool) -> list[str]:
    is_ratio = bool(effects.ratio)
    cells = [_title(effects, estimate), figure(row.estimate, is_ratio), span(row.low, row.high, is_ratio)]
    for found in effects.by_site.values():
        own = next((other for other in found if other.label == estimate.label), None)
        if own is None:
            cells.append(UNKNOWN)
            continue
        wide = reach(own.error, effects.level)
        ends = span(own.estimate - wide, own.estimate + wide, is_ratio)
        cells.append(f"{figure(own.estimate, is_ratio)} ({ends})")
    if differ:
        cells += between(row, is_ratio)[: len(differences(effects))]
    return cells


def between(row: Effect, is_ratio: bool) -> list[str]:
    """Write how much the sites differ.

    Args:
        row: A line of the table.
        is_ratio: Whether effects are shown as ratios.

    Returns:
        τ, I², the p-value of Q, and the interval for a new site; dashes where they are not known.
    """
    if row.tau is None or row.i2 is None or row.q_p is None:
        return ["–"] * 4
    newcomer = "–"
    if row.newcomer_low is not None and row.newcomer_high is not None:
        newcomer = span(row.newcomer_low, row.newcomer_high, is_ratio)
    return [f"{row.tau:.3g}", percent(row.i2), f"{row.q_p:.3f}", newcomer]


def figure(value: float, is_ratio: bool) -> str:
    """Write an effect with three or four digits; a dash where it is not estimable.

    Args:
        value: On the scale of the linear predictor.
        is_ratio: Whether it is shown as a ratio.

    Returns:
        The number.
    """
    if math.isnan(value):
        return "–"
    if is_ratio and value > EXTREME:
        return "> 9999"
    if is_ratio and value < -EXTREME:
        return "< 0.0001"
    shown = _shown(value, is_ratio)
    if is_ratio and 0.1 <= shown < 10:
        return f"{shown:.3f}"
    return f"{shown:#.3g}".rstrip(".").replace("-", "−")


def span(low: float, high: float, is_ratio: bool) -> str:
    """Write an interval of an effect.

    Args:
        low: Its lower end, on the scale of the linear predictor.
        is_ratio: Whether it is shown as a ratio.

    Returns:
        The two ends.
    """
    if math.isnan(low):
        return "not estimable"
    return f"{figure(low, is_ratio)} to {figure(high, is_ratio)}"


def _describe(effects: Effects, row: Effect) -> str:
    is_ratio = bool(effects.ratio)
    name = " ".join(word for word in (row.outcome, row.column, row.level) if word)
    return f"{name} {figure(row.estimate, is_ratio)}, {span(row.low, row.high, is_ratio)}"
