"""The page of a paper's experiment: ours beside theirs, cell by cell, and how far apart they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.report import plots
from consilience.report.page import Cell, Picture, known_fields, render, seeds_words
from consilience.report.wording import Json, count, metric, number

BESIDE = ("accuracy", "rmse", "nll", "brier", "crps")  # shown too, where an experiment keeps them
NEAR = 2.0  # standard errors


def reproduction_page(results: Json) -> str:
    """The page of an experiment, from what `results.json` holds."""
    cells, digits = results["cells"], int(results.get("digits", 3))
    printed = [c for c in cells if c["paper"] is not None]
    return render(
        kind="reproduction",
        title=str(results["title"]),
        lead=_lead(results, digits),
        summary="",
        facts=known_fields(
            ("Experiment", str(results["experiment"])),
            ("Score", metric(results["score"]).name),
            ("Scale", str(results["scale"])),
            ("Seed" if len(results["seeds"]) == 1 else "Seeds", seeds_words(results["seeds"])),
        ),
        alerts=_alerts(results),
        scores={},
        tables=[_table(results, column, digits) for column in dict.fromkeys(c["column"] for c in cells)],
        notes=_notes(results, bool(printed)),
        caution="",
        pictures=_pictures(printed, metric(results["score"]).name, digits),
        details=[],
        version="",
    )


def _lead(results: Json, digits: int) -> str:
    """How many cells come near the paper's; only of those that can be compared."""
    cells = results["cells"]
    both = [c for c in cells if c["comparable"] and c["ours"] is not None]
    if not both:
        return (
            "" if any(c["paper"] is not None for c in cells) else "The paper prints no numbers to compare these with."
        )
    if results["scale"] != "full":
        return f"{count(len(both), 'cell')} beside the paper's, at a smaller scale than its own: '{results['scale']}'."
    apart = [abs(c["away_in_standard_errors"]) for c in both if c.get("away_in_standard_errors") is not None]
    middle = f"{statistics.median(abs(c['ours'] - c['paper']) for c in both):.{digits}f}"
    said = f"{count(len(both), 'cell')} can be compared with the paper's; half of them differ by at most {middle}"
    near = sum(a <= NEAR for a in apart)
    return said + (f"; {near} of the {len(apart)} with known spreads are within two standard errors." if apart else ".")


def _alerts(results: Json) -> list[str]:
    found, other = [], [c for c in results["cells"] if c["paper"] is not None and not c["comparable"]]
    if results["scale"] != "full":
        found.append(f"Run at the scale '{results['scale']}', not at the paper's: distances to it say little.")
    if len(results["seeds"]) < 3:
        found.append(f"Only {count(len(results['seeds']), 'seed')}: our own spread is unknown or a guess.")
    if other:
        named = ", ".join(dict.fromkeys(c["column"] for c in other))
        found.append(f"Other data than the paper's, not comparable: {named}.")
    found += [f"Lost: {sentence}" for sentence in results.get("lost") or []]
    missing = [c for c in results["cells"] if c["ours"] is None]
    if missing:
        found.append(f"{count(len(missing), 'cell')} of the paper {'is' if len(missing) == 1 else 'are'} still empty.")
    return found


def _table(results: Json, column: str, digits: int) -> dict[str, Any]:
    own = [c for c in results["cells"] if c["column"] == column]
    printed = any(c["paper"] is not None for c in own)
    beside = [k for k in BESIDE if k != results["score"] and any(c.get("scores", {}).get(k) is not None for c in own)]
    heads = [("Row", ""), ("Ours", metric(results["score"]).name), ("Seeds", "")]
    heads += [("Paper", "printed"), ("Apart", "standard errors")] if printed else []
    heads += [(metric(k).name, "ours") for k in beside]
    rows = []
    for c in own:
        cells = [_value(c["ours"], c["spread"], digits, c.get("open", False)), Cell(count(c["seeds"]))]
        cells += [_value(c["paper"], c["paper_spread"], digits), _apart(c)] if printed else []
        cells += [Cell(number(c.get("scores", {}).get(k))) for k in beside]
        rows.append({"name": str(c["row"]), "cells": cells})
    return {"title": column, "heads": heads, "rows": rows}


def _value(value: float | None, spread: float | None, digits: int, empty: bool = False) -> Cell:
    if value is None:
        return Cell("open" if empty else "–", grey=empty)
    near = f"± {spread:.{digits}f}" if spread else ""
    return Cell(f"{value:.{digits}f}".replace("-", "−"), near)


def _apart(cell: Json) -> Cell:
    """How far ours lies from theirs, in standard errors of both."""
    away = cell.get("away_in_standard_errors")
    other = "other data" if cell["paper"] is not None and not cell["comparable"] else ""
    text = "–" if away is None else "0.0" if abs(away) < 0.05 else f"{away:+.1f}".replace("-", "−")
    return Cell(text, other, grey=bool(other))


def _notes(results: Json, printed: bool) -> list[str]:
    notes = [f"Small figures after ± are ours: {results['spread']}; the paper's: as printed."]
    if printed:
        notes.append(
            "Apart: ours minus the paper's, in standard errors of the two together; above 2 either way is far."
        )
    return notes


def _pictures(printed: Sequence[Json], name: str, digits: int) -> list[Picture]:
    both = [c for c in printed if c["ours"] is not None]
    if len(both) < 3:
        return []
    caption = "On the dashed line ours is the paper's; bars are the spreads where known."
    caption += " Grey: other data, not comparable." if not all(c["comparable"] for c in both) else ""
    return [Picture("Ours against the paper's", Markup(_against(both, name, digits)), caption)]


def _against(cells: Sequence[Json], name: str, digits: int) -> str:
    values = [v for c in cells for v in (c["ours"], c["paper"])]
    wide = min(values) > 0 and max(values) > 8 * min(values)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        if wide:
            axes.set(xscale="log", yscale="log")
            for axis in (axes.xaxis, axes.yaxis):
                plots.log_ticks(axis)
        axes.axline((values[1], values[1]), (2 * values[1] + 1, 2 * values[1] + 1), color=plots.MUTED,
                    linewidth=0.8, linestyle=(0, (4, 3)))  # fmt: skip
        for c in cells:
            colour = plots.ACCENT if c["comparable"] else plots.MUTED
            axes.errorbar(c["paper"], c["ours"], c["spread"] or 0, c["paper_spread"] or 0, "o", color=colour,
                          markersize=3.5, elinewidth=0.8)  # fmt: skip
        if not wide:
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set(xlabel=f"the paper's {name}", ylabel="ours")
        axes.grid(True)

    told = "; ".join(
        f"{c['row']}, {c['column']}: {c['ours']:.{digits}f} and {c['paper']:.{digits}f}" for c in cells[:20]
    )
    return plots.svg("against", f"Ours against the paper's. {told}.", 280, draw)
