"""A run's report as a typed value: `run.json` is read once, and pages, tables and figures use its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from consilience.report.schema.prediction_sets import SetsReport, read_sets
from consilience.report.schema.values import (
    Bin,
    Bound,
    Ledger,
    Level,
    Round,
    Scores,
    Site,
    WeakestSite,
    read_bins,
    read_bound,
    read_ledger,
    read_level,
    read_round,
    read_scores,
    read_site,
    read_weakest,
)
from consilience.report.schema.wording import BASELINES, BOUNDS, Json, baseline_name, bound_name, scope
from consilience.serialisation.typed import Rows, Share, Size, checked

NUMBERS = ("regression", "counts", "survival")  # tasks that predict no classes


@dataclass(frozen=True)
class PredictedBin:
    """Test rows with similar predictions of a number.

    Attributes:
        rows: How many there are.
        predicted: The mean prediction.
        deviation: The mean standard deviation of the predictions.
        observed: The mean observation.
        interval: The 95 % interval of the mean observation.
    """

    rows: Rows
    predicted: float
    deviation: Size
    observed: float
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
    points: Sequence[tuple[float, float, float]]
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

    name: str
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
    predicted: Rows
    confidence: Share
    true: Rows
    image: Sequence[Sequence[float]] | None


@dataclass(frozen=True)
class RunReport:
    """What `run.json` says of a run; the JSON's own keys, except where a word says more.

    Attributes:
        content: The JSON itself, for what is shown as it stands.
        title: The method's title.
        is_study: Whether the scores are over rows that the sites of a study set aside.
        is_regression: Whether numbers are predicted rather than classes.
        sites: How many sites took part.
        rounds: How many rounds there were.
        rows: How many rows have each role: train, calibration, test and so on.
        class_names: The names of the classes, if they have names.
        scores: Scores over all test rows.
        own_rows: Scores where each site's own model predicts that site's rows; None where one model is for all.
        newcomer: Scores of the common model, where `scores` are of the sites' own models on own rows; else None.
        tempered: The same after tempering; None where nothing was tempered.
        bounds: The protocol's bounds, by key.
        baselines: The scores of the lines to beat, by key.
        per_site: Every site with its scores.
        evaluated: The sites of a study that sent its model's calibration on their test rows, with that.
        weakest_site: The site with the highest NLL; None where there is one site or none.
        ledger: Bytes sent and received; None where nothing was counted.
        history: Scores after every round.
        reliability: Bins of the reliability diagram, for classes.
        coverage: Coverage of predictive intervals, for numbers.
        predicted: Predictions against observations, for numbers.
        uncertainty: The mean uncertainty of a test row, over all rows and over parts of them.
        examples: Single test rows, of public data.
        diagnostics: What the method says of its own fit.
        ece_if_calibrated: The expected ECE of a perfectly calibrated model on these rows.
        smallest_count: The smallest count that may be shown, in a study.
        multiplies: Whether the pooled density is a product of the sites'.
        warnings: Warnings raised while it ran.
        failures: Replies that were lost.
        sets: Prediction sets and their guarantee; None where there are none.
    """

    content: Json
    title: str
    is_study: bool
    is_regression: bool
    sites: Rows | None
    rounds: Rows | None
    rows: Mapping[str, Rows | None]
    class_names: Sequence[str] | None
    scores: Scores
    own_rows: Scores | None
    newcomer: Scores | None
    tempered: Scores | None
    bounds: Mapping[str, Bound]
    baselines: Mapping[str, Scores]
    per_site: Sequence[Site]
    evaluated: Sequence[Site]
    weakest_site: WeakestSite | None
    ledger: Ledger | None
    history: Sequence[Round]
    reliability: Sequence[Bin]
    coverage: Sequence[Level]
    predicted: Predicted | None
    uncertainty: Sequence[UncertaintyPart]
    examples: Sequence[Example]
    diagnostics: Json
    ece_if_calibrated: Share | None
    smallest_count: Rows | None
    multiplies: bool
    warnings: Sequence[Any]
    failures: Sequence[Any]
    sets: SetsReport | None = None

    @property
    def test_rows(self) -> int | None:
        """How many test rows stand behind the scores; None where that was not written down."""
        counted = self.rows.get("test") or sum(b.count for b in self.reliability)
        return int(counted) or None

    @property
    def scored_bounds(self) -> list[tuple[str, str, Scores]]:
        """Key, name and scores of the bounds that have scores; two entries where own rows and all rows differ."""
        entries = []
        for key, bound in self.bounds.items():
            if bound.own_rows is not None:
                entries.append((key, scope(BOUNDS[key], own=True), bound.own_rows))
                entries.append((key, scope(BOUNDS[key], False, bound.models, self.sites), bound.scores))
            elif bound.scores.metrics:
                entries.append((key, bound_name(key, bound.trained), bound.scores))
        return entries

    @property
    def named_baselines(self) -> list[tuple[str, Scores]]:
        """Name and scores of the lines to beat."""
        return [(baseline_name(key, self.is_regression), scores) for key, scores in self.baselines.items()]


def read_run(run: Json) -> RunReport:
    """Read a run's report.

    Args:
        run: What `run.json` holds, or part of it.

    Returns:
        The report; what is missing is empty or None.
    """
    scores = read_scores(run)
    bounds = run.get("bounds") or {}
    baselines = run.get("baselines") or {}
    tempered = None
    if run.get("tempered"):
        tempered = read_scores(run["tempered"])
    newcomer = None
    if run.get("newcomer"):
        newcomer = read_scores(run["newcomer"])
    report = RunReport(
        content=run,
        title=str(run.get("title") or run.get("method") or "Run"),
        is_study=run.get("kind") == "study",
        is_regression=run.get("task") in NUMBERS or "rmse" in scores.metrics,
        sites=run.get("sites"),
        rounds=run.get("rounds"),
        rows=run.get("rows") or {},
        class_names=run.get("class_names"),
        scores=scores,
        own_rows=read_bound(run).own_rows,
        newcomer=newcomer,
        tempered=tempered,
        baselines={key: read_scores(baselines[key]) for key in BASELINES if baselines.get(key)},
        bounds={key: read_bound(bounds[key]) for key in BOUNDS if bounds.get(key)},
        per_site=[read_site(site, i) for i, site in enumerate(run.get("per_site") or [])],
        evaluated=[read_site(site, i) for i, site in enumerate(run.get("evaluation") or [])],
        weakest_site=read_weakest(run.get("worst_site")),
        ledger=read_ledger(run.get("ledger")),
        history=[read_round(entry, i + 1) for i, entry in enumerate(run.get("history") or [])],
        reliability=read_bins(run.get("reliability")),
        coverage=[read_level(level) for level in run.get("coverage") or []],
        predicted=_read_predicted(run.get("predicted")),
        uncertainty=[_read_uncertainty(part) for part in run.get("uncertainty") or []],
        examples=[_read_example(example) for example in run.get("examples") or []],
        diagnostics=run.get("diagnostics") or {},
        ece_if_calibrated=run.get("ece_if_calibrated"),
        smallest_count=run.get("smallest_count"),
        multiplies=bool(run.get("multiplies")),
        warnings=run.get("warnings") or [],
        failures=run.get("failures") or [],
        sets=read_sets(run.get("guarantee")),
    )
    return checked(report)


def _read_predicted(predicted: Json | None) -> Predicted | None:
    if not predicted:
        return None
    bins = [
        checked(PredictedBin(b["rows"], b["said"], b["deviation"], b["seen"], b["interval"]))
        for b in predicted.get("bins") or []
    ]
    points = [(point[0], point[1], point[2]) for point in predicted.get("points") or []]
    return checked(Predicted(bins, points, predicted.get("spread"), predicted.get("horizon")))


def _read_uncertainty(part: Json) -> UncertaintyPart:
    fields = (part["of"], part["rows"], part["aleatoric"], part["within"], part["disagreement"])
    return checked(UncertaintyPart(*fields))


def _read_example(example: Json) -> Example:
    fields = (example["kind"], example["said"], example["confidence"], example["true"], example.get("image"))
    return checked(Example(*fields))
