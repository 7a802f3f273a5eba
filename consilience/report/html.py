"""The report: one self-contained page for a run or for a comparison, with nothing loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from consilience.errors import InputError
from consilience.report import plots, table
from consilience.report.table import FEW_ROWS, Json, count, human_bytes, interval, metric, percent, score


class Cell(NamedTuple):
    """A number in a table, with its interval below it."""

    text: str
    span: str = ""
    best: bool = False
    grey: bool = False
    under: str = ""


class Picture(NamedTuple):
    """A figure, what it shows, and the same numbers as a table for those who prefer to read them."""

    title: str
    svg: Markup
    caption: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def run_page(run: Json) -> str:
    """The page of one run, from what `run.json` holds."""
    if run.get("kind") == "comparison":
        raise InputError("This is a comparison, not a run; render it with comparison_page.")
    title = str(run.get("title") or run.get("method") or "Run")
    return _page(
        kind="run",
        title=title,
        lead=table.sentence(run),
        summary=str(run.get("summary") or ""),
        facts=_run_facts(run),
        alerts=[_told(w) for w in [*(run.get("failures") or []), *(run.get("warnings") or [])]],
        scores=_run_scores(run),
        notes=_run_notes(run),
        caution=_caution(run, [run]),
        pictures=_run_pictures(run),
        details=_details(run),
        version=str(run.get("consilience") or ""),
    )


def comparison_page(comparison: Json) -> str:
    """The page of a comparison, from what `compare.json` holds."""
    return _page(
        kind="comparison",
        title=str(comparison.get("title") or "Comparison"),
        lead=str(comparison.get("sentence") or ""),
        summary="",
        facts=_comparison_facts(comparison),
        alerts=[_told(w) for w in comparison.get("warnings") or []],
        scores=_comparison_scores(comparison),
        notes=_comparison_notes(comparison),
        caution=_caution(comparison, comparison["rows"]),
        pictures=_comparison_pictures(comparison),
        details=_details(comparison),
        version=str(comparison.get("consilience") or ""),
    )


def _page(**content: Any) -> str:
    loader = PackageLoader("consilience", "report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["tied"] = lambda text: re.sub(r"(?<=\d) (?=%|[kMGT]?B\b|s\b|min\b|h\b)", "\u00a0", text)
    return environment.get_template("page.html.jinja").render(**content)


def _run_facts(run: Json) -> list[tuple[str, str]]:
    ledger = run.get("ledger") or {}
    parameters = f"{count(run['parameters'], 'parameter')}" if run.get("parameters") is not None else ""
    threads = count(run["threads"], "thread") if run.get("threads") is not None else ""
    moved = [f"{human_bytes(ledger.get(f'{way}_bytes'))} {way}" for way in ("up", "down")] if ledger else []
    needs = {"nothing": "nothing", "inputs": "unlabelled inputs", "labels": "labelled rows"}
    return _known(
        ("Data", _joined(run.get("data"), run.get("split"))),
        ("Rows", _rows(run.get("rows"))),
        ("Model", _joined(run.get("model"), parameters)),
        ("The server needs", needs.get(str(run.get("needs")), str(run.get("needs") or ""))),
        ("Moved", _joined(*moved)),
        ("Engine", _joined(run.get("engine"), threads, _seconds(run.get("seconds")))),
        ("Seed", "" if run.get("seed") is None else str(run["seed"])),
    )


def _comparison_facts(comparison: Json) -> list[tuple[str, str]]:
    seeds = comparison.get("seeds") or [s for s in [comparison.get("seed")] if s is not None]
    sites = comparison.get("sites")
    return _known(
        ("Data", _joined(comparison.get("data"), comparison.get("split"))),
        ("Sites", "" if sites is None else count(sites)),
        ("Rows", _rows(comparison.get("rows_of_data"))),
        ("Seed" if len(seeds) == 1 else "Seeds", ", ".join(str(s) for s in seeds)),
        ("Time", _seconds(comparison.get("seconds"))),
    )


def _told(alert: Any) -> str:
    return _joined(*(f"{k}: {v}" for k, v in alert.items())) if isinstance(alert, dict) else str(alert)


def _caution(page: Json, parts: Sequence[Json]) -> str:
    """The warning that stands below greyed ECEs."""
    shown = [k for part in parts for k in part.get("metrics") or {} if _grey(k, page)]
    return table.ece_note(page) if shown else ""


def _known(*facts: tuple[str, str]) -> list[tuple[str, str]]:
    return [f for f in facts if f[1]]


def _joined(*parts: Any) -> str:
    return ", ".join(str(p) for p in parts if p not in {None, ""})


def _rows(rows: Json | None) -> str:
    return ", ".join(f"{count(n)} {role}" for role, n in (rows or {}).items() if n)


def _seconds(s: float | None) -> str:
    if s is None:
        return ""
    return f"{s:.1f} s" if s < 120 else f"{s / 60:.0f} min" if s < 7200 else f"{s / 3600:.1f} h"


def _run_scores(run: Json) -> dict[str, Any]:
    """Scores down, this run and its bounds across."""
    columns: list[tuple[str, str, Json]] = [("This run", "as it comes", run)]
    if run.get("tempered"):
        columns.append(("Tempered", table.temperature_name(run, run["tempered"]), run["tempered"]))
    bounds = [(k, name, b) for k, name in table.BOUNDS.items() if (b := (run.get("bounds") or {}).get(k))]
    columns += [(name, "bound", b) for _, name, b in bounds]
    rows = []
    for key in table.ordered(run.get("metrics") or {}):
        grey = _grey(key, run)
        cells = [_cell(key, part, grey=grey) for _, _, part in columns]
        rows.append({"name": metric(key).name, "proper": metric(key).proper, "grey": grey, "cells": cells})
    return {"columns": [(name, under) for name, under, _ in columns], "rows": rows}


def _grey(key: str, page: Json) -> bool:
    return "ece" in key and (table.test_rows(page) or FEW_ROWS) < FEW_ROWS


def _cell(key: str, part: Json, best: bool = False, grey: bool = False) -> Cell:
    span = interval(key, (part.get("intervals") or {}).get(key))
    return Cell(score(key, (part.get("metrics") or {}).get(key)), span, best, grey)


def _debiased(key: str, part: Json, grey: bool) -> Cell:
    """A cell that also names the debiased estimate, where there is one."""
    estimate = table.value(part, f"{key}_debiased")
    return _cell(key, part, grey=grey)._replace(under="" if estimate is None else f"debiased {score(key, estimate)}")


def _run_notes(run: Json) -> list[str]:
    bounds = run.get("bounds") or {}
    labelled = (run.get("rows") or {}).get("calibration")
    told = {
        "local_only": "Local only: each site's own model, averaged over the sites.",
        "server_only": f"Server only: trained on the server's {count(labelled)} labelled rows."
        if labelled
        else "Server only: trained on the server's labelled rows.",
        "centralised": "Centralised: all training rows in one place.",
    }
    notes = ["Small figures are 95 % intervals." if run.get("intervals") else ""]
    notes += [text for key, text in told.items() if bounds.get(key)]
    notes.append(_tempered_note(run) if run.get("tempered") else "")
    if "ece" in (run.get("metrics") or {}) and not _grey("ece", run):
        notes.append(table.ece_note(run))
    return [n for n in notes if n]


def _tempered_note(page: Json) -> str:
    scalar = "one factor on the variance" if table.regression(page) else "one temperature"
    return f"Tempered: {scalar}, fitted on the calibration rows."


def _run_pictures(run: Json) -> list[Picture]:
    sites, history = run.get("per_site") or [], run.get("history") or []
    pictures = []
    if run.get("reliability"):
        pictures.append(_reliability(run["reliability"]))
    if run.get("coverage"):
        pictures.append(_coverage(run["coverage"]))
    if sites and all(s.get("labels") for s in sites):
        names = [str(s.get("site", i)) for i, s in enumerate(sites)]
        pictures.append(_labels([s["labels"] for s in sites], names, run.get("class_names")))
    keys = [k for k in _shown(run) if any(table.value(s, k) is not None for s in sites)]
    if keys:
        pictures.append(_sites(run, sites, keys))
    keys = [k for k in _shown(run) if any(h.get(k) is not None for h in history)]
    if len(history) > 1 and keys:
        drawn = Markup(plots.rounds(history, keys))
        headings = ["Round", *(metric(k).name for k in keys), "Up", "Down"]
        rows = [
            [str(h.get("round", i + 1)), *(score(k, h.get(k)) for k in keys), *_both(h)] for i, h in enumerate(history)
        ]
        pictures.append(Picture("Over the rounds", drawn, "Logged, never used to choose a round.", headings, rows))
    sent = (run.get("ledger") or {}).get("per_site") or []
    if sent:
        rows = [[str(s.get("site", i)), *_both(s)] for i, s in enumerate(sent)]
        caption = "Everything that crossed between each site and the server."
        pictures.append(Picture("What moved", Markup(plots.site_bytes(sent)), caption, ["Site", "Up", "Down"], rows))
    return pictures


def _both(part: Json) -> list[str]:
    return [human_bytes(part.get("up_bytes")), human_bytes(part.get("down_bytes"))]


def _shown(page: Json) -> list[str]:
    return ["nll", "rmse"] if table.regression(page) else ["nll", "accuracy"]


def _reliability(bins: Sequence[Json]) -> Picture:
    full = [b for b in bins if b.get("count")]
    rows = [
        [f"{percent(b['low'])}–{percent(b['high'])}", count(b["count"]), score("ece", b.get("confidence")),
         score("ece", b.get("accuracy")), interval("ece", b.get("interval"))] for b in full
    ]  # fmt: skip
    caption = "On the dashed line it is right as often as it says. Bars are 95 % Wilson intervals; below, rows per bin."
    headings = ["Bin", "Rows", "Confidence", "Right", "95 % interval"]
    return Picture("Does it mean what it says?", Markup(plots.reliability(bins)), caption, headings, rows)


def _coverage(levels: Sequence[Json]) -> Picture:
    rows = [[percent(c["level"]), score("ece", c.get("observed")), interval("ece", c.get("interval"))] for c in levels]
    caption = "On the dashed line its intervals hold as many test rows as they promise. Bars are 95 % intervals."
    headings = ["Promised", "Observed", "95 % interval"]
    return Picture("Does it mean what it says?", Markup(plots.coverage(levels)), caption, headings, rows)


def _labels(counts: Sequence[Sequence[int]], sites: Sequence[str], names: Sequence[str] | None) -> Picture:
    wide = max(len(row) for row in counts)
    counts = [[*row, *[0] * (wide - len(row))] for row in counts]
    classes = [str(n) for n in names] if names and len(names) == wide else [str(c) for c in range(wide)]
    top = max([n for row in counts for n in row] + [0])
    caption = "Training rows of each class at each site: the stronger the colour, the more; "
    caption += f"the fullest cell holds {count(top)}."
    rows = [[site, *(count(n) for n in row), count(sum(row))] for site, row in zip(sites, counts, strict=True)]
    drawn = Markup(plots.labels(counts, sites, classes))
    return Picture(
        "Who holds what", drawn, caption, ["Site", *classes, "All"], rows if wide * len(sites) <= 1000 else ()
    )


def _sites(run: Json, sites: Sequence[Json], keys: Sequence[str]) -> Picture:
    named = (run.get("worst_site") or {}).get("site")
    worst = str(named) if len(sites) > 1 and str(named) in {str(s.get("site")) for s in sites} else None
    drawn = Markup(plots.site_scores(sites, run.get("metrics") or {}, keys, worst))
    caption = "Each site on its own test rows; the dashed line is the score over all of them."
    caption += f" The diamond is the weakest site, {worst}." if worst is not None else ""
    headings = ["Site", "Training rows", "Test rows", *(metric(k).name for k in keys)]
    sizes = [[count(s.get("train")), count(s.get("test"))] for s in sites]
    scores = [[score(k, table.value(s, k)) for k in keys] for s in sites]
    rows = [[str(s.get("site", i)), *sizes[i], *scores[i]] for i, s in enumerate(sites)]
    return Picture("Site by site", drawn, caption, headings, rows)


def _comparison_keys(comparison: Json) -> tuple[str, list[str], list[str]]:
    """The plain score, the proper scores that rank, and what stands beside them, where any row has them."""
    present = {k for row in comparison["rows"] for k in row.get("metrics") or {}}
    wanted = ("rmse", ["nll", "crps"], ["coverage80"]) if "rmse" in present else ("accuracy", ["nll", "brier"], ["ece"])
    return wanted[0], [k for k in wanted[1] if k in present], [k for k in wanted[2] if k in present]


def _comparison_scores(comparison: Json) -> dict[str, Any]:
    """Rows by what the server needs; each proper score plain and tempered."""
    groups = table.groups(comparison)
    point, ranks, beside = _comparison_keys(comparison)
    groups_of_rows = []
    for group, title, rows in groups:
        lines = []
        for row in rows:
            soft = row.get("tempered") or {}
            cells = []
            for key in ranks:
                won = [group != "bound" and _wins(row, rows, key, t) for t in (False, True)]
                by = table.temperature_name(comparison, soft) if soft and key == ranks[0] else ""
                cells += [_cell(key, row, best=won[0]), _cell(key, soft, best=won[1])._replace(under=by)]
            cells.append(_cell(point, row))
            for key in beside:
                cells += [_debiased(key, part, _grey(key, comparison)) for part in (row, soft)]
            moved = Cell(human_bytes(row.get("up_bytes")), f"{human_bytes(row.get('down_bytes'))} down")
            cost = [Cell(count(row.get("rounds"))), moved if row.get("up_bytes") is not None else Cell("–")]
            lines.append({"name": str(row.get("name", "–")), "cells": [*cells, *cost]})
        groups_of_rows.append({"title": title, "bound": group == "bound", "rows": lines})
    names = {"ranks": [metric(k).name for k in ranks], "beside": [metric(k).name for k in beside]}
    return {**names, "point": metric(point).name, "groups": groups_of_rows}


def _wins(row: Json, rows: Sequence[Json], key: str, tempered: bool) -> bool:
    found = table.value(row, key, tempered)
    return found is not None and found == table.best(rows, key, tempered)


def _comparison_notes(comparison: Json) -> list[str]:
    rows = comparison["rows"]
    spans = any(r.get("intervals") for r in rows)
    notes = ["Bold: the lowest value in its group; the lower, the better."]
    notes.append("Small figures are 95 % intervals; where they overlap, the order may be chance." if spans else "")
    notes.append(_tempered_note(comparison) if any(r.get("tempered") for r in rows) else "")
    notes.append("Bounds are references, not competitors." if any(r.get("needs") == "bound" for r in rows) else "")
    if any("ece" in (r.get("metrics") or {}) for r in rows) and not _grey("ece", comparison):
        notes.append(table.ece_note(comparison))
    return [n for n in notes if n]


def _comparison_pictures(comparison: Json) -> list[Picture]:
    _, ranks, _ = _comparison_keys(comparison)
    pictures = []
    if ranks:
        drawn = Markup(plots.ranking(table.groups(comparison), ranks[0]))
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
        pictures.append(_labels(counts, names, comparison.get("class_names")))
    return pictures


def _details(page: Json) -> list[tuple[str, list[tuple[str, str]]]]:
    """Settings and versions as flat lists."""
    blocks = [("Settings", page.get("settings")), ("Versions", page.get("versions"))]
    return [(title, _flat(values)) for title, values in blocks if values]


def _flat(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A nested dict as (dotted name, value) pairs."""
    if not isinstance(values, dict):
        return [(prefix, "none" if values is None else str(values))]
    return [pair for k, v in values.items() for pair in _flat(v, f"{prefix}.{k}" if prefix else str(k))]
