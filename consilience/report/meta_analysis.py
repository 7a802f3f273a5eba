"""Meta-analyses of the sites' estimates as people read them: a table, and funnels of sites by their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from consilience.biostatistics.effects import Analysed, Effects
from consilience.biostatistics.heterogeneity import reach
from consilience.biostatistics.meta_analysis import TAUS, Meta
from consilience.errors import InputError
from consilience.report.page import Picture
from consilience.report.plots.drawing import ACCENT, DASHED, MUTED, svg, wrap
from consilience.report.schema.wording import percent

ACROSS = 2
MOST = 8  # funnels that are drawn


def meta_pictures(effects: Effects) -> list[Picture]:
    """Show the meta-analysis of a table's effects, with funnels where the sites' estimates are known; or nothing."""
    try:
        found = effects.meta_analysis()
    except InputError:
        return []
    if not found:
        return []
    drawn = Markup("")
    caption = method_sentence(found[0].meta)
    if effects.by_site:
        drawn = Markup(funnels(effects, found))
        caption += (
            " Each dot is a site: its own estimate, and the standard error of it, most precise on top. Without "
            "small-site effects dots scatter evenly about the dashed mean, most of them within the lines."
        )
    return [Picture("Meta-analysis", drawn, caption, headings(effects), meta_lines(effects, found))]


def method_sentence(meta: Meta) -> str:
    """Say how the analysis was made."""
    mean = "intervals of the mean are normal"
    if meta.hartung_knapp:
        mean = "intervals of the mean are those of Hartung and Knapp (Student's t, k − 1 degrees of freedom)"
    return (
        f"Random effects: τ² by {TAUS[meta.method]}; {mean}; intervals of τ and I² are Q-profiles. "
        f"All are at {percent(meta.coverage)}."
    )


def headings(effects: Effects) -> list[str]:
    """Name the columns of `meta_lines`."""
    name = "mean " + (effects.ratio or "effect")
    return ["effect of", "sites", name, "interval", "p", "tau", "I²", "Q", "p (Q)", "new site"]


def meta_lines(effects: Effects, found: Sequence[Analysed]) -> list[list[str]]:
    """Write the analyses as lines of a table."""
    from consilience.report.forest import figure, span

    ratio = bool(effects.ratio)
    several = len({line.label.outcome for line in found}) > 1
    lines = []
    for label, meta in found:
        name = f"{label.outcome}, {label}" if several else str(label)
        new = "–" if meta.new_low is None or meta.new_high is None else span(meta.new_low, meta.new_high, ratio)
        lines.append(
            [
                name,
                str(meta.sites),
                figure(meta.mean, ratio),
                span(meta.low, meta.high, ratio),
                _p(meta.p),
                f"{meta.tau:.3g} ({meta.tau_low:.2g} to {meta.tau_high:.2g})",
                f"{percent(meta.i2)} ({100 * meta.i2_low:.0f} to {100 * meta.i2_high:.0f})",
                f"{meta.q:.1f}",
                _p(meta.q_p),
                new,
            ]
        )
    return lines


def left_out_lines(effects: Effects, meta: Meta) -> list[list[str]]:
    """Write the analyses without each site as lines of a table."""
    from consilience.report.forest import figure, span

    ratio = bool(effects.ratio)
    return [
        [one.site, figure(one.mean, ratio), span(one.low, one.high, ratio), f"{one.tau:.3g}", percent(one.i2)]
        for one in meta.left_out
    ]


def funnels(effects: Effects, found: Sequence[Analysed]) -> str:
    """Draw a funnel for each effect: the sites' estimates by their standard errors.

    Returns:
        One `<svg>` element.
    """
    shown = found[:MOST]
    down = -(-len(shown) // ACROSS)

    def draw(figure: Figure) -> None:
        grid = figure.subplots(down, ACROSS, squeeze=False)
        for k, line in enumerate(shown):
            axes = grid[k // ACROSS][k % ACROSS]
            _draw_funnel(axes, effects, line)
            axes.set_title(wrap(str(line.label), 26), fontsize=8)
        for k in range(len(shown), down * ACROSS):
            grid[k // ACROSS][k % ACROSS].set_axis_off()
        figure.supxlabel("a site's own estimate, on the scale of the linear predictor", fontsize=9)
        figure.supylabel("standard error", fontsize=9)

    listed = "; ".join(f"{line.label}: {line.meta.sites} sites" for line in shown)
    return svg("funnels", f"Funnel plots of the sites' estimates. {listed}.", 24 + 120 * down, draw)


def _draw_funnel(axes: Axes, effects: Effects, line: Analysed) -> None:
    own = [e for part in effects.by_site.values() for e in part if e.label == line.label and not math.isnan(e.error)]
    most = 1.08 * max(e.error for e in own)
    wide = reach(most, line.meta.coverage)
    mean = line.meta.mean
    axes.plot([mean - wide, mean, mean + wide], [most, 0, most], color=MUTED, linewidth=0.8)
    axes.axvline(mean, color=MUTED, linewidth=0.8, linestyle=DASHED)
    axes.plot([e.estimate for e in own], [e.error for e in own], "o", color=ACCENT, markersize=4)
    axes.set_ylim(most, 0)


def _p(value: float) -> str:
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}"
