"""What a site finds about a returned model on its own test rows, as a report that stays there."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from consilience.disk.typed import plain
from consilience.distributions.predictive import Categorical, Distribution
from consilience.distributions.survival import Survival
from consilience.metrics.calibration import coverage_curve, expected_ece_if_calibrated, reliability
from consilience.metrics.scores import intervals, scores
from consilience.metrics.site_calibration import site_calibration
from consilience.runs.identity import citation, today, versions
from consilience.study.protocol.agreement import Agreement
from consilience.version import __version__

STAYS = "These are results of one site: they stay here unless the site decides otherwise."


def evaluation_report(agreement: Agreement, p: Distribution, y: Tensor, site: str) -> dict[str, Any]:
    """Describe how well a model predicts a site's test rows.

    Args:
        agreement: What the model's sites agreed on.
        p: What the model predicts for the rows, in the target's own unit.

    Returns:
        Values by the names of `run.json`, with the agreement's smallest count, so that a page shows none below it.
    """
    title, source = citation(type(agreement.build_method()))
    spans = {name: list(span) for name, span in intervals(p, y).items()}
    found = {"metrics": scores(p, y), "intervals": spans}
    report: dict[str, Any] = {
        "consilience": __version__,
        "date": today(),
        "title": f"{agreement.name} at {site}: {title}",
        "summary": source,
        "method": agreement.method,
        "model": agreement.network,
        "hash": agreement.hash,
        "task": agreement.kind,
        "class_names": list(agreement.target.classes) or None,
        "smallest_count": agreement.smallest,
        "rows": {"test": len(y)},
        "warnings": [STAYS],
        "versions": versions(),
        **found,
    }
    if isinstance(p, Categorical):
        report["reliability"] = plain(reliability(p, y))
        report["ece_if_calibrated"] = expected_ece_if_calibrated(p)
    elif not isinstance(p, Survival):
        report["coverage"] = plain(coverage_curve(p, y))
    calibrated = plain(site_calibration(p, y))
    known = {name: value for name, value in calibrated.items() if value}
    report["per_site"] = [{"site": site, "test": len(y), "metrics": found["metrics"], **known}]
    return report
