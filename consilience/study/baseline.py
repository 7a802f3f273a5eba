"""The baseline hazard of a study's survival model, and Kaplan and Meier's curve beside it, from the sites' sums.

A partial likelihood says how hazards compare, not how large they are. Once a model is pooled, each site adds up its
training rows on the agreed times: events, censored rows, rows at risk, and the hazard at risk under the model. Steps
with few events or censored rows are made one before anything leaves. The sums of all sites give one baseline for all,
by Breslow, though the coefficients are stratified by site.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.distributions.curves import (
    Curve,
    TimeSums,
    baseline,
    curve_of,
    hide_few,
    limit_hazards,
    protect,
    protect_hazards,
    sum_times,
)
from consilience.distributions.survival import Survival
from consilience.errors import InputError
from consilience.study.exchange import File, Made, Part, add, check_rows, hear
from consilience.study.model import Baseline, Model
from consilience.study.protocol.members import Study
from consilience.study.rows import training_rows
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site

LINES = 4  # of a site's table: events, censored rows, rows at risk, hazard at risk
ROUNDING = 1e-3  # of sums that are added up under masks


class Found(NamedTuple):
    """What the sites' sums give.

    Attributes:
        baseline: The cumulative baseline hazard.
        curve: Kaplan and Meier's curve of all training rows.
        sites: Whose sums they are.
        rows: How many rows stand behind them.
        refused: A sentence for each file that is left out.
    """

    baseline: Baseline
    curve: Curve
    sites: tuple[str, ...]
    rows: int
    refused: tuple[str, ...]


def sum_rows(model: Model, data: Data) -> Tensor:
    """Add up a site's training rows on the agreed times, under the disclosure rules.

    Args:
        data: The rows that the site trained on.

    Returns:
        Events, censored rows, rows at risk and hazards at risk [4, T].

    Raises:
        InputError: The site has too few events to send sums that show none of them.
    """
    times = torch.tensor(model.agreement.target.times, dtype=torch.float64)
    p = model(data.x)
    assert isinstance(p, Survival)
    smallest = model.agreement.smallest
    y = hide_few(data.y, times, smallest)
    sums = sum_times(y, times)
    hazards = sum_times(y, times, limit_hazards((p.risk + p.var / 2).exp(), y, times, smallest)).at_risk
    shown = protect(sums, times, smallest)
    return torch.stack([*shown[:3], protect_hazards(hazards, sums, times, smallest)])


class EventSums(File):
    """Sums on the agreed times of the rows that a site trained on, for a model's baseline."""

    kind = title = "statistics"
    part = "train"
    model: Model

    def make(self, site: Site) -> Made:
        """Add the rows up.

        Raises:
            InputError: The site has too few events to send sums that show none of them.
        """
        data = training_rows(self.study.agreement, site.role(self.part)).data
        value = {"times": sum_rows(self.model, data), "count": torch.tensor(len(data.y))}
        return Made(value, len(data.y), data)

    def form(self) -> Tree:
        """Give a file's value without any rows."""
        times = torch.zeros(LINES, len(self.study.agreement.target.times), dtype=torch.float64)
        return {"times": times, "count": torch.tensor(0)}

    def summand(self, value: Any) -> Tensor:
        """Take the sums from a file's value.

        Args:
            value: What the file holds.
        """
        table: Tensor = value["times"]
        return table

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse sums that no site under the study's rules can have.

        Args:
            most: The most rows that its sites committed to.

        Raises:
            InputError: It is not used.
        """
        events, censored, at_risk, hazards = part.table
        smallest = self.study.agreement.smallest
        check_rows(part.rows, smallest, most, where)
        people = float((events + censored).sum())
        sound = bool((part.table >= -ROUNDING).all()) and people <= part.rows + ROUNDING
        sound &= bool((at_risk <= part.rows + ROUNDING).all()) and bool((at_risk.diff() <= ROUNDING).all())
        sound &= bool((hazards.diff() <= ROUNDING * (1 + float(hazards.max()))).all())
        sound &= smallest - ROUNDING <= float(events.sum())
        if not sound:
            raise InputError(
                f"{where} is not used: its numbers cannot be sums over people who leave one after another."
            )


def find_baseline(study: Study, model: Model, paths: Sequence[Path]) -> Found:
    """Add the sites' sums up, and find the baseline and the curve.

    Args:
        model: The model that the sums must be about.

    Returns:
        What they give.

    Raises:
        InputError: Fewer sites than agreed sent sums that can be used, or they hold too few events.
    """
    agreement = study.agreement
    times = torch.tensor(agreement.target.times, dtype=torch.float64)
    parts, refused = hear(EventSums(study, model), paths)
    names = tuple(name for part in parts for name in part.sites)
    agreement.disclosure.check_sites(len(names), "files of sums", " ".join(refused))
    total = add(parts)
    rows = sum(part.rows for part in parts)
    count = torch.tensor(float(rows), dtype=torch.float64)
    people = TimeSums(total[0], total[1], total[2], count)
    hazard = baseline(times, [TimeSums(total[0], total[1], total[3], count)], agreement.smallest)
    found = Baseline(agreement.target.times, tuple(hazard.tolist()))
    return Found(found, curve_of(times, people, agreement.smallest), names, rows, tuple(refused))
