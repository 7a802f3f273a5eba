"""β, λ and a temperature without labelled rows at the server: each site sums its log-scores over a grid.

A site's table of sums says how well each value of the grid would have predicted the rows it set aside; the tables add
up to what one place with all those rows would have found. No row leaves a site.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.method import Method
from consilience.methods.beta import BetaPredictiveBayes, Interpolated
from consilience.methods.evidence import EvidencePooling
from consilience.methods.evidence_tuned import PENALTIES
from consilience.predictive import Distribution, geometric, log_prob, precise, tempered
from consilience.task import Task
from consilience.tree import Tree

BETAS = tuple(i / 20 for i in range(21))
TEMPERATURES = tuple(2 ** (i / 4) for i in range(-8, 9))  # ¼ to 4


class Knob(NamedTuple):
    """What can be chosen about a pool beside its temperature."""

    name: str  # beta, penalty; empty if nothing
    values: tuple[float, ...]


def knob(method: Method, state: Any) -> Knob:
    if getattr(state, "posteriors", ()):
        if isinstance(method, BetaPredictiveBayes):
            return Knob("beta", BETAS)
        if isinstance(method, EvidencePooling):
            return Knob("penalty", PENALTIES)
    return Knob("", (0.0,))


def turn(method: Method, state: Any, value: float) -> tuple[Method, Tree]:
    """The same pool with its knob at a value."""
    if isinstance(state, Interpolated):
        return method, state._replace(beta=value)
    if isinstance(method, EvidencePooling):
        return dataclasses.replace(method, penalty=value), state
    return method, state


def knob_value(method: Method, state: Any) -> float | None:
    """Where the knob stands."""
    if not knob(method, state).name:
        return 0.0
    if isinstance(state, Interpolated):
        return float(state.beta)
    assert isinstance(method, EvidencePooling)
    return method.penalty


def without_student(method: Method, state: Any) -> Method:
    """The pool itself rather than its student, where the pool is at hand: what is chosen belongs to the pool."""
    if getattr(state, "posteriors", ()) and getattr(method, "distil", None):
        return dataclasses.replace(method, distil=None)  # type: ignore[type-var]
    return method


def log_scores(method: Method, task: Task, state: Any, rows: Data) -> Tensor:
    """Σ log p(y|x) over the rows for every value of the knob and every temperature, [V, T]."""
    found = [precise(p) for p in _pools(without_student(method, state), task, state, rows.x)]
    y = rows.y if rows.y.dtype == torch.int64 else rows.y.double()
    return torch.stack([torch.stack([log_prob(tempered(p, t), y).sum() for t in TEMPERATURES]) for p in found])


def _pools(method: Method, task: Task, state: Any, x: Tensor) -> list[Distribution]:
    values = knob(method, state).values
    if isinstance(method, BetaPredictiveBayes) and len(values) > 1:
        both = [precise(p) for p in method.pools(task, state, x)]  # once for all β
        return [geometric(value, *both) for value in values]
    turned_ = [turn(method, state, value) for value in values]
    return [own.predictive(task, new)(x) for own, new in turned_]


def choose_value(total: Tensor, of: Knob) -> tuple[float, float]:
    """The knob's value and the temperature with the largest sum, under log t ~ N(0, 1) as everywhere."""
    penalised = total - torch.tensor([0.5 * math.log(t) ** 2 for t in TEMPERATURES], dtype=total.dtype)
    row, column = divmod(int(penalised.argmax()), len(TEMPERATURES))
    return of.values[row], TEMPERATURES[column]


def at(table: Tensor, of: Knob, value: float, temperature: float) -> float:
    """A site's sum for one value and temperature of the grid."""
    return float(table[of.values.index(value), TEMPERATURES.index(temperature)])
