"""What a run is held against: its bounds, on the same rows from the same seed; and what a newcomer gets."""

from __future__ import annotations

from typing import Any

import torch

from consilience.data.sites import Sites
from consilience.disk.typed import plain
from consilience.distributions.posterior import Point, Samples
from consilience.errors import Diverged, InputError
from consilience.inference import Inference
from consilience.inference.newton import Newton
from consilience.method import Method
from consilience.method.declared import pools_rows, shares_replies
from consilience.method.settings import passes
from consilience.method.which import has_common
from consilience.methods.bounds import bounds
from consilience.metrics.evaluate import in_own_unit, in_units, join, per_site
from consilience.metrics.scores import intervals, scores
from consilience.report.schema.wording import count
from consilience.runs.engines import ENGINES
from consilience.runs.heard import untold
from consilience.runs.identity import takes_all_rows
from consilience.runs.result import Result
from consilience.runs.run import Compute, run
from consilience.task import Task

KEPT = ("metrics", "intervals", "tempered", "per_site", "worst_site", "best", "own_rows", "models")


def train_bounds(result: Result) -> dict[str, Any]:
    """Train each site alone, the server's few rows alone, and all rows in one place.

    Args:
        result: The run to be held against them, with its rows.

    Returns:
        The scores of every bound, or its `failure` where it diverged.
    """
    labelled = result.sites.calibration is not None
    listed = bounds_of(result.method, result.report["rounds"], len(result.sites), labelled, result.task.by_rows)
    found: dict[str, Any] = {}
    for bound, method in listed.items():
        if pools_rows(method) and pools_rows(result.method):
            continue
        try:
            report = _result(method, result).report
        except Diverged as error:
            found[bound] = {"failure": str(error)}
        else:
            found[bound] = {field: report[field] for field in KEPT if field in report}
            found[bound]["trained"] = trained(method)
    return found


def bounds_of(method: Method, rounds: int, sites: int, labelled: bool, by_rows: bool = True) -> dict[str, Method]:
    """List the bounds of a federated method: the one definition, for runs and for comparisons.

    Args:
        rounds: How many it runs for.
        labelled: Whether the server has labelled rows.
        by_rows: Whether some rows can stand for all; where not, the server's few are too few, and all sites' are
            fitted until that converges.

    Returns:
        Bounds by name, as `consilience.methods.bounds.bounds` lists them.
    """
    inference = find_inference(method)
    if not by_rows:
        labelled = False
        if inference is None or not takes_all_rows(inference):
            inference = Newton()
    return bounds(inference, sites, labelled, rounds)


def trained(bound: Method) -> str:
    """Say how long a bound trains.

    Returns:
        Its passes over the rows, as `100 passes`, or `converged`; empty where nobody counts.
    """
    inference = find_inference(bound)
    if inference is not None and takes_all_rows(inference):
        return "converged"
    made = passes(inference)
    if made is None:
        return ""
    if made == 1:
        return "1 pass"
    return f"{count(made)} passes"


def find_inference(method: Method) -> Inference | None:
    """Find how a method's clients infer.

    Returns:
        Its own inference, or its inner method's; None where it has none.
    """
    return (method.inner or method).inference


def _result(bound: Method, result: Result) -> Result:
    """The bound's result; without training where the run's replies are the sites' own models already."""
    whole = result.report["rounds"] == 1 and len(result.replies) == len(result.sites)
    own_models = whole and all(isinstance(reply.payload, (Point, Samples)) for reply in result.replies)
    if shares_replies(bound) and own_models:
        return result.pool(bound)
    where = Compute(_engine(bound, result), result.report["threads"], device=result.report.get("device", "cpu"))
    with untold():
        return run(bound, result.task, result.sites, seed=result.report["seed"], engine=where, effects=False)


def _engine(bound: Method, result: Result) -> str:
    """The run's engine; by the rule where a single site is left, or where the run had an engine of its own."""
    name = str(result.report["engine"])
    if pools_rows(bound) or name.partition(":")[0] not in ENGINES:
        return "auto"
    return name


def leave_one_out(
    method: Method,
    task: Task,
    sites: Sites,
    *,
    rounds: int | None = None,
    seed: int = 0,
    engine: str | Compute = "auto",
) -> dict[str, Any]:
    """Run a method once for each site, without it, and score the common model on that site's test rows.

    Where sites have models of their own the common model is what a newcomer gets. The target's scale and the columns'
    are those of `sites`: they may have been found with the rows of the site that is left out.

    Args:
        method: How the sites learn together; it must have a model for all.
        task: The network, its likelihood and its prior.
        sites: Everybody's rows, by role; two sites or more.
        rounds: How many; what is usual for the method if None.
        engine: Where the sites' work runs.

    Returns:
        `metrics` and `intervals` over all test rows, each predicted by the run without its site, and `per_site` and
        `worst_site` as in run.json.

    Raises:
        InputError: There are too few sites, or the method has no model for a site that took no part.
    """
    if len(sites) < 2:
        raise InputError("Leaving a site out needs two sites or more: there is one.")
    if not has_common(method) or pools_rows(method):
        raise InputError("Leaving a site out needs a federated method with a model for all sites: choose another.")
    predictions = []
    for k, name in enumerate(sites.names):
        with untold():
            result = run(method, task, sites.without(name), rounds=rounds, seed=seed, engine=engine, scored=False)
        with torch.no_grad():
            model = method.predictive(task, result.state)
            predictions.append(in_units(model(sites.test[k].x), sites.test[k], sites)[0])
    p = join(predictions)
    y = in_own_unit(sites.all_test.y, sites)
    found = {name: list(pair) for name, pair in intervals(p, y).items()}
    return {"metrics": scores(p, y), "intervals": found, **plain(per_site(predictions, sites))}
