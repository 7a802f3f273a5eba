"""Exact pooling.  This project; heads after Milios et al. 2018, Fed3R and others: docs/exact.md."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import InputError
from consilience.likelihood import Heteroscedastic, Softmax
from consilience.method import Knob, Method, keep_fields
from consilience.models.features import feature_map, last_layer
from consilience.models.remembered import remember
from consilience.parties import Client, Received, Reply, Server, payloads
from consilience.pooling.heads import LEAST, SHARES, Classes, Head, OneHot, Ridge, Spectrum, as_point, fit
from consilience.pooling.sums import Sums, add, check_memory, compress, doubt, in_parts, summarise
from consilience.posterior import Point
from consilience.predictive import Distribution, Predictive
from consilience.task import Task
from consilience.tree import Tree

WIRES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16}


class ExactState(NamedTuple):
    """The state of exact pooling.

    Attributes:
        posterior: The head's mean as weights of the linear layer; random before the round.
        fit: What predicting needs; () before the round.
        totals: The sums of all rows; () before the round.
        chosen: Which head, λ/n and temperature, where the clients chose them.
    """

    posterior: Point
    fit: Spectrum | Classes | tuple[()] = ()
    totals: Sums | tuple[()] = ()
    chosen: Tensor | tuple[()] = ()


@dataclass(frozen=True)
class ExactPooling(Method):
    """One round; sums that are the same however the rows are split, so that the answer is that of all rows together.

        for each client k of K, in parallel
    1       Sₖ ← Σ φ(x) φ(x)ᵀ, Σ y φ(x)ᵀ, Σ y² over its rows;  send Sₖ
    2   S ← Σₖ Sₖ
    3   fit the head to S, its prior's weight λ by the marginal likelihood

    Attributes:
        head: What is learned from the sums; None: Bayesian linear regression for numbers, `OneHot` for classes.
        share: λ/n; None: by the marginal likelihood.
        wire: The precision in which sums are sent: float64, float32 or float16.
    """

    name: ClassVar[str] = "exact"
    sends: ClassVar[str] = "sums over its rows: a Gram matrix of the features, and their sums by class"
    one_shot: ClassVar[bool] = True
    sums: ClassVar[bool] = True
    heads: ClassVar[bool] = True
    carries: ClassVar[tuple[type, ...]] = (Sums, Spectrum, Classes)

    head: Head | None = None
    share: float | None = None
    wire: str = "float64"

    def init(self, task: Task, server: Server) -> ExactState:
        check_problem(task, self.chosen_head(task))
        if self.share is not None and not self.share > 0:
            raise InputError(f"share={self.share:g} is not the weight of a prior: give a positive number, or None.")
        if self.wire not in WIRES:
            raise InputError(f"wire={self.wire!r} is not a precision: choose {', '.join(WIRES)}.")
        return ExactState(task.init(server.key))

    def broadcast(self, state: ExactState) -> tuple[()]:
        return ()  # the agreement says it all

    def local(self, task: Task, message: Any, client: Client) -> Reply:
        by_class = self.chosen_head(task).by_class
        sums = summarise(feature_map(task.model), client.data, classes_of(task), by_class)
        return Reply(compress(sums, WIRES[self.wire]), client.data.size)  # 1

    def aggregate(self, task: Task, state: ExactState, replies: Sequence[Received], server: Server) -> ExactState:
        warn_of_few_rows(replies)
        totals = add(payloads(replies))  # 2
        head = self.chosen_head(task)
        fitted = fit(head, totals, self.share, least_share(self.wire, totals))  # 3
        return ExactState(as_point(head.linear(fitted), fitted, task.like), fitted, totals)

    def predictive(self, task: Task, state: ExactState) -> Predictive:
        return predict_with(task, self.chosen_head(task), state)

    def diagnose(self, task: Task, state: ExactState, x: Tensor) -> dict[str, Any]:
        penalty = getattr(state.fit, "share", torch.nan)
        return {"head": type(self.chosen_head(task)).__name__, "penalty_per_row": float(penalty)}

    def knob(self, state: ExactState) -> Knob | None:
        if isinstance(state.fit, (Spectrum, Classes)):
            return Knob("share", "λ/n", SHARES, None)
        return None

    def turn(self, state: ExactState, value: float) -> tuple[Self, ExactState]:
        assert isinstance(state.fit, (Spectrum, Classes))
        return self, state._replace(fit=state.fit._replace(share=torch.tensor(value, dtype=torch.float64)))

    def doubt(self, task: Task, message: Any, send: Any) -> str | None:
        return doubt(send)

    def hand_out(self, state: ExactState, ensemble: bool) -> Tree:
        return keep_fields(state, ("posterior", "fit", "chosen"))

    def chosen_head(self, task: Task) -> Head:
        """Return the head, or the usual one for the task."""
        if self.head is not None:
            return self.head
        if classes_of(task) is None:
            return Ridge()
        return OneHot()


def least_share(wire: str, totals: Sums) -> float:
    """Find the smallest λ/n above what rounding does to a Gram matrix of correlations.

    Args:
        wire: The precision in which sums are sent.
        totals: The sums.

    Returns:
        The norm of the rounding errors, roughly; next to nothing unless sums are sent in half precision.
    """
    if wire == "float16":
        return 2**-13 * math.sqrt(totals.features)
    return LEAST


def classes_of(task: Task) -> int | None:
    """Count the classes of a task.

    Args:
        task: A task whose model ends in a linear layer.

    Returns:
        How many there are; None for numbers.
    """
    if isinstance(task.likelihood, Softmax):
        return last_layer(task.model).out_features
    return None


def check_problem(task: Task, head: Head) -> None:
    """Refuse a task that a head cannot be fitted to.

    Args:
        task: The statistical problem.
        head: The head.

    Raises:
        InputError: The model is not one linear layer on fixed features, the head is for other targets, or too large.
    """
    feature_map(task.model)
    classes = classes_of(task)
    kind = "regression" if classes is None else "classification"
    if kind not in head.tasks or isinstance(task.likelihood, Heteroscedastic):
        raise InputError(f"The head {type(head).__name__} is for {head.tasks[0]}: these rows are another problem.")
    check_memory(last_layer(task.model).in_features, classes or 1, head.by_class)


def warn_of_few_rows(replies: Sequence[Received]) -> None:
    """Warn of Gram matrices that show single rows.

    Args:
        replies: The clients' sums.
    """
    few = [reply for reply in replies if 0 < float(reply.size) < reply.payload.features]
    if few:
        warnings.warn(
            f"{len(few)} of {len(replies)} sites have fewer rows than the {few[0].payload.features} sums of a Gram "
            "matrix's row: it shows their rows' features up to a rotation. Use fewer features, or add sums securely.",
            stacklevel=2,
        )


def predict_with(task: Task, head: Head, state: ExactState) -> Predictive:
    """Predict from a state.

    Args:
        task: The statistical problem.
        head: The head that was fitted.
        state: The server's state; before any round, a random layer predicts.

    Returns:
        The model, in chunks of rows.
    """
    if not len(state.fit):
        return task.predictive(state.posterior)
    features = feature_map(task.model)

    @torch.no_grad()
    def predict(x: Tensor) -> Distribution:
        whole: Distribution = tree.concatenate(head.predict(state.fit, features(part)) for part in in_parts(x))
        typed: Distribution = tree.map(lambda leaf: leaf.to(x.dtype), whole)
        return typed

    return lambda x: remember(lambda: predict(x), predict_with, head, task.model, *tree.leaves(state.fit), x)
