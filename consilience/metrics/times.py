"""The baseline hazard behind survival curves, and what a report says of them.

A partial likelihood says how hazards compare, not how large they are. When a model is judged, each site sends two
numbers for each interval of an agreed grid: its events, and the hazard of its rows at risk. Their sums give one
baseline hazard for all sites, by Breslow; intervals with few events are made one first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from consilience.data.sites import Data, Sites
from consilience.distributions.cox import Cox
from consilience.distributions.curves import SMALLEST, baseline, even_times, sum_times
from consilience.distributions.predictive import Distribution, Predictive
from consilience.distributions.survival import Survival
from consilience.errors import Diverged, InputError
from consilience.metrics.events import risk_groups
from consilience.metrics.findings import Predicted, PredictedBin
from consilience.task import Task


def find_time_grid(task: Task, sites: Sites) -> Tensor | None:
    """Find the grid of times on which a task's curves are given.

    Args:
        sites: Everybody's rows, which a simulation may choose a grid from.

    Returns:
        The grid [T]; None where nothing is about times, or there are no rows.
    """
    if not isinstance(task.likelihood, Cox) or not sites.train:
        return None
    if task.likelihood.times:
        return torch.tensor(task.likelihood.times, dtype=torch.float64)
    grid = even_times(torch.cat([part.y for part in sites.train]))
    if task.likelihood.horizon is None:
        return grid
    with_horizon: Tensor = torch.unique(torch.cat([grid, torch.tensor([task.likelihood.horizon], dtype=torch.float64)]))
    return with_horizon


def with_baseline(
    model: Predictive, train: Sequence[Data], grid: Tensor, smallest: int = SMALLEST, names: Sequence[str] | None = None
) -> Predictive:
    """Put a model's predictions on a baseline hazard.

    Args:
        model: Predicts how hazards compare.
        train: The training rows of the sites that send their sums.
        grid: The agreed times [T].
        smallest: The smallest number of events to show.
        names: What the features are called, for sentences.

    Returns:
        A model that predicts survival curves.

    Raises:
        Diverged: So little is known of the weights that a hazard cannot be written.
    """
    sums = []
    for rows in train:
        p = model(rows.x)
        assert isinstance(p, Survival)
        weights = (p.risk + p.var / 2).exp()
        if not bool(torch.isfinite(weights).all()):
            raise Diverged(_explain_width(train, names))
        sums.append(sum_times(rows.y, grid, weights))
    hazard = baseline(grid, sums, smallest)
    return lambda x: on_baseline(model(x), grid, hazard)


def _explain_width(train: Sequence[Data], names: Sequence[str] | None) -> str:
    """Why hazards are known to no factor at all: columns that are constant where hazards are compared, as R's NA."""
    remedy = "or give the weights a narrower prior (--prior-var 1)"
    flat = torch.stack([(rows.x == rows.x[:1]).reshape(len(rows.x), -1).all(0) for rows in train if len(rows.x)])
    silent = flat.all(0).nonzero().flatten().tolist()
    if not silent:
        return f"The rows say too little of the hazards for so wide a prior: leave columns out, {remedy}."
    listed = ", ".join(f"'{names[i]}'" if names is not None else f"{i + 1}" for i in silent)
    subject = f"Column {listed} is"
    if len(silent) > 1:
        subject = f"Columns {listed} are"
    return (
        f"{subject} constant at each site, and hazards are compared within sites only, so that nothing shows what "
        f"follows from it (R's coxph prints NA): leave it out (--drop), {remedy}."
    )


def on_baseline(p: Distribution, grid: Tensor, hazard: Tensor) -> Distribution:
    """Put predictions of hazards on a baseline; any others stay.

    Args:
        p: Predictions of N rows.
        grid: Times [T].
        hazard: The cumulative baseline hazard [T].
    """
    if isinstance(p, Survival):
        return p.on(grid, hazard)
    return p


def recall_baseline(p: Distribution, report: dict[str, Any]) -> Distribution:
    """Put predictions on the baseline that a run's report remembers.

    Args:
        p: Predictions of N rows.
    """
    known = report.get("baseline")
    if not known:
        return p
    times = torch.tensor(known["times"], dtype=torch.float64)
    return on_baseline(p, times, torch.tensor(known["hazard"], dtype=torch.float64))


def check_events(sites: Sites) -> None:
    """Refuse rows with too few events for a model of them.

    Raises:
        InputError: The sites have fewer events than a step of the baseline needs.
    """
    events = int(sum(float(part.y[:, 1].sum()) for part in sites.train))
    if events < SMALLEST:
        raise InputError(f"The training rows hold {events} events in all: a survival model needs at least {SMALLEST}.")


def describe_times(p: Survival, y: Tensor, task: Task) -> tuple[Predicted, dict[str, Any]]:
    """Say what a report says of survival curves.

    Args:
        p: What a model predicts for the test rows.
        y: Their times and events.
        task: The statistical problem, which may name a horizon.

    Returns:
        Predicted and observed risks at the horizon, and the cumulative baseline hazard.
    """
    grid = p.times[0].double()
    horizon = float(grid[len(grid) // 2])
    if isinstance(task.likelihood, Cox) and task.likelihood.horizon:
        horizon = task.likelihood.horizon
    at, groups = risk_groups(p, y, horizon)
    bins = [
        PredictedBin(predicted=g.predicted, deviation=0.0, observed=g.observed, rows=g.rows, interval=list(g.interval))
        for g in groups
    ]
    hazard = p.hazard[0].double()
    known = {"times": grid.tolist(), "hazard": hazard.tolist(), "smallest": SMALLEST}
    return Predicted(bins, None, None, at), known
