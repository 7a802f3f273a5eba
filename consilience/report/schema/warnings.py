"""What should make a reader doubt a run: warnings from its numbers alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from consilience.report.schema.prediction_sets import vacuous
from consilience.report.schema.run_findings import RunReport
from consilience.report.schema.wording import (
    BOUNDS,
    FEW_ROWS,
    beaten_by_base_rate,
    count,
    number,
    over_dispersed,
    percent,
    unequal_noise,
)

OFF = 0.1  # a mean confidence this far from the accuracy is worth a warning
FEW_IN_BINS = 50  # predictions, below which their mean confidence says little
FEW_EVENTS = 50  # among test rows
FEW_AT_A_SITE = 20  # test rows


def doubts(run: RunReport) -> list[str]:
    """List the reasons to doubt a run.

    Returns:
        A sentence each, the gravest first.
    """
    about_rows = (_few_rows, _few_events, _absent_classes)
    about_spread = (_dispersion, _vacuous_sets)
    checks = (_useless, _confidence, _end_of_range, _unconverged, *about_spread, *about_rows, _failed_bounds)
    return [warning for check in checks for warning in check(run)]


def _useless(run: RunReport) -> Iterator[str]:
    """Worse than knowing nothing: as a rule a chain that diverged."""
    nll = run.scores.value("nll")
    rmse = run.scores.value("rmse")
    classes = run.content.get("classes")
    if nll is None and "nll" in run.scores.metrics:
        yield (
            f"The NLL is not finite{_where(run)}: training diverged, or an observed class was given probability 0. Try "
            "a smaller learning rate."
        )
        return
    base = run.baselines.get("base_rate")
    if base is not None:
        beaten = beaten_by_base_rate(run.scores.metrics, base.metrics)
        if beaten:
            yield beaten[:1].upper() + beaten[1:]
        return
    if nll is not None and classes and nll > math.log(classes):
        yield (
            f"An NLL of {number(nll)} is worse than giving all {classes} classes the same probability "
            f"({number(math.log(classes))}): a chain may have diverged, or the pooled model is far too confident."
        )
    spread = run.predicted and run.predicted.spread
    if rmse is not None and spread and rmse > spread:
        yield (
            f"An RMSE of {number(rmse)} is worse than always predicting the mean ({number(spread)}): a chain may have "
            "diverged. Try a smaller learning rate."
        )


def _where(run: RunReport) -> str:
    """The sites on whose rows the scores are not finite, if they are not all."""
    sites = [site.name for site in run.per_site if "nll" in site.scores.metrics and site.scores.value("nll") is None]
    if not sites or len(sites) == len(run.per_site):
        return ""
    return f" at {', '.join(sites)}"


def _confidence(run: RunReport) -> Iterator[str]:
    """A mean confidence far from the accuracy."""
    rows = 0
    confidence = 0.0
    accuracy = 0.0
    for b in run.reliability:
        if b.count and b.confidence is not None and b.accuracy is not None:
            rows += b.count
            confidence += b.count * b.confidence
            accuracy += b.count * b.accuracy
    if rows < FEW_IN_BINS:
        return
    excess = (confidence - accuracy) / rows
    means = f"the mean confidence is {percent(confidence / rows)}, the accuracy {percent(accuracy / rows)}."
    if excess > OFF:
        yield f"Overconfident: {means}{_cause(run)}"
    elif excess < -OFF:
        yield f"Underconfident: {means}"


def _cause(run: RunReport) -> str:
    if not run.multiplies:
        return ""
    return " A product treats the sites as independent evidence, and is overconfident where they are not."


def _end_of_range(run: RunReport) -> Iterator[str]:
    """Settings that stopped at an end of what was tried; of a weight between mixture and product, which it is."""
    for name, value in (run.diagnostics.get("at_end_of_range") or {}).items():
        yield f"The best {name} is at the end of what was tried ({value:.3g}): no value inside that range did better."
    beta = run.diagnostics.get("beta")
    if beta is None or 0.001 < beta < 0.999:
        return
    end = "0, the mixture"
    if beta > 0.5:
        end = "1, the product"
    rows = f"the server's {count(run.rows.get('calibration'), 'labelled row')}"
    if run.is_study:
        rows = f"the {count(run.rows.get('set aside'))} rows that the sites held out"
    yield f"β is at the end of its range ({end}): no value in between did better on {rows}."


def _unconverged(run: RunReport) -> Iterator[str]:
    """A search for a mode that the rounds did not end."""
    gradient = run.diagnostics.get("relative_gradient")
    if gradient is None or run.diagnostics.get("converged"):
        return
    yield f"Not converged: the pooled gradient is {gradient:.1g} of what it was at the start. More rounds come closer."


def _dispersion(run: RunReport) -> Iterator[str]:
    """Outcomes that vary more than the model allows, at all sites or at one."""
    ratio = run.diagnostics.get("dispersion")
    if ratio is not None:
        yield over_dispersed(ratio, "squared errors of test rows are")
    if "loudest_site" in run.diagnostics:
        name, ratio = run.diagnostics["loudest_site"]
        yield unequal_noise(name, ratio)


def _few_events(run: RunReport) -> Iterator[str]:
    """Too few events for what is said of times."""
    events = run.content.get("events")
    if events is not None and events < FEW_EVENTS:
        yield f"Only {count(events, 'event')} among the test rows: every score of survival rests on these."


def _few_rows(run: RunReport) -> Iterator[str]:
    """Too few test rows, in all or at a site."""
    rows = run.test_rows
    if rows is not None and rows < FEW_ROWS:
        consequence = "the intervals are wide and the ECE is unreliable"
        if run.is_regression:
            consequence = "the intervals are wide"
        yield f"Only {count(rows, 'test row')}: {consequence}."
    few = [site.name for site in run.per_site if site.test is not None and site.test < FEW_AT_A_SITE]
    if few and len(run.per_site) > 1:
        role = "test rows"
        if run.is_study:
            role = "rows held out"
        yield (
            f"{_subject(few, len(run.per_site))} fewer than {FEW_AT_A_SITE} {role}: scores there, and which site is "
            "weakest, are largely due to chance."
        )


def _subject(sites: Sequence[str], of: int) -> str:
    if len(sites) == 1:
        return f"Site {sites[0]} has"
    return f"{count(len(sites))} of {count(of, 'site')} have"


def _absent_classes(run: RunReport) -> Iterator[str]:
    """Classes that no site has seen; a count of None is small, not zero."""
    counts = [site.labels for site in run.per_site if site.labels]
    if not counts or len(counts) < len(run.per_site):
        return
    names = run.class_names or range(len(counts[0]))
    by_class = zip(*counts, strict=False)
    absent = [str(name) for name, rows in zip(names, by_class, strict=False) if all(n == 0 for n in rows)]
    if not absent:
        return
    listed = ", ".join(absent[:5])
    if len(absent) > 5:
        listed += f", … ({len(absent)} classes in all)"
    yield f"No site has training rows of class {listed}: nothing can be learned about it."


def _vacuous_sets(run: RunReport) -> Iterator[str]:
    """Prediction sets that hold everything."""
    if run.sets is None or run.sets.overall is None:
        return
    found = vacuous(run.sets.overall.size, run.sets.uninformed, run.is_regression, run.sets.score)
    if found:
        yield found


def _failed_bounds(run: RunReport) -> Iterator[str]:
    for key, bound in run.bounds.items():
        if bound.failure:
            yield f"The {BOUNDS[key].lower()} bound failed: {bound.failure}"
