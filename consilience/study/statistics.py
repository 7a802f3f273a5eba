"""The sites' statistics about a model: tables of summed log-scores, checked before anything is chosen by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from consilience.errors import InputError
from consilience.method import Knob
from consilience.privacy.disclosure.rules import SMALLEST_CELL, by_rule
from consilience.runs.engines import computing
from consilience.study.account import Judgement
from consilience.study.choice import TEMPERATURES, knob_of, log_scores, score_at
from consilience.study.exchange import File, Made, Part, check_rows
from consilience.study.model import Model
from consilience.study.validation.plausible import known_at
from consilience.study.validation.rules import bounds_of
from consilience.study.validation.steps import COARSEST
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site


class Statistics(File):
    """Summed log-scores of a model over the rows held out to choose by."""

    kind = title = "statistics"
    part = "choose"
    model: Model

    @property
    def knob(self) -> Knob:
        """What is chosen beside the temperature."""
        return knob_of(self.model.method, self.model.state)

    def make(self, site: Site) -> Made:
        """Sum the log-scores of every value and temperature.

        Raises:
            InputError: The study promises privacy, or too few rows are held out.
        """
        agreement = self.study.agreement
        rows = site.role(self.part)
        if agreement.privacy is not None:
            raise InputError(
                "Sums of log-scores would be released without noise, and the study promises differential privacy: none "
                "are sent; a method that is tuned by the sites accounts for them."
            )
        if len(rows.y) < agreement.smallest:
            sentence = (
                f"Only {len(rows.y)} rows are held out to choose by and no count below {agreement.smallest} may be "
                "shown: this site sends no statistics."
            )
            raise InputError(by_rule(SMALLEST_CELL, sentence))
        task = agreement.build_task()
        with torch.no_grad(), computing(task):
            table = log_scores(self.model.method, task, self.model.state, rows)
        value = {"log_scores": table, "count": torch.tensor(len(rows.y))}
        return Made(value, len(rows.y), rows, about={"knob": self.knob.name})

    def form(self) -> Tree:
        """Give a file's value without any rows."""
        table = torch.zeros(len(self.knob.values), len(TEMPERATURES), dtype=torch.float64)
        return {"log_scores": table, "count": torch.tensor(0)}

    def summand(self, value: Any) -> Tensor:
        """Take the table from a file's value.

        Args:
            value: What the file holds.
        """
        table: Tensor = value["log_scores"]
        return table

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse a table that cannot be one of summed log-scores.

        Args:
            most: The most rows that its sites committed to.

        Raises:
            InputError: It is not used.
        """
        agreement = self.study.agreement
        check_rows(part.rows, agreement.smallest, most, where)
        rounding = 0.0
        if self.masked:
            rounding = COARSEST * len(part.sites)
        discrete = bool(agreement.target.classes) or agreement.target.counts
        if discrete and bool((part.table > rounding).any()):
            raise InputError(f"{where} cannot be a sum of log-probabilities over enough rows: not used.")
        bounds = known_at(bounds_of(agreement), self.model.state)
        if float(part.table.abs().max()) > part.rows * bounds.score(most) / min(TEMPERATURES):
            raise InputError(f"{where} is not used: its log-scores are larger than the study's model can give.")


def judge(statistics: Part, knob: Knob, value: float, temperature: float) -> Judgement:
    """Look up what a site's statistics say about what was chosen, and about the pool as it was.

    Args:
        statistics: What the site sent, or all sites together.
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
    name = "all sites together"
    if len(statistics.sites) == 1:
        name = statistics.sites[0]
    return Judgement(name, statistics.rows, chosen, pooled)
