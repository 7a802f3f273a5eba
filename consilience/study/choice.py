"""A knob and a temperature without labelled rows at the server: each site sums its log-scores over a grid.

A site's table of sums says how well each value of the grid would have predicted the rows it held out; the tables add
up to what one place with all those rows would have found. No row leaves a site.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.predictive import log_prob, precise, tempered
from consilience.method import Knob, Method
from consilience.method.declared import knob, sweep
from consilience.method.states import keeps_posteriors
from consilience.task import Task

TEMPERATURES = tuple(2 ** (i / 4) for i in range(-8, 9))  # ¼ to 4
NO_KNOB = Knob("", "", (0.0,), 0.0)


def knob_of(method: Method, state: Any) -> Knob:
    """Find what can be chosen about a pool beside its temperature.

    Args:
        method: The method of the pool.

    Returns:
        The method's knob, or one without a name and with a single value.
    """
    return knob(method, state) or NO_KNOB


def without_student(method: Method, state: Any) -> Method:
    """Take the pool rather than its student, where the pool is at hand: what is chosen belongs to the pool.

    Args:
        method: The method of the pool.

    Returns:
        The method without distillation.
    """
    if keeps_posteriors(state) and method.distil:
        return dataclasses.replace(method, distil=None)  # type: ignore[type-var]
    return method


def log_scores(method: Method, task: Task, state: Any, rows: Data) -> Tensor:
    """Sum log p(y|x) over rows for every value of the knob and every temperature.

    Args:
        method: The method of the pool.
        rows: The rows that a site held out.

    Returns:
        The sums, [values, temperatures].
    """
    pools = [precise(p) for p in sweep(without_student(method, state), task, state, rows.x)]
    y = rows.y
    if y.dtype != torch.int64:
        y = y.double()
    sums = [[log_prob(tempered(p, t), y).sum() for t in TEMPERATURES] for p in pools]
    return torch.stack([torch.stack(row) for row in sums])


def choose_value(total: Tensor, knob: Knob) -> tuple[float, float]:
    """Choose what has the largest sum, under log t ~ N(0, 1) as everywhere.

    Args:
        total: The sites' sums added up, [values, temperatures].
        knob: Whose values they are.

    Returns:
        The knob's value and the temperature.
    """
    penalised = total - torch.tensor([0.5 * math.log(t) ** 2 for t in TEMPERATURES], dtype=total.dtype)
    row, column = divmod(int(penalised.argmax()), len(TEMPERATURES))
    return knob.values[row], TEMPERATURES[column]


def score_at(table: Tensor, knob: Knob, value: float, temperature: float) -> float:
    """Look up a site's sum.

    Args:
        table: A site's sums, [values, temperatures].
        knob: Whose values they are.
        temperature: One of `TEMPERATURES`.

    Returns:
        The summed log-score.
    """
    return float(table[knob.values.index(value), TEMPERATURES.index(temperature)])
