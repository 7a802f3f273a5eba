"""Prediction sets by thresholds: every class, or every number, that does not look stranger than it may."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from consilience.distributions.predictive import Categorical, Distribution, Normal
from consilience.distributions.survival import Survival
from consilience.errors import InputError
from consilience.key import Key
from consilience.prediction_sets.nonconformity import (
    FOR_TIMES,
    PREDICTION,
    class_scores,
    draws,
    mean_and_deviation,
    reach,
    score_from,
)

PROMISES = {
    "class": "Of every class, at least {level} of rows have their own class in the set, at every site and also at one "
    "that took no part",
    "pooled": "At least {level} of rows that come from the sites in proportion to their calibration rows are covered; "
    "at a single site it can be fewer",
    "quantile": "At least {level} of rows are covered",
    "own": "At each site, at least {level} of its own rows are covered",
}
BY_OWN_MODELS = {  # in place of the above, where each site's rows are predicted by a model of its own
    "class": "Of every class, at least {level} of rows that come from the sites in proportion to their calibration "
    "rows of it have their own class in the set; at a single site it can be fewer",
}
ASSUMPTIONS = {
    "class": "rows of one class look alike at all sites, in whatever proportion each site has the classes (label "
    "shift), and the model was not made from the calibration rows",
    "pooled": "each site's new rows are like its calibration rows, from which the model was not made",
    "quantile": "all sites' rows, and the new ones, are alike, and the model was not made from the calibration rows",
    "own": "a site's new rows are like its calibration rows, from which the model was not made; other sites do not "
    "matter",
}
ASSUMED_OF_OWN_MODELS = {
    "class": "each site's new rows are like its calibration rows, from which its model was not made",
    "quantile": "all sites' rows look alike to their own models, and the models were not made from the calibration "
    "rows",
}
COVERED_TIMES = (
    "A row is covered if its event, or the end of its watch, is not before its lower bound; its event then is not "
    "either, however rows are censored."
)


@dataclass(frozen=True)
class Guarantee:
    """Thresholds, and what they promise.

    Attributes:
        kind: `class`, `pooled`, `quantile` or `own`.
        level: The share of rows to be covered, 1 − α.
        score: What the thresholds are of, in words.
        thresholds: One for all rows, for each class, or for each site; infinite where nothing can be left out.
        names: What the thresholds are for: classes, sites, or one empty text.
        rows: The calibration rows behind each threshold; with noise, as the noise has it.
        sites: Whose rows they are.
        least: The coverage that is reached with 95 % confidence over calibration rows, of exchangeable rows and by
            the worst of the thresholds.
        noise: The variance of the noise in every count.
        seed: What random parts of scores are drawn from.
        own_models: Whether they are of the sites' own models, each on its own rows, and not of one model for all.

    Example:
        >>> import consilience as co
        >>> result = co.run("exact", co.Problem(co.datasets.moons(1500), sites=2, split="iid", conformal=0.3))
        >>> sets = co.conformal(result, level=0.8, kind="pooled")
        >>> sets.kind, sets.level, sets.promise[:18]
        ('pooled', 0.8, 'At least 80 % of r')
    """

    kind: str
    level: float
    score: str
    thresholds: tuple[float, ...]
    names: tuple[str, ...]
    rows: tuple[int, ...]
    sites: tuple[str, ...]
    least: float
    noise: float = 0.0
    seed: int = 0
    own_models: bool = False

    @property
    def promise(self) -> str:
        """What holds, in one sentence; on average over calibration rows."""
        promise = PROMISES[self.kind]
        if self.own_models:
            promise = BY_OWN_MODELS.get(self.kind, promise)
        text = f"{promise.format(level=f'{100 * self.level:g} %')}."
        if self.score in FOR_TIMES:
            text += f" {COVERED_TIMES}"
        return text

    @property
    def assumption(self) -> str:
        """Under which assumption it holds."""
        if self.own_models and self.kind in ASSUMED_OF_OWN_MODELS:
            return ASSUMED_OF_OWN_MODELS[self.kind]
        return ASSUMPTIONS[self.kind]

    def __str__(self) -> str:
        return f"{self.promise} This holds on average over calibration rows, if {self.assumption}."

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON, which has no infinite numbers."""
        finite = [None if math.isinf(threshold) else threshold for threshold in self.thresholds]
        value = {**asdict(self), "thresholds": finite}
        if not self.own_models:
            del value["own_models"]
        return value

    @staticmethod
    def from_json(value: Any) -> Guarantee:
        """Read what `to_json` wrote.

        Args:
            value: The JSON; further entries are left alone.

        Raises:
            InputError: The value is not one.
        """
        try:
            thresholds = tuple(math.inf if number is None else float(number) for number in value["thresholds"])
            found = Guarantee(
                str(value["kind"]),
                float(value["level"]),
                str(value["score"]),
                thresholds,
                tuple(str(name) for name in value["names"]),
                tuple(int(count) for count in value["rows"]),
                tuple(str(name) for name in value["sites"]),
                float(value["least"]),
                float(value["noise"]),
                int(value["seed"]),
                bool(value.get("own_models", False)),
            )
            sizes = {len(found.thresholds), len(found.names), len(found.rows)}
            if found.kind not in PROMISES or not 0 < found.level < 1 or len(sizes) > 1 or not thresholds:
                raise ValueError(found.kind)
            if any(math.isnan(threshold) for threshold in thresholds):
                raise ValueError("a threshold")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError("The thresholds of the prediction sets are damaged: calibrate again.") from error
        return found


def threshold_of(guarantee: Guarantee, site: str | None) -> Tensor:
    """Find the thresholds for rows of a site.

    Args:
        site: Whose rows they are; None: not known.

    Returns:
        One threshold [1], or one for each class [C].

    Raises:
        InputError: Each site has a threshold of its own and none, or another, is named.
    """
    thresholds = torch.tensor(guarantee.thresholds, dtype=torch.float64)
    if guarantee.kind != "own":
        return thresholds
    if site not in guarantee.names:
        known = ", ".join(guarantee.names)
        raise InputError(f"Each site has a threshold of its own: say whose rows these are with site=, one of {known}.")
    return thresholds[guarantee.names.index(site)].reshape(1)


def prediction_sets(p: Categorical, guarantee: Guarantee, site: str | None = None, u: Tensor | None = None) -> Tensor:
    """Find the classes that a row may be of.

    Args:
        p: What the model predicts for N rows.
        guarantee: The thresholds for this model.
        site: Whose rows they are, where each site has its own threshold.
        u: A uniform number for each row [N], for scores with a random part; drawn from the guarantee's seed if None.

    Returns:
        Whether each class is in the set [N, C].

    Raises:
        InputError: The thresholds are for numbers or for other classes, or the site is not known.

    Example:
        >>> import consilience as co
        >>> result = co.run("exact", co.Problem(co.datasets.moons(1500), sites=2, split="iid", conformal=0.3))
        >>> sets = co.conformal(result, level=0.9)
        >>> co.prediction_sets.sets.prediction_sets(result.model()(result.sites.test[0].x[:4]), sets).shape
        torch.Size([4, 2])
    """
    score = score_from(guarantee.score, "classification")
    thresholds = threshold_of(guarantee, site)
    if len(thresholds) not in (1, p.log_probs.shape[1]):
        raise InputError("The thresholds are for another number of classes: calibrate this model.")
    if u is None:
        u = draws(Key(guarantee.seed), PREDICTION, len(p.log_probs))
    return class_scores(score, p, u) <= thresholds


def prediction_intervals(p: Normal, guarantee: Guarantee, site: str | None = None) -> tuple[Tensor, Tensor]:
    """Find the interval that a row's number lies in.

    Args:
        p: What the model predicts for N rows, on the scale that the network sees.
        guarantee: The thresholds for this model.
        site: Whose rows they are, where each site has its own threshold.

    Returns:
        The lower and the upper end [N] in float64; the mean twice where the interval is empty.

    Raises:
        InputError: The thresholds are for classes, or the site is not known.
    """
    score = score_from(guarantee.score, "regression")
    threshold = float(threshold_of(guarantee, site))
    mean, deviation = mean_and_deviation(p)
    if math.isinf(threshold):
        half = torch.full_like(mean, math.inf)
    elif score.name == "residual":
        half = threshold * deviation
    else:
        half = (reach(guarantee.level) * deviation + threshold).clamp(min=0)
    return mean - half, mean + half


def lower_bounds(p: Survival, guarantee: Guarantee, site: str | None = None) -> Tensor:
    """Find the time before which no event is expected.

    Args:
        p: What the model predicts for N rows, on a baseline.
        guarantee: The thresholds for this model.
        site: Whose rows they are, where each site has its own threshold.

    Returns:
        The first time at which S(t | x) is at most the threshold [N] in float64; the last of the curve where it never
        is, and 0 where the threshold is 1 or more.

    Raises:
        InputError: The thresholds are for something else, or the site is not known.
    """
    score_from(guarantee.score, "survival")
    threshold = float(threshold_of(guarantee, site))
    if threshold >= 1:
        return torch.zeros(len(p.risk), dtype=torch.float64)
    reached = p.curves <= threshold
    first = torch.where(reached.any(1), reached.int().argmax(1), p.times.shape[1] - 1)
    return p.times.double().gather(1, first.unsqueeze(1)).squeeze(1)


def contains(
    p: Distribution, y: Tensor, guarantee: Guarantee, site: str | None = None, u: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Say which sets hold the truth, and how large they are.

    Args:
        p: What the model predicts for N rows, on the scale that the network sees.
        y: Their labels or targets on the same scale.
        guarantee: The thresholds for this model.
        site: Whose rows they are, where each site has its own threshold.
        u: A uniform number for each row [N], for scores with a random part.

    Returns:
        Whether each row's set holds the truth [N], and the number of its classes, the width of its interval or its
        lower bound [N].
    """
    if isinstance(p, Categorical):
        sets = prediction_sets(p, guarantee, site, u)
        return sets.gather(1, y.long().reshape(-1, 1)).squeeze(1), sets.sum(1).double()
    if isinstance(p, Survival):
        bound = lower_bounds(p, guarantee, site)
        return y[:, 0].double() >= bound, bound
    assert isinstance(p, Normal)
    low, high = prediction_intervals(p, guarantee, site)
    target = y.reshape(low.shape).double()
    return (target >= low) & (target <= high), high - low
