"""The table of effects of a run: from its state, and from the sites' replies or rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from consilience.biostatistics.effects import Effects, from_json, table_of
from consilience.biostatistics.fitted import fitted_from, fitted_of
from consilience.biostatistics.likelihoods import from_replies, from_rows, gaussian_of, information_of, newcomer_of
from consilience.biostatistics.terms import design_of
from consilience.data.sites import Sites
from consilience.distributions.posterior import Natural
from consilience.errors import InputError, refuse_damage
from consilience.messages import Received
from consilience.task import Task

MOST = 200  # effects that a report holds


def run_effects(
    task: Task,
    sites: Sites,
    state: Any,
    replies: Sequence[Received] = (),
    level: float = 0.95,
    reference: Mapping[str, str] | None = None,
    kept: Any = None,
) -> Effects:
    """Make the table of effects of a run.

    Args:
        task: The statistical problem.
        sites: The sites, with or without their rows.
        state: The server's state.
        replies: The replies of the last round, if they were kept.
        level: Of all intervals.
        reference: The reference level by column, and the reference class by the name of the target.
        kept: What run.json holds of the table, for runs without rows.

    Returns:
        The table.

    Raises:
        InputError: The model is not linear on the columns, or its state holds no Gaussian over its weights.
    """
    pooled = gaussian_of(task, state)
    design = design_of(sites, reference)
    by_site = _likelihoods(task, sites, state, replies)
    if by_site or not kept:
        newcomer = newcomer_of(task, state)
        information = information_of(task, state, pooled, [*by_site.values()])
        fitted = fitted_of(sites)
        if fitted is None and kept and kept.get("fitted"):  # loaded without rows
            fitted = fitted_from(kept["fitted"])
        return table_of(task, design, pooled, by_site, level, newcomer, fitted, information)
    if reference:
        raise InputError("Another reference needs the sites' rows: load the run with them, co.load(folder, sites=…).")
    with refuse_damage("run.json does not hold what a table of effects holds: run again."):
        return from_json(kept).at(level)


def _likelihoods(task: Task, sites: Sites, state: Any, replies: Sequence[Received]) -> dict[str, Natural]:
    """What each site says alone, by its name; nothing where that is not known, or a row is at several sites."""
    found = from_replies(task, state, replies)
    if found is not None:
        return {sites.names[reply.client]: own for reply, own in zip(replies, found, strict=True)}
    if not sites.train or len(sites.train) < 2:
        return {}
    return dict(zip(sites.names, from_rows(task, sites.train) or (), strict=False))


def effects_report(task: Task, sites: Sites, state: Any, replies: Sequence[Received]) -> dict[str, Any]:
    """Find what run.json says of effects.

    Args:
        task: The statistical problem.
        sites: The sites with their rows.
        state: The server's state.
        replies: The replies of the last round, if they were kept.

    Returns:
        The table under its name; nothing where a model has no effects, or too many to read.
    """
    try:
        table = run_effects(task, sites, state, replies)
    except (InputError, RuntimeError):  # no linear model, or a precision that cannot be inverted
        return {}
    if len(table) > MOST:
        return {}
    return {"effects": table.to_json()}
