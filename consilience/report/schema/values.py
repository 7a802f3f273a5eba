"""The parts of a report as typed values: scores, sites, bins, bytes. Each is read from JSON by the function below it.

Reports written by older versions lack some keys: what is missing is empty or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from consilience.report.schema.wording import Json, score
from consilience.serialisation.typed import Rows, Share, Size, checked

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
        intervals: Their 95 % intervals over rows.
        errors: Their standard errors over seeds.
        differences: Their paired differences from a comparison's reference.
        temperature: The factor by which predictions were rescaled, if they were.
    """

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    intervals: Mapping[str, Span | None] = field(default_factory=dict)
    errors: Mapping[str, Size | None] = field(default_factory=dict)
    differences: Mapping[str, Json] = field(default_factory=dict)
    temperature: Size | None = None

    def value(self, key: str) -> float | None:
        """Look up a score.

        Returns:
            The score; None where it is missing or not finite.
        """
        x = self.metrics.get(key)
        if x is None or not abs(x) < LARGEST:
            return None
        return float(x)

    def error(self, key: str) -> str:
        """Write a score's standard error over seeds, as '±0.012'.

        Returns:
            The text; empty where there is one seed only.
        """
        x = self.errors.get(key)
        if x is None:
            return ""
        return f"±{score(key, x).removesuffix(' %')}"

    def arrow(self, key: str) -> str:
        """Look up the arrow of a score's difference from the reference.

        Returns:
            The arrow; empty where the difference is not significant or was not tested.
        """
        return str((self.differences.get(key) or {}).get("arrow") or "")

    def error_bar(self, key: str) -> tuple[float, float] | None:
        """Look up what a figure draws around a score.

        Returns:
            The ends of its interval, or of one standard error either way; None where neither is known.
        """
        if self.intervals.get(key):
            return finite_ends(self.intervals[key])
        x = self.value(key)
        error = self.errors.get(key)
        if x is None or error is None:
            return None
        return x - error, x + error


@dataclass(frozen=True)
class Bin:
    """A bin of a reliability diagram.

    Attributes:
        low: The lowest confidence in the bin.
        high: The highest.
        count: How many test rows fall into it.
        confidence: Their mean confidence; None where there are none.
        accuracy: The fraction of correct predictions.
        interval: The accuracy's 95 % interval.
    """

    low: Share
    high: Share
    count: Rows
    confidence: Share | None
    accuracy: Share | None
    interval: Span | None


@dataclass(frozen=True)
class Level:
    """The coverage of predictive intervals at one level.

    Attributes:
        level: The nominal coverage.
        observed: The fraction of test rows inside.
        interval: Its 95 % interval.
    """

    level: Share
    observed: Share | None
    interval: Span | None


@dataclass(frozen=True)
class Site:
    """A site, and how the model does there.

    Attributes:
        name: The site's name, or its number.
        train: How many rows it trained on; None where that is withheld.
        test: How many rows its scores are over.
        labels: How many training rows of each class it has; None within the list is a small count.
        scores: The scores over its rows.
        influence: Its share of the pooled model, from 0 to 1; None where that was not measured.
        reliability: Bins of its reliability diagram: of P(outcome) for two classes, of the confidence for more.
        coverage: Coverage of the predictive intervals at the site, for numbers.
    """

    name: str
    train: Rows | None
    test: Rows | None
    labels: Sequence[Rows | None] | None
    scores: Scores
    influence: Share | None = None
    reliability: Sequence[Bin] = ()
    coverage: Sequence[Level] = ()


@dataclass(frozen=True)
class Traffic:
    """Bytes sent and received.

    Attributes:
        site: Whose.
        up: Bytes from the site to the server.
        down: Bytes from the server to the site.
    """

    site: str
    up: Size | None
    down: Size | None


@dataclass(frozen=True)
class Ledger:
    """All bytes of a run.

    Attributes:
        up: Bytes from all sites to the server.
        down: Bytes from the server to all sites.
        per_site: The same, site by site.
        round: The round they were counted in, where it was one of several.
    """

    up: Size | None
    down: Size | None
    per_site: Sequence[Traffic]
    round: Rows | None = None


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
class Bound:
    """A bound's scores, or why there are none.

    Attributes:
        scores: The scores, empty where it failed.
        failure: Why it failed, if it did.
        own_rows: The scores where each site's own model predicts that site's rows; None where one model is for all.
        models: How many sites' own models stand behind the scores on all rows; None where that was not written down.
        trained: How long it trained, in words; empty where that was not written down.
    """

    scores: Scores
    failure: str
    own_rows: Scores | None = None
    models: Rows | None = None
    trained: str = ""


@dataclass(frozen=True)
class WeakestSite:
    """The site with the highest NLL.

    Attributes:
        name: The site's name.
        scores: Its scores.
    """

    name: str
    scores: Mapping[str, float | None]


def own_intervals(intervals: Mapping[str, Span | None]) -> dict[str, Span | None]:
    """Keep the intervals that are of the number they would stand beside.

    That of the calibration error is the debiased ECE's: of the plain one, which overstates the error, it is not.

    Args:
        intervals: By the scores' keys.
    """
    if "ece_debiased" not in intervals:
        return dict(intervals)
    return {key: span for key, span in intervals.items() if key != "ece"}


def read_scores(part: Json) -> Scores:
    """Read the scores of a run, a bound, a site or a row of a comparison.

    Args:
        part: A mapping with some of `metrics`, `intervals`, `errors`, `differences` and `temperature`.

    Returns:
        The scores; what is missing is empty or None.
    """
    return checked(
        Scores(
            part.get("metrics") or {},
            own_intervals(part.get("intervals") or {}),
            part.get("errors") or {},
            part.get("differences") or {},
            part.get("temperature"),
        )
    )


def read_bins(bins: Sequence[Json] | None) -> list[Bin]:
    """Read the bins of a reliability diagram.

    Args:
        bins: What a report holds under `reliability`, or None.

    Returns:
        The bins, none where there is no diagram.
    """
    return [
        checked(
            Bin(b["low"], b["high"], b.get("count") or 0, b.get("confidence"), b.get("accuracy"), b.get("interval"))
        )
        for b in bins or []
    ]


def read_bound(bound: Json) -> Bound:
    """Read a bound.

    Args:
        bound: What `run.json` holds under one of its `bounds`.

    Returns:
        Its scores, or its failure.
    """
    own_rows = None
    if bound.get("own_rows"):
        own_rows = read_scores(bound["own_rows"])
    failure, trained = (str(bound.get(key) or "") for key in ("failure", "trained"))
    return checked(Bound(read_scores(bound), failure, own_rows, bound.get("models"), trained))


def read_site(site: Json, number: int) -> Site:
    """Read a site.

    Args:
        site: An entry of `per_site`.
        number: The site's place in the list, for one without a name.

    Returns:
        The site and its scores.
    """
    name = str(site.get("site", number))
    return checked(
        Site(
            name,
            site.get("train"),
            site.get("test"),
            site.get("labels"),
            read_scores(site),
            site.get("influence"),
            read_bins(site.get("reliability")),
            [read_level(level) for level in site.get("coverage") or []],
        )
    )


def read_weakest(site: Json | None) -> WeakestSite | None:
    """Read which site is weakest.

    Args:
        site: What `run.json` holds under `worst_site`.

    Returns:
        The site; None where none is named.
    """
    if not site:
        return None
    return checked(WeakestSite(str(site.get("site")), {key: x for key, x in site.items() if key != "site"}))


def read_ledger(ledger: Json | None) -> Ledger | None:
    """Read the bytes of a run.

    Args:
        ledger: What `run.json` holds under `ledger`.

    Returns:
        The bytes, in all and by site; None where nothing was counted.
    """
    if not ledger:
        return None
    traffic = [
        checked(Traffic(str(site.get("site", i)), site.get("up_bytes"), site.get("down_bytes")))
        for i, site in enumerate(ledger.get("per_site") or [])
    ]
    return checked(Ledger(ledger.get("up_bytes"), ledger.get("down_bytes"), traffic, ledger.get("round")))


def read_round(entry: Json, number: int) -> Round:
    """Read the scores after a round.

    Args:
        entry: An entry of `history`.
        number: The round's number, for an entry without one.

    Returns:
        The round's scores and bytes.
    """
    scores = checked(Scores(entry))
    return checked(Round(entry.get("round", number), scores, entry.get("up_bytes"), entry.get("down_bytes")))


def read_level(level: Json) -> Level:
    """Read the coverage at one level.

    Args:
        level: An entry of `coverage`.

    Returns:
        The nominal and the observed coverage.
    """
    return checked(Level(level["level"], level.get("observed"), level.get("interval")))
