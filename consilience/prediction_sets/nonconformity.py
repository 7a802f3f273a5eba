"""How strange a row looks to a model: the larger the score, the stranger. Any predictive distribution has one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

from consilience.distributions.predictive import Categorical, Distribution, Normal
from consilience.distributions.survival import Survival
from consilience.errors import InputError, unknown_name
from consilience.key import Key, Stream

FOR_CLASSES = ("hinge", "aps", "raps")
FOR_NUMBERS = ("residual", "quantile")
FOR_TIMES = ("time",)
SCORES = (*FOR_CLASSES, *FOR_NUMBERS, *FOR_TIMES)
SCORES_FOR = {"classification": FOR_CLASSES, "regression": FOR_NUMBERS, "survival": FOR_TIMES}
CALIBRATION = 0  # what the key of the draws is folded by: rows that calibrate
PREDICTION = 1  # rows that are predicted
SMALLEST = 12  # orders of magnitude of a probability that a grid tells from 0


@dataclass(frozen=True)
class Score:
    """A score of nonconformity by name, in words as `aps` or `raps:0.1:2`.

    Attributes:
        name: `hinge`: 1 − p(y). `aps`: the probability of all classes above y and of a random part of y's (Romano,
            Sesia and Candès 2020). `raps`: the same with a penalty for each rank of y beyond the free ones
            (Angelopoulos et al. 2021). `residual`: |y − μ|/σ. `quantile`: how far y lies outside the predictive
            interval of the level, negative inside (Romano, Patterson and Candès 2019). `time`: S(t | x) at the time of
            the event, or until which nobody saw one: the earlier, the larger.
        penalty: Of `raps`, for each further rank.
        free: Ranks of `raps` without a penalty.

    Example:
        >>> import consilience as co
        >>> co.prediction_sets.Score("raps", penalty=0.2).penalty
        0.2
    """

    name: str
    penalty: float = 0.1
    free: int = 1

    def __str__(self) -> str:
        if self.name == "raps":
            return f"raps:{self.penalty:g}:{self.free}"
        return self.name

    @property
    def is_for_classes(self) -> bool:
        """Whether it scores classes rather than numbers."""
        return self.name in FOR_CLASSES

    def edges(self, grid: int, classes: int | None) -> Tensor:
        """Make the grid that scores are counted on; every site makes the same.

        Args:
            classes: How many classes there are; None for numbers.

        Returns:
            Ascending edges [grid] in float64. For classes and times three quarters are uniform, the others come ever
            closer to the largest score, so that models that are sure and wrong keep finite sets; for residuals, whose
            unit is a standard deviation, they are geometric.

        Raises:
            InputError: There are too few edges.
        """
        if grid < 2:
            raise InputError(f"grid={grid}: scores are counted on at least 2 edges.")
        steps = torch.arange(1, grid + 1, dtype=torch.float64) / grid
        if self.name == "residual":
            return 10 ** (5 * steps - 2)  # up to 1 000
        if self.name == "quantile":
            return torch.sinh((2 * steps - 1) * math.asinh(1e5)) / 100  # from −1 000 to 1 000, fine around 0
        largest = 1.0
        if self.name == "raps":
            largest += self.penalty * max((classes or 0) - self.free, 0)
        even = max(3 * grid // 4, 1)
        uniform = torch.arange(1, even + 1, dtype=torch.float64) / (even + 1)
        close = torch.arange(1, grid - even, dtype=torch.float64) / (grid - even)
        nearer = 1 - 10 ** (-SMALLEST * close) / (even + 1)
        return largest * torch.cat([uniform, nearer, torch.ones(1, dtype=torch.float64)])


def score_from(text: str | None, kind: str) -> Score:
    """Read a score.

    Args:
        text: Its name, as `aps`; with numbers, as `raps:0.1:2`. None for the usual one.
        kind: What is predicted: `classification`, `regression` or `survival`.

    Returns:
        The score; `hinge`, `residual` and `time` are usual.

    Raises:
        InputError: There is no such score, or it is not for this kind of problem.
    """
    if kind not in SCORES_FOR:
        raise InputError(f"Prediction sets are for classes, numbers and times, and this predicts {kind}.")
    known = SCORES_FOR[kind]
    name, *numbers = (text or known[0]).split(":")
    if name not in known:
        raise unknown_name("score", name, known)
    try:
        if not numbers:
            return Score(name)
        if name != "raps" or len(numbers) > 2:
            raise ValueError(text)
        penalty, free = (float(numbers[0]), int((*numbers, "1")[1]))
        if not 0 <= penalty < math.inf or free < 0:
            raise ValueError(text)
    except ValueError:
        raise InputError(f"'{text}' is not a score: write for example raps:0.1:2, a penalty and free ranks.") from None
    return Score(name, penalty, free)


def draws(key: Key, role: int, rows: int, site: int = 0) -> Tensor:
    """Draw the uniform number of each row that scores with a random part use.

    Args:
        key: The run's or the study's.
        role: `CALIBRATION` or `PREDICTION`.

    Returns:
        Uniforms [rows] in float64.
    """
    folded = key.fold(Stream.SETS).fold(role).fold(site)
    return folded.uniform(rows, torch.empty(0, dtype=torch.float64))


def class_scores(score: Score, p: Categorical, u: Tensor) -> Tensor:
    """Score every class of every row.

    Args:
        p: What a model predicts for N rows.
        u: A uniform number for each row [N].

    Returns:
        Scores [N, C] in float64; infinite where a probability is not a number.
    """
    probs = p.log_probs.double().exp()
    if score.name == "hinge":
        found = 1 - probs
    else:
        ordered, order = probs.sort(dim=1, descending=True, stable=True)
        above = ordered.cumsum(1) - ordered
        ranked = above + u.double().unsqueeze(1) * ordered
        if score.name == "raps":
            ranks = torch.arange(1, probs.shape[1] + 1, dtype=torch.float64)
            ranked = ranked + score.penalty * (ranks - score.free).clamp(min=0)
        found = torch.empty_like(probs).scatter(1, order, ranked)
    return found.nan_to_num(nan=math.inf, posinf=math.inf)


def number_scores(score: Score, p: Normal, y: Tensor, level: float) -> Tensor:
    """Score numbers.

    Args:
        p: What a model predicts for N rows, on the scale that the network sees.
        y: Their targets on the same scale.
        level: The level of the sets, whose predictive interval `quantile` starts from.

    Returns:
        Scores [N] in float64; infinite where one is not a number.
    """
    mean, deviation = mean_and_deviation(p)
    gap = (y.reshape(mean.shape).double() - mean).abs()
    if score.name == "residual":
        found = gap / deviation
        found[gap == 0] = 0.0
    else:
        found = gap - reach(level) * deviation
    return found.nan_to_num(nan=math.inf, posinf=math.inf)


def time_scores(p: Survival, times: Tensor) -> Tensor:
    """Score times: how likely no event was to be seen by then.

    A row without an event counts by the time until which it was watched. That is not after the time of its event, so
    that a bound below the one is a bound below the other, however rows are censored.

    Args:
        p: What a model predicts for N rows, on a baseline.
        times: Of the event, or the last at which there was none [N].

    Returns:
        S(t | x) by the last time of the curve that is not after t [N] in float64; 1 before the first, infinite where it
        is not a number.

    Raises:
        InputError: The model has no curves.
    """
    if not p.times.shape[1]:
        raise InputError("A bound on a time needs survival curves, and this model has no baseline: run it with scores.")
    place = (p.times.double() <= times.double().reshape(-1, 1)).sum(1, keepdim=True)
    curves = torch.cat([torch.ones(len(p.risk), 1, dtype=torch.float64), p.curves], 1)
    return curves.gather(1, place).squeeze(1).nan_to_num(nan=math.inf)


def mean_and_deviation(p: Normal) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of an observation, for a single number a row.

    Args:
        p: What a model predicts for N rows.

    Returns:
        Both [N] in float64.

    Raises:
        InputError: Several numbers are predicted for a row.
    """
    rows = len(p.mean)
    if p.mean.numel() != rows:
        raise InputError("Prediction intervals are for one number a row: predict one target at a time.")
    return p.mean.double().reshape(rows), p.total.double().expand_as(p.mean).reshape(rows).sqrt()


def reach(level: float) -> float:
    """Return how many standard deviations a normal interval of a level reaches to either side."""
    return float(scipy.special.ndtri((1 + level) / 2))


def row_scores(score: Score, p: Distribution, y: Tensor, u: Tensor, level: float) -> Tensor:
    """Score rows whose outcome is known.

    Args:
        p: What a model predicts for N rows.
        y: Their labels or targets, as the network sees them.
        u: A uniform number for each row [N].
        level: The level of the sets.

    Returns:
        Scores [N] in float64.

    Raises:
        InputError: The score is not for such predictions.
    """
    if isinstance(p, Categorical) and score.is_for_classes:
        return class_scores(score, p, u).gather(1, y.long().reshape(-1, 1)).squeeze(1)
    if isinstance(p, Normal) and score.name in FOR_NUMBERS:
        return number_scores(score, p, y, level)
    if isinstance(p, Survival) and score.name in FOR_TIMES:
        return time_scores(p, y[:, 0])
    raise InputError(
        f"The score '{score}' is not for these predictions: prediction sets are for classes, numbers and times."
    )
