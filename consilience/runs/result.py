"""What a run gives back: scores, predictions with their uncertainty, and the replies, to be pooled again."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from rich.console import Console
from torch import Tensor

from consilience.data.sites import Sites
from consilience.engines.ledger import Ledger
from consilience.errors import Diverged, InputError
from consilience.formats.blueprint import blueprint
from consilience.inference import CyclicalSGHMC
from consilience.key import Key, Stream
from consilience.method import Method, name
from consilience.methods.bounds import Centralised, LocalOnly, ServerOnly
from consilience.parties import Received, Server
from consilience.posterior import Dense, Gaussian, Point, Samples
from consilience.predictive import Categorical, Normal, tempered
from consilience.report.table import run_table
from consilience.runs.evaluate import evaluate, fitted_temperature, uncertainty
from consilience.runs.provenance import check, facts, reported_identity
from consilience.runs.store import FORMAT, Checkpoint, Store
from consilience.task import Task
from consilience.tree import Tree

# what stays true of a run however its replies are pooled
OF_THE_RUN = {"consilience", "format", "model", "compiled", "device", "started_from", "participation"}
OF_THE_RUN |= {"ledger", "failures"}


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
    checkpoint: Checkpoint | None = None  # where the run stands; None for a pool

    @property
    def metrics(self) -> dict[str, float]:
        found: dict[str, float] = self.report["metrics"]
        return found

    def predict(self, x: Tensor | numpy.ndarray[Any, Any], temper: bool = False) -> Prediction:
        """Predict for inputs in the units the data came in; `temper` applies the calibration rows' temperature.

        A temperature scales a regression's variance and its parts alike; the parts of classes are those before it.
        """
        inputs = self._inputs(x)
        model = self.method.predictive(self.task, self.state)
        t = self._temperature() if temper else 1.0
        p = tempered(model(inputs), t) if temper else model(inputs)
        u = uncertainty(self.method, self.task, self.state, inputs)
        if isinstance(p, Categorical):
            return Prediction(p.probs, None, None, u.aleatoric, u.epistemic, u.disagreement)
        scale, shift = self.sites.target_scale, self.sites.target_shift
        assert isinstance(p, Normal)
        parts = [t * v * scale**2 for v in (u.aleatoric, u.epistemic, u.disagreement)]
        return Prediction(None, p.mean * scale + shift, p.total * scale**2, *parts)

    def _inputs(self, x: Tensor | numpy.ndarray[Any, Any]) -> Tensor:
        """Rows as the network takes them; what it was not made for is refused."""
        rows = x if isinstance(x, Tensor) else torch.as_tensor(numpy.asarray(x))  # lists keep their digits
        features = self.sites.features
        wanted = (features,) if isinstance(features, int) else tuple(features)
        if tuple(rows.shape[1:]) != wanted:
            each = " × ".join(str(n) for n in wanted)
            raise InputError(f"Give rows of {each} features each, an array [N, …]; this is {list(rows.shape)}.")
        if not bool(torch.isfinite(rows).all()):
            first = int((~torch.isfinite(rows)).flatten(1).any(1).int().argmax())
            raise InputError(f"Row {first} holds NaN or an infinite value: fill it in, or leave the row out.")
        return self.sites.scaled(rows.double()).to(next(iter(self.task.like.values())))

    def _temperature(self) -> float:
        if self.sites.calibration is not None:
            return fitted_temperature(self.method.predictive(self.task, self.state), self.sites)
        known = (self.report.get("tempered") or {}).get("temperature")  # of a run loaded without its rows
        if known is None:
            raise InputError("There are no calibration rows to fit a temperature on; use temper=False.")
        return float(known)

    def save(self, folder: str | Path) -> Path:
        """Keep everything but the rows in a folder, with its report; `co.load(folder)` brings it back."""
        from consilience.report.run_page import run_page  # here, because drawing takes a second to import

        store, replies = Store(folder), list(self.replies)
        if self.store is None or self.store.folder.resolve() != store.folder.resolve():
            if store.exists:
                raise InputError(f"{folder} already holds a run; choose another folder.")
            fingerprint = reported_identity(self.report, self.method, self.task, self.sites)
            rounds, history = self.report["rounds"], self.report.get("history", [])
            store.save(self.checkpoint or Checkpoint(rounds, self.state, {}, history, Ledger(), fingerprint), replies)
            store.write_json("task.json", {"format": FORMAT, **blueprint(self.task, self.sites)})
        report = {**self.report, **({"bounds": self.bounds} if "bounds" in self.__dict__ else {})}
        store.write_json("run.json", report)
        store.write("report.html", run_page(report).encode())
        return store.folder

    def pool(self, method: Method, scored: bool = True) -> Result:
        """The same replies under another method's rule, without training; `scored=False` leaves the scores out."""
        if not self.sites.train:
            raise InputError("This run was loaded without its rows: hand them in, co.load(folder, sites=sites).")
        if not self.replies:
            raise InputError("This run kept no replies; run again with keep_replies='last'.")
        if method.pooled and not self.method.pooled:
            raise InputError(f"{name(method)} trains on all rows in one place and pools no replies: use co.run.")
        if method.everyone and len(self.replies) < len(self.sites):
            raise InputError(f"{name(method)} needs every site's reply; this run has {len(self.replies)}.")
        same = type(method) is type(self.method)
        if not same and not all(isinstance(r.payload, (Point, Samples, Gaussian, Dense)) for r in self.replies):
            raise InputError(f"The replies of {name(self.method)} are not posteriors; {name(method)} cannot pool them.")
        check(method, self.task, self.sites, 1)
        first = self.server._replace(
            key=Key(self.report["seed"]).fold(Stream.AGGREGATE).fold(0)
        )  # as `run` has it in its first round
        try:
            state = method.aggregate(self.task, method.init(self.task, self.server), self.replies, first)
        except InputError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # replies of another kind
            raise InputError(
                f"{name(method)} needs replies of its own, not those of {name(self.method)}: run it."
            ) from error
        kept = {k: v for k, v in self.report.items() if k in OF_THE_RUN}
        how = (self.report[k] for k in ("rounds", "seed", "engine", "threads"))
        found = evaluate(method, self.task, state, self.sites) if scored else {}
        heard = self.report.get("warnings", []) if self.checkpoint is None else list(self.checkpoint.warnings)
        told = {"history": [], "warnings": heard, "seconds": 0.0, "finished": True}
        report = {**facts(method, self.task, self.sites, *how), **kept, **found, **told}
        return Result(method, self.task, self.sites, state, self.replies, self.server, report, self.run)

    @cached_property
    def bounds(self) -> dict[str, Any]:
        """Each site alone, the server's few rows alone, all data in one place: scores on the same test rows.

        A bound whose training left the finite numbers says so as its `failure`, and costs no other.
        """
        if not self.sites.train:  # loaded without its rows
            known: dict[str, Any] = self.report.get("bounds") or {}
            return known
        seed = self.report["seed"]
        inference = getattr(getattr(self.method, "inner", self.method), "inference", CyclicalSGHMC())

        def trained(method: Method) -> Result:
            return self.run(method, self.task, self.sites, seed=seed)

        wanted: dict[str, Callable[[], Result]] = {}
        if len(self.sites) > 1:
            whole = self.report["rounds"] == 1 and len(self.replies) == len(self.sites)
            own_models = whole and all(isinstance(r.payload, (Point, Samples)) for r in self.replies)
            local = LocalOnly(inference)
            wanted["local_only"] = lambda: self.pool(local) if own_models else trained(local)
        if self.sites.calibration is not None:
            wanted["server_only"] = lambda: trained(ServerOnly())
        if not self.method.pooled:
            wanted["centralised"] = lambda: trained(Centralised(inference))
        return {bound: _scored(made) for bound, made in wanted.items()}

    def __str__(self) -> str:
        text = io.StringIO()
        Console(width=100, file=text).print(run_table({**self.report, "bounds": self.bounds}))
        return text.getvalue()

    __repr__ = object.__repr__


def _scored(bound: Callable[[], Result]) -> dict[str, Any]:
    """A bound's scores, or why there are none."""
    try:
        report = bound().report
    except Diverged as error:
        return {"failure": str(error)}
    kept = ("metrics", "intervals", "tempered", "per_site", "worst_site", "best")
    return {k: report[k] for k in kept if k in report}
