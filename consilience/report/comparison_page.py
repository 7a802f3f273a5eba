"""The page of a comparison: a table for each split, paired differences, and scores against what they cost."""

from __future__ import annotations

from typing import Any

from consilience.metrics.findings import Scores
from consilience.report.comparison_figures import comparison_pictures
from consilience.report.page import (
    Cell,
    Facts,
    cell,
    count_or_nothing,
    details,
    flat,
    is_greyed,
    join_words,
    known_fields,
    render,
    role_counts,
    seconds,
    seed_fact,
    write_warning,
)
from consilience.report.provenance import provenance
from consilience.report.schema.comparison_findings import (
    ComparisonReport,
    ComparisonRow,
    Group,
    SplitTable,
    read_comparison,
)
from consilience.report.schema.numbers import p_value
from consilience.report.schema.run_findings import read_run
from consilience.report.schema.sentence import ece_note, tempered_note
from consilience.report.schema.warnings import doubts
from consilience.report.schema.wording import (
    BASELINE,
    BASELINE_NOTE,
    PAIRED,
    Json,
    count,
    difference,
    human_bytes,
    interval,
    metric,
    score,
    skew_words,
    temperature_name,
)


def comparison_page(comparison: Json) -> str:
    """Write the page of a comparison.

    Args:
        comparison: What `compare.json` holds.

    Returns:
        One HTML page.

    Raises:
        InputError: The comparison has no rows.
    """
    report = read_comparison(comparison)
    lead = str(comparison.get("sentence") or "")
    if len(report.tables) > 1:
        lead = ""  # each table has its own
    caution = ""
    if any(is_greyed(key, report.test_rows) for row in report.rows for key in row.scores.metrics):
        caution = _ece_note(report)
    return render(
        kind="comparison",
        title=report.title,
        lead=lead,
        summary="",
        facts=_facts(report),
        alerts=[write_warning(warning) for warning in (*_doubts(comparison), *report.warnings)],
        scores={},
        tables=[_table(report, table) for table in report.tables],
        notes=_notes(report),
        caution=caution,
        pictures=comparison_pictures(report),
        answers=[],
        first_page=False,
        provenance=provenance(comparison),
        details=[*details(comparison), *_settings(report)],
        version=str(comparison.get("consilience") or ""),
    )


def _doubts(comparison: Json) -> list[str]:
    """What gives reason to doubt every row: few test rows, classes that no site has."""
    names = comparison.get("site_names") or []
    labels = comparison.get("labels") or []
    common = {
        "rows": comparison.get("rows_of_data"),
        "class_names": comparison.get("class_names"),
        "per_site": [{"site": name, "labels": counts} for name, counts in zip(names, labels, strict=False)],
    }
    return doubts(read_run(common))


def _facts(report: ComparisonReport) -> Facts:
    content = report.content
    model = ""
    if content.get("model"):
        model = join_words(content["model"], count_or_nothing(content.get("parameters"), "parameter"))
    return known_fields(
        ("Data", join_words(content.get("data"), content.get("split"))),
        ("Sites", count_or_nothing(content.get("sites"))),
        ("Rows", role_counts(content.get("rows_of_data"))),
        ("Model", model),
        seed_fact(report.seeds),
        ("Time", seconds(content.get("seconds"))),
    )


def _table(report: ComparisonReport, table: SplitTable) -> dict[str, Any]:
    """Rows by what the server needs; each proper score untempered and tempered."""
    title = "Scores, by what the server needs"
    lead = ""
    if len(report.tables) > 1:
        title = table.split
        lead = table.sentence
    paired = ""
    if table.is_paired:
        paired = metric(report.ranks[0]).name
    groups = []
    for group in table.groups:
        rows = [{"name": row.name, "cells": _cells(report, table, group, row)} for row in group.rows]
        groups.append({"title": group.title, "bound": group.is_bound, "rows": rows})
    return {
        "title": title,
        "lead": lead,
        "ranks": [metric(key).name for key in report.ranks],
        "beside": [metric(key).name for key in report.beside],
        "paired": paired,
        "point": metric(report.point).name,
        "groups": groups,
    }


def _cells(report: ComparisonReport, table: SplitTable, group: Group, row: ComparisonRow) -> list[Cell]:
    """The cells of one row, in the order of the template's headings."""
    tempered = row.part(tempered=True)
    cells = []
    for i, key in enumerate(report.ranks):
        factor = ""
        if i == 0 and row.tempered is not None:
            factor = temperature_name(tempered.temperature, report.is_regression)
        cells.append(cell(key, row.scores, best=group.is_best(row, key, tempered=False)))
        cells.append(cell(key, tempered, best=group.is_best(row, key, tempered=True))._replace(under=factor))
    if table.is_paired:
        cells.append(_difference(row, report.ranks[0], table.reference))
    cells.append(cell(report.point, row.scores))
    for key in report.beside:
        grey = is_greyed(key, report.test_rows)
        cells += [_debiased(key, row.scores, grey), _debiased(key, tempered, grey)]
    return [*cells, Cell(count(row.rounds)), _cost(row)]


def _difference(row: ComparisonRow, key: str, reference: str | None) -> Cell:
    """A row minus the reference, with its interval and p-value."""
    if row.word == reference:
        return Cell("reference", grey=True)
    paired = (row.scores.differences or {}).get(key)
    if paired is None:
        return Cell("–")
    span = f"{score(key, paired['low'])} to {score(key, paired['high'])}"
    below = [p_value(paired.get("p_holm")), skew_words(key, paired)]
    return Cell(difference(key, paired["mean"]), span, under="; ".join(text for text in below if text))


def _debiased(key: str, scores: Scores, grey: bool) -> Cell:
    """A cell that also names the debiased estimate, where there is one."""
    estimate = scores.value(f"{key}_debiased")
    under = ""
    if estimate is not None:
        span = interval(f"{key}_debiased", scores.interval(f"{key}_debiased"))
        under = f"debiased {score(key, estimate)}" + f" ({span})" * bool(span)
    return cell(key, scores, grey=grey)._replace(under=under)


def _cost(row: ComparisonRow) -> Cell:
    if row.up is None:
        return Cell("–")
    return Cell(human_bytes(row.up), f"{human_bytes(row.down)} down")


def _notes(report: ComparisonReport) -> list[str]:
    rows = report.rows
    notes = ["Bold marks the lowest value in its group; lower is better."]
    if any(row.scores.intervals for row in rows):
        notes.append("Figures in small type are 95 % intervals; where they overlap, the order may be due to chance.")
    if any(row.scores.errors for row in rows):
        notes.append(f"Figures in small type are standard errors. {report.content.get('leaves_out', '')}".strip())
    if any(table.is_paired for table in report.tables):
        notes.append(PAIRED)
    if any(row.tempered is not None for row in rows):
        notes.append(tempered_note(report.is_regression, per_site=bool(report.content.get("best"))))
    if any(row.is_bound for row in rows):
        notes.append("Bounds are shown for reference and are not ranked.")
    if any(row.needs == BASELINE for row in rows):
        notes.append(BASELINE_NOTE)
    if any("ece" in row.scores.metrics for row in rows) and not is_greyed("ece", report.test_rows):
        notes.append(_ece_note(report))
    return [note for note in notes if note]


def _ece_note(report: ComparisonReport) -> str:
    return ece_note(report.test_rows, report.ece_if_calibrated, report.is_regression)


def _settings(report: ComparisonReport) -> list[tuple[str, Facts]]:
    """What every row was run with, its passes over the data first."""
    if "splits" not in report.content:
        return []
    blocks = []
    for table in report.tables:
        ending = ""
        if len(report.tables) > 1:
            ending = f", {table.split}"
        for row in table.rows:
            budget = {"passes over a site's rows": row.passes, "rounds": row.rounds}
            blocks.append((f"{row.name}{ending}", flat({**budget, **row.settings})))
    return blocks
