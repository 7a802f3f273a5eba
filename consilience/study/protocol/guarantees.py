"""What a study agrees on about prediction sets: their level, their kind, and which rows calibrate them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from consilience.errors import InputError
from consilience.method import is_made_at_home
from consilience.prediction_sets.kinds import Calibration, check_calibration
from consilience.prediction_sets.nonconformity import score_from

if TYPE_CHECKING:
    from consilience.study.protocol.agreement import Agreement

NOISY_GRID = 30  # edges that are proposed where every count has noise: each cell costs level
NO_SETS = (
    "This study agreed on no prediction sets: write level = 0.9 and calibrate = 0.2 under [guarantees] in a new one."
)


def read_calibration(agreement: Agreement) -> Calibration:
    """Take from an agreement how prediction sets are calibrated.

    Returns:
        What every site counts by; by class where classes are predicted and nothing else was agreed on, as that alone
        holds at every single site, else pooled. Its noise is what each site adds.

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
    score = score_from(agreement.nonconformity or None, agreement.kind)
    edges = score.edges(agreement.grid, len(classes) or None)
    own_models = is_made_at_home(agreement.build_method())
    plan = Calibration(kind, agreement.level, score, edges, classes, agreement.seed, own_models=own_models)
    if agreement.privacy is not None and kind != "own":
        plan = plan._replace(noise=agreement.privacy.deviation(empty_counts(plan).numel()) ** 2)
    check_calibration(kind, agreement.level, bool(classes), plan.noise)
    return plan


def check_guarantees(agreement: Agreement) -> None:
    """Refuse prediction sets that cannot be made, before anybody signs.

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
    if agreement.cells and agreement.epsilon:
        raise InputError(
            f"cells = {agreement.cells} merges counts without noise, and these have noise: write cells = 0."
        )
    if agreement.level:
        read_calibration(agreement)


def empty_counts(plan: Calibration) -> Tensor:
    """Make the table of a site without rows.

    Returns:
        Zeros in int64, a line for each class or one.
    """
    lines = 1
    if plan.kind == "class":
        lines = len(plan.classes)
    return torch.zeros(lines, len(plan.edges) + 1, dtype=torch.int64)


def describe_counts(agreement: Agreement) -> str:
    """Say what leaves a site to calibrate prediction sets, before anybody signs and in reports.

    Returns:
        One or two sentences; empty where nothing leaves.
    """
    if not agreement.level or agreement.guarantee == "own":
        return ""
    plan = read_calibration(agreement)
    sent = f"{empty_counts(plan).numel():,} counts of scores of the rows held out"
    if plan.kind == "quantile":
        sent = "the place of one score of the rows held out, and their number"
    text = f"For prediction sets of {100 * plan.level:g} %, {sent}"
    if agreement.privacy is not None:
        text += (
            f", each with noise of SD {math.sqrt(plan.noise):.3g} from the operating system (ε = "
            f"{agreement.epsilon:g}, δ = {agreement.delta:g}: these rows train nobody, so that nothing else spends it)"
        )
    elif plan.kind != "quantile":
        text += f", none of a cell with fewer than {fewest_scores(agreement)} rows"
    if agreement.secure:
        text += "; masked, so that the sum over all sites can be read and no site's own"
    return f"{text}."


def fewest_scores(agreement: Agreement) -> int:
    """Return the fewest scores that a cell of a site's counts may show, and a site may count."""
    return agreement.cells or agreement.smallest
