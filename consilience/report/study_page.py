"""The page of a study's model: what its coordinator can honestly know, and never a row or a small count."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from consilience.report import by_site as bysite
from consilience.report import wording as words
from consilience.report.page import Picture, both, cell, details, flat, join_words, known_fields, labels_picture, render
from consilience.report.suppression import suppress
from consilience.report.warnings import doubts
from consilience.report.wording import Json, count, human_bytes, metric, number, score

KNOBS = {"beta": "β", "penalty": "λ"}
HANDED = {
    "posterior": "the pooled posterior",
    "mixture": "a mixture without names",
    "student": "one student model",
    "ensemble": "every site's posterior by name",
}


def study_page(told: Json) -> str:
    """The page of a pooled model, from what stands beside it as JSON."""
    told = suppress(told)
    return render(
        kind="run",
        title=f"{told['study']}: {told['title']}",
        lead=_lead(told),
        summary=str(told.get("summary") or ""),
        facts=_facts(told),
        alerts=[*doubts(told), *(told.get("warnings") or [])],
        scores=_scores(told),
        tables=[],
        notes=_notes(told),
        caution="",
        pictures=_pictures(told),
        details=[*details(told), ("Columns", flat(told.get("columns") or {}))],
        version=str(told.get("consilience") or ""),
    )


def _lead(told: Json) -> str:
    part = "" if told["sites"] == told["signed"] else f" of {count(told['signed'])}"
    rows, up = (told.get("rows") or {}).get("train"), (told.get("ledger") or {}).get("up_bytes")
    head = [f"{count(told['sites'])}{part} sites" if part else count(told["sites"], "site")]
    head += [f"{count(rows)} training rows"] if rows else []
    head += [count(told["rounds"], "round")]
    head += [f"{human_bytes(up)} sent"] if up is not None else []
    nll, aside = words.value(told, "nll"), (told.get("rows") or {}).get("set aside")
    if nll is None:
        return f"{', '.join(head)}. How well it predicts is not known here: each site can tell, on its own test rows."
    even = f", where equal odds would have {number(math.log(told['classes']))}" if told.get("classes") else ""
    weak = f"; weakest site: {told['worst_site']['site']}" if told.get("worst_site") else ""
    return f"{', '.join(head)}. NLL {number(nll)} on {count(aside)} rows that the sites set aside{even}{weak}."


def _facts(told: Json) -> list[tuple[str, str]]:
    kind = ", ".join(told["class_names"]) if told.get("class_names") else str(told.get("unit") or "a number")
    rounds = f"{count(told['rounds'])} of {count(told['of'])}" if told["of"] > 1 else ""
    return known_fields(
        ("Predicts", f"{told['target']} ({kind})"),
        ("From", count(len(told.get("columns") or {}), "column")),
        ("Model", join_words(told["model"], count(told["parameters"], "parameter"))),
        ("Leaves a site", str(told["sends"])),
        ("Sites get back", HANDED[str(told["hand_out"])]),
        ("Chosen by the sites", _chosen(told)),
        ("Rounds", rounds),
        ("Seed", str(told["seed"])),
        ("Agreement", str(told["hash"])[:12]),
    )


def _chosen(told: Json) -> str:
    if told.get("temperature") is None:
        return ""
    knob = f"{KNOBS[told['knob']]} = {words.scalar(told['value'])}" if told.get("knob") else ""
    return join_words(knob, words.temperature_name(told, told))


def _scores(told: Json) -> dict[str, object]:
    """The one score that sums of log-probabilities give, before and after choosing."""
    columns = [("As chosen", _chosen(told), told)]
    columns += [("As pooled", "before choosing", told["pooled"])] if told.get("pooled") else []
    rows = []
    for key in words.order(told.get("metrics") or {}):
        cells = [cell(key, part) for _, _, part in columns]
        rows.append({"name": metric(key).name, "proper": metric(key).proper, "grey": False, "cells": cells})
    return {"columns": [(name, under) for name, under, _ in columns], "rows": rows}


def _notes(told: Json) -> list[str]:
    return [
        "From sums of log-probabilities over rows that each site set aside: one mean each, no intervals.",
        "The same rows chose what is in the heading, so the score flatters a little.",
        "Each site's test rows are scored there, with `consilience site evaluate`, and those scores stay there.",
    ]


def _pictures(told: Json) -> list[Picture]:
    sites: Sequence[Json] = told.get("per_site") or []
    names, least = [str(s["site"]) for s in sites], told["smallest_count"]
    pictures = []
    judged = [s for s in sites if words.value(s, "nll") is not None]
    if judged:
        worst = (told.get("worst_site") or {}).get("site")
        caption = "Each site on the rows it set aside; the dashed line is the score over all of them."
        caption += f" The diamond is the weakest site, {worst}." if worst else ""
        rows = [[str(s["site"]), count(s.get("test")), score("nll", words.value(s, "nll"))] for s in judged]
        drawn = Markup(bysite.site_scores(judged, told.get("metrics") or {}, ["nll"], worst))
        pictures.append(Picture("Site by site", drawn, caption, ["Site", "Rows set aside", metric("nll").name], rows))
    if sites and all(s.get("labels") for s in sites):
        pictures.append(labels_picture([s["labels"] for s in sites], names, told.get("class_names"), least=least))
    elif any(s.get("train") for s in sites):
        rows = [[str(s["site"]), count(s.get("train"))] for s in sites]
        caption = f"Training rows of each site; a site may withhold theirs. No count below {least} is shown."
        drawn = Markup(bysite.site_rows(sites))
        pictures.append(Picture("Who holds how much", drawn, caption, ["Site", "Training rows"], rows))
    ledger = told.get("ledger") or {}
    if ledger.get("per_site"):
        of = f" in round {count(ledger['round'])}" if ledger.get("round") and told["of"] > 1 else ""
        caption = f"The numbers in the files that were handed over{of}, the model itself not counted."
        rows = [[str(s["site"]), *both(s)] for s in ledger["per_site"]]
        drawn = Markup(bysite.site_bytes(ledger["per_site"]))
        pictures.append(Picture("What moved", drawn, caption, ["Site", "Up", "Down"], rows))
    return pictures
