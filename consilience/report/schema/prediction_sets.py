"""What a report says of prediction sets: the guarantee, its assumption, and what the sets did on test rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from consilience.prediction_sets.measured import Covered
from consilience.prediction_sets.nonconformity import FOR_TIMES
from consilience.report.schema.numbers import count, number, percent
from consilience.report.schema.wording import Json

NEARLY = 0.95  # of the size of sets that know no column
KIND_NAMES = {
    "class": "by class",
    "pooled": "by pooled counts",
    "quantile": "by a quantile of the sites' quantiles",
    "own": "by each site's own rows",
}


@dataclass(frozen=True)
class SetsReport:
    """The prediction sets of a model.

    Attributes:
        level: The share of rows to be covered.
        kind: Which guarantee.
        score: What the thresholds are of.
        promise: What holds, in words.
        assumption: Under which assumption.
        least: The coverage that is reached with 95 % confidence over calibration rows.
        rows: Calibration rows behind all thresholds.
        overall: What the sets did on all test rows; None where nobody tried.
        by_site: The same by site, the least covered first.
        by_class: The same by class.
        refused: Why there are no sets; empty where there are.
        leaves: What left the sites of a study for it, in words.
        uninformed: The size of sets of one who knows no column; None where that is not known.
    """

    level: float
    kind: str
    score: str
    promise: str
    assumption: str
    least: float
    rows: int
    overall: Covered | None
    by_site: Sequence[Covered]
    by_class: Sequence[Covered]
    refused: str = ""
    leaves: str = ""
    uninformed: float | None = None

    @property
    def is_of_times(self) -> bool:
        """Whether the sets are lower bounds of times to an event."""
        return self.score in FOR_TIMES


def read_sets(value: Json | None) -> SetsReport | None:
    """Read what a report says under `guarantee`.

    Args:
        value: The JSON; None where it says nothing.

    Returns:
        The typed value.
    """
    if not value:
        return None
    if "refused" in value:
        return SetsReport(0.0, "", "", "", "", 0.0, 0, None, (), (), str(value["refused"]))
    overall = None
    if value.get("overall"):
        overall = _read_covered(value["overall"])
    return SetsReport(
        level=float(value["level"]),
        kind=str(value["kind"]),
        score=str(value["score"]),
        promise=str(value["promise"]),
        assumption=str(value["assumption"]),
        least=float(value["least"]),
        rows=sum(int(n) for n in value["rows"]),
        overall=overall,
        by_site=[_read_covered(entry) for entry in value.get("by_site") or []],
        by_class=[_read_covered(entry) for entry in value.get("by_class") or []],
        leaves=str(value.get("leaves") or ""),
        uninformed=value.get("uninformed"),
    )


def _read_covered(entry: Json) -> Covered:
    size = entry["size"]
    if size is None:
        size = math.inf
    low, high = entry["interval"]
    return Covered(str(entry["name"]), int(entry["rows"]), float(entry["coverage"]), (low, high), float(size))


def sets_title(sets: SetsReport) -> str:
    """Name the guarantee, as '90 % by class, from 352 rows held out'."""
    return f"{percent(sets.level)} {KIND_NAMES[sets.kind]}, from {count(sets.rows, 'row')} held out"


def sets_sentence(sets: SetsReport, is_regression: bool) -> str:
    """Say what the sets did on test rows.

    Args:
        is_regression: Whether they are intervals.

    Returns:
        One sentence, or why there are no sets.
    """
    if sets.refused:
        return f"No prediction sets: {sets.refused}"
    text = f"Prediction sets for {sets_title(sets)}"
    if sets.overall is None:
        return f"{text}."
    covered = sets.overall
    low, high = (percent(end) for end in covered.interval)
    text += f": {percent(covered.coverage, 1)} of test rows covered ({low} to {high})"
    text += f", {write_size(covered.size, is_regression, sets.score)} on average"
    if len(sets.by_site) > 1:
        worst = sets.by_site[0]
        text += f"; least at site {worst.name}, {percent(worst.coverage, 1)}"
    return f"{text}."


def vacuous(size: float, uninformed: float | None, is_regression: bool, score: str = "") -> str:
    """Say where sets keep their promise by holding everything, and so say nothing of a row.

    Args:
        size: The mean number of classes, width or lower bound.
        uninformed: The same of one who knows no column; None where that is not known.
        is_regression: Whether the sets are intervals.
        score: What the thresholds are of, which tells lower bounds of times.

    Returns:
        A sentence; empty where sets say something.
    """
    said = ""
    if score in FOR_TIMES:
        if size <= 0:
            said = "Every lower bound is 0"
    elif math.isinf(size):
        said = "Prediction intervals have no bounds"
    elif uninformed is not None and size >= NEARLY * uninformed:
        needed = f"{number(uninformed)} would do without any column"
        said = f"Prediction sets have {write_size(size, is_regression)} on average, and {needed}"
    if said:
        said += ": they say next to nothing of a row. Lower the level, or find columns that say more."
    return said


def write_size(size: float, is_regression: bool, score: str = "") -> str:
    """Write the size of sets.

    Args:
        size: The mean number of classes, width or lower bound.
        is_regression: Whether the sets are intervals.
        score: What the thresholds are of, which tells lower bounds of times.

    Returns:
        As '1.24 classes', 'a width of 3.1', 'a lower bound of 90', or that sets have no bounds.
    """
    if score in FOR_TIMES:
        return f"a lower bound of {number(size)}"
    if math.isinf(size):
        return "intervals without bounds"
    if is_regression:
        return f"a width of {number(size)}"
    return f"{size:.2f} classes"
