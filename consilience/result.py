"""What a run gives back: scores, predictions with their uncertainty, and the replies, to be pooled again."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy
import torch
from rich.console import Console
from torch import Tensor

from consilience.data.data import Sites
from consilience.errors import InputError
from consilience.evaluate import evaluate, fitted_temperature
from consilience.inference import CyclicalSGHMC
from consilience.key import Key
from consilience.method import Method, name
from consilience.methods.centralised import Centralised
from consilience.methods.local_only import LocalOnly
from consilience.methods.server_only import ServerOnly
from consilience.metrics.uncertainty import decompose
from consilience.parties import Received, Server
from consilience.posterior import Dense, Gaussian, Point, Samples, members
from consilience.predictive import Categorical, Normal, tempered
from consilience.provenance import check, facts
from consilience.report.table import run_table
from consilience.store import Store
from consilience.task import Task
from consilience.tree import Tree


class Prediction(NamedTuple):
    """Predictions for some inputs, and where their uncertainty comes from (nats for classes, variance for numbers)."""

    probs: Tensor | None  # [N, C], classification
    mean: Tensor | None  # regression, in the target's units
    var: Tensor | None  # of an observation
    aleatoric: Tensor  # in the outcome itself
    epistemic: Tensor  # from not knowing the weights
    disagreement: Tensor  # the part of it between sites


@dataclass(frozen=True, eq=False)
class Result:
    method: Method
    task: Task
    sites: Sites
    state: Tree
    replies: Sequence[Received]
    server: Server
    report: dict[str, Any]  # what run.json holds
    run: Callable[..., Result]  # how to run something else on the same rows
    store: Store | None = None

    @property
    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = self.report["metrics"]
        return found

    def predict(self, x: Tensor | numpy.ndarray[Any, Any], temper: bool = False) -> Prediction:
        """Predict for inputs in the units the data came in; `temper` applies the calibration rows' temperature."""
        inputs = self.sites.scaled(torch.as_tensor(x))
        model = self.method.predictive(self.task, self.state)
        p = model(inputs)
        if temper:
            if self.sites.calibration is None:
                raise InputError("There are no calibration rows to fit a temperature on; use temper=False.")
            p = tempered(p, fitted_temperature(model, self.sites))
        posteriors, weights = self.method.members(self.state)
        like, draws = self.task.like, self.task.draws
        each = [
            [self.task.predictive(Point(m))(inputs) for m in members(posterior, Key(0), draws, like)]
            for posterior in posteriors
        ]
        u = decompose(each, weights)
        if isinstance(p, Categorical):
            return Prediction(p.probs, None, None, u.aleatoric, u.epistemic, u.disagreement)
        scale, shift = self.sites.target_scale, self.sites.target_shift
        assert isinstance(p, Normal)
        parts = [v * scale**2 for v in (p.total, u.aleatoric, u.epistemic, u.disagreement)]
        return Prediction(None, p.mean * scale + shift, *parts)

    def pool(self, method: Method, scored: bool = True) -> Result:
        """The same replies under another method's rule, without training; `scored=False` leaves the scores out."""
        if not self.replies:
            raise InputError("This run kept no replies; run again with keep_replies='last'.")
        if method.everyone and len(self.replies) < len(self.sites):
            raise InputError(f"{name(method)} needs every site's reply; this run has {len(self.replies)}.")
        same = type(method) is type(self.method)
        if not same and not all(isinstance(r.payload, (Point, Samples, Gaussian, Dense)) for r in self.replies):
            raise InputError(f"The replies of {name(self.method)} are not posteriors; {name(method)} cannot pool them.")
        check(method, self.task, self.sites, 1)
        first = self.server._replace(key=Key(self.report["seed"]).fold(2).fold(0))  # as `run` has it in its first round
        state = method.aggregate(self.task, method.init(self.task, self.server), self.replies, first)
        kept = {k: self.report[k] for k in ("ledger", "engine", "seed", "threads", "failures")}
        told = facts(method, self.task, self.sites, 1, kept["seed"], kept["engine"], kept["threads"])
        found = evaluate(method, self.task, state, self.sites) if scored else {}
        report = {**self.report, **told, **kept, **found, "seconds": 0.0}
        return Result(method, self.task, self.sites, state, self.replies, self.server, report, self.run)

    @cached_property
    def bounds(self) -> dict[str, Any]:
        """Each site alone, the server's few rows alone, all data in one place: scores on the same test rows."""
        seed = self.report["seed"]
        inference = getattr(self.method, "inference", CyclicalSGHMC())
        found = {}
        if len(self.sites) > 1:
            whole = self.report["rounds"] == 1 and len(self.replies) == len(self.sites)
            own_models = whole and all(isinstance(r.payload, (Point, Samples)) for r in self.replies)
            local = LocalOnly(inference)
            found["local_only"] = self.pool(local) if own_models else self.run(local, self.task, self.sites, seed=seed)
        if self.sites.calibration is not None:
            found["server_only"] = self.run(ServerOnly(), self.task, self.sites, seed=seed)
        if not self.method.pooled:
            found["centralised"] = self.run(Centralised(inference), self.task, self.sites, seed=seed)
        kept = ("metrics", "intervals", "tempered", "per_site", "worst_site", "best")
        return {bound: {k: r.report[k] for k in kept if k in r.report} for bound, r in found.items()}

    def __str__(self) -> str:
        text = io.StringIO()
        Console(width=100, file=text).print(run_table({**self.report, "bounds": self.bounds}))
        return text.getvalue()

    __repr__ = object.__repr__
