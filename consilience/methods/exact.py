"""Exact pooling.  This project; heads after Milios et al. 2018, Fed3R and others: docs/exact.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from consilience.aggregation.summands import Summation, Total
from consilience.distributions.posterior import Point
from consilience.distributions.predictive import Predictive
from consilience.errors import InputError
from consilience.glm.fitting import SHARES, Head, as_point, at_an_end, check_problem, fit, least_share
from consilience.glm.heads import Classes, OneHot, Ridge
from consilience.glm.linear_model import classes_of, warn_of_few_rows
from consilience.glm.noisy import Noisy, check_private_problem, fit_replies, sum_bounded
from consilience.glm.predictions import predict_with
from consilience.glm.spectrum import Spectrum
from consilience.glm.sums import Sums, add, compress, doubt, sum_rows
from consilience.messages import Client, Received, Reply, Server, payloads
from consilience.method import (
    ONE_SHOT,
    About,
    Diagnosed,
    Knob,
    Method,
    OnFeatures,
    Private,
    Releasable,
    ReplyKind,
    Streaming,
    Summable,
    Tunable,
    Validated,
    keep_fields,
)
from consilience.method.settings import added
from consilience.models.maps import feature_map
from consilience.privacy.dp.mechanisms import Privacy, Released
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
class ExactPooling(OnFeatures, Summable, Private, Validated, Tunable, Releasable, Diagnosed, Streaming, Method):
    """One round; sums that are the same however the rows are split, so that the answer is that of all rows together.

        for each client k of K, in parallel
    1       Sₖ ← Σ φ(x) φ(x)ᵀ, Σ y φ(x)ᵀ, Σ y² over its rows;  send Sₖ
    2   S ← Σₖ Sₖ
    3   fit the head to S, its prior's weight λ by the marginal likelihood

    With `privacy`, rows are bounded before 1, noise is added to Sₖ, and the head's posterior knows of it: private.md.

    Attributes:
        head: What is learned from the sums; None: Bayesian linear regression for numbers, `OneHot` for classes.
        share: λ/n; None: by the marginal likelihood.
        wire: The precision in which sums are sent: float64, float32 or float16.
        privacy: Differential privacy of all that is sent, on bounded features; None: none.
        floor: Of the usual head for classes: see `OneHot`.
        rates: Likewise.

    Example:
        >>> import consilience as co
        >>> problem = co.Problem("moons", sites=2, split="iid")
        >>> co.run(co.methods.ExactPooling(), problem).metrics["accuracy"] > 0.8
        True
    """

    about = About(
        name="exact",
        sends="sums over its rows: a Gram matrix of the features, and their sums by class",
        rounds=ONE_SHOT,
        reply=ReplyKind.SUM,
        types=(Sums, Spectrum, Classes, Released),
    )
    own_prior = True

    head: Head | None = None
    share: float | None = None
    wire: str = "float64"
    privacy: Privacy | None = added(None)
    floor: bool = added(True, before=False)
    rates: bool = added(True, before=False)

    def init(self, task: Task, server: Server) -> ExactState:
        check_problem(task, self.chosen_head(task))
        if self.share is not None and not self.share > 0:
            raise InputError(f"share={self.share:g} is not the weight of a prior: give a positive number, or None.")
        if self.wire not in WIRES:
            raise InputError(f"wire={self.wire!r} is not a precision: choose {', '.join(WIRES)}.")
        if self.privacy is not None:
            check_private_problem(task, self.privacy, server, self.head, self.share, self.wire)
        return ExactState(task.init(server.key))

    def broadcast(self, state: ExactState) -> tuple[()]:
        return ()  # the agreement says it all

    def local(self, task: Task, message: Any, client: Client) -> Reply:
        if self.privacy is not None:
            clipped = sum_bounded(feature_map(task.model), client.data, classes_of(task), self.privacy)
            return Reply(clipped, 0 * client.data.size)  # how many rows there are is not said without noise
        sums = sum_rows(task.model, client.data, classes_of(task), self.chosen_head(task).by_class)
        return Reply(compress(sums, WIRES[self.wire]), client.data.size)  # 1

    def sums_by_class(self, task: Task) -> bool:
        return self.privacy is None and self.chosen_head(task).by_class

    def aggregate(self, task: Task, state: ExactState, replies: Sequence[Received], server: Server) -> ExactState:
        if self.privacy is not None:
            fitted = fit_replies(task, replies, self.privacy)
            return ExactState(as_point(self.noisy_head(task).linear(fitted), fitted, task.like), fitted)
        warn_of_few_rows(replies)
        totals = add(payloads(replies))  # 2
        head = self.chosen_head(task)
        fitted = fit(head, totals, self.share, least_share(self.wire, totals))  # 3
        return ExactState(as_point(head.linear(fitted), fitted, task.like), fitted, totals)

    def fold(self, replies: Sequence[Received]) -> list[Received]:
        warn_of_few_rows(replies, whole=False)
        return super().fold(replies)

    def predictive(self, task: Task, state: ExactState) -> Predictive:
        if self.privacy is not None:
            return predict_with(task, self.noisy_head(task), state.fit, state.posterior)
        return predict_with(task, self.chosen_head(task), state.fit, state.posterior)

    def diagnose(self, task: Task, state: ExactState, x: Tensor) -> dict[str, Any]:
        penalty = math.nan
        if isinstance(state.fit, (Spectrum, Classes)):
            penalty = float(state.fit.share)
        diagnosis = {"head": type(self.chosen_head(task)).__name__, "penalty_per_row": penalty}
        if self.share is None and self.privacy is None and isinstance(state.totals, Sums):
            diagnosis |= at_an_end(penalty, least_share(self.wire, state.totals))
        return diagnosis

    def knob(self, state: ExactState) -> Knob | None:
        if isinstance(state.fit, (Spectrum, Classes)) and self.privacy is None:
            return Knob("share", "λ/n", SHARES, None)
        return None

    def turn(self, state: ExactState, value: float) -> tuple[Self, ExactState]:
        assert isinstance(state.fit, (Spectrum, Classes))
        return self, state._replace(fit=state.fit._replace(share=torch.tensor(value, dtype=torch.float64)))

    def doubt(self, task: Task, message: Any, send: Any) -> str | None:
        if self.privacy is not None:
            return None  # noise may make sums what no rows have
        return doubt(send)

    def hand_out(self, state: ExactState, ensemble: bool) -> Tree:
        return keep_fields(state, ("posterior", "fit", "chosen"))

    def summation(self) -> Summation | None:
        if self.wire == "float16":  # correlations, which do not add up
            return None
        return Total()

    def chosen_head(self, task: Task) -> Head:
        """Return the head, or the usual one for the task."""
        if self.head is not None:
            return self.head
        if classes_of(task) is None:
            return Ridge()
        return OneHot(self.floor, self.rates)

    def noisy_head(self, task: Task) -> Noisy:
        """Return the head for sums with noise."""
        assert self.privacy is not None
        if classes_of(task) is None:
            return Noisy(Ridge(), self.privacy)
        return Noisy(OneHot(floor=False, rates=False), self.privacy)  # class shares are not released
