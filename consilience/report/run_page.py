"""The page of one run: one self-contained file with nothing loaded from elsewhere."""

from __future__ import annotations

from typing import Any

from consilience.errors import InputError
from consilience.metrics.findings import Scores
from consilience.report.comparison_page import comparison_page
from consilience.report.page import (
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
    write_warning,
)
from consilience.report.plain_words import run_words
from consilience.report.provenance import provenance
from consilience.report.run_figures import run_pictures
from consilience.report.schema.prediction_sets import sets_sentence, sets_title
from consilience.report.schema.run_findings import RunReport, read_run
from consilience.report.schema.sentence import ece_note, sentence, tempered_note
from consilience.report.schema.warnings import doubts
from consilience.report.schema.wording import (
    BASELINE_NOTE,
    BOUND_NOTES,
    NEEDS,
    NEWCOMER_NOTE,
    SERVER_ONLY,
    Json,
    count,
    human_bytes,
    losses,
    metric,
    order,
    percent,
    privacy_note,
    temperature_name,
)
from consilience.report.suppression import suppress

__all__ = ["comparison_page", "run_page"]


def run_page(run: Json) -> str:
    """Write the page of one run.

    Args:
        run: What `run.json` holds.

    Returns:
        One HTML page.

    Raises:
        InputError: It is a comparison.
    """
    if run.get("kind") == "comparison":
        raise InputError("This is a comparison, not a run: render it with `comparison_page`.")
    report = read_run(suppress(run))
    warnings = [*losses(report.failures), *doubts(report), *report.warnings]
    if report.sets is not None and report.sets.refused:
        warnings.append(sets_sentence(report.sets, report.is_regression))
    caution = ""
    if any(is_greyed(key, report.test_rows) for key in report.scores.metrics):
        caution = _ece_note(report)
    return render(
        kind="run",
        title=report.title,
        lead=sentence(report),
        summary=str(run.get("summary") or ""),
        answers=run_words(report),
        first_page=False,
        facts=_facts(report),
        alerts=[write_warning(warning) for warning in warnings],
        scores=_scores(report),
        tables=[],
        notes=_notes(report),
        caution=caution,
        pictures=run_pictures(report),
        provenance=provenance(run),
        details=details(run),
        version=str(run.get("consilience") or ""),
    )


def _facts(run: RunReport) -> Facts:
    content = run.content
    needs = str(content.get("needs") or "")
    engine = (
        content.get("engine"),
        count_or_nothing(content.get("threads"), "thread"),
        seconds(content.get("seconds")),
    )
    return known_fields(
        ("Data", join_words(content.get("data"), content.get("split"))),
        ("Rows", role_counts(run.rows)),
        ("Model", join_words(content.get("model"), count_or_nothing(content.get("parameters"), "parameter"))),
        ("The server needs", NEEDS.get(needs, needs)),
        ("Prediction sets", _sets(run)),
        ("Transferred", _transferred(run)),
        ("HMC acceptance rate", _acceptance_rate(run)),
        ("Engine", join_words(*engine)),
        ("Seed", join_words(content.get("seed"))),
    )


def _sets(run: RunReport) -> str:
    if run.sets is None or run.sets.refused:
        return ""
    return sets_title(run.sets)


def _transferred(run: RunReport) -> str:
    if run.ledger is None:
        return ""
    return f"{human_bytes(run.ledger.up)} up, {human_bytes(run.ledger.down)} down"


def _acceptance_rate(run: RunReport) -> str:
    """The share of proposals accepted, where the run sampled by HMC: an optimiser rejects nothing."""
    share = run.diagnostics.get("accepted")
    sampled = any(text == "HMC" for _, text in flat(run.content.get("settings") or {}))
    if share is None or not sampled:
        return ""
    return f"{percent(share)} of proposals"


def _scores(run: RunReport) -> dict[str, Any]:
    """Scores down, this run and its bounds across."""
    columns: list[tuple[str, str, Scores]] = [("This run", "untempered", run.scores)]
    if run.own_rows is not None:
        columns.insert(0, ("This run", "own rows", run.own_rows))
    if run.newcomer is not None:
        columns = [("This run", "own rows", run.scores), ("Newcomer", "all rows", run.newcomer)]
    if run.tempered is not None:
        factor = temperature_name(run.tempered.temperature, run.is_regression)
        columns.append(("Tempered", factor, run.tempered))
    columns += [(name, "bound", scores) for _, name, scores in run.scored_bounds]
    columns += [(name, "baseline", scores) for name, scores in run.named_baselines]
    rows = []
    for key in order(run.scores.metrics):
        grey = is_greyed(key, run.test_rows)
        cells = [cell(key, scores, grey=grey) for _, _, scores in columns]
        rows.append({"name": metric(key).name, "proper": metric(key).proper, "grey": grey, "cells": cells})
    return {"columns": [(name, under) for name, under, _ in columns], "rows": rows}


def _notes(run: RunReport) -> list[str]:
    notes = []
    if run.scores.intervals:
        notes.append("Figures in small type are 95 % intervals.")
    if run.newcomer is not None:
        notes.append(NEWCOMER_NOTE)
    notes += [_bound_note(run, key) for key in dict.fromkeys(key for key, _, _ in run.scored_bounds)]
    if run.baselines:
        notes.append(BASELINE_NOTE)
    if run.tempered is not None:
        notes.append(tempered_note(run.is_regression, per_site=bool(run.content.get("best"))))
    if "ece" in run.scores.metrics and not is_greyed("ece", run.test_rows):
        notes.append(_ece_note(run))
    notes.append(privacy_note(run.content))
    return [note for note in notes if note]


def _bound_note(run: RunReport, key: str) -> str:
    labelled = run.rows.get("calibration")
    if key == SERVER_ONLY and labelled:
        return BOUND_NOTES[key].replace("labelled rows", f"{count(labelled)} labelled rows")
    return BOUND_NOTES[key]


def _ece_note(run: RunReport) -> str:
    return ece_note(run.test_rows, run.ece_if_calibrated, run.is_regression)
