"""The page of a study's model: what its coordinator can honestly know, and never a row or a small count."""

from __future__ import annotations

import math
from typing import Any

import torch
from markupsafe import Markup

from consilience.distributions.curves import Curve
from consilience.metrics.findings import Scores
from consilience.report.forest import effects_pictures
from consilience.report.page import (
    Facts,
    Picture,
    cell,
    details,
    flat,
    join_words,
    known_fields,
    labels_picture,
    render,
)
from consilience.report.plain_words import study_words
from consilience.report.plots import by_site
from consilience.report.plots.survival_curve import draw_curve
from consilience.report.provenance import provenance
from consilience.report.run_figures import traffic_picture
from consilience.report.schema.numbers import temperature
from consilience.report.schema.prediction_sets import sets_title
from consilience.report.schema.run_findings import RunReport, read, read_run
from consilience.report.schema.warnings import doubts
from consilience.report.schema.wording import (
    Json,
    count,
    human_bytes,
    metric,
    number,
    order,
    percent,
    score,
    temperature_name,
)
from consilience.report.site_calibration import calibration_pictures
from consilience.report.suppression import suppress

HAND_OUTS = {
    "posterior": "the pooled posterior",
    "mixture": "a mixture, without the sites' names",
    "student": "a single student model",
    "ensemble": "every site's posterior, by name",
}


KINDS = {"counts": "a count", "survival": "the time to an event"}


def study_page(account: Json) -> str:
    """Write the page of a study's pooled model.

    Args:
        account: What stands beside the model as JSON.

    Returns:
        One HTML page.
    """
    account = suppress(account)
    run = read_run(account)
    return render(
        kind="run",
        title=f"{account['study']}: {account['title']}",
        lead=_lead(run),
        summary=str(account.get("summary") or ""),
        answers=study_words(run),
        first_page=True,
        facts=_facts(run),
        alerts=[*doubts(run), *run.warnings],
        scores=_scores(run),
        tables=[],
        notes=_notes(run),
        caution="",
        pictures=_pictures(run),
        provenance=provenance(account),
        details=[*details(account), ("Columns", flat(account.get("columns") or {}))],
        version=str(account.get("consilience") or ""),
    )


def _lead(run: RunReport) -> str:
    """How large the study is, and its score where the sites sent statistics."""
    size = [_sites(run)]
    if run.rows.get("train"):
        size.append(f"{count(run.rows['train'])} training rows")
    size.append(count(run.rounds, "round"))
    if run.ledger and run.ledger.up is not None:
        size.append(f"{human_bytes(run.ledger.up)} sent")
    nll = run.scores.value("nll")
    if nll is None:
        finding = "How well the model predicts is not known here: each site can evaluate it on its own test rows."
        if run.evaluated:
            finding = f"Calibration on test rows is known from {count(len(run.evaluated), 'site')}; scores stay there."
        return f"{', '.join(size)}. {finding}"
    finding = f"NLL {number(nll)} on the rows that the sites held out"
    if run.rows.get("set aside"):
        finding = f"NLL {number(nll)} on the {count(run.rows['set aside'])} rows that the sites held out"
    classes = run.content.get("classes")
    if classes:
        finding += f" ({number(math.log(classes))} if all classes were given the same probability)"
    if run.weakest_site:
        finding += f"; weakest site: {run.weakest_site.name}"
    return f"{', '.join(size)}. {finding}."


def _sites(run: RunReport) -> str:
    signed = run.content["signed"]
    if run.sites == signed:
        return count(run.sites, "site")
    return f"{count(run.sites)} of {count(signed)} sites"


def _facts(run: RunReport) -> Facts:
    account = run.content
    rounds = ""
    if account["of"] > 1:
        rounds = f"{count(run.rounds)} of {count(account['of'])}"
    kind = str(account.get("unit") or "a number")
    if run.class_names:
        kind = ", ".join(run.class_names)
    elif account.get("task") in KINDS:
        kind = KINDS[account["task"]]
    return known_fields(
        ("Predicts", f"{account['target']} ({kind})"),
        ("From", count(len(account.get("columns") or {}), "column")),
        ("Model", join_words(account["model"], count(account["parameters"], "parameter"))),
        ("A site sends", str(account["sends"])),
        ("Sites get back", HAND_OUTS[str(account["hand_out"])]),
        ("Chosen by the sites", _chosen(run)),
        ("Prediction sets", _sets(run)),
        ("Rounds", rounds),
        ("Seed", str(account["seed"])),
        ("Agreement", str(account["hash"])[:12]),
    )


def _sets(run: RunReport) -> str:
    """Which guarantee the model's prediction sets have, and under what assumption."""
    if run.sets is None:
        return ""
    promise = f"{sets_title(run.sets)}. {run.sets.promise}"
    holds = f"{promise} This holds on average over calibration rows, if {run.sets.assumption}."
    if not run.sets.leaves:
        return holds
    return f"{holds} What left each site: {run.sets.leaves[:1].lower()}{run.sets.leaves[1:]}"


def _chosen(run: RunReport) -> str:
    """The values that the sites' statistics chose; a knob without a symbol goes by its own name."""
    account = run.content
    if run.scores.temperature is None:
        return ""
    knob = ""
    if account.get("knob"):
        symbol = account.get("knob_symbol") or account["knob"]
        knob = f"{symbol} = {temperature(account['value'])}"
    return join_words(knob, temperature_name(run.scores.temperature, run.is_regression))


def _scores(run: RunReport) -> dict[str, Any]:
    """The one score that sums of log-probabilities give, before and after choosing."""
    columns: list[tuple[str, str, Scores]] = [("As chosen", _chosen(run), run.scores)]
    if run.content.get("pooled"):
        columns.append(("As pooled", "before choosing", read(Scores, run.content["pooled"])))
    rows = []
    for key in order(run.scores.metrics):
        cells = [cell(key, scores) for _, _, scores in columns]
        rows.append({"name": metric(key).name, "proper": metric(key).proper, "grey": False, "cells": cells})
    return {"columns": [(name, under) for name, under, _ in columns], "rows": rows}


def _notes(run: RunReport) -> list[str]:
    stays = "those scores stay there"
    if run.evaluated:
        stays = "of that, calibration alone was sent"
    return [
        "Scores are means over the rows that the sites held out, from the sites' sums of log-probabilities; sums give "
        "no intervals.",
        "The same rows were used to choose the values in the heading, so the score is slightly optimistic.",
        f"Each site evaluates the model on its own test rows with `consilience site evaluate`; {stays}.",
    ]


def _pictures(run: RunReport) -> list[Picture]:
    pictures = effects_pictures(run.content.get("effects"))
    if run.content.get("kaplan_meier"):
        pictures.append(_curve(run))
    if any(site.scores.value("nll") is not None for site in run.per_site):
        pictures.append(_site_scores(run))
    names = [site.name for site in run.per_site]
    labels = [site.labels for site in run.per_site if site.labels]
    if labels and len(labels) == len(names):
        pictures.append(labels_picture(labels, names, run.class_names, smallest=run.smallest_count))
    elif any(site.train for site in run.per_site):
        pictures.append(_training_rows(run))
    pictures += calibration_pictures(run.evaluated, run.class_names, smallest=run.smallest_count)
    if any(site.influence is not None for site in run.per_site):
        pictures.append(_influence(run))
    if run.ledger and run.ledger.per_site:
        when = ""
        if run.ledger.round and run.content["of"] > 1:
            when = f" in round {count(run.ledger.round)}"
        caption = f"The numbers in the files that were exchanged{when}; the pooled model itself is not counted."
        pictures.append(traffic_picture(run.ledger.per_site, caption))
    return pictures


def _site_scores(run: RunReport) -> Picture:
    sites = [site for site in run.per_site if site.scores.value("nll") is not None]
    caption = "NLL on the rows that each site held out; the dashed line is the NLL over all of them."
    weakest = None
    if run.weakest_site:
        weakest = run.weakest_site.name
        caption += f" The diamond marks the weakest site, {weakest}."
    rows = [[site.name, count(site.test), score("nll", site.scores.value("nll"))] for site in sites]
    drawing = Markup(by_site.site_scores(sites, run.scores, ["nll"], weakest))
    return Picture("Scores by site", drawing, caption, ["Site", "Rows held out", metric("nll").name], rows)


def _curve(run: RunReport) -> Picture:
    """Kaplan and Meier's curve of all sites' training rows."""
    fields = run.content["kaplan_meier"]
    curve = Curve(*(torch.tensor(fields[name], dtype=torch.float64) for name in Curve._fields))
    caption = (
        "The share of all sites' training rows without an event, from sums on the agreed times; "
        f"steps with fewer than {run.smallest_count} events are one. The band is a 95 % interval."
    )
    rows = [
        [number(t), percent(s), f"{percent(low)} to {percent(high)}", count(round(at_risk))]
        for t, s, low, high, at_risk, _ in zip(*(leaf.tolist() for leaf in curve), strict=True)
    ]
    drawing = Markup(draw_curve(curve, str(run.content["unit"] or run.content["target"])))
    heads = ["Time", "Without an event", "95 % interval", "At risk"]
    return Picture("Kaplan–Meier curve", drawing, caption, heads, rows)


def _training_rows(run: RunReport) -> Picture:
    caption = (
        f"Training rows at each site; a site may withhold its number. Counts below {run.smallest_count} are not shown."
    )
    rows = [[site.name, count(site.train)] for site in run.per_site]
    drawing = Markup(by_site.site_rows(run.per_site))
    return Picture("Training rows by site", drawing, caption, ["Site", "Training rows"], rows)


def _influence(run: RunReport) -> Picture:
    """How much of the pool is each site's, beside what was agreed."""
    most = run.content.get("most_influence")
    caption = (
        "How far the pooled model moves without a site, as a share of this way and of the way to the site's own model; "
        "where models are averaged it is the site's weight. Above 50 % the pool is nearer to this site than to all "
        "others together."
    )
    if most is not None:
        caption += f" The dashed line is what the sites agreed to: {percent(most)}."
    rows = [[site.name, percent(site.influence)] for site in run.per_site]
    drawing = Markup(by_site.site_influence(run.per_site, most))
    return Picture("Influence by site", drawing, caption, ["Site", "Influence"], rows)
