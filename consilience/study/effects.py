"""The table of effects of a study's model: what the agreement says of its columns, and what may be shown of sites."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from consilience.biostatistics.effects import Effects, from_json, table_of
from consilience.biostatistics.fitted import Fitted
from consilience.biostatistics.terms import MISSING, Design, Field, list_terms
from consilience.errors import InputError, refuse_damage
from consilience.glm.site_likelihoods import from_replies, read_off
from consilience.messages import Received
from consilience.study.model import Model
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.columns import Column
from consilience.study.told import fitted_of

OTHER = "other"
FEWEST = 3  # sites, below which how much they differ would tell what one of them sent


def agreed_design(
    agreement: Agreement, reference: Mapping[str, str] | None = None, merged: Collection[str] = ()
) -> Design:
    """Describe the columns of a study.

    Args:
        reference: The reference level by column, and the reference class by the name of the target.
        merged: The columns of which sites merged levels, so that they have a level "other".

    Raises:
        InputError: A name is unknown.
    """
    levels = dict(reference or {})
    target = agreement.target
    compared = levels.pop(target.name, None)
    fields = []
    shift: list[float] = []
    scale: list[float] = []
    for column in agreement.columns:
        fields.append(_field(column, len(shift), column.name in merged))
        shift += [0.0] * len(column.names)
        scale += [1.0] * len(column.names)
        if column.type == "number":
            shift[fields[-1].first] = column.centre
            scale[fields[-1].first] = column.spread
    terms, baseline = list_terms(fields, levels)
    outcomes = target.classes or ("",)
    target_scale = 1.0
    target_shift = 0.0
    if not target.classes:
        target_scale = target.spread
        target_shift = target.centre
    vectors = (torch.tensor(shift, dtype=torch.float64), torch.tensor(scale, dtype=torch.float64))
    design = Design(terms, baseline, *vectors, target.name, outcomes, outcomes[0], target_shift, target_scale)
    return design.with_reference(compared)


def _field(column: Column, first: int, merged: bool) -> Field:
    if column.type == "category":
        optional = column.missing != "refuse"
        names = [name for name, holds in ((MISSING, optional), (OTHER, merged)) if holds]
        return Field(column.name, first, column.levels, optional=bool(names), rest=" or ".join(names))
    mark = None
    if column.missing == "mark":
        mark = first + 1
    return Field(column.name, first, unit=column.unit, mark=mark)


def pooled_effects(
    agreement: Agreement,
    state: Any,
    names: Sequence[str],
    replies: Sequence[Received],
    fitted: Fitted | None = None,
) -> Effects | None:
    """Make the table of effects for a study's report.

    Sites are named only where the study releases what each of them sent; otherwise the table says how much they
    differ, and that only of three or more.

    Args:
        names: Whose replies they are.
        replies: The replies that were pooled.
        fitted: The rows behind them.

    Returns:
        The table; None where the model has no effects.
    """
    task = agreement.build_task()
    try:
        found = from_replies(task, state, replies) or ()
        read = read_off(task, state, found)
        if len(found) < FEWEST:
            found = ()
        by_site = dict(zip(names, found, strict=False))
        merged = () if fitted is None else fitted.merged
        design = agreed_design(agreement, None, merged)
        table = table_of(task, design, sites=by_site, fitted=fitted, **read)
    except (InputError, RuntimeError):  # not linear, no Gaussian, or a precision that cannot be inverted
        return None
    if agreement.hand_out == "ensemble":
        return table
    return table.without_sites()


def model_effects(
    model: Model, account: Mapping[str, Any] | None, level: float = 0.95, reference: Mapping[str, str] | None = None
) -> Effects:
    """Make the table of effects of a model, with what its report says of the sites.

    Args:
        account: The report beside the model, where it is at hand.
        reference: The reference level by column, and the reference class by the name of the target.

    Raises:
        InputError: The model is not linear on the columns, or holds no Gaussian over its weights.
    """
    task = model.agreement.build_task()
    kept = None
    if account is not None and account.get("effects"):
        with refuse_damage("The report beside the model does not hold what a table of effects holds: move it away."):
            kept = from_json(account["effects"]).at(level)
        if not reference:
            return kept
    fitted = fitted_of(model.agreement, model.facts.rows, (), len(model.facts.sites))
    if kept is not None and kept.fitted is not None:
        fitted = kept.fitted
    design = agreed_design(model.agreement, reference, fitted.merged)
    return table_of(task, design, level=level, fitted=fitted, **read_off(task, model.state, ()))
