"""The sites' counts of scores at the coordinator: read one by one, or as a sum under masks, and checked.

What can be checked of counts: their form, that they are numbers of rows, and that no site speaks for more rows than it
committed to. With noise a count is any number not too far from that; under masks all this is checked of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.aggregation.summands import Cells
from consilience.errors import InputError
from consilience.prediction_sets.kinds import Calibration
from consilience.privacy.dp.mechanisms import Released
from consilience.serialisation.codec import TYPES
from consilience.serialisation.envelope import Envelope
from consilience.study.admission import admit, rules_of
from consilience.study.files import from_sites
from consilience.study.masked_round import read_told, sort_files
from consilience.study.masking import counts_of
from consilience.study.protocol.guarantees import empty_counts, fewest_scores
from consilience.study.protocol.members import Study
from consilience.study.summing import add_tables
from consilience.study.validation.gate import refuse_errors

NOISE = 12.0  # standard deviations that no noise exceeds: once in 10³²


class Total(NamedTuple):
    """The counts of all sites that can be used.

    Attributes:
        table: Their sum.
        sizes: How many rows each site counted; all together under masks, nothing under noise.
        names: The sites in it.
        refused: A sentence for each file that cannot be used.
        groups: How many sites have rows, where `sizes` does not say.
    """

    table: Tensor
    sizes: list[int]
    names: list[str]
    refused: list[str]
    groups: int | None = None


class Counted(NamedTuple):
    """What one site's file says.

    Attributes:
        site: The site's name.
        rows: How many rows it counted; 0 where noise hides it.
        table: Their scores on the agreed grid.
    """

    site: str
    rows: int
    table: Tensor


def add_counts(study: Study, model: str, plan: Calibration, paths: Sequence[Path]) -> Total:
    """Add up the sites' counts about a model.

    Args:
        study: The study.
        model: The checksum of the model that they must be about.
        plan: What was agreed.
        paths: The sites' files; under masks also what was told of masks shared with missing sites.

    Returns:
        The sum, and a sentence for each file that is left out.

    Raises:
        InputError: Too few sites' counts can be used, or masked ones cannot be summed.
    """
    agreement = study.agreement
    if agreement.secure:
        total = _add_masked(study, model, plan, paths)
    else:
        total = _add_plain(study, model, plan, paths)
    if agreement.privacy is not None:
        agreement.privacy.check_shares(Released(total.table, torch.tensor(float(len(total.names)))))
    return total


def _add_plain(study: Study, model: str, plan: Calibration, paths: Sequence[Path]) -> Total:
    """The sum of single files."""
    envelopes, refused = from_sites(study, paths, "calibration", more=empty_counts(plan).nbytes)
    counted = []
    for envelope in envelopes:
        try:
            with refuse_errors():
                counted.append(_admit(study, model, plan, envelope))
        except InputError as error:
            refused.append(str(error))
    fewest = study.agreement.fewest_sites
    if len(counted) < fewest:
        raise InputError(
            f"The counts of {len(counted)} site(s) can be used, and {fewest} are agreed on as the fewest. "
            f"{' '.join(refused)}".strip()
        )
    table = torch.stack([each.table for each in counted]).sum(0)
    groups = None
    if plan.noise:
        groups = len(counted)
    return Total(table, [each.rows for each in counted], [each.site for each in counted], refused, groups)


def _add_masked(study: Study, model: str, plan: Calibration, paths: Sequence[Path]) -> Total:
    """The sum of masked files, of which nothing else can be read."""
    own, told_paths = sort_files(paths)
    envelopes, refused = from_sites(study, own, "calibration", more=empty_counts(plan).nbytes)
    told, others = read_told(study, told_paths, 1)
    about = []
    for envelope in envelopes:
        try:
            _check_model(model, envelope)
            about.append(envelope)
        except InputError as error:
            refused.append(str(error))
    like = Cells(empty_counts(plan).double(), torch.zeros((), dtype=torch.float64))
    try:
        summed = add_tables(study, about, told, like, counts_of(model))
    except InputError as error:
        raise InputError(f"{error} {' '.join((*refused, *others))}".strip()) from error
    names = list(summed.names)
    most = sum(rules_of(study.agreement, study.member(name).rows).largest_site for name in names)
    table = summed.table.values
    groups = round(float(summed.table.groups))
    refused = [*refused, *others, *summed.refused]
    if plan.noise:
        sound = _is_noisy(table, most, plan.noise * len(names))
        groups = len(names)
    else:
        sound = _are_counts(table, summed.rows, most) and 0 <= groups <= len(names)
        table = table.long()
    if not sound:
        raise InputError(
            "The sum of all counts cannot be one of rows: one of the sites sent something else than it should, and "
            "masks hide which."
        )
    return Total(table, [summed.rows], names, refused, groups)


def _check_model(model: str, envelope: Envelope) -> None:
    if envelope.header.about.get("model") != model:
        raise InputError(f"{envelope.path} is about another model than this one: ask the site for new counts.")


def _admit(study: Study, model: str, plan: Calibration, envelope: Envelope) -> Counted:
    """A site's counts, if they can be counts of its rows."""
    agreement = study.agreement
    rules = rules_of(agreement, study.member(envelope.header.sender).rows)
    _check_model(model, envelope)
    expected = empty_counts(plan)
    if plan.noise:
        expected = expected.double()
    value = envelope.value(TYPES)
    admit(value, {"conformal": expected, "count": torch.tensor(0)}, envelope.path)
    counted = Counted(envelope.header.sender, int(value["count"]), value["conformal"])
    most = rules.largest_site
    if plan.noise:
        sound = _is_noisy(counted.table, most, plan.noise) and counted.rows == 0
    elif not 0 < counted.rows <= most:
        raise InputError(
            f"{envelope.path} is not used: it speaks for {counted.rows:,} rows, and its site may for {most:,}."
        )
    elif plan.kind == "quantile":
        sound = _are_counts(counted.table, 1, 1)
    else:
        filled = counted.table[counted.table != 0]
        sound = _are_counts(counted.table, counted.rows, most) and int(filled.min()) >= fewest_scores(agreement)
    if not sound:
        raise InputError(f"{envelope.path} cannot be counts of enough rows: not used.")
    return counted


def _are_counts(table: Tensor, rows: int, most: int) -> bool:
    """Whether a table is of whole numbers that add up to a number of rows."""
    whole = bool((table == table.round()).all()) and bool((table >= 0).all()) and bool((table <= rows).all())
    return whole and int(table.sum()) == rows and rows <= most


def _is_noisy(table: Tensor, most: int, var: float) -> bool:
    """Whether a table can be counts of that many rows with noise."""
    if not bool(table.isfinite().all()):
        return False
    reach = NOISE * math.sqrt(var)
    return bool((table.abs() <= most + reach).all()) and float(table.sum().abs()) <= most + reach * len(table.flatten())
