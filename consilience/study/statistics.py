"""The sites' statistics about a model: tables of summed log-scores, checked before anything is chosen by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.errors import InputError
from consilience.method import Knob
from consilience.metrics.choice import TEMPERATURES, score_at
from consilience.serialisation.codec import TYPES
from consilience.serialisation.envelope import Envelope
from consilience.study.account import Judgement
from consilience.study.admission import admit, rules_of
from consilience.study.files import from_sites
from consilience.study.masked_round import read_told, sort_files
from consilience.study.masking import statistics_of
from consilience.study.model import Model
from consilience.study.protocol.members import Study
from consilience.study.summing import add_tables
from consilience.study.validation.gate import Rules, refuse_errors
from consilience.study.validation.plausible import known_at
from consilience.study.validation.steps import COARSEST


class Statistics(NamedTuple):
    """What one site's file says.

    Attributes:
        site: The site's name.
        rows: How many rows it set aside to choose by.
        table: Summed log-scores over them, [values, temperatures].
        together: The sites of a masked sum; none where the file is one site's.
    """

    site: str
    rows: int
    table: Tensor
    together: tuple[str, ...] = ()

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites it is about."""
        return self.together or (self.site,)


def read_statistics(
    study: Study, model: Model, knob: Knob, paths: Sequence[Path]
) -> tuple[list[Statistics], list[str]]:
    """Read the sites' statistics about a model.

    Args:
        study: The study.
        model: The model that they must be about.
        knob: What is chosen beside the temperature.
        paths: The sites' files.

    Returns:
        The statistics that can be used, and a sentence for each file that cannot.
    """
    if study.agreement.secure:
        return _read_masked(study, model, knob, paths)
    envelopes, refused = from_sites(study, paths, "statistics")
    statistics = []
    for envelope in envelopes:
        try:
            with refuse_errors():
                statistics.append(_admit(study, model, knob, envelope))
        except InputError as error:
            refused.append(str(error))
    return statistics, refused


def _check_model(model: Model, envelope: Envelope) -> None:
    if envelope.header.about.get("model") != model.checksum:
        raise InputError(f"{envelope.path} is about another model than this one: ask the site for new statistics.")


def _empty_table(knob: Knob) -> Tensor:
    return torch.zeros(len(knob.values), len(TEMPERATURES), dtype=torch.float64)


def _admit(study: Study, model: Model, knob: Knob, envelope: Envelope) -> Statistics:
    rules = rules_of(study.agreement, study.member(envelope.header.sender).rows)
    _check_model(model, envelope)
    value = envelope.value(TYPES)
    admit(value, {"log_scores": _empty_table(knob), "count": torch.tensor(0)}, envelope.path)
    statistics = Statistics(envelope.header.sender, int(value["count"]), value["log_scores"])
    _check_table(study, model, statistics, rules, envelope.path)
    return statistics


def _check_table(
    study: Study, model: Model, statistics: Statistics, rules: Rules, where: str, rounding: float = 0.0
) -> None:
    """Refuse a table that cannot be one of summed log-scores."""
    agreement = study.agreement
    table = statistics.table
    rows = statistics.rows
    if rows > rules.largest_site:
        raise InputError(
            f"{where} is not used: it speaks for {rows:,} rows, and its site may for {rules.largest_site:,}."
        )
    positive = bool((table > rounding).any())
    discrete = bool(agreement.target.classes) or agreement.target.counts
    if rows < agreement.smallest or (positive and discrete):
        raise InputError(f"{where} cannot be a sum of log-probabilities over enough rows: not used.")
    assert rules.bounds is not None
    bounds = known_at(rules.bounds, model.state)
    lowest = rows * bounds.score(rules.largest_site) / min(TEMPERATURES)
    if float(table.abs().max()) > lowest:
        raise InputError(f"{where} is not used: its log-scores are larger than the study's model can give.")


def _read_masked(study: Study, model: Model, knob: Knob, paths: Sequence[Path]) -> tuple[list[Statistics], list[str]]:
    """The sum of all sites' statistics, as one."""
    own, told_paths = sort_files(paths)
    envelopes, refused = from_sites(study, own, "statistics")
    told, others = read_told(study, told_paths, 1)
    for envelope in envelopes:
        _check_model(model, envelope)
    summed = add_tables(study, envelopes, told, _empty_table(knob), statistics_of(model.checksum))
    statistics = Statistics("all sites together", summed.rows, summed.table, summed.names)
    most = sum(study.member(name).rows for name in summed.names)
    rules = rules_of(study.agreement, most)
    _check_table(study, model, statistics, rules, "The sum of the statistics", COARSEST * len(summed.names))
    return [statistics], [*refused, *others, *summed.refused]


def judge(statistics: Statistics, knob: Knob, value: float, temperature: float) -> Judgement:
    """Look up what a site's statistics say about what was chosen, and about the pool as it was.

    Args:
        statistics: What the site's file says.
        knob: Whose values were tried.
        value: The value that was chosen.
        temperature: The temperature that was chosen.

    Returns:
        The site's summed log-scores.
    """
    chosen = score_at(statistics.table, knob, value, temperature)
    pooled = None
    if knob.value is not None and knob.value in knob.values:
        pooled = score_at(statistics.table, knob, knob.value, 1.0)
    return Judgement(statistics.site, statistics.rows, chosen, pooled)
