"""The page of a comparison: a table a split, what paired differences say, and scores against what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from consilience.metrics.communication import sentence
from consilience.report import plots, trends
from consilience.report import wording as words
from consilience.report.page import (
    Cell,
    Picture,
    alert,
    caution,
    cell,
    details,
    flat,
    is_greyed,
    join_words,
    known_fields,
    labels_picture,
    render,
    role_counts,
    seconds,
    seeds_words,
    tempered_note,
)
from consilience.report.warnings import doubts
from consilience.report.wording import Json, count, human_bytes, metric, score


def comparison_page(comparison: Json) -> str:
    """The page of a comparison, from what `compare.json` holds."""
    parts = words.parts(comparison)
    several = len(parts) > 1
    return render(
        kind="comparison",
        title=str(comparison.get("title") or "Comparison"),
        lead="" if several else str(comparison.get("sentence") or ""),
        summary="",
        facts=_facts(comparison),
        alerts=[*doubts(_problem(comparison)), *(alert(w) for w in comparison.get("warnings") or [])],
        scores={},
        tables=[_table(part, several) for part in parts],
        notes=_notes(comparison),
        caution=caution(comparison, comparison["rows"]),
        pictures=_pictures(comparison),
        details=[*details(comparison), *_settings(comparison)],
        version=str(comparison.get("consilience") or ""),
    )


def _problem(comparison: Json) -> Json:
    """What a comparison's rows have in common, as one run would say it."""
    names = comparison.get("site_names") or []
    labels = [{"site": n, "labels": c} for n, c in zip(names, comparison.get("labels") or [], strict=False)]
    return {"rows": comparison.get("rows_of_data"), "per_site": labels, "class_names": comparison.get("class_names")}


def _facts(comparison: Json) -> list[tuple[str, str]]:
    seeds = comparison.get("seeds") or [s for s in [comparison.get("seed")] if s is not None]
    sites = comparison.get("sites")
    model = comparison.get("model")
    size = f"{count(comparison['parameters'], 'parameter')}" if comparison.get("parameters") is not None else ""
    return known_fields(
        ("Data", join_words(comparison.get("data"), comparison.get("split"))),
        ("Sites", "" if sites is None else count(sites)),
        ("Rows", role_counts(comparison.get("rows_of_data"))),
        ("Model", join_words(model, size) if model else ""),
        ("Seed" if len(seeds) == 1 else "Seeds", seeds_words(seeds)),
        ("Time", seconds(comparison.get("seconds"))),
    )


def _table(part: Json, several: bool) -> dict[str, Any]:
    """Rows by what the server needs; each proper score plain and tempered."""
    point, ranks, beside = words.comparison_keys(part)
    paired = any(r.get("differences") for r in part["rows"])
    made = []
    for group, title, rows in words.groups(part):
        lines = []
        for row in rows:
            soft = row.get("tempered") or {}
            cells = []
            for key in ranks:
                won = [group != "bound" and _wins(row, rows, key, t) for t in (False, True)]
                by = words.temperature_name(part, soft) if soft and key == ranks[0] else ""
                cells += [cell(key, row, best=won[0]), cell(key, soft, best=won[1])._replace(under=by)]
            cells += [_difference(row, ranks[0], part)] if paired else []
            cells.append(cell(point, row))
            for key in beside:
                cells += [_debiased(key, each, is_greyed(key, part)) for each in (row, soft)]
            moved = Cell(human_bytes(row.get("up_bytes")), f"{human_bytes(row.get('down_bytes'))} down")
            cost = [Cell(count(row.get("rounds"))), moved if row.get("up_bytes") is not None else Cell("–")]
            lines.append({"name": str(row.get("name", "–")), "cells": [*cells, *cost]})
        made.append({"title": title, "bound": group == "bound", "rows": lines})
    return {
        "title": str(part.get("split")) if several else "Scores, by what the server needs",
        "lead": str(part.get("sentence") or "") if several else "",
        "ranks": [metric(k).name for k in ranks],
        "beside": [metric(k).name for k in beside],
        "paired": metric(ranks[0]).name if paired else "",
        "point": metric(point).name,
        "groups": made,
    }


def _difference(row: Json, key: str, part: Json) -> Cell:
    """A row minus the reference, with its interval and p."""
    if row.get("row") == part.get("reference"):
        return Cell("reference", grey=True)
    d = (row.get("differences") or {}).get(key)
    if d is None:
        return Cell("–")
    p = d.get("p_holm")
    said = "" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
    text = f"{'+' if d['mean'] > 0 else ''}{score(key, d['mean'])}"
    return Cell(text, f"{score(key, d['low'])} to {score(key, d['high'])}", under=said)


def _debiased(key: str, part: Json, grey: bool) -> Cell:
    """A cell that also names the debiased estimate, where there is one."""
    estimate = words.value(part, f"{key}_debiased")
    return cell(key, part, grey=grey)._replace(under="" if estimate is None else f"debiased {score(key, estimate)}")


def _wins(row: Json, rows: Sequence[Json], key: str, tempered: bool) -> bool:
    found = words.value(row, key, tempered)
    return found is not None and found == words.best(rows, key, tempered)


def _notes(comparison: Json) -> list[str]:
    rows = [row for part in words.parts(comparison) for row in part["rows"]]
    spans, errors = (any(r.get(k) for r in rows) for k in ("intervals", "errors"))
    notes = ["Bold: the lowest value in its group; the lower, the better."]
    notes.append("Small figures are 95 % intervals; where they overlap, the order may be chance." if spans else "")
    notes.append(f"Small figures are standard errors. {comparison.get('leaves_out', '')}" if errors else "")
    notes.append(words.PAIRED if any(r.get("differences") for r in rows) else "")
    notes.append(tempered_note(comparison) if any(r.get("tempered") for r in rows) else "")
    notes.append("Bounds are references, not competitors." if any(r.get("needs") == "bound" for r in rows) else "")
    if any("ece" in (r.get("metrics") or {}) for r in rows) and not is_greyed("ece", comparison):
        notes.append(words.ece_note(comparison))
    return [n.strip() for n in notes if n]


def _pictures(comparison: Json) -> list[Picture]:
    parts = words.parts(comparison)
    _, ranks, _ = words.comparison_keys(comparison)
    pictures = []
    if ranks and trends.degrees([str(part.get("split")) for part in parts]):
        drawn = Markup(trends.heterogeneity(parts, ranks[0]))
        caption = "Each panel shows one row, the others behind it in grey; bars as in the figures that follow."
        pictures.append(Picture(f"{metric(ranks[0]).name} against heterogeneity", drawn, caption))
    for part in parts:
        of = str(part.get("split")) if len(parts) > 1 else ""
        pictures += _part_pictures(part, ranks, of, "splits" in comparison)
    return pictures


def _part_pictures(part: Json, ranks: Sequence[str], of: str, measured: bool) -> list[Picture]:
    ending = f", {of}" if of else ""
    pictures = []
    if ranks:
        name = metric(ranks[0]).name
        drawn = Markup(plots.ranking(words.groups(part), ranks[0], of))
        errors = any(r.get("errors") for r in part["rows"])
        bars = "one standard error either way" if errors else "95 % intervals where known"
        caption = f"Dots are the scores as they come, with {bars}; diamonds after tempering."
        pictures.append(Picture(f"{name} and what it cost{ending}", drawn, caption))
        if measured and any(r.get("up_bytes") and words.value(r, ranks[0]) is not None for r in part["rows"]):
            caption = f"Bytes up and down, on a logarithmic axis; bars: {bars}."
            drawn = Markup(trends.cost(part["rows"], ranks[0], of))
            pictures.append(Picture(f"{name} against bytes{ending}", drawn, caption))
    pictures += _communication(part, ranks, ending, of)
    shown = [r for r in part["rows"] if r.get("reliability")]
    if shown and not of:
        caption = "On the dashed line a row is right as often as it says."
        one = any(b.get("interval") for r in shown for b in r["reliability"])
        caption += " Bars are 95 % Wilson intervals." if one else " All seeds together."
        pictures.append(Picture("Do they mean what they say?", Markup(plots.reliabilities(shown)), caption))
    counts = part.get("labels")
    if counts:
        given = part.get("site_names") or []
        names = [str(n) for n in (given if len(given) == len(counts) else range(len(counts)))]
        picture = labels_picture(counts, names, part.get("class_names"), of)
        seeds = part.get("seeds") or []
        pictures.append(picture._replace(caption=f"{picture.caption} Seed {seeds[0]}.") if len(seeds) > 1 else picture)
    return pictures


def _communication(part: Json, ranks: Sequence[str], ending: str, of: str) -> list[Picture]:
    """Scores against floats, where a row has more than one round to show."""
    rows = [r for r in part["rows"] if r.get("curves")]
    if not ranks or not any(len(points) > 1 for r in rows for points in r["curves"].values()):
        return []
    said = [sentence(found) for found in part.get("communication") or []]
    said = said or ["With --validation 0.1 the communication to reach a score would be told here."]
    point, _, _ = words.comparison_keys(part)
    return [
        Picture(
            f"{metric(key).name} against floats sent{ending}",
            Markup(trends.curves(rows, key, of)),
            " ".join(["Test rows, mean over seeds, both ways, on a logarithmic axis.", *(said if i == 0 else [])]),
        )
        for i, key in enumerate((ranks[0], point))
        if any(key in p for r in rows for points in r["curves"].values() for p in points)
    ]


def _settings(comparison: Json) -> list[tuple[str, list[tuple[str, str]]]]:
    """What every row was run with, its passes over the data first."""
    blocks = []
    for part in comparison.get("splits") or []:
        ending = f", {part['split']}" if len(comparison["splits"]) > 1 else ""
        for row in part["rows"]:
            budget = {"passes over a site's rows": row.get("passes"), "rounds": row.get("rounds")}
            blocks.append((f"{row['name']}{ending}", flat({**budget, **row["settings"]})))
    return blocks
