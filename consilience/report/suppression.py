"""Small cells, which could tell who is behind them, left out of a page: for studies, where single rows are people."""

from __future__ import annotations

from typing import Any

from consilience.report.wording import Json


def suppress(run: Json) -> dict[str, Any]:
    """The run as it may be shown where no cell below `smallest_count` rows may be: without single rows, without the
    scores of sites with few test rows, label counts as None, and bins with few rows without their rates. Sums from
    which a cell left out could be found by subtraction are left out too."""
    least = run.get("smallest_count")
    if not least:
        return dict(run)
    few: dict[str, Any] = {"confidence": None, "accuracy": None, "interval": None, "count": 0}
    bins = [b if b.get("count", 0) >= least else {**b, **few} for b in run.get("reliability") or []]
    sites = [_site(site, least) for site in run.get("per_site") or []]
    hidden = any(None in (site["labels"] or ()) for site in sites)
    rows = {role: n for role, n in (run.get("rows") or {}).items() if not (hidden and role == "train")}
    parts = [p for p in run.get("uncertainty") or [] if p["rows"] >= least]
    predicted = run.get("predicted")
    if predicted:
        enough = all(b["rows"] >= least for b in predicted["bins"])
        predicted = {**predicted, "points": None} if enough else None
    found = {**run, "per_site": sites, "uncertainty": parts, "predicted": predicted, "examples": None, "rows": rows}
    return {**found, "reliability": bins} if run.get("reliability") else found


def _site(site: Json, least: int) -> dict[str, Any]:
    labels = [n if n == 0 or n >= least else None for n in site["labels"]] if site.get("labels") else None
    enough = (site.get("test") or 0) >= least
    return {
        **site,
        "labels": labels,
        "train": None if None in (labels or ()) else site.get("train"),
        "test": site.get("test") if enough else None,
        "metrics": site.get("metrics") if enough else {},
    }
