"""The table of effects of a run: from its state, and from the sites' replies or rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from consilience.biostatistics.effects import Effects, from_json, table_of
from consilience.biostatistics.fitted import fitted_from, fitted_of
from consilience.biostatistics.terms import describe_design
from consilience.data.sites import Sites
from consilience.distributions.posterior import Natural
from consilience.errors import InputError, refuse_damage
from consilience.glm.site_likelihoods import (
    find_gaussian,
    from_replies,
    from_rows,
    hierarchy_in,
    read_off,
    told_by_rows,
)
from consilience.messages import Received
from consilience.task import Task

if TYPE_CHECKING:  # no part of the reference
    from consilience.runs.result import Result

MOST = 200  # effects that a report holds


class Fit(NamedTuple):
    """What a table of effects is read off.

    Attributes:
        task: The statistical problem.
        sites: The sites, with or without their rows.
        state: The server's state.
        replies: The replies of the last round, if they were kept.
    """

    task: Task
    sites: Sites
    state: Any
    replies: Sequence[Received] = ()


def run_effects(
    fit: Fit,
    level: float = 0.95,
    reference: Mapping[str, str] | None = None,
    kept: Mapping[str, Any] | None = None,
    on_all_rows: Callable[[], Result | None] | None = None,
) -> Effects:
    """Make the table of effects of a run.

    Args:
        reference: The reference level by column, and the reference class by the name of the target.
        kept: What run.json holds of the table, for runs without rows.
        on_all_rows: Gives the same run on all rows, which the table is then of.

    Raises:
        InputError: The model is not linear on the columns, or its state holds no Gaussian over its weights.
    """
    predicting = sum(len(part.y) for part in fit.sites.train)
    whole = None if on_all_rows is None else on_all_rows()
    kept_of_all = kept is not None and bool((kept.get("fitted") or {}).get("predicting"))
    if whole is not None:
        fit = whole.fit
    task, sites, state, _ = fit
    design = describe_design(sites, reference)
    by_site = _likelihoods(fit)
    read = kept is not None and not sites.train and not reference and (kept_of_all or whole is None)
    spread = bool(reference) and hierarchy_in(state) is not None  # which needs no site's own estimates
    if not kept or spread or (by_site and not read and (whole is not None or not kept_of_all)):
        found = read_off(task, state, [*by_site.values()], told_by_rows(task, sites.train, state))
        fitted = fitted_of(sites)
        if fitted is None and kept and kept.get("fitted"):  # loaded without rows
            fitted = fitted_from(kept["fitted"])
        elif fitted is not None and whole is not None:
            fitted = fitted._replace(predicting=predicting)
        return table_of(task, design, sites=by_site, level=level, fitted=fitted, **found)
    if reference:
        raise InputError(
            "Another reference needs what the effects were fitted with: use the run's folder with all that is in it, "
            "or run again."
        )
    with refuse_damage("run.json does not hold what a table of effects holds: run again."):
        return from_json(kept).at(level)


def _likelihoods(fit: Fit) -> dict[str, Natural]:
    """What each site says alone, by its name; nothing where that is not known, or a row is at several sites."""
    task, sites, state, replies = fit
    found = from_replies(task, state, replies)
    if found is not None:
        return {sites.names[reply.client]: own for reply, own in zip(replies, found, strict=True)}
    if not sites.train or len(sites.train) < 2:
        return {}
    return dict(zip(sites.names, from_rows(task, sites.train) or (), strict=False))


def effects_report(fit: Fit, on_all_rows: Callable[[], Result | None] | None = None) -> dict[str, Any]:
    """Find what run.json says of effects.

    Args:
        fit: What predicts, with the sites' rows.
        on_all_rows: Gives the same run on all rows, which the table is then of.

    Returns:
        The table under its name; nothing where a model has no effects, or too many to read.
    """
    try:
        bare = table_of(fit.task, describe_design(fit.sites, None), find_gaussian(fit.task, fit.state))
        if len(bare) <= MOST:
            return {"effects": run_effects(fit, on_all_rows=on_all_rows).to_json()}
    except (InputError, RuntimeError):  # no linear model, or a precision that cannot be inverted
        pass
    return {}
