"""Calibration by site in a study: the file that a site sends about its test rows, and how the coordinator reads it.

No small count follows from a file. Neighbouring bins of a reliability diagram are merged until each has enough rows
with the outcome and enough without; a level of coverage is told only where enough rows lie outside it, and enough
between it and the level below.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from consilience.disk.typed import plain
from consilience.distributions.predictive import Categorical, Distribution
from consilience.errors import InputError
from consilience.metrics.binning import align
from consilience.metrics.calibration import Bin, Coverage, merge_small_bins, wilson
from consilience.metrics.scores import recalibration
from consilience.metrics.site_calibration import BINS, site_calibration
from consilience.privacy.disclosure.rules import SMALLEST_CELL, by_rule
from consilience.report.suppression import RECALIBRATION
from consilience.study.exchange import File, Made, Part, check_rows, hear
from consilience.study.model import Model
from consilience.study.protocol.agreement import Agreement
from consilience.study.protocol.calibration import check_may_evaluate
from consilience.study.protocol.members import Study
from consilience.tree import Tree

if TYPE_CHECKING:
    from consilience.study.site import Site

KIND = "evaluation"
LEVELS = (0.5, 0.8, 0.95)  # of the intervals whose coverage is told
WITHHELD = -1
ROUNDING = 1e-9  # of a mean of probabilities


class Evaluation(File):
    """Calibration of a model on a site's test rows."""

    kind = title = KIND
    part = "test"
    model: Model

    def __init__(self, study: Study, model: Model) -> None:
        """Ask for it, where the sites agreed on it."""
        check_may_evaluate(study.agreement)
        super().__init__(study, model)

    @property
    def name(self) -> str:
        """What the ledger enters."""
        return f"{self.title} of {self.model.checksum[:12]}"

    def make(self, site: Site) -> Made:
        """Count under the disclosure rules.

        Raises:
            InputError: Too few rows are behind it.
        """
        agreement = self.study.agreement
        data = site.role(self.part)
        y = data.y
        if not agreement.target.classes:
            y = y * agreement.target.spread + agreement.target.centre
        value = tabulate(agreement, self.model(data.x), y)
        return Made({**value, "count": torch.tensor(len(y))}, len(y), data)

    def form(self) -> Tree:
        """Give a file's value without any rows."""
        return {**_empty(bool(self.study.agreement.target.classes)), "count": torch.tensor(0)}

    def check(self, part: Part, most: int, where: str) -> None:
        """Refuse calibration that cannot be that of its rows.

        Args:
            most: The most rows that its site committed to.

        Raises:
            InputError: It is not used.
        """
        agreement = self.study.agreement
        check_rows(part.rows, agreement.smallest, most, where)
        if agreement.target.classes:
            sound = _are_bins(part.table, part.rows, agreement)
        else:
            sound = _are_levels(part.table["inside"].tolist(), part.rows, agreement.smallest)
        if not sound:
            raise InputError(f"{where} is not used: it cannot be the calibration of these rows under the rules.")


def tabulate(agreement: Agreement, p: Distribution, y: Tensor) -> dict[str, Tensor]:
    """Count what a site may tell of a model's calibration.

    Args:
        p: What the model predicts for the rows, in the target's own unit.
        y: What was seen, in that unit.

    Raises:
        InputError: Too few rows are behind it.
    """
    if isinstance(p, Categorical):
        value = _tabulate_bins(p, y, agreement.smallest)
    else:
        value = _tabulate_levels(p, y, agreement.smallest)
    if value is None:
        sentence = (
            f"{len(y)} test rows are too few to tell calibration by counts of at least {agreement.smallest}: this site "
            "sends none."
        )
        raise InputError(by_rule(SMALLEST_CELL, sentence))
    return value


def _tabulate_bins(p: Categorical, y: Tensor, smallest: int) -> dict[str, Tensor] | None:
    """Merged bins, each at the place of its last one, and the fits; None where no bin may be shown."""
    if not len(y):
        return None
    merged = merge_small_bins(site_calibration(p, y).reliability, smallest)
    if not merged:
        return None
    empty = _empty(is_categorical=True)
    for b in merged:
        place = round(b.high * BINS) - 1
        empty["bins"][place] = torch.tensor([b.count, round(b.count * (b.accuracy or 0.0))])
        empty["confidence"][place] = b.confidence or 0.0
    fitted = recalibration(*align(p, y))
    for i, name in enumerate(RECALIBRATION):
        if name in fitted:
            empty["fitted"][i] = torch.tensor(fitted[name], dtype=torch.float64)
            empty["told"][i] = 1
    return empty


def _tabulate_levels(p: Distribution, y: Tensor, smallest: int) -> dict[str, Tensor] | None:
    """How many rows lie inside the intervals of each level; None where no level may be shown."""
    empty = _empty(is_categorical=False)
    below = 0
    for i, level in enumerate(site_calibration(p, y).coverage):
        within = round((level.observed or 0.0) * len(y))
        if min(within - below, len(y) - within) >= smallest:
            empty["inside"][i] = within
            below = within
    if not below:
        return None
    return empty


def _empty(is_categorical: bool) -> dict[str, Tensor]:
    """What a file holds beside the number of rows, without any."""
    if not is_categorical:
        return {"inside": torch.full((len(LEVELS),), WITHHELD)}
    return {
        "bins": torch.zeros(BINS, 2, dtype=torch.int64),
        "confidence": torch.zeros(BINS, dtype=torch.float64),
        "fitted": torch.zeros(len(RECALIBRATION), 3, dtype=torch.float64),
        "told": torch.zeros(len(RECALIBRATION), dtype=torch.int64),
    }


def read_evaluations(study: Study, model: Model, paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[str]]:
    """Read what sites tell of a model's calibration.

    Args:
        model: The model that it must be about.

    Returns:
        For each site whose file can be used, its calibration by the names of `run.json`, and a sentence for each file
        that is left out.

    Raises:
        InputError: The study did not agree on it, or no file can be used.
    """
    parts, refused = hear(Evaluation(study, model), paths)
    if not parts:
        raise InputError(f"No site's calibration can be used. {' '.join(refused)}".strip())
    order = [site.name for site in study.sites]
    return [_told(study, part) for part in sorted(parts, key=lambda part: order.index(part.sites[0]))], refused


def _told(study: Study, part: Part) -> dict[str, Any]:
    """A site's calibration by the names of `run.json`."""
    about = {"site": part.sites[0], "test": part.rows}
    if study.agreement.target.classes:
        return {**about, **_read_bins(part.table)}
    return {**about, "coverage": plain(_read_levels(part.table["inside"].tolist(), part.rows))}


def _are_bins(value: dict[str, Tensor], rows: int, agreement: Agreement) -> bool:
    """Whether bins hold all rows, none of them few, with probabilities that lie in them."""
    counts, hits = value["bins"].unbind(1)
    if not bool(((counts >= 0) & (counts <= rows) & (hits >= 0) & (hits <= counts)).all()):
        return False
    filled = counts > 0
    fewest = torch.minimum(hits, counts - hits)[filled]
    if int(counts.sum()) != rows or not bool(filled[-1]) or int(fewest.min()) < agreement.smallest:
        return False
    if bool((value["confidence"][~filled] != 0).any()):
        return False
    inside = [b.low - ROUNDING <= (b.confidence or 0.0) <= b.high + ROUNDING for b in _bins(value)]
    return all(inside) and _are_fits(value, len(agreement.target.classes))


def _are_fits(value: dict[str, Tensor], classes: int) -> bool:
    """Whether intercept and slope lie in their intervals; there are none but for two classes."""
    told = value["told"]
    known = told == 1
    if not bool((known | (told == 0)).all()) or bool(value["fitted"][~known].any()):
        return False
    if classes != 2 and bool(known.any()):
        return False
    estimate, low, high = value["fitted"].unbind(1)
    return bool(((low <= estimate) & (estimate <= high)).all())


def _are_levels(inside: Sequence[int], rows: int, smallest: int) -> bool:
    """Whether counts of rows inside intervals grow by enough, and leave enough outside."""
    told = [count for count in inside if count != WITHHELD]
    steps = [after - before for before, after in zip([0, *told], [*told, rows], strict=True)]
    return bool(told) and min(steps) >= smallest


def _bins(value: dict[str, Tensor]) -> list[Bin]:
    """The bins that are filled; each begins where the one before ends."""
    found: list[Bin] = []
    low = 0.0
    for place, (count, hits) in enumerate(value["bins"].tolist()):
        if not count:
            continue
        high = (place + 1) / BINS
        share = hits / count
        found.append(Bin(low, high, count, float(value["confidence"][place]), share, wilson(share, count)))
        low = high
    return found


def _read_bins(value: dict[str, Tensor]) -> dict[str, Any]:
    metrics = {}
    intervals = {}
    for name, told, (estimate, low, high) in zip(
        RECALIBRATION, value["told"].tolist(), value["fitted"].tolist(), strict=True
    ):
        if told:
            metrics[name] = estimate
            intervals[name] = [low, high]
    return {"reliability": plain(_bins(value)), "metrics": metrics, "intervals": intervals}


def _read_levels(inside: Sequence[int], rows: int) -> list[Coverage]:
    """The coverage at each level; one that is withheld has no value."""
    found = []
    for level, count in zip(LEVELS, inside, strict=True):
        if count == WITHHELD:
            found.append(Coverage(level, None, None))
        else:
            share = count / rows
            found.append(Coverage(level, share, wilson(share, rows)))
    return found
