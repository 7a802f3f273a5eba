"""The sites' statistics about a model: tables of summed log-scores, checked before anything is chosen by them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.admission.gate import refuse_errors
from consilience.agreement.agreement import Study
from consilience.errors import InputError
from consilience.formats.codec import TYPES
from consilience.formats.envelope import Envelope
from consilience.method import Knob
from consilience.study.account import Judgement
from consilience.study.admission import admit, rules_of
from consilience.study.choice import TEMPERATURES, score_at
from consilience.study.files import from_sites
from consilience.study.model import Model


class Statistics(NamedTuple):
    """What one site's file says.

    Attributes:
        site: The site's name.
        rows: How many rows it set aside to choose by.
        table: Summed log-scores over them, [values, temperatures].
    """

    site: str
    rows: int
    table: Tensor


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
    envelopes, refused = from_sites(study, paths, "statistics")
    statistics = []
    for envelope in envelopes:
        try:
            with refuse_errors():
                statistics.append(_admit(study, model, knob, envelope))
        except InputError as error:
            refused.append(str(error))
    return statistics, refused


def _admit(study: Study, model: Model, knob: Knob, envelope: Envelope) -> Statistics:
    agreement = study.agreement
    rules = rules_of(agreement, study.member(envelope.header.sender).rows)
    if envelope.header.about.get("model") != model.checksum:
        raise InputError(f"{envelope.path} is about another model than this one: ask the site for new statistics.")
    expected = {
        "log_scores": torch.zeros(len(knob.values), len(TEMPERATURES), dtype=torch.float64),
        "count": torch.tensor(0),
    }
    value = envelope.value(TYPES)
    admit(value, expected, envelope.path)
    rows = int(value["count"])
    if rows > rules.largest_site:
        raise InputError(
            f"{envelope.path} is not used: it speaks for {rows:,} rows, and its site may for {rules.largest_site:,}."
        )
    positive = bool((value["log_scores"] > 0).any())
    if rows < agreement.smallest or (positive and agreement.target.classes):
        raise InputError(f"{envelope.path} cannot be a sum of log-probabilities over enough rows: not used.")
    assert rules.bounds is not None
    lowest = rows * rules.bounds.score(rules.largest_site) / min(TEMPERATURES)
    if float(value["log_scores"].abs().max()) > lowest:
        raise InputError(f"{envelope.path} is not used: its log-scores are larger than the study's model can give.")
    return Statistics(envelope.header.sender, rows, value["log_scores"])


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
