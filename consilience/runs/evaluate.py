"""From a model to the numbers people read: scores over all test rows, at every site, and at the worst."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from consilience.data.sites import Data, Sites
from consilience.key import Key
from consilience.method import Method
from consilience.metrics.calibration import coverage_curve, expected_ece_if_calibrated, reliability
from consilience.metrics.scores import intervals, scores
from consilience.metrics.uncertainty import Uncertainty, decompose
from consilience.posterior import Point, members
from consilience.predictive import Categorical, Distribution, Normal, Predictive, temperature, tempered
from consilience.task import Task
from consilience.tree import Tree

LEVELS = tuple(i / 20 for i in range(1, 20))
SPLIT_ROWS = 1000  # test rows whose uncertainty is split: every member predicts each of them
PREDICTED_BINS = 10
SHOWN_EXAMPLES = 5  # of a kind, and only of public rows
SHOWN_POINTS = 300


class Scorer:
    """Scores the states of one run on its sites' rows; the test rows of a state are predicted once.

    Args:
        method: The method.
        task: The statistical problem.
        sites: Everybody's rows.
    """

    def __init__(self, method: Method, task: Task, sites: Sites) -> None:
        self.method = method
        self.task = task
        self.sites = sites
        self._last: tuple[Tree, list[tuple[Predictive, Distribution, Tensor]]] | None = None

    def history(self, state: Tree) -> dict[str, float]:
        """Score a state for the history of the rounds.

        Args:
            state: The server's state.

        Returns:
            The scores over all test rows, and over the validation rows where there are any.
        """
        predictions = self._predictions(state)
        metrics = _mean([scores(p, y) for _, p, y in predictions])
        if self.sites.validation is not None:
            rows = self.sites.all_validation
            tuned = _mean([scores(*in_units(model(rows.x), rows, self.sites)) for model, _, _ in predictions])
            metrics |= {f"validation_{name}": value for name, value in tuned.items()}
        rows = self.sites.all_test
        for name, model in self.method.monitored(self.task, state).items():
            other = scores(*in_units(model(rows.x), rows, self.sites))
            metrics |= {f"{name}_{metric}": value for metric, value in other.items()}
        return metrics

    def evaluate(self, state: Tree) -> dict[str, Any]:
        """Find everything that `run.json` says about how good a model is.

        Args:
            state: The server's state.

        Returns:
            Values by the names of `run.json`.
        """
        predictions = self._predictions(state)
        if self.method.personal(self.task, state) is not None:
            return self._evaluate_personal(predictions)
        ((model, p, y),) = predictions
        sites = self.sites
        found = {"metrics": scores(p, y), "intervals": _lists(intervals(p, y)), "tempered": None}
        if isinstance(p, Categorical):
            found["reliability"] = [_bin(b._asdict()) for b in reliability(p, y)]
            found["ece_if_calibrated"] = expected_ece_if_calibrated(p)
        else:
            found["coverage"] = [
                {"level": level, "observed": seen, "interval": list(interval)}
                for level, seen, interval in coverage_curve(p, y, LEVELS)
            ]
        if sites.calibration is not None and self.method.tempers:
            t = fitted_temperature(model, sites)
            q = tempered(p, t)
            found["tempered"] = {"temperature": t, "metrics": scores(q, y), "intervals": _lists(intervals(q, y))}
        found["diagnostics"] = self.method.diagnose(self.task, state, sites.all_test.x)
        found["uncertainty"] = split_uncertainty(self.method, self.task, state, p, sites)
        found["predicted"] = None
        found["examples"] = None
        if not isinstance(p, Categorical):
            found["predicted"] = predicted_bins(p, y, sites.public)
        elif sites.public:
            found["examples"] = examples(p, y, sites)
        return {**found, **per_site([model] * len(sites), sites)}

    def _evaluate_personal(self, predictions: list[tuple[Predictive, Distribution, Tensor]]) -> dict[str, Any]:
        """The average of the sites' own models, and the best of them."""
        models = [model for model, _, _ in predictions]
        each = [scores(p, y) for _, p, y in predictions]
        scaled = None
        if self.sites.calibration is not None and self.method.tempers:
            scaled = _each_tempered(models, self.sites)
        return {
            "metrics": _mean(each),
            "intervals": {},
            "best": min(each, key=lambda metrics: metrics["nll"]),
            "tempered": scaled,
            **per_site(models, self.sites),
        }

    def _predictions(self, state: Tree) -> list[tuple[Predictive, Distribution, Tensor]]:
        """Every model of a state, what it predicts for the test rows, and the truth; remembered for the last state."""
        if self._last is not None and self._last[0] is state:
            return self._last[1]
        rows = self.sites.all_test
        models = self.method.personal(self.task, state) or [self.method.predictive(self.task, state)]
        predictions = [(model, *in_units(model(rows.x), rows, self.sites)) for model in models]
        self._last = (state, predictions)
        return predictions


def uncertainty(method: Method, task: Task, state: Tree, inputs: Tensor) -> Uncertainty:
    """Where the doubt of the posteriors behind a model comes from, for every input."""
    posteriors, weights = method.members(state)
    if getattr(task.likelihood, "latent", True) is False:  # a member's noise is no doubt about the weights
        task = dataclasses.replace(task, likelihood=dataclasses.replace(task.likelihood, latent=True))  # type: ignore[type-var]
    each = [
        [task.predictive(Point(m))(inputs) for m in members(posterior, Key(0), task.draws, task.like)]
        for posterior in posteriors
    ]
    return decompose(each, weights)


def split_uncertainty(
    method: Method, task: Task, state: Tree, p: Distribution, sites: Sites
) -> list[dict[str, Any]] | None:
    """The mean doubt of a test row: over all, over those it got right and wrong, and at every site; None where one set
    of weights cannot tell."""
    rows = sites.all_test
    step = max(-(-len(rows.x) // SPLIT_ROWS), 1)
    some = slice(None, None, step)
    found = uncertainty(method, task, state, rows.x[some])
    if not bool((found.epistemic > 1e-9).any()):
        return None
    site = torch.repeat_interleave(torch.arange(len(sites)), torch.tensor([len(d.x) for d in sites.test]))[some]
    parts = {"all test rows": torch.ones(len(site), dtype=torch.bool)}
    if isinstance(p, Categorical):
        right = p.log_probs[some].argmax(1) == rows.y[some]
        parts |= {"it got right": right, "it got wrong": ~right}
    parts |= {f"site {name}": site == k for k, name in enumerate(sites.names)}
    unit = 1.0 if isinstance(p, Categorical) else sites.target_scale**2
    within = (found.epistemic - found.disagreement).clamp(min=0)
    named = {"aleatoric": found.aleatoric, "within": within, "disagreement": found.disagreement}
    return [
        {"of": of, "rows": int(part.sum()), **{n: unit * float(v[part].mean()) for n, v in named.items()}}
        for of, part in parts.items()
        if bool(part.any())
    ]


def predicted_bins(p: Normal, y: Tensor, public: bool) -> dict[str, Any] | None:
    """Predictions against the truth, in bins of the prediction; single rows only where those may be shown."""
    if p.mean.ndim > 1 or len(y) < 2 * PREDICTED_BINS:
        return None
    order = p.mean.argsort()
    deviation = p.total.sqrt()
    bins = []
    for part in order.tensor_split(PREDICTED_BINS):
        true = y[part].double()
        half = 1.96 * float(true.std()) / len(part) ** 0.5
        at = float(p.mean[part].double().mean())
        here = {"said": at, "deviation": float(deviation[part].double().mean()), "seen": float(true.mean())}
        bins.append({**here, "rows": len(part), "interval": [here["seen"] - half, here["seen"] + half]})
    step = max(-(-len(y) // SHOWN_POINTS), 1)
    points = [[float(p.mean[i]), float(deviation[i]), float(y[i])] for i in order[::step]] if public else None
    return {"bins": bins, "points": points, "spread": float(y.double().std())}


def examples(p: Categorical, y: Tensor, sites: Sites) -> list[dict[str, Any]]:
    """The most confidently wrong test rows and the most uncertain ones."""
    probs, rows = p.probs, sites.all_test
    said, doubt = probs.max(1), torch.special.entr(probs).sum(1)
    wrong = (said.indices != y).nonzero().flatten()
    kinds = {
        "most confidently wrong": wrong[said.values[wrong].argsort(descending=True)][:SHOWN_EXAMPLES],
        "most uncertain": doubt.argsort(descending=True)[:SHOWN_EXAMPLES],
    }
    return [
        {"kind": kind, "said": int(said.indices[i]), "confidence": float(said.values[i]), "true": int(y[i]),
         "image": picture(rows.x[i])}
        for kind, chosen in kinds.items()
        for i in chosen.tolist()
    ]  # fmt: skip


def picture(x: Tensor) -> list[list[float]] | None:
    """A row as a grey image from 0 to 1, if it is one: channels are averaged, and 64 numbers are 8 × 8."""
    image = x.mean(0) if x.ndim == 3 else x.reshape(8, 8) if x.shape == (64,) else None
    if image is None or image.numel() > 1024:
        return None
    low, high = float(image.min()), float(image.max())
    return [[round((v - low) / max(high - low, 1e-9), 2) for v in row] for row in image.tolist()]


def _each_tempered(models: Sequence[Predictive], sites: Sites) -> dict[str, Any]:
    """A temperature of its own for each site's model, and the average of their scores."""
    rows, found = sites.all_test, [fitted_temperature(model, sites) for model in models]
    each = []
    for model, t in zip(models, found, strict=True):
        p, y = in_units(model(rows.x), rows, sites)
        each.append(scores(tempered(p, t), y))
    return {"temperature": statistics.fmean(found), "metrics": _mean(each), "intervals": {}}


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


def in_units(p: Distribution, rows: Data, sites: Sites) -> tuple[Distribution, Tensor]:
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
