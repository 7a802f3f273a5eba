"""The page of a paper's experiment: our results beside the paper's, cell by cell, and how far apart they are."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from consilience.report.page import Cell, Picture, known_fields, render, seed_fact
from consilience.report.plots.drawing import ACCENT, DASHED, MUTED, is_wide, log_ticks, svg
from consilience.report.schema.wording import Json, count, metric, number

BESIDE = ("accuracy", "rmse", "nll", "brier", "crps")  # shown too, where an experiment keeps them
NEAR = 2.0  # standard errors
FEW_SEEDS = 3
FEW_CELLS = 3  # fewer are not drawn
MOST_IN_WORDS = 20  # cells that an alternative text lists


@dataclass(frozen=True)
class Result:
    """One cell of a paper's table.

    Attributes:
        row: The name of its row.
        column: The name of its column.
        ours: Our mean over seeds; None where it has not been run.
        spread: How much ours varies, as the experiment measures it.
        seeds: How many seeds ours is over.
        scores: Other scores of the same runs.
        paper: What the paper prints; None where it prints nothing.
        paper_spread: The spread the paper prints.
        distance: Ours minus the paper's, in standard errors of the difference.
        comparable: Whether the two are over the same data.
        is_open: Whether the cell has still to be run.
    """

    row: str
    column: str
    ours: float | None
    spread: float | None
    seeds: int
    scores: Json
    paper: float | None
    paper_spread: float | None
    distance: float | None
    comparable: bool
    is_open: bool


@dataclass(frozen=True)
class Results:
    """What `results.json` holds.

    Attributes:
        cells: The cells of the paper's tables.
        score: The name of the score they hold.
        key: The score's key.
        digits: Decimals to write.
        scale: How much of the experiment was run; 'full' is the paper's.
        seeds: The seeds.
        spread: What our spreads are.
        lost: What failed, in sentences.
    """

    cells: Sequence[Result]
    score: str
    key: str
    digits: int
    scale: str
    seeds: Sequence[int]
    spread: str
    lost: Sequence[str]

    def write(self, value: float) -> str:
        """Write a score with the experiment's number of decimals.

        Returns:
            Its digits.
        """
        return f"{value:.{self.digits}f}".replace("-", "−")


def reproduction_page(results: Json) -> str:
    """Write the page of an experiment.

    Args:
        results: What `results.json` holds.

    Returns:
        One HTML page.
    """
    read = _read(results)
    return render(
        kind="reproduction",
        title=str(results["title"]),
        lead=_lead(read),
        summary="",
        facts=known_fields(
            ("Experiment", str(results["experiment"])),
            ("Score", read.score),
            ("Scale", read.scale),
            seed_fact(read.seeds),
        ),
        alerts=_alerts(read),
        scores={},
        tables=[_table(read, column) for column in dict.fromkeys(c.column for c in read.cells)],
        notes=_notes(read),
        caution="",
        pictures=_pictures(read),
        answers=[],
        first_page=False,
        provenance=[],
        details=[],
        version="",
    )


def _read(results: Json) -> Results:
    key = str(results["score"])
    return Results(
        cells=[_read_cell(c) for c in results["cells"]],
        score=metric(key).name,
        key=key,
        digits=int(results.get("digits", 3)),
        scale=str(results["scale"]),
        seeds=results["seeds"],
        spread=str(results["spread"]),
        lost=results.get("lost") or [],
    )


def _read_cell(c: Json) -> Result:
    return Result(
        row=str(c["row"]),
        column=c["column"],
        ours=c["ours"],
        spread=c["spread"],
        seeds=c["seeds"],
        scores=c.get("scores") or {},
        paper=c["paper"],
        paper_spread=c["paper_spread"],
        distance=c.get("away_in_standard_errors"),
        comparable=bool(c["comparable"]),
        is_open=bool(c.get("open")),
    )


def _lead(results: Results) -> str:
    """How many cells come near the paper's; only of those that can be compared."""
    differences = []
    distances = []
    for c in results.cells:
        if c.comparable and c.ours is not None and c.paper is not None:
            differences.append(abs(c.ours - c.paper))
            if c.distance is not None:
                distances.append(abs(c.distance))
    if not differences:
        if any(c.paper is not None for c in results.cells):
            return ""
        return "The paper prints no numbers to compare these with."
    cells = count(len(differences), "cell")
    if results.scale != "full":
        return f"{cells} beside the paper's, at a smaller scale than the paper's own: '{results.scale}'."
    lead = f"{cells} can be compared with the paper's; the median absolute difference is "
    lead += results.write(statistics.median(differences))
    if distances:
        near = sum(distance <= NEAR for distance in distances)
        lead += f"; {near} of the {len(distances)} with known spreads are within two standard errors"
    return f"{lead}."


def _alerts(results: Results) -> list[str]:
    alerts = []
    if results.scale != "full":
        alerts.append(
            f"Run at the scale '{results.scale}', not at the paper's: differences from the paper mean little."
        )
    if len(results.seeds) < FEW_SEEDS:
        alerts.append(
            f"Only {count(len(results.seeds), 'seed')}: the spread of our results is unknown or poorly estimated."
        )
    others = dict.fromkeys(c.column for c in results.cells if c.paper is not None and not c.comparable)
    if others:
        alerts.append(f"Not comparable, because the data differ from the paper's: {', '.join(others)}.")
    alerts += [f"Lost: {sentence}" for sentence in results.lost]
    missing = sum(c.ours is None for c in results.cells)
    if missing == 1:
        alerts.append("1 cell of the paper has not been run yet.")
    elif missing:
        alerts.append(f"{count(missing)} cells of the paper have not been run yet.")
    return alerts


def _table(results: Results, column: str) -> dict[str, Any]:
    """Our results in one column of the paper, beside the paper's where it prints any."""
    cells = [c for c in results.cells if c.column == column]
    printed = any(c.paper is not None for c in cells)
    beside = [k for k in BESIDE if k != results.key and any(c.scores.get(k) is not None for c in cells)]
    heads = [("Row", ""), ("Ours", results.score), ("Seeds", "")]
    if printed:
        heads += [("Paper", "as printed"), ("Difference", "in standard errors")]
    heads += [(metric(k).name, "ours") for k in beside]
    rows = []
    for c in cells:
        line = [_ours(results, c), Cell(count(c.seeds))]
        if printed:
            line += [_value(results, c.paper, c.paper_spread), _distance(c)]
        line += [Cell(number(c.scores.get(k))) for k in beside]
        rows.append({"name": c.row, "cells": line})
    return {"title": column, "heads": heads, "rows": rows}


def _ours(results: Results, c: Result) -> Cell:
    if c.ours is None and c.is_open:
        return Cell("not run", grey=True)
    return _value(results, c.ours, c.spread)


def _value(results: Results, value: float | None, spread: float | None) -> Cell:
    if value is None:
        return Cell("–")
    if spread:
        return Cell(results.write(value), f"± {results.write(spread)}")
    return Cell(results.write(value))


def _distance(c: Result) -> Cell:
    """How far ours lies from the paper's, in standard errors of the difference."""
    text = "–"
    if c.distance is not None:
        text = f"{c.distance:+.1f}".replace("-", "−")
        if abs(c.distance) < 0.05:
            text = "0.0"  # without a sign
    if c.paper is not None and not c.comparable:
        return Cell(text, "different data", grey=True)
    return Cell(text)


def _notes(results: Results) -> list[str]:
    notes = [f"Figures after ± in our results: {results.spread}; in the paper's: as printed."]
    if any(c.paper is not None for c in results.cells):
        notes.append(
            "Difference: ours minus the paper's, in standard errors of the difference; beyond 2 either way, the two "
            "disagree."
        )
    return notes


def _pictures(results: Results) -> list[Picture]:
    both = [c for c in results.cells if c.ours is not None and c.paper is not None]
    if len(both) < FEW_CELLS:
        return []
    caption = "On the dashed line our result equals the paper's; bars are spreads where known."
    if not all(c.comparable for c in both):
        caption += " Grey: different data, not comparable."
    return [Picture("Ours against the paper's", Markup(_draw(results, both)), caption)]


def _draw(results: Results, cells: Sequence[Result]) -> str:
    pairs = [(c.ours or 0.0, c.paper or 0.0) for c in cells]
    wide = is_wide([value for pair in pairs for value in pair])

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        if wide:
            axes.set(xscale="log", yscale="log")
            log_ticks(axes.xaxis)
            log_ticks(axes.yaxis)
        first = pairs[0][1]
        second = 2 * first + 1
        axes.axline((first, first), (second, second), color=MUTED, linewidth=0.8, linestyle=DASHED)
        for c in cells:
            _draw_cell(axes, c)
        if not wide:
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.set(xlabel=f"the paper's {results.score}", ylabel="ours")
        axes.grid(True)

    listed = []
    for c, (ours, paper) in zip(cells[:MOST_IN_WORDS], pairs, strict=False):
        listed.append(f"{c.row}, {c.column}: {results.write(ours)} and {results.write(paper)}")
    return svg("against", f"Ours against the paper's. {'; '.join(listed)}.", 280, draw)


def _draw_cell(axes: Axes, c: Result) -> None:
    colour = MUTED
    if c.comparable:
        colour = ACCENT
    look: dict[str, Any] = {"color": colour, "markersize": 3.5, "elinewidth": 0.8}
    axes.errorbar(c.paper or 0.0, c.ours or 0.0, c.spread or 0, c.paper_spread or 0, "o", **look)
