"""A run in one honest sentence, and notes on what its scores are worth."""

from __future__ import annotations

from collections.abc import Sequence

from consilience.metrics.calibration import Bin
from consilience.report.schema.run_findings import RunReport
from consilience.report.schema.wording import FEW_ROWS, LOCAL_ONLY, SERVER_ONLY, count, human_bytes, number, percent

BIN_ROWS = 50  # a bin with fewer rows is not put into words


def sentence(run: RunReport) -> str:
    """Describe a run, saying only what its numbers support.

    Returns:
        How large it was, how well it predicts, its weakest site, and what the server and the sites could have
            done alone.
    """
    size = []
    if run.sites is not None:
        size.append(count(run.sites, "site"))
    if run.rounds is not None:
        size.append(count(run.rounds, "round"))
    if run.ledger and run.ledger.up is not None:
        size.append(f"{human_bytes(run.ledger.up)} sent")
    findings = _classification(run)
    if run.is_regression:
        findings = _regression(run)
    if run.weakest_site and run.sites != 1:
        findings.append(f"weakest site: {run.weakest_site.name}")
    if run.rows.get("test") == 0:
        findings.append("no row was held out, so that nothing is scored")
    findings += _server_alone(run)
    findings += _sites_alone(run)
    text = "; ".join(findings)
    return " ".join(f"{part}." for part in (", ".join(size), text[:1].upper() + text[1:]) if part)


ECE_RANGE = "The interval of the debiased ECE is one of the calibration error itself, which the plain ECE overstates."


def ece_note(test_rows: int | None, if_calibrated: float | None, is_regression: bool) -> str:
    """Say what an ECE on so many rows is worth.

    Args:
        test_rows: How many test rows there are, if that is known.
        if_calibrated: The expected ECE of a perfectly calibrated model on these rows.
        is_regression: Whether numbers are predicted, which have no ECE.

    Returns:
        One or two sentences; empty where there is nothing to say.
    """
    if test_rows is None or is_regression:
        return ""
    perfect = ""
    if if_calibrated is not None:
        perfect = f"a perfectly calibrated model would have an ECE of about {percent(if_calibrated, 1)}"
    rows = count(test_rows, "test row")
    if test_rows < FEW_ROWS:
        return f"ECE on {rows} is unreliable: {perfect or 'rely on NLL and Brier instead'}."
    said = "; ".join(part for part in (f"ECE is computed on {rows}", perfect) if part) + "."
    return f"{said} {ECE_RANGE}"


def tempered_note(is_regression: bool, per_site: bool = False) -> str:
    """Say what tempering did.

    Args:
        is_regression: Whether numbers are predicted rather than classes.
        per_site: Whether each site's own model was tempered.

    Returns:
        A sentence.
    """
    factor = "predictions rescaled by a single temperature"
    if is_regression:
        factor = "predictive variances multiplied by a single factor"
    whose = ""
    if per_site:
        whose = " for each site's model (mean shown)"
    return f"Tempered: {factor}{whose}, fitted to the calibration rows."


def _classification(run: RunReport) -> list[str]:
    findings = []
    accuracy = run.scores.value("accuracy")
    if accuracy is not None:
        findings.append(f"accuracy {percent(accuracy)}")
    fullest = _fullest(run.reliability)
    if fullest is not None and fullest.confidence is not None and fullest.accuracy is not None:
        findings.append(
            f"predictions made with {percent(fullest.confidence)} confidence are correct "
            f"{percent(fullest.accuracy)} of the time{_whole_percents(fullest.interval)}"
        )
    return findings


def _fullest(bins: Sequence[Bin]) -> Bin | None:
    """The bin with the most rows, where these are enough to put into words."""
    enough = [b for b in bins if b.count >= BIN_ROWS]
    return max(enough, key=lambda b: b.count, default=None)


def _regression(run: RunReport) -> list[str]:
    findings = []
    rmse = run.scores.value("rmse")
    if rmse is not None:
        findings.append(f"root mean square error {number(rmse)}")
    concordance = run.scores.value("concordance")
    if concordance is not None:
        findings.append(f"concordance {number(concordance)}")
    levels = [level for level in run.coverage if level.observed is not None]
    if levels and (run.test_rows or 0) >= BIN_ROWS:
        nearest = min(levels, key=lambda level: abs(level.level - 0.8))
        findings.append(
            f"the {percent(nearest.level)} predictive intervals cover {percent(nearest.observed)} of the test rows"
            f"{_whole_percents(nearest.interval)}"
        )
    return findings


def _server_alone(run: RunReport) -> list[str]:
    """What the server's few labelled rows would have given."""
    rows = run.rows.get("calibration")
    bound = run.bounds.get(SERVER_ONLY)
    if not rows or bound is None:
        return []
    alone = f"a model trained on the server's {count(rows, 'row')} alone"
    accuracy = bound.scores.value("accuracy")
    rmse = bound.scores.value("rmse")
    if "accuracy" in run.scores.metrics and accuracy is not None:
        return [f"{alone} reaches {percent(accuracy)}"]
    if "rmse" in run.scores.metrics and rmse is not None:
        return [f"{alone} has a root mean square error of {number(rmse)}"]
    return []


def _sites_alone(run: RunReport) -> list[str]:
    """Whether it was worth it: each site's own model on its own rows, beside this one on the same rows."""
    bound = run.bounds.get(LOCAL_ONLY)
    nll = run.scores.value("nll")
    if bound is None or bound.own_rows is None or nll is None or run.own_rows is not None:
        return []
    own = bound.own_rows.value("nll")
    if own is None:
        return []
    if run.newcomer is not None:
        return [f"on each site's own rows its model without the others has an NLL of {number(own)}, with {number(nll)}"]
    return [f"on each site's own rows its own model has an NLL of {number(own)}, this one {number(nll)}"]


def _whole_percents(interval: Sequence[float | None] | None) -> str:
    if not interval:
        return ""
    low, high = (percent(end).removesuffix(" %") for end in interval)
    return f" (95 % interval {low}–{high})"
