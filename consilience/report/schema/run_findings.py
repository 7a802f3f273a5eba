"""A run's report as a typed value: `run.json` is read once, and pages, tables and figures use its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from consilience.disk.typed import Rows, Share, Size, checked, restore_fields
from consilience.metrics.calibration import Bin, Coverage
from consilience.metrics.findings import Bound, Example, Ledger, Predicted, Scores, Site, UncertaintyPart
from consilience.report.schema.prediction_sets import SetsReport, read_sets
from consilience.report.schema.wording import BASELINES, BOUNDS, Json, baseline_name, bound_name, scope, score

T = TypeVar("T")
NUMBERS = ("regression", "counts", "survival")  # tasks that predict no classes


@dataclass(frozen=True)
class Round:
    """The scores after one round.

    Attributes:
        number: Which round, from 1.
        scores: Scores over all test rows.
        up: Bytes from the sites in this round.
        down: Bytes to the sites.
    """

    number: Rows
    scores: Scores
    up: Size | None
    down: Size | None


@dataclass(frozen=True)
class WeakestSite:
    """The site with the highest NLL.

    Attributes:
        name: The site's name.
        scores: Its scores.
    """

    name: str
    scores: Mapping[str, float | None]


@dataclass(frozen=True)
class RunReport:
    """What `run.json` says of a run; the JSON's own keys, except where a word says more.

    Attributes:
        content: The JSON itself, for what is shown as it stands.
        title: The method's title.
        is_study: Whether the scores are over rows that the sites of a study held out.
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
        baselines: The scores of the baselines, by key.
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
    coverage: Sequence[Coverage]
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
        """Name and scores of the baselines."""
        return [(baseline_name(key, self.is_regression), scores) for key, scores in self.baselines.items()]


def read_run(run: Json) -> RunReport:
    """Read a run's report.

    Args:
        run: What `run.json` holds, or part of it.

    Returns:
        The report; what is missing is empty or None.
    """
    scores = read(Scores, run)
    bounds = run.get("bounds") or {}
    baselines = run.get("baselines") or {}
    own_rows, newcomer, tempered = (run.get(key) or None for key in ("own_rows", "newcomer", "tempered"))
    predicted = run.get("predicted") or None
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
        own_rows=own_rows and read(Scores, own_rows),
        newcomer=newcomer and read(Scores, newcomer),
        tempered=tempered and read(Scores, tempered),
        baselines={key: read(Scores, baselines[key]) for key in BASELINES if baselines.get(key)},
        bounds={key: read(Bound, bounds[key]) for key in BOUNDS if bounds.get(key)},
        per_site=read_sites(run.get("per_site")),
        evaluated=read_sites(run.get("evaluation")),
        weakest_site=_read_weakest(run.get("worst_site")),
        ledger=_read_ledger(run.get("ledger")),
        history=[_read_round(entry, i + 1) for i, entry in enumerate(run.get("history") or [])],
        reliability=[read(Bin, b) for b in run.get("reliability") or []],
        coverage=[read(Coverage, level) for level in run.get("coverage") or []],
        predicted=predicted and read(Predicted, predicted),
        uncertainty=[read(UncertaintyPart, part) for part in run.get("uncertainty") or []],
        examples=[read(Example, example) for example in run.get("examples") or []],
        diagnostics=run.get("diagnostics") or {},
        ece_if_calibrated=run.get("ece_if_calibrated"),
        smallest_count=run.get("smallest_count"),
        multiplies=bool(run.get("multiplies")),
        warnings=run.get("warnings") or [],
        failures=run.get("failures") or [],
        sets=read_sets(run.get("guarantee")),
    )
    return checked(report)


def read(kind: type[T], value: Json) -> T:
    """Read a part of a report; keys that it does not have are passed over.

    Raises:
        InputError: A value has another type than its field, or is out of its range.
    """
    return restore_fields(kind, value, others=True)


def read_sites(sites: Sequence[Json] | None) -> list[Site]:
    """Read the sites of a report; one without a name has its number."""
    return [read(Site, {**site, "site": str(site.get("site", i))}) for i, site in enumerate(sites or [])]


def seed_error(scores: Scores, key: str) -> str:
    """Write a score's standard error over seeds, as '±0.012'; empty where there is one seed only."""
    x = (scores.errors or {}).get(key)
    if x is None:
        return ""
    return f"±{score(key, x).removesuffix(' %')}"


def _read_weakest(site: Json | None) -> WeakestSite | None:
    if not site:
        return None
    return checked(WeakestSite(str(site.get("site")), {key: x for key, x in site.items() if key != "site"}))


def _read_ledger(ledger: Json | None) -> Ledger | None:
    if not ledger:
        return None
    traffic = [{**part, "site": str(part.get("site", i))} for i, part in enumerate(ledger.get("per_site") or [])]
    return read(Ledger, {**ledger, "per_site": traffic})


def _read_round(entry: Json, number: int) -> Round:
    scores = checked(Scores(entry))
    return checked(Round(entry.get("round", number), scores, entry.get("up_bytes"), entry.get("down_bytes")))
