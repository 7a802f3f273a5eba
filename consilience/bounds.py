"""What a federated model is compared with: each site alone, the server's few rows alone, all data in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from consilience.inference import CyclicalSGHMC
from consilience.methods.centralised import Centralised
from consilience.methods.local_only import LocalOnly
from consilience.methods.server_only import ServerOnly
from consilience.posterior import Point, Samples

if TYPE_CHECKING:
    from consilience.result import Result


def bounds(result: Result) -> dict[str, Any]:
    """Scores of the bounds on the same rows; sites' replies are used again where they are models of their own."""
    from consilience.run import run

    task, sites, seed = result.task, result.sites, result.report["seed"]
    inference = getattr(result.method, "inference", CyclicalSGHMC())
    first_round = result.report["rounds"] == 1
    found: dict[str, Any] = {}
    if len(sites) > 1:
        local = LocalOnly(inference)
        if first_round and result.replies and all(isinstance(r.payload, (Point, Samples)) for r in result.replies):
            found["local_only"] = _kept(result.pool(local).report)
        else:
            found["local_only"] = _kept(run(local, task, sites, seed=seed).report)
    if sites.calibration is not None:
        found["server_only"] = _kept(run(ServerOnly(), task, sites, seed=seed).report)
    if not result.method.pooled:
        found["centralised"] = _kept(run(Centralised(inference), task, sites, seed=seed).report)
    return found


def _kept(report: dict[str, Any]) -> dict[str, Any]:
    return {k: report[k] for k in ("metrics", "intervals", "tempered", "per_site", "worst_site", "best") if k in report}
