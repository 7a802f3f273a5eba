"""What a study agrees on about prediction sets: their level, their kind, and which rows calibrate them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from consilience.errors import InputError
from consilience.guarantees.kinds import Calibration, check_calibration
from consilience.guarantees.scores import score_from

if TYPE_CHECKING:
    from consilience.agreement.agreement import Agreement

NO_SETS = (
    "This study agreed on no prediction sets: write level = 0.9 and calibrate = 0.2 under [guarantees] in a new one."
)


def calibration_of(agreement: Agreement) -> Calibration:
    """Take from an agreement how prediction sets are calibrated.

    Args:
        agreement: The study's agreement.

    Returns:
        What every site counts by; by class where classes are predicted and nothing else was agreed on, as that alone
        holds at every single site, else pooled.

    Raises:
        InputError: The study agreed on no prediction sets, or on some that cannot be made.
    """
    if not agreement.level:
        raise InputError(NO_SETS)
    classes = agreement.target.classes
    kind = agreement.guarantee
    if not kind and classes:
        kind = "class"
    kind = kind or "pooled"
    check_calibration(kind, agreement.level, bool(classes))
    score = score_from(agreement.nonconformity or None, bool(classes))
    edges = score.edges(agreement.grid, len(classes) or None)
    return Calibration(kind, agreement.level, score, edges, classes, agreement.seed)


def check_guarantees(agreement: Agreement) -> None:
    """Refuse prediction sets that cannot be made, before anybody signs.

    Args:
        agreement: The study's agreement.

    Raises:
        InputError: A value is unknown or out of its range, or values do not fit together.
    """
    shares = agreement.choose + agreement.test + agreement.calibrate
    if agreement.calibrate < 0 or shares >= 1:
        raise InputError(
            f"choose = {agreement.choose:g}, test = {agreement.test:g} and calibrate = {agreement.calibrate:g} are "
            "shares of a site's rows: from 0, and together below 1."
        )
    if bool(agreement.level) != bool(agreement.calibrate):
        raise InputError("Prediction sets need both a level, as 0.9, and a share of rows to calibrate them, as 0.2.")
    if agreement.cells < 0:
        raise InputError(f"cells = {agreement.cells} is a count: write 1 or more, or 0 for the study's smallest.")
    if agreement.level:
        calibration_of(agreement)


def fewest_scores(agreement: Agreement) -> int:
    """Return the fewest scores that a cell of a site's counts may show, and a site may count.

    Args:
        agreement: The study's agreement.
    """
    return agreement.cells or agreement.smallest
