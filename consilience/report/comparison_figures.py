"""The figures of a comparison's page, each with its caption."""

from __future__ import annotations

from markupsafe import Markup

from consilience.metrics.communication import sentence
from consilience.report.page import Picture, labels_picture
from consilience.report.plots import figures, trends
from consilience.report.schema.comparison_findings import ComparisonReport, SplitTable
from consilience.report.schema.wording import metric
from consilience.report.site_calibration import calibration_pictures


def comparison_pictures(report: ComparisonReport) -> list[Picture]:
    """Draw the figures of a comparison.

    Returns:
        Those it has the numbers for: over all splits, then split by split.
    """
    pictures = []
    if report.ranks and trends.degrees([table.split for table in report.tables]):
        key = report.ranks[0]
        drawing = Markup(trends.heterogeneity(report.tables, key))
        caption = "Each panel shows one row, with the others in grey behind it; bars as in the figures below."
        pictures.append(Picture(f"{metric(key).name} against heterogeneity", drawing, caption))
    for table in report.tables:
        split = ""
        if len(report.tables) > 1:
            split = table.split
        if report.ranks:
            pictures += _cost(report, table, split)
            pictures += _communication(report, table, split)
        if not split:
            pictures += _calibration(table)
            pictures += _calibration_by_site(table)
        pictures += _labels(table, split)
    return pictures


def _title(text: str, split: str) -> str:
    if split:
        return f"{text}, {split}"
    return text


def _cost(report: ComparisonReport, table: SplitTable, split: str) -> list[Picture]:
    """A proper score of every row beside the bytes it cost, and against them."""
    key = report.ranks[0]
    name = metric(key).name
    bars = "95 % intervals where known"
    if table.has_errors:
        bars = "one standard error either way"
    drawing = Markup(figures.ranking(table.groups, key, split))
    caption = f"Dots are scores before tempering, with {bars}; diamonds are scores after tempering."
    pictures = [Picture(_title(f"{name} and communication", split), drawing, caption)]
    counted = any(row.up and row.scores.value(key) is not None for row in table.rows)
    if counted and "splits" in report.content:
        drawing = Markup(trends.cost(table.rows, key, split))
        caption = f"Bytes sent and received, on a logarithmic axis; bars: {bars}."
        pictures.append(Picture(_title(f"{name} against bytes", split), drawing, caption))
    return pictures


def _communication(report: ComparisonReport, table: SplitTable, split: str) -> list[Picture]:
    """Scores against floats, where a row has more than one round to show."""
    rows = [row for row in table.rows if row.curves]
    points = [points for row in rows for points in row.curves.values()]
    if not any(len(each) > 1 for each in points):
        return []
    to_reach = " ".join(sentence(entry) for entry in table.communication)
    to_reach = to_reach or "Run with `--validation 0.1` to see how much communication it takes to reach a score."
    caption = "Scores on the test rows, averaged over seeds, against floats sent and received, on a logarithmic axis."
    pictures = []
    for key in (report.ranks[0], report.point):
        if any(key in point for each in points for point in each):
            drawing = Markup(trends.curves(rows, key, split))
            title = _title(f"{metric(key).name} against floats sent", split)
            pictures.append(Picture(title, drawing, f"{caption} {to_reach}".strip()))
        to_reach = ""  # once is enough
    return pictures


def _calibration(table: SplitTable) -> list[Picture]:
    rows = [row for row in table.rows if row.reliability]
    if not rows:
        return []
    bars = "Bins of all seeds together."
    if any(b.interval for row in rows for b in row.reliability):
        bars = "Bars are 95 % Wilson intervals."
    caption = f"On the dashed line, predictions are correct as often as their confidence says. {bars}"
    return [Picture("Calibration", Markup(figures.reliabilities(rows)), caption)]


def _calibration_by_site(table: SplitTable) -> list[Picture]:
    """A figure for each row that competes, folded: there are as many as rows."""
    pictures = []
    for row in table.rows:
        if not row.is_bound:
            pictures += calibration_pictures(row.per_site, table.class_names, row.name)
    return pictures


def _labels(table: SplitTable, split: str) -> list[Picture]:
    if not table.labels:
        return []
    picture = labels_picture(table.labels, table.site_names, table.class_names, split)
    if len(table.seeds) > 1:
        picture = picture._replace(caption=f"{picture.caption} Shown for seed {table.seeds[0]}.")
    return [picture]
