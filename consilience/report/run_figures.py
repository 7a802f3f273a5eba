"""The figures of a run's page, each with its caption and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from consilience.metrics.calibration import Bin, Coverage
from consilience.metrics.findings import Predicted, Site, Traffic, UncertaintyPart
from consilience.report.forest import effects_pictures
from consilience.report.page import Picture, both_ways, labels_picture
from consilience.report.plots import by_site, figures, predictions
from consilience.report.prediction_sets import sets_pictures
from consilience.report.schema.run_findings import Round, RunReport
from consilience.report.schema.wording import count, interval, metric, number, percent, score
from consilience.report.site_calibration import calibration_pictures


def run_pictures(run: RunReport) -> list[Picture]:
    """Draw the figures of a run.

    Returns:
        Those it has the numbers for, in the order of the page.
    """
    effects = effects_pictures(run.content.get("effects"))
    pictures = [*_calibration(run), *sets_pictures(run), *effects, *_uncertainty(run), *_sites(run)]
    keys = [key for key in _keys(run) if any(entry.scores.metrics.get(key) is not None for entry in run.history)]
    if len(run.history) > 1 and keys:
        pictures.append(_rounds(run.history, keys))
    examples = [example for example in run.examples if example.image]
    if examples:
        drawing = Markup(predictions.examples(examples, run.class_names))
        caption = "Individual test rows, shown because the data set is public."
        pictures.append(Picture("Example predictions", drawing, caption))
    if run.ledger and run.ledger.per_site:
        caption = "All bytes sent between each site and the server."
        pictures.append(traffic_picture(run.ledger.per_site, caption))
    return pictures


def traffic_picture(traffic: Sequence[Traffic], caption: str) -> Picture:
    """Show what each site sent and received.

    Args:
        traffic: Bytes of each site.

    Returns:
        The figure and its table.
    """
    rows = [[site.site, *both_ways(site.up, site.down)] for site in traffic]
    return Picture("Communication", Markup(by_site.site_bytes(traffic)), caption, ["Site", "Up", "Down"], rows)


def _keys(run: RunReport) -> list[str]:
    """The scores that are shown site by site and round by round."""
    if "concordance" in run.scores.metrics:
        return ["nll", "concordance"]
    if run.is_regression:
        return ["nll", "rmse"]
    return ["nll", "accuracy"]


def _calibration(run: RunReport) -> list[Picture]:
    pictures = []
    if run.reliability:
        pictures.append(_reliability(run.reliability))
    if run.coverage:
        pictures.append(_coverage(run.coverage))
    if run.predicted and run.predicted.bins:
        pictures.append(_predicted(run.predicted))
    return pictures


def _reliability(bins: Sequence[Bin]) -> Picture:
    rows = [
        [
            f"{percent(b.low)}–{percent(b.high)}",
            count(b.count),
            score("ece", b.confidence),
            score("ece", b.accuracy),
            interval("ece", b.interval),
        ]
        for b in bins
        if b.count
    ]
    caption = (
        "Accuracy against confidence: on the dashed line, predictions are correct as often as their confidence says. "
        "Bars are 95 % Wilson intervals; the histogram counts test rows."
    )
    headings = ["Bin", "Rows", "Confidence", "Accuracy", "95 % interval"]
    return Picture("Calibration", Markup(figures.reliability(bins)), caption, headings, rows)


def _coverage(levels: Sequence[Coverage]) -> Picture:
    rows = [[percent(level.level), score("ece", level.observed), interval("ece", level.interval)] for level in levels]
    caption = (
        "The fraction of test rows inside the predictive intervals, against their nominal coverage: on the dashed line "
        "the two agree. Bars are 95 % intervals."
    )
    headings = ["Nominal", "Observed", "95 % interval"]
    return Picture("Calibration", Markup(figures.coverage(levels)), caption, headings, rows)


def _predicted(predicted: Predicted) -> Picture:
    rows = [
        [
            count(b.rows),
            number(b.predicted),
            number(b.deviation),
            number(b.observed),
            f"{number(b.interval[0])} to {number(b.interval[1])}",
        ]
        for b in predicted.bins
    ]
    caption = (
        "Dots are means over tenths of the test rows, by prediction; on the dashed line prediction and observation "
        "agree. Bars are 95 % intervals of the mean observation."
    )
    if predicted.points:
        caption += " In grey: single rows with their 95 % predictive intervals."
    headings = ["Rows", "Predicted", "Predictive SD", "Observed", "95 % interval"]
    drawing = Markup(predictions.predicted_section(predicted))
    if predicted.horizon is not None:
        caption = (
            f"Risk of an event by time {number(predicted.horizon)}: dots are fifths of the test rows, by predicted "
            "risk; on the dashed line prediction and observation agree. Observed by Kaplan and Meier, with 95 % "
            "intervals."
        )
        rows = [[row[0], row[1], *row[3:]] for row in rows]
        headings = ["Rows", "Predicted risk", "Observed", "95 % interval"]
        return Picture("Calibration at a horizon", drawing, caption, headings, rows)
    return Picture("Predicted and observed values", drawing, caption, headings, rows)


def _uncertainty(run: RunReport) -> list[Picture]:
    if not run.uncertainty:
        return []
    unit = "nats"
    if run.is_regression:
        unit = "variance, in the target's units squared"
    caption = (
        "Aleatoric uncertainty would remain if the weights were known. The epistemic part within sites would shrink "
        "with more data at each site; the part between sites is their disagreement. All are for the mixture of the "
        "sites' posteriors."
    )
    headings = ["Mean over", "Rows", "Aleatoric", "Within sites", "Between sites"]
    rows = [_uncertainty_row(part) for part in run.uncertainty]
    drawing = Markup(predictions.uncertainty(run.uncertainty, unit))
    return [Picture("Sources of uncertainty", drawing, caption, headings, rows)]


def _uncertainty_row(part: UncertaintyPart) -> list[str]:
    return [part.name, count(part.rows), number(part.aleatoric), number(part.within), number(part.disagreement)]


def _sites(run: RunReport) -> list[Picture]:
    """Who holds which classes, where the sites contradict each other, and each site's scores."""
    pictures = []
    names = [site.name for site in run.per_site]
    labels = [site.labels for site in run.per_site if site.labels]
    if labels and len(labels) == len(names):
        pictures.append(labels_picture(labels, names, run.class_names, smallest=run.smallest_count))
    if run.diagnostics.get("residual_by_site_and_class"):
        pictures.append(_evidence(run))
    keys = [key for key in _keys(run) if any(site.scores.value(key) is not None for site in run.per_site)]
    if keys:
        pictures.append(_site_scores(run, keys))
    return [*pictures, *calibration_pictures(run.per_site, run.class_names, smallest=run.smallest_count)]


def _site_scores(run: RunReport, keys: Sequence[str]) -> Picture:
    caption = "Scores on each site's own test rows; the dashed line is the score over all test rows."
    weakest = None
    if run.weakest_site and len(run.per_site) > 1 and run.weakest_site.name in {site.name for site in run.per_site}:
        weakest = run.weakest_site.name
        caption += f" The diamond marks the weakest site, {weakest}."
    headings = ["Site", "Training rows", "Test rows", *(metric(key).name for key in keys)]
    rows = [_site_row(site, keys) for site in run.per_site]
    drawing = Markup(by_site.site_scores(run.per_site, run.scores, keys, weakest))
    return Picture("Scores by site", drawing, caption, headings, rows)


def _site_row(site: Site, keys: Sequence[str]) -> list[str]:
    scores = [score(key, site.scores.value(key)) for key in keys]
    return [site.name, count(site.train), count(site.test), *scores]


def _rounds(history: Sequence[Round], keys: Sequence[str]) -> Picture:
    headings = ["Round", *(metric(key).name for key in keys), "Up", "Down"]
    rows = []
    for entry in history:
        scores = [score(key, entry.scores.value(key)) for key in keys]
        rows.append([str(entry.number), *scores, *both_ways(entry.up, entry.down)])
    caption = "Test scores after each round, for information only: no round was chosen by them."
    return Picture("Scores by round", Markup(figures.rounds(history, keys)), caption, headings, rows)


def _evidence(run: RunReport) -> Picture:
    """Where the sites contradict each other about a class, and how far each is shifted."""
    diagnosis = run.diagnostics
    residuals: Sequence[Sequence[float | None]] = diagnosis["residual_by_site_and_class"]
    overall = f"{diagnosis['residual']:.1f}"
    classes = [str(c) for c in range(len(residuals[0]))]
    if run.class_names:
        classes = [str(name) for name in run.class_names]
    sites = _repliers(run, len(residuals))
    alt = f"Unexplained evidence, {overall} nats overall; sites down, classes across."
    caption = (
        f"What the pooled fit leaves unexplained of the sites' evidence, in nats ({overall} overall). Sites that have "
        f"seen the pooled class favour another in {percent(diagnosis['contradiction'])} of cases. A site or class that "
        "stands out looks different there than elsewhere: check units, devices and definitions."
    )
    values = [[v or 0.0 for v in row] for row in residuals]
    rows = []
    for site, row, offset in zip(sites, residuals, diagnosis["offset_by_site"], strict=True):
        rows.append([site, *(_residual(v) for v in row), f"{offset:.2f}"])
    drawing = figures.shade("evidence", alt, values, sites, classes, lambda v: f"{v:.1f}")
    return Picture("Where the sites disagree", Markup(drawing), caption, ["Site", *classes, "Offset"], rows)


def _residual(v: float | None) -> str:
    if v is None:
        return "–"
    return f"{v:.2f}"


def _repliers(run: RunReport, rows: int) -> list[str]:
    """Whose the rows of a diagnosis are: those who sent something; numbered where that is not known."""
    everyone = [site.name for site in run.per_site]
    if len(everyone) == rows:
        return everyone
    traffic: Sequence[Traffic] = ()
    if run.ledger:
        traffic = run.ledger.per_site
    senders = [site.site for site in traffic if site.up]
    if len(senders) == rows:
        return senders
    return [f"reply {k + 1}" for k in range(rows)]
