"""The bounds of a run, trained on the same rows from the same seed."""

from __future__ import annotations

from typing import Any

from consilience.engines import ENGINES
from consilience.errors import Diverged
from consilience.inference import Inference
from consilience.inference.newton import Newton
from consilience.method import Method
from consilience.methods.bounds import bounds
from consilience.posterior import Point, Samples
from consilience.runs.provenance import takes_all_rows
from consilience.runs.result import Result
from consilience.runs.run import Compute, run

KEPT = ("metrics", "intervals", "tempered", "per_site", "worst_site", "best", "own_rows", "models")


def train_bounds(result: Result) -> dict[str, Any]:
    """Train each site alone, the server's few rows alone, and all rows in one place.

    Args:
        result: The run to be held against them, with its rows.

    Returns:
        The scores of every bound, or its `failure` where it diverged.
    """
    inference = _inference(result.method)
    labelled = result.sites.calibration is not None
    if not result.task.by_rows:  # the server's few rows would need many more events
        labelled = False
        if inference is None or not takes_all_rows(inference):
            inference = Newton()
    listed = bounds(inference, len(result.sites), labelled)
    scores = {}
    for bound, method in listed.items():
        if method.pooled and result.method.pooled:
            continue
        try:
            report = _result(method, result).report
        except Diverged as error:
            scores[bound] = {"failure": str(error)}
        else:
            scores[bound] = {field: report[field] for field in KEPT if field in report}
    return scores


def _inference(method: Method) -> Inference | None:
    """How the run's clients infer: its own inference, or its inner method's."""
    inner = getattr(method, "inner", method)
    inference: Inference | None = getattr(inner, "inference", None)
    return inference


def _result(bound: Method, result: Result) -> Result:
    """The bound's result; without training where the run's replies are the sites' own models already."""
    whole = result.report["rounds"] == 1 and len(result.replies) == len(result.sites)
    own_models = whole and all(isinstance(reply.payload, (Point, Samples)) for reply in result.replies)
    if bound.shares and own_models:
        return result.pool(bound)
    where = Compute(_engine(bound, result), result.report["threads"], device=result.report.get("device", "cpu"))
    return run(bound, result.task, result.sites, seed=result.report["seed"], engine=where)


def _engine(bound: Method, result: Result) -> str:
    """The run's engine; by the rule where a single site is left, or where the run had an engine of its own."""
    name = str(result.report["engine"])
    if bound.pooled or name.partition(":")[0] not in ENGINES:
        return "auto"
    return name
