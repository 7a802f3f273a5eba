"""Calibration at every site: a small picture for each, with intercept, slope and coverage as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from consilience.metrics import calibration
from consilience.metrics.calibration import Bin
from consilience.metrics.findings import Site
from consilience.report.page import Picture
from consilience.report.plots import figures
from consilience.report.schema.run_findings import seed_error
from consilience.report.schema.wording import FEW_ROWS, count, interval, percent, score

FEWEST = 10  # rows with the outcome, and rows without it, below which no intercept or slope is reported
RECALIBRATION = ("calibration_intercept", "calibration_slope")
TOO_FEW = "too few rows"


def calibration_pictures(
    sites: Sequence[Site], class_names: Sequence[str] | None = None, row: str = "", smallest: int | None = None
) -> list[Picture]:
    """Show whether a model's probabilities mean at every site what they say.

    Args:
        sites: The sites, with bins of a reliability diagram or the coverage of predictive intervals.
        class_names: The names of the classes, if they have names.
        row: The name of a comparison's row; empty for a run.
        smallest: The smallest count that may be shown, if small ones may not.

    Returns:
        One figure with its table; none where no site has what it takes.
    """
    if any(site.coverage for site in sites):
        return [_coverages([site for site in sites if site.coverage], row)]
    known = [site for site in sites if any(b.count for b in site.reliability)]
    if not known:
        return []
    if not smallest:
        known = [_readable(site) for site in known]
    classes = [n for site in sites for n in [len(site.labels or ())] if n]
    if _is_binary(known, class_names, classes):
        outcome = "1"
        if class_names and len(class_names) == 2:
            outcome = str(class_names[1])
        return [_outcomes(known, outcome, row, smallest)]
    return [_confidences(known, row)]


def _is_binary(sites: Sequence[Site], class_names: Sequence[str] | None, classes: Sequence[int]) -> bool:
    """Whether the bins are of P(outcome): two classes, by their names, the label counts or the scores."""
    if class_names:
        return len(class_names) == 2
    if classes:
        return max(classes) == 2
    return any(key in site.scores.metrics for site in sites for key in RECALIBRATION)


def _outcomes(sites: Sequence[Site], outcome: str, row: str, smallest: int | None) -> Picture:
    caption = (
        f"How often {outcome} was seen against its predicted probability, on each site's own test rows; on the dashed "
        "line the two agree. Bars are 95 % Wilson intervals. An intercept of 0 means that the probabilities are right "
        "on average, a slope of 1 that they are spread as they should be; below 1 they are too extreme. Both come from "
        "a logistic regression of the outcome on the predicted log-odds, the intercept with the slope held at 1; in "
        "brackets, 95 % Wald intervals."
    )
    caption += _few_note(sites)
    if smallest:
        caption += (
            f" Neighbouring bins are merged until each has at least {smallest} rows with the outcome and {smallest} "
            "without; a site with fewer is not shown."
        )
    headings = ["Site", "Test rows", "Intercept", "Slope"]
    rows = [[site.name, count(_rows(site)), *_recalibration(site)] for site in sites]
    drawing = Markup(figures.reliabilities(sites, f"P({outcome})", "observed", f"-sites-{row}"))
    return Picture(_title(row), drawing, caption, headings, rows, grey=_grey(sites), is_open=not row, shows_table=True)


def _confidences(sites: Sequence[Site], row: str) -> Picture:
    caption = (
        "Accuracy against confidence on each site's own test rows; on the dashed line predictions are correct as often "
        f"as their confidence says. Bars are 95 % Wilson intervals.{_few_note(sites)}"
    )
    headings = ["Site", "Test rows", "Mean confidence", "Accuracy"]
    rows = []
    for site in sites:
        total = _rows(site)
        confidence = sum(b.count * (b.confidence or 0.0) for b in site.reliability) / total
        accuracy = sum(b.count * (b.accuracy or 0.0) for b in site.reliability) / total
        rows.append([site.name, count(total), percent(confidence, 1), percent(accuracy, 1)])
    drawing = Markup(figures.reliabilities(sites, name=f"-sites-{row}"))
    return Picture(_title(row), drawing, caption, headings, rows, grey=_grey(sites), is_open=not row, shows_table=True)


def _coverages(sites: Sequence[Site], row: str) -> Picture:
    caption = (
        "The share of each site's test rows inside the predictive intervals, against their nominal coverage; on the "
        f"dashed line the two agree. Bars are 95 % Wilson intervals.{_few_note(sites)}"
    )
    levels = [percent(level.level) for level in sites[0].coverage]
    headings = ["Site", "Test rows", *(f"Inside {level}" for level in levels)]
    rows = []
    for site in sites:
        cells = [_with_span(score("ece", level.observed), interval("ece", level.interval)) for level in site.coverage]
        rows.append([site.name, count(site.test), *cells])
    drawing = Markup(figures.coverages(sites, f"-sites-{row}"))
    return Picture(_title(row), drawing, caption, headings, rows, grey=_grey(sites), is_open=not row, shows_table=True)


def _title(row: str) -> str:
    if row:
        return f"Calibration by site: {row}"
    return "Calibration by site"


def _rows(site: Site) -> int:
    counted = sum(b.count for b in site.reliability)
    if counted:
        return counted
    return site.test or 0


def _grey(sites: Sequence[Site]) -> list[bool]:
    return [_rows(site) < FEW_ROWS for site in sites]


def _few_note(sites: Sequence[Site]) -> str:
    if not any(_grey(sites)):
        return ""
    return (
        f" Sites with fewer than {FEW_ROWS} test rows are in grey: there, chance alone takes even a perfectly "
        "calibrated model well off the line."
    )


def _recalibration(site: Site) -> list[str]:
    """Intercept and slope with their intervals; neither where one outcome is rare."""
    events = sum(round(b.count * (b.accuracy or 0.0)) for b in site.reliability)
    if min(events, _rows(site) - events) < FEWEST:
        return [TOO_FEW, TOO_FEW]
    cells = []
    for key in RECALIBRATION:
        value = f"{score(key, site.scores.value(key))} {seed_error(site.scores, key)}".strip()
        cells.append(_with_span(value, interval(key, site.scores.interval(key))))
    return cells


def _with_span(value: str, span: str) -> str:
    if not span:
        return value
    return f"{value} ({span})"


def _readable(site: Site) -> Site:
    """The site with wider bins, where its rows are too few for narrow ones."""
    if _rows(site) >= FEW_ROWS:
        return site
    return replace(site, reliability=_pair_bins(site.reliability))


def _pair_bins(bins: Sequence[Bin]) -> list[Bin]:
    """Neighbouring bins joined two by two, for a picture of few rows."""
    plain = [calibration.Bin(b.low, b.high, b.count, b.confidence, b.accuracy, None) for b in bins]
    joined = [calibration.join_bins(plain[i : i + 2]) for i in range(0, len(plain), 2)]
    if not any(b.interval for b in bins):  # as where seeds share rows
        joined = [b._replace(interval=None) for b in joined]
    return [Bin(*b) for b in joined]
