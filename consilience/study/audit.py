"""A site's audit of itself: what a study's reply would show of single rows, measured before anything leaves."""

from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key
from consilience.privacy.audit.canaries import corners, wrong_outcomes
from consilience.privacy.audit.one_run import FEWEST, Bound
from consilience.runs.audit import audit_method
from consilience.runs.engines import computing
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.rows import training_rows

USUAL = (100, 400)  # canaries, at least and at most, where nobody says how many
DELTA = 1e-5
RUNS = 10  # over which they are spread

KINDS = {
    "wrong outcome": "rows like yours with another outcome",
    "far out": "rows at the ends of the agreed ranges, outcomes by lot",
}


class SiteAudit(NamedTuple):
    """What an audit with one kind of canaries found.

    Attributes:
        kind: Of the canaries, one of `KINDS`.
        attack: How coins were guessed.
        bound: The lower bound on ε.
    """

    kind: str
    attack: str
    bound: Bound


def audit_site(
    agreement: Agreement,
    data: Data,
    canaries: int | None = None,
    delta: float = DELTA,
    runs: int = RUNS,
    seed: int = 0,
) -> list[SiteAudit]:
    """Audit what a study's method would send of a site's rows, guards and all. Nothing is sent.

    Args:
        data: The site's rows to train on.
        canaries: How many; None: as many as there are rows, within limits.
        delta: δ of the claim to be refuted; a mechanism may fail in so many cases.
        runs: Over how many runs canaries are spread: more take longer and find more.

    Returns:
        A bound for each kind of canary.

    Raises:
        InputError: There are too few canaries, or δ is not a probability.
    """
    if agreement.target.counts_events:
        raise InputError(f"An audit invents rows of classes and numbers, not of {agreement.kind}: none can be made.")
    count = canaries
    if count is None:
        count = min(max(len(data.y), USUAL[0]), USUAL[1])
    if count < FEWEST:
        raise InputError(f"{count} canaries show nothing, however well they are guessed: use at least {FEWEST}.")
    if not 0 <= delta < 1:
        raise InputError(f"delta={delta:g} is not a probability: give a small number, below one in so many rows.")
    method = agreement.build_method()
    task = agreement.build_task()
    classes = len(agreement.target.classes) or None
    key = Key(seed).fold(len(data.y))
    made = {
        "wrong outcome": wrong_outcomes(data, classes, count, key.fold(0)),
        "far out": far_rows(agreement, data, count, key.fold(1)),
    }
    found = []
    with warnings.catch_warnings(), computing(task):
        warnings.simplefilter("ignore")  # they are about canaries
        for i, (kind, rows) in enumerate(made.items()):
            audited = audit_method(
                *(method, task, data, rows, key.fold(2).fold(i)),
                rounds=agreement.rounds,
                runs=runs,
                delta=delta,
                prepare=lambda training: training_rows(agreement, training).data,
            )
            found.append(SiteAudit(kind, audited.attack, audited.bound))
    return found


def far_rows(agreement: Agreement, data: Data, count: int, key: Key) -> Data:
    """Draw rows whose numbers lie at the ends of the agreed ranges, with levels and outcomes by lot.

    Args:
        data: The site's rows, for the type of their outcomes.
        count: How many rows to draw.

    Returns:
        The canaries.
    """
    x = torch.cat([_far_column(column, count, key.fold(i)) for i, column in enumerate(agreement.columns)], 1)
    classes = len(agreement.target.classes) or None
    outcomes = corners(torch.zeros(1), torch.ones(1), classes, count, key.fold(-1)).y
    return Data.of(x.to(data.x), outcomes.to(data.y))


def _far_column(column: Column, count: int, key: Key) -> Tensor:
    """One column's features [count, features]."""
    if column.type == "category":
        levels = (key.uniform(count) * len(column.levels)).long().clamp(max=len(column.levels) - 1)
        return one_hot(levels, len(column.levels)).float()
    ends = torch.tensor(column.range, dtype=torch.float64)
    low, high = (ends - column.centre) / column.spread
    values = torch.where(key.uniform(count) < 0.5, low, high).float().unsqueeze(1)
    if not column.is_marked:
        return values
    return torch.cat([values, torch.zeros_like(values)], 1)


def meaning(bound: Bound) -> str:
    """Say in plain words what a bound means.

    Args:
        bound: What an audit showed.

    Returns:
        A sentence or two.
    """
    if bound.epsilon <= 0:
        return "These rows were not told apart better than by chance. That is no proof that nothing leaks."
    factor = math.exp(bound.epsilon)
    return (
        f"Who sees the reply can become {factor:.1f} times surer, or more, that one of these rows was in it: no "
        f"promise of an ε below {bound.epsilon:.2f} can be true of this reply."
    )
