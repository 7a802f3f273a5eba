"""Small counts, which could show who is behind them, left out of a page: for studies, where single rows are people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from consilience.disk.typed import plain, restore_fields
from consilience.metrics.calibration import Bin, merge_small_bins
from consilience.report.schema.wording import Json

RECALIBRATION = ("calibration_intercept", "calibration_slope")


def suppress(run: Json) -> dict[str, Any]:
    """Leave out what may not be shown where no count below `smallest_count` may be.

    Single rows go, and the scores of sites with few test rows; bins of a reliability diagram are merged until none
    shows a small count, and small label counts become None. Sums from which a suppressed count could be found by
    subtraction are left out too.

    Args:
        run: What `run.json`, or a study's account, holds.

    Returns:
        The report as it may be shown; unchanged where it names no `smallest_count`.
    """
    smallest = run.get("smallest_count")
    if not smallest:
        return dict(run)
    sites = [_suppress_site(site, smallest) for site in run.get("per_site") or []]
    rows = dict(run.get("rows") or {})
    before = run.get("per_site") or []
    small_class = any(None in (site["labels"] or ()) for site in sites)
    if small_class or any(_is_small(site.get("train"), smallest) for site in before):
        rows.pop("train", None)
    if any(_is_small(site.get("test"), smallest) for site in before):
        rows.pop("test", None)
        rows.pop("set aside", None)
    report = {
        **run,
        "per_site": sites,
        "rows": rows,
        "uncertainty": [part for part in run.get("uncertainty") or [] if part["rows"] >= smallest],
        "predicted": _suppress_predicted(run.get("predicted"), smallest),
        "examples": None,
    }
    if run.get("reliability"):
        report["reliability"] = merge_bins(run["reliability"], smallest)
    return report


def _suppress_site(site: Json, smallest: int) -> dict[str, Any]:
    shown = dict(site)
    shown["labels"] = _suppress_counts(site.get("labels"), smallest)
    if None in (shown["labels"] or ()) or _is_small(site.get("train"), smallest):
        shown["train"] = None
    shown.setdefault("train", None)
    shown.setdefault("metrics", None)
    if (site.get("test") or 0) < smallest:
        shown["test"] = None
        shown["metrics"] = {}
    if site.get("coverage") and not shown["metrics"]:
        shown["coverage"] = None
    if site.get("reliability"):
        shown["reliability"] = merge_bins(site["reliability"], smallest)
        if not shown["reliability"]:  # a fit to one or two events would show them
            shown["metrics"] = {key: x for key, x in (shown["metrics"] or {}).items() if key not in RECALIBRATION}
            shown["intervals"] = {}
    return shown


def merge_bins(bins: Sequence[Json], smallest: int) -> list[Json]:
    """Merge the bins of a reliability diagram until no small count can be told from them.

    Args:
        bins: The bins, as a report has them.
        smallest: The smallest count that may be shown.

    Returns:
        The merged bins; none where too few rows have the outcome, or too few do not.
    """
    merged: list[Json] = plain(merge_small_bins([restore_fields(Bin, b, others=True) for b in bins], smallest))
    return merged


def _is_small(count: int | None, smallest: int) -> bool:
    return count is not None and 0 < count < smallest


def _suppress_counts(counts: Sequence[int] | None, smallest: int) -> list[int | None] | None:
    if not counts:
        return None
    return [None if 0 < n < smallest else n for n in counts]


def _suppress_predicted(predicted: Json | None, smallest: int) -> Json | None:
    """Bins of predictions without single rows; nothing where a bin is small."""
    if not predicted or any(b["rows"] < smallest for b in predicted["bins"]):
        return None
    return {**predicted, "points": None}
