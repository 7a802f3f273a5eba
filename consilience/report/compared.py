"""The page of a comparison: a table a split, what paired differences say, and scores against what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from consilience.report import plots, words
from consilience.report.page import (
    Cell,
    Picture,
    caution,
    cell,
    details,
    grey,
    joined,
    known,
    labels_picture,
    render,
    role_counts,
    seconds,
    tempered_note,
    told,
)
from consilience.report.words import Json, count, human_bytes, metric, score


def comparison_page(comparison: Json) -> str:
    """The page of a comparison, from what `compare.json` holds."""
    return render(
        kind="comparison",
        title=str(comparison.get("title") or "Comparison"),
        lead=str(comparison.get("sentence") or ""),
        summary="",
        facts=_comparison_facts(comparison),
        alerts=[told(w) for w in comparison.get("warnings") or []],
        scores=_comparison_scores(comparison),
        notes=_comparison_notes(comparison),
        caution=caution(comparison, comparison["rows"]),
        pictures=_comparison_pictures(comparison),
        details=details(comparison),
        version=str(comparison.get("consilience") or ""),
    )


def _comparison_facts(comparison: Json) -> list[tuple[str, str]]:
    seeds = comparison.get("seeds") or [s for s in [comparison.get("seed")] if s is not None]
    sites = comparison.get("sites")
    return known(
        ("Data", joined(comparison.get("data"), comparison.get("split"))),
        ("Sites", "" if sites is None else count(sites)),
        ("Rows", role_counts(comparison.get("rows_of_data"))),
        ("Seed" if len(seeds) == 1 else "Seeds", ", ".join(str(s) for s in seeds)),
        ("Time", seconds(comparison.get("seconds"))),
    )


def _debiased(key: str, part: Json, grey: bool) -> Cell:
    """A cell that also names the debiased estimate, where there is one."""
    estimate = words.value(part, f"{key}_debiased")
    return cell(key, part, grey=grey)._replace(under="" if estimate is None else f"debiased {score(key, estimate)}")


def _comparison_scores(comparison: Json) -> dict[str, Any]:
    """Rows by what the server needs; each proper score plain and tempered."""
    groups = words.groups(comparison)
    point, ranks, beside = _comparison_keys(comparison)
    groups_of_rows = []
    for group, title, rows in groups:
        lines = []
        for row in rows:
            soft = row.get("tempered") or {}
            cells = []
            for key in ranks:
                won = [group != "bound" and _wins(row, rows, key, t) for t in (False, True)]
                by = words.temperature_name(comparison, soft) if soft and key == ranks[0] else ""
                cells += [cell(key, row, best=won[0]), cell(key, soft, best=won[1])._replace(under=by)]
            cells.append(cell(point, row))
            for key in beside:
                cells += [_debiased(key, part, grey(key, comparison)) for part in (row, soft)]
            moved = Cell(human_bytes(row.get("up_bytes")), f"{human_bytes(row.get('down_bytes'))} down")
            cost = [Cell(count(row.get("rounds"))), moved if row.get("up_bytes") is not None else Cell("–")]
            lines.append({"name": str(row.get("name", "–")), "cells": [*cells, *cost]})
        groups_of_rows.append({"title": title, "bound": group == "bound", "rows": lines})
    names = {"ranks": [metric(k).name for k in ranks], "beside": [metric(k).name for k in beside]}
    return {**names, "point": metric(point).name, "groups": groups_of_rows}


def _wins(row: Json, rows: Sequence[Json], key: str, tempered: bool) -> bool:
    found = words.value(row, key, tempered)
    return found is not None and found == words.best(rows, key, tempered)


def _comparison_notes(comparison: Json) -> list[str]:
    rows = comparison["rows"]
    spans = any(r.get("intervals") for r in rows)
    notes = ["Bold: the lowest value in its group; the lower, the better."]
    notes.append("Small figures are 95 % intervals; where they overlap, the order may be chance." if spans else "")
    notes.append(tempered_note(comparison) if any(r.get("tempered") for r in rows) else "")
    notes.append("Bounds are references, not competitors." if any(r.get("needs") == "bound" for r in rows) else "")
    if any("ece" in (r.get("metrics") or {}) for r in rows) and not grey("ece", comparison):
        notes.append(words.ece_note(comparison))
    return [n for n in notes if n]


def _comparison_pictures(comparison: Json) -> list[Picture]:
    _, ranks, _ = _comparison_keys(comparison)
    pictures = []
    if ranks:
        drawn = Markup(plots.ranking(words.groups(comparison), ranks[0]))
        caption = "Dots are the scores as they come, with 95 % intervals where known; diamonds after tempering."
        pictures.append(Picture(f"{metric(ranks[0]).name} and what it cost", drawn, caption))
    told = [r for r in comparison["rows"] if r.get("reliability")]
    if told:
        caption = "On the dashed line a row is right as often as it says. Bars are 95 % Wilson intervals."
        pictures.append(Picture("Do they mean what they say?", Markup(plots.reliabilities(told)), caption))
    counts = comparison.get("labels")
    if counts:
        given = comparison.get("site_names") or []
        names = [str(n) for n in (given if len(given) == len(counts) else range(len(counts)))]
        pictures.append(labels_picture(counts, names, comparison.get("class_names")))
    return pictures
