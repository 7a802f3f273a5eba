"""What is found about a model, as typed values: what measures it makes them, pages and tables use them.

`run.json` holds them as `consilience.disk.typed.plain` writes them. Reports of older versions lack some keys: what is
missing is empty or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeAlias

from consilience.disk.typed import AMONG, Rows, Share, Size, Under
from consilience.metrics.calibration import Bin, Coverage

Span: TypeAlias = Sequence[float | None]
LARGEST = 1e30  # beyond it no axis can be drawn, and no score means anything


def finite_ends(interval: Span | None) -> tuple[float, float] | None:
    """Read the ends of an interval that can be drawn.

    Args:
        interval: Two ends, of which some may be missing.

    Returns:
        The ends; None where one is missing or not finite.
    """
    ends = [float(end) for end in interval or () if end is not None and abs(end) < LARGEST]
    if len(ends) != 2:
        return None
    return ends[0], ends[1]


@dataclass(frozen=True)
class Scores:
    """Scores of one model on some rows.

    Attributes:
        metrics: The scores by key.
        intervals: Their 95 % intervals over rows; None where nobody looked.
        errors: Their standard errors over seeds.
        differences: Their paired differences from a comparison's reference.
        temperature: The factor by which predictions were rescaled, if they were; the mean where sites have their own.
        temperatures: Each site's own, in the sites' order.
    """

    metrics: Annotated[Mapping[str, float | None], Under("metrics", always=True)] = field(default_factory=dict)
    intervals: Mapping[str, Span | None] | None = None
    errors: Mapping[str, Size | None] | None = None
    differences: Mapping[str, Mapping[str, Any]] | None = None
    temperature: Size | None = None
    temperatures: Sequence[float] | None = None

    def value(self, key: str) -> float | None:
        """Look up a score.

        Returns:
            The score; None where it is missing or not finite.
        """
        x = self.metrics.get(key)
        if x is None or not abs(x) < LARGEST:
            return None
        return float(x)

    def interval(self, key: str) -> Span | None:
        """Look up the interval that may stand beside a score.

        That of the calibration error is the debiased ECE's: of the plain one, which overstates the error, it is not.
        """
        known = self.intervals or {}
        if key == "ece" and "ece_debiased" in known:
            return None
        return known.get(key)

    def arrow(self, key: str) -> str:
        """Look up the arrow of a score's difference from the reference.

        Returns:
            The arrow; empty where the difference is not significant or was not tested.
        """
        return str(((self.differences or {}).get(key) or {}).get("arrow") or "")

    def error_bar(self, key: str) -> tuple[float, float] | None:
        """Look up what a figure draws around a score.

        Returns:
            The ends of its interval, or of one standard error either way; None where neither is known.
        """
        span = self.interval(key)
        if span:
            return finite_ends(span)
        x = self.value(key)
        error = (self.errors or {}).get(key)
        if x is None or error is None:
            return None
        return x - error, x + error


@dataclass(frozen=True)
class Site:
    """A site, and how the model does there.

    Attributes:
        name: The site's name, or its number.
        test: How many rows its scores are over.
        train: How many rows it trained on; None where that is withheld.
        labels: How many training rows of each class it has; None within the list is a small count.
        scores: The scores over its rows, and the intervals of intercept and slope.
        influence: Its share of the pooled model, from 0 to 1; None where that was not measured.
        reliability: Bins of its reliability diagram: of P(outcome) for two classes, of the confidence for more.
        coverage: Coverage of the predictive intervals at the site, for numbers.
    """

    name: Annotated[str, Under("site")]
    train: Rows | None
    test: Rows | None
    labels: Sequence[Rows | None] | None
    scores: Annotated[Scores, AMONG]
    influence: Share | None = None
    reliability: Sequence[Bin] = ()
    coverage: Sequence[Coverage] = ()


@dataclass(frozen=True)
class PredictedBin:
    """Test rows with similar predictions of a number.

    Attributes:
        predicted: The mean prediction.
        deviation: The mean standard deviation of the predictions.
        observed: The mean observation.
        rows: How many there are.
        interval: The 95 % interval of the mean observation.
    """

    predicted: Annotated[float, Under("said")]
    deviation: Size
    observed: Annotated[float, Under("seen")]
    rows: Rows
    interval: Sequence[float]


@dataclass(frozen=True)
class Predicted:
    """Predictions of a number against what was observed.

    Attributes:
        bins: Tenths of the test rows, by their prediction.
        points: Prediction, standard deviation and observation of single rows, of public data only.
        spread: The standard deviation of the observations.
        horizon: The time by which risks of an event are predicted, where that is what is.
    """

    bins: Sequence[PredictedBin]
    points: Sequence[tuple[float, float, float]] | None
    spread: Size | None
    horizon: Size | None = None


@dataclass(frozen=True)
class UncertaintyPart:
    """The mean uncertainty of some test rows, in nats or as a variance.

    Attributes:
        name: Which rows.
        rows: How many.
        aleatoric: What would remain if the weights were known.
        within: What more data at each site would reduce.
        disagreement: What lies between the sites.
    """

    name: Annotated[str, Under("of")]
    rows: Rows
    aleatoric: float
    within: float
    disagreement: float


@dataclass(frozen=True)
class Example:
    """A single test row, and what was predicted for it.

    Attributes:
        kind: Why it is shown.
        predicted: The most probable class.
        confidence: The probability of that class.
        true: The row's own class.
        image: Grey values between 0 and 1; None where the row is not an image.
    """

    kind: str
    predicted: Annotated[Rows, Under("said")]
    confidence: Share
    true: Rows
    image: Sequence[Sequence[float]] | None


@dataclass(frozen=True)
class BySite:
    """How a model does at every site.

    Attributes:
        per_site: Every site with its scores.
        worst_site: The name and the scores of the site with the highest NLL; None where no site has test rows.
    """

    per_site: Sequence[Site]
    worst_site: Mapping[str, str | float | None] | None


@dataclass(frozen=True)
class Own:
    """Scores of each site's own model on its own rows.

    Attributes:
        scores: The scores.
        tempered: The same after tempering; None where nothing was tempered.
    """

    scores: Annotated[Scores, AMONG]
    tempered: Scores | None


@dataclass(frozen=True)
class Newcomer(Own):
    """Scores of the common model, which a site that takes no part would get, where sites have models of their own.

    Attributes:
        by_site: How it does at every site.
    """

    by_site: Annotated[BySite, AMONG]


@dataclass(frozen=True)
class Evaluation:
    """Everything that `run.json` says about how good a model is.

    Attributes:
        scores: Over all test rows; each site's own model on its own rows where sites have models of their own.
        tempered: The same after tempering; None where nothing was tempered.
        by_site: How it does at every site.
        diagnostics: What the method says of its own fit, and what speaks against the likelihood.
        uncertainty: The mean uncertainty of a test row, over all rows and over parts of them.
        predicted: Predictions against observations, for numbers and times.
        examples: Single test rows, of public data.
        reliability: Bins of the reliability diagram, for classes.
        ece_if_calibrated: The expected ECE of a perfectly calibrated model on these rows.
        coverage: Coverage of predictive intervals, for numbers.
        newcomer: Scores of the common model where sites have models of their own.
        baseline: The cumulative baseline hazard: times, hazard, and the fewest events of a step.
        events: How many events there are among the test rows.
    """

    scores: Annotated[Scores, AMONG]
    tempered: Scores | None
    by_site: Annotated[BySite, AMONG]
    diagnostics: Mapping[str, Any]
    uncertainty: Sequence[UncertaintyPart] | None
    predicted: Predicted | None
    examples: Sequence[Example] | None
    reliability: Sequence[Bin] | None = None
    ece_if_calibrated: Share | None = None
    coverage: Sequence[Coverage] | None = None
    newcomer: Newcomer | None = None
    baseline: Mapping[str, Any] | None = None
    events: Rows | None = None


@dataclass(frozen=True)
class PersonalEvaluation:
    """What `run.json` says of sites' own models without a common one.

    Attributes:
        scores: Their mean over all test rows.
        models: Of how many models.
        best: The scores of the best of them.
        own_rows: Each on its own site's rows.
        tempered: The mean after tempering; None where nothing was tempered.
        by_site: Each on its own site's rows, site by site.
    """

    scores: Annotated[Scores, AMONG]
    models: Rows
    best: Mapping[str, float | None]
    own_rows: Own
    tempered: Scores | None
    by_site: Annotated[BySite, AMONG]


@dataclass(frozen=True)
class Bound:
    """A bound's scores, or why there are none.

    Attributes:
        scores: The scores, empty where it failed.
        failure: Why it failed, if it did.
        own_rows: The scores where each site's own model predicts that site's rows; None where one model is for all.
        models: How many sites' own models stand behind the scores on all rows; None where that was not written down.
        trained: How long it trained, in words; empty where that was not written down.
    """

    scores: Annotated[Scores, AMONG]
    failure: str = ""
    own_rows: Scores | None = None
    models: Rows | None = None
    trained: str = ""


@dataclass(frozen=True)
class Traffic:
    """Bytes sent and received.

    Attributes:
        site: Whose.
        up: Bytes from the site to the server.
        down: Bytes from the server to the site.
    """

    site: str
    up: Annotated[Size | None, Under("up_bytes")]
    down: Annotated[Size | None, Under("down_bytes")]


@dataclass(frozen=True)
class Ledger:
    """All bytes of a run.

    Attributes:
        up: Bytes from all sites to the server.
        down: Bytes from the server to all sites.
        per_site: The same, site by site.
        round: The round they were counted in, where it was one of several.
    """

    up: Annotated[Size | None, Under("up_bytes")]
    down: Annotated[Size | None, Under("down_bytes")]
    per_site: Sequence[Traffic] = field(default_factory=list)
    round: Rows | None = None
