"""From a model to the numbers people read: scores over all test rows, at every site, and at the worst."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from consilience.data.data import Data, Sites
from consilience.method import Method
from consilience.metrics.calibration import coverage_curve, expected_ece_if_calibrated, reliability
from consilience.metrics.scores import intervals, scores
from consilience.predictive import Categorical, Distribution, Normal, Predictive, temperature, tempered
from consilience.task import Task
from consilience.tree import Tree

LEVELS = tuple(i / 20 for i in range(1, 20))


def quick(method: Method, task: Task, state: Tree, sites: Sites) -> dict[str, float]:
    """The scores over all test rows, and over the validation rows where there are any, for the history."""
    models = method.personal(task, state) or [method.predictive(task, state)]

    def over(rows: Data) -> dict[str, float]:
        return _mean([scores(*in_units(p(rows.x), rows, sites)) for p in models])

    rows, found = sites.all_test, over(sites.all_test)
    if sites.validation is not None:
        found |= {f"validation_{k}": v for k, v in over(sites.all_validation).items()}
    for name, model in method.monitored(task, state).items():
        found |= {f"{name}_{k}": v for k, v in scores(*in_units(model(rows.x), rows, sites)).items()}
    return found


def evaluate(method: Method, task: Task, state: Tree, sites: Sites) -> dict[str, Any]:
    """Everything `run.json` says about how good the model is."""
    rows, own = sites.all_test, method.personal(task, state)
    if own is not None:
        each = [scores(*in_units(p(rows.x), rows, sites)) for p in own]
        best = min(each, key=lambda s: s["nll"])
        return {"metrics": _mean(each), "intervals": {}, "best": best, "tempered": None, **per_site(own, sites)}
    model = method.predictive(task, state)
    p, y = in_units(model(rows.x), rows, sites)
    found = {"metrics": scores(p, y), "intervals": _lists(intervals(p, y)), "tempered": None}
    if isinstance(p, Categorical):
        found["reliability"] = [_bin(b._asdict()) for b in reliability(p, y)]
        found["ece_if_calibrated"] = expected_ece_if_calibrated(p)
    else:
        found["coverage"] = [
            {"level": level, "observed": seen, "interval": list(interval)}
            for level, seen, interval in coverage_curve(p, y, LEVELS)
        ]
    if sites.calibration is not None and method.tempers:
        t = fitted_temperature(model, sites)
        q = tempered(p, t)
        found["tempered"] = {"temperature": t, "metrics": scores(q, y), "intervals": _lists(intervals(q, y))}
    found["diagnostics"] = method.diagnose(task, state, rows.x)
    return {**found, **per_site([model] * len(sites), sites)}


def fitted_temperature(model: Predictive, sites: Sites) -> float:
    assert sites.calibration is not None
    return temperature(model(sites.calibration.x), sites.calibration.y)


def per_site(models: Sequence[Predictive], sites: Sites) -> dict[str, Any]:
    """Scores on each site's own test rows, and the site with the worst NLL."""
    counts = sites.label_counts() if sites.classes else None
    listed: list[dict[str, Any]] = []
    for k, (model, train, test) in enumerate(zip(models, sites.train, sites.test, strict=True)):
        own = scores(*in_units(model(test.x), test, sites)) if len(test.x) else {}
        labels = None if counts is None else [int(c) for c in counts[k]]
        listed.append(
            {"site": sites.names[k], "train": len(train.x), "test": len(test.x), "labels": labels, "metrics": own}
        )
    tested = [s for s in listed if s["metrics"]]
    worst = max(tested, key=lambda s: s["metrics"]["nll"]) if tested else None
    return {"per_site": listed, "worst_site": {"site": worst["site"], **worst["metrics"]} if worst else None}


def in_units(p: Distribution, rows: Data, sites: Sites) -> tuple[Distribution, torch.Tensor]:
    """Predictions and targets in the target's own units."""
    if isinstance(p, Categorical):
        return p, rows.y
    scale, shift = sites.target_scale, sites.target_shift
    return Normal(p.mean * scale + shift, p.var * scale**2, p.noise * scale**2), rows.y * scale + shift


def _mean(each: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(s[name] for s in each) / len(each) for name in each[0] if all(name in s for s in each)}


def _lists(found: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    return {name: list(pair) for name, pair in found.items()}


def _bin(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
