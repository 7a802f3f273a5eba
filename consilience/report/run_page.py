"""The report: one self-contained page for a run or for a comparison, with nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from consilience.errors import InputError
from consilience.report import by_site as bysite
from consilience.report import plots, predictions
from consilience.report import wording as words
from consilience.report.comparison_page import comparison_page
from consilience.report.page import (
    Picture,
    alert,
    both,
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
    tempered_note,
)
from consilience.report.suppression import suppress
from consilience.report.warnings import doubts
from consilience.report.wording import Json, count, human_bytes, interval, metric, number, percent, score

__all__ = ["comparison_page", "run_page"]


def run_page(run: Json) -> str:
    """The page of one run, from what `run.json` holds."""
    if run.get("kind") == "comparison":
        raise InputError("This is a comparison, not a run; render it with comparison_page.")
    run = suppress(run)
    title = str(run.get("title") or run.get("method") or "Run")
    return render(
        kind="run",
        title=title,
        lead=words.sentence(run),
        summary=str(run.get("summary") or ""),
        facts=_run_facts(run),
        alerts=[
            alert(w) for w in [*words.losses(run.get("failures") or []), *doubts(run), *(run.get("warnings") or [])]
        ],
        scores=_run_scores(run),
        tables=[],
        notes=_run_notes(run),
        caution=caution(run, [run]),
        pictures=_run_pictures(run),
        details=details(run),
        version=str(run.get("consilience") or ""),
    )


def _run_facts(run: Json) -> list[tuple[str, str]]:
    ledger = run.get("ledger") or {}
    parameters = f"{count(run['parameters'], 'parameter')}" if run.get("parameters") is not None else ""
    threads = count(run["threads"], "thread") if run.get("threads") is not None else ""
    moved = [f"{human_bytes(ledger.get(f'{way}_bytes'))} {way}" for way in ("up", "down")] if ledger else []
    needs = {"nothing": "nothing", "inputs": "unlabelled inputs", "labels": "labelled rows"}
    return known_fields(
        ("Data", join_words(run.get("data"), run.get("split"))),
        ("Rows", role_counts(run.get("rows"))),
        ("Model", join_words(run.get("model"), parameters)),
        ("The server needs", needs.get(str(run.get("needs")), str(run.get("needs") or ""))),
        ("Moved", join_words(*moved)),
        ("HMC accepted", _accepted(run)),
        ("Engine", join_words(run.get("engine"), threads, seconds(run.get("seconds")))),
        ("Seed", "" if run.get("seed") is None else str(run["seed"])),
    )


def _accepted(run: Json) -> str:
    """The share of its proposals, where a method that samples by HMC says it."""
    share = (run.get("diagnostics") or {}).get("accepted")
    by_hmc = (text == "HMC" for _, text in flat(run.get("settings") or {}))
    return f"{percent(share)} of its proposals" if share is not None and any(by_hmc) else ""


def _run_scores(run: Json) -> dict[str, Any]:
    """Scores down, this run and its bounds across."""
    columns: list[tuple[str, str, Json]] = [("This run", "as it comes", run)]
    if run.get("tempered"):
        columns.append(("Tempered", words.temperature_name(run, run["tempered"]), run["tempered"]))
    columns += [(name, "bound", b) for _, name, b in words.bounds(run)]
    rows = []
    for key in words.order(run.get("metrics") or {}):
        grey = is_greyed(key, run)
        cells = [cell(key, part, grey=grey) for _, _, part in columns]
        rows.append({"name": metric(key).name, "proper": metric(key).proper, "grey": grey, "cells": cells})
    return {"columns": [(name, under) for name, under, _ in columns], "rows": rows}


def _run_notes(run: Json) -> list[str]:
    bounds = {key for key, _, _ in words.bounds(run)}
    labelled = (run.get("rows") or {}).get("calibration")
    alert = {
        "local_only": "Local only: each site's own model, averaged over the sites.",
        "server_only": f"Server only: trained on the server's {count(labelled)} labelled rows."
        if labelled
        else "Server only: trained on the server's labelled rows.",
        "centralised": "Centralised: all training rows in one place.",
    }
    notes = ["Small figures are 95 % intervals." if run.get("intervals") else ""]
    notes += [text for key, text in alert.items() if key in bounds]
    notes.append(tempered_note(run) if run.get("tempered") else "")
    if "ece" in (run.get("metrics") or {}) and not is_greyed("ece", run):
        notes.append(words.ece_note(run))
    return [n for n in notes if n]


def _run_pictures(run: Json) -> list[Picture]:
    sites, history = run.get("per_site") or [], run.get("history") or []
    pictures = []
    if run.get("reliability"):
        pictures.append(_reliability(run["reliability"]))
    if run.get("coverage"):
        pictures.append(_coverage(run["coverage"]))
    if run.get("predicted"):
        pictures.append(_predicted(run["predicted"]))
    if run.get("uncertainty"):
        pictures.append(_uncertainty(run["uncertainty"], words.regression(run)))
    if sites and all(s.get("labels") for s in sites):
        names = [str(s.get("site", i)) for i, s in enumerate(sites)]
        pictures.append(
            labels_picture([s["labels"] for s in sites], names, run.get("class_names"), least=run.get("smallest_count"))
        )
    if (run.get("diagnostics") or {}).get("residual_by_site_and_class"):
        pictures.append(_evidence(run["diagnostics"], _repliers(run), run.get("class_names")))
    keys = [k for k in _shown(run) if any(words.value(s, k) is not None for s in sites)]
    if keys:
        pictures.append(_sites(run, sites, keys))
    keys = [k for k in _shown(run) if any(h.get(k) is not None for h in history)]
    if len(history) > 1 and keys:
        drawn = Markup(plots.rounds(history, keys))
        headings = ["Round", *(metric(k).name for k in keys), "Up", "Down"]
        rows = [
            [str(h.get("round", i + 1)), *(score(k, h.get(k)) for k in keys), *both(h)] for i, h in enumerate(history)
        ]
        pictures.append(Picture("Over the rounds", drawn, "Logged, never used to choose a round.", headings, rows))
    shown = [e for e in run.get("examples") or [] if e.get("image")]
    if shown:
        caption = "Test rows of a public data set, so that one can look: would a person have known?"
        pictures.append(
            Picture("Telling examples", Markup(predictions.examples(shown, run.get("class_names"))), caption)
        )
    sent = (run.get("ledger") or {}).get("per_site") or []
    if sent:
        rows = [[str(s.get("site", i)), *both(s)] for i, s in enumerate(sent)]
        caption = "Everything that crossed between each site and the server."
        pictures.append(Picture("What moved", Markup(bysite.site_bytes(sent)), caption, ["Site", "Up", "Down"], rows))
    return pictures


def _uncertainty(parts: Sequence[Json], numbers: bool) -> Picture:
    """How much of the doubt more data would take away, and how much of that lies between the sites."""
    unit = "variance, in the target's units squared" if numbers else "nats"
    caption = (
        "What would remain if the weights were known, what more data at a site would take away, and what lies between "
        "the sites, for the mixture of the sites' posteriors."
    )
    rows = [[p["of"], count(p["rows"]), *(number(p[key]) for key in predictions.PARTS)] for p in parts]
    headings = ["Mean over", "Rows", "Aleatoric", "Within sites", "Between sites"]
    drawn = Markup(predictions.uncertainty(parts, unit))
    return Picture("Where its doubt comes from", drawn, caption, headings, rows)


def _predicted(found: Json) -> Picture:
    rows = [
        [count(b["rows"]), number(b["said"]), number(b["deviation"]), number(b["seen"]),
         f"{number(b['interval'][0])} to {number(b['interval'][1])}"] for b in found["bins"]
    ]  # fmt: skip
    caption = "On the dashed line prediction and truth agree. Dots are tenths of the test rows, bars 95 % intervals of "
    caption += "the mean truth."
    caption += " Grey: single rows, with their own 95 % intervals." if found.get("points") else ""
    headings = ["Rows", "Predicted", "± said", "True", "95 % interval"]
    return Picture("Predicted and true", Markup(predictions.predicted_section(found)), caption, headings, rows)


def _repliers(run: Json) -> list[str]:
    """Whose the rows of a diagnosis are: those who sent something; numbered where that is not known."""
    rows = len(run["diagnostics"]["residual_by_site_and_class"])
    everyone = [str(s.get("site")) for s in run.get("per_site") or []]
    sent = [str(s.get("site")) for s in (run.get("ledger") or {}).get("per_site") or [] if s.get("up_bytes")]
    return next((names for names in (everyone, sent) if len(names) == rows), [f"reply {k + 1}" for k in range(rows)])


def _evidence(found: Json, sites: Sequence[str], names: Sequence[str] | None) -> Picture:
    """Where the sites contradict each other about a class, and how far each is shifted."""
    table = found["residual_by_site_and_class"]
    classes = [str(n) for n in names] if names else [str(c) for c in range(len(table[0]))]
    values = [[v or 0.0 for v in row] for row in table]
    alt = f"What the fit leaves unexplained, {found['residual']:.1f} nats overall; sites down, classes across."
    caption = (
        f"What the sites' evidence leaves unexplained, in nats ({found['residual']:.1f} overall). Sites that know a "
        f"class name another in {percent(found['contradiction'])} of cases. A site or class that stands out looks "
        "different there than elsewhere: check units, devices and definitions."
    )
    rows = [
        [site, *("–" if v is None else f"{v:.2f}" for v in row), f"{found['offset_by_site'][k]:.2f}"]
        for k, (site, row) in enumerate(zip(sites, table, strict=True))
    ]
    drawn = plots.shade("evidence", alt, values, sites, classes, lambda v: f"{v:.1f}")
    return Picture("Where the sites disagree", Markup(drawn), caption, ["Site", *classes, "Offset"], rows)


def _shown(page: Json) -> list[str]:
    return ["nll", "rmse"] if words.regression(page) else ["nll", "accuracy"]


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


def _sites(run: Json, sites: Sequence[Json], keys: Sequence[str]) -> Picture:
    named = (run.get("worst_site") or {}).get("site")
    worst = str(named) if len(sites) > 1 and str(named) in {str(s.get("site")) for s in sites} else None
    drawn = Markup(bysite.site_scores(sites, run.get("metrics") or {}, keys, worst))
    caption = "Each site on its own test rows; the dashed line is the score over all of them."
    caption += f" The diamond is the weakest site, {worst}." if worst is not None else ""
    headings = ["Site", "Training rows", "Test rows", *(metric(k).name for k in keys)]
    sizes = [[count(s.get("train")), count(s.get("test"))] for s in sites]
    scores = [[score(k, words.value(s, k)) for k in keys] for s in sites]
    rows = [[str(s.get("site", i)), *sizes[i], *scores[i]] for i, s in enumerate(sites)]
    return Picture("Site by site", drawn, caption, headings, rows)
