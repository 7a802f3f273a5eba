"""One row of a table over its seeds: means, standard errors and what its cells have in common."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from consilience.benchmark.cells import Cell, Json
from consilience.benchmark.row_words import Row
from consilience.metrics.communication import Curve
from consilience.metrics.paired import Difference
from consilience.report.schema import wording as words


class Paired(NamedTuple):
    """A row's difference to the reference in one score.

    Attributes:
        difference: The mean of row minus reference over seeds, with its interval and p.
        p_holm: p after Holm's correction; None for a bound, which is not tested.
        arrow: Better or worse than the reference, where that is significant.
    """

    difference: Difference
    p_holm: float | None = None
    arrow: str = ""

    def to_json(self) -> Json:
        """Write the difference as JSON, with p where it was tested."""
        d = self.difference
        value: Json = {"mean": d.mean, "low": d.low, "high": d.high, "n": d.n}
        if d.skewed:
            value |= {"median": d.median, "negative": d.negative}
        if self.p_holm is not None:
            value |= {"p": d.p, "p_holm": self.p_holm, "arrow": self.arrow}
        return value


@dataclass(frozen=True)
class Scores:
    """The scores that every seed has.

    Attributes:
        metrics: Score → mean over seeds; None where a seed's is not finite.
        errors: Score → standard error of that mean, from two seeds on.
        values: Score → value of each seed.
        differences: Score → difference to the reference, where it was taken.
    """

    metrics: dict[str, float | None] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    values: dict[str, list[float | None]] = field(default_factory=dict)
    differences: dict[str, Paired] = field(default_factory=dict)

    def value(self, key: str) -> float | None:
        """Return a score's mean.

        Returns:
            The mean; None where it is missing or not finite.
        """
        mean = self.metrics.get(key)
        if mean is None or not math.isfinite(mean):
            return None
        return mean

    def to_json(self) -> Json:
        """Write means, errors and values as JSON; `differences_json` writes the rest."""
        return {"metrics": self.metrics, "errors": self.errors, "values": self.values}

    def differences_json(self) -> Json:
        """Write the differences as JSON, under a key of their own if there are any."""
        if not self.differences:
            return {}
        return {"differences": {key: paired.to_json() for key, paired in self.differences.items()}}


@dataclass(frozen=True)
class Tempered:
    """A row's scores after tempering.

    Attributes:
        scores: The scores over seeds.
        temperature: The mean over seeds.
        intervals: Score → its interval, for one seed alone.
    """

    scores: Scores
    temperature: float
    intervals: Json | None

    def to_json(self) -> Json:
        """Write the scores as JSON."""
        return {
            **self.scores.to_json(),
            "temperature": self.temperature,
            "intervals": self.intervals,
            **self.scores.differences_json(),
        }


@dataclass(frozen=True)
class OwnRows:
    """Further scores of a row: of the sites' own models, each on its own site's rows; or of the common model.

    Attributes:
        scores: The scores over seeds.
        intervals: Score → its interval, for one seed alone.
        tempered: The scores after tempering, if every seed has them.
    """

    scores: Scores
    intervals: Json | None
    tempered: Tempered | None

    def to_json(self) -> Json:
        """Write the scores as JSON."""
        tempered = None
        if self.tempered is not None:
            tempered = self.tempered.to_json()
        scores = {**self.scores.to_json(), **self.scores.differences_json()}
        return {**scores, "intervals": self.intervals, "tempered": tempered}


@dataclass(frozen=True)
class RowSummary:
    """One row over its seeds.

    Attributes:
        name: For people.
        row: As typed.
        method: The method's name.
        needs: What the server needs, or `bound`.
        rounds: How many.
        settings: The method's settings.
        passes: Over a site's rows, all rounds together; None for a method without epochs.
        seeds: The seeds that have ended.
        scores: The plain scores.
        intervals: Score → its interval, for one seed alone.
        tempered: The scores after tempering, if every seed has them.
        reliability: The bins of a reliability diagram, all seeds together.
        worst_site_nll: The weakest site's NLL, the mean over seeds.
        best_site: The scores of the best site's own model, for a bound that has one.
        own_rows: The scores of each site's own model on that site's rows, for a bound that has them.
        newcomer: The scores of the common model on all rows, where `scores` are of the sites' own models on own rows.
        models: How many sites' own models stand behind the scores on all rows, where it is not all.
        up_bytes: Sent by the sites, the mean over seeds.
        down_bytes: Sent by the server, the mean over seeds.
        curves: Seed → scores against what was sent.
        seconds: How long all seeds took.
        warnings: Failures first, then what was noticed.
        calibration: Each site's calibration, all seeds together; None where it was not kept.
    """

    name: str
    row: str
    method: str
    needs: str
    rounds: int
    settings: Json = field(default_factory=dict)
    passes: int | None = None
    seeds: tuple[int, ...] = ()
    scores: Scores = field(default_factory=Scores)
    intervals: Json | None = None
    tempered: Tempered | None = None
    reliability: list[Json] | None = None
    worst_site_nll: float | None = None
    best_site: dict[str, float | None] | None = None
    own_rows: OwnRows | None = None
    newcomer: OwnRows | None = None
    models: int | None = None
    up_bytes: int | None = None
    down_bytes: int | None = None
    curves: dict[int, Curve] = field(default_factory=dict)
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    calibration: list[Json] | None = None

    @property
    def metrics(self) -> dict[str, float | None]:
        """Score → mean over seeds."""
        return self.scores.metrics

    def to_json(self) -> Json:
        """Write the row as JSON, the scores beside the other keys."""
        value: Json = {}
        for f in dataclasses.fields(self):
            value[f.name] = getattr(self, f.name)
            if f.name == "scores":
                del value["scores"]
                value |= self.scores.to_json()
        value["seeds"] = list(self.seeds)
        value["warnings"] = list(self.warnings)
        if self.tempered is not None:
            value["tempered"] = self.tempered.to_json()
        if self.own_rows is not None:
            value["own_rows"] = self.own_rows.to_json()
        del value["newcomer"]
        if self.newcomer is not None:
            value["newcomer"] = self.newcomer.to_json()
        return value | self.scores.differences_json()


def summarise_row(r: Row, cells: Mapping[int, Cell], overlap: float = 0.0) -> RowSummary:
    """Summarise one row over its seeds; a mean that would leave out a failed seed is not taken.

    Args:
        cells: Its cells by seed, at least one.
        overlap: Test rows / training rows, where every seed splits the same table anew.

    Returns:
        The row's summary.
    """
    each = list(cells.values())
    first = each[0]
    failed = any(cell.failure for cell in each)
    scores = Scores()
    if not failed:
        scores = over_seeds([cell.metrics or {} for cell in each], overlap)
    return RowSummary(
        name=r.name,
        row=r.word,
        method=first.method,
        needs=first.needs,
        rounds=first.rounds,
        settings=first.settings,
        passes=_passes(first.settings, r.rounds),
        seeds=tuple(cells),
        scores=scores,
        intervals=_intervals([cell.intervals for cell in each]),
        tempered=_tempered([cell.tempered for cell in each if not failed], overlap),
        reliability=_reliability([cell.reliability for cell in each if cell.reliability]),
        worst_site_nll=_mean([(cell.worst_site or {}).get("nll") for cell in each]),
        best_site=_best_site([cell.best for cell in each]),
        own_rows=_own_rows([cell.own_rows for cell in each], overlap),
        newcomer=_own_rows([cell.newcomer for cell in each], overlap),
        models=first.models,
        up_bytes=_whole_mean([cell.up_bytes for cell in each]),
        down_bytes=_whole_mean([cell.down_bytes for cell in each]),
        curves={seed: cell.curve for seed, cell in cells.items() if cell.curve},
        seconds=sum(cell.seconds for cell in each),
        warnings=_warnings(r.name, cells),
        calibration=calibration_over_seeds([cell.calibration for cell in each]),
    )


def _passes(settings: Json, rounds: int) -> int | None:
    """How often a site goes over its rows; a method that goes around another asks the inner one."""
    inner = settings.get("inner") or settings
    epochs = (inner.get("inference") or {}).get("epochs")
    if epochs is None:
        return None
    return int(epochs * rounds)


def _intervals(each: Sequence[Json | None]) -> Json | None:
    """The intervals of one seed; those of several do not add up."""
    if len(each) > 1:
        return {}
    return each[0]


def _tempered(each: Sequence[Json | None], overlap: float) -> Tempered | None:
    """The tempered scores, if there are cells and every one has them."""
    known = [tempered for tempered in each if tempered]
    if not known or len(known) < len(each):
        return None
    return Tempered(
        over_seeds([tempered["metrics"] for tempered in known], overlap),
        statistics.mean(tempered["temperature"] for tempered in known),
        _intervals([tempered.get("intervals") for tempered in known]),
    )


def _reliability(each: Sequence[list[Json]]) -> list[Json] | None:
    if not each:
        return None
    if len(each) == 1:
        return each[0]
    return join_seeds(each)


def calibration_over_seeds(each: Sequence[Sequence[Json] | None]) -> list[Json] | None:
    """Join the calibration of the sites over seeds: bins together, intercepts and slopes by their mean.

    Args:
        each: The sites' calibration in each seed.

    Returns:
        One entry for each site; that of a single seed keeps its intervals. None where a seed has none, or other sites:
        numbered ones are made anew by each seed's split.
    """
    known = [sites for sites in each if sites]
    if not known or len(known) < len(each):
        return None
    if len(known) == 1:
        return list(known[0])
    names = {tuple(str(site["site"]) for site in sites) for sites in known}
    if len(names) > 1 or all(name.isdecimal() for name in names.pop()):
        return None
    return [_join_site(same) for same in zip(*known, strict=True)]


def _join_site(same: Sequence[Json]) -> Json:
    """One site over several seeds."""
    fitted = over_seeds([site["metrics"] for site in same])
    joined: Json = {"site": same[0]["site"], "test": sum(site["test"] for site in same), **fitted.to_json()}
    if "reliability" in same[0]:
        joined["reliability"] = join_seeds([site["reliability"] for site in same])
    if "coverage" in same[0]:
        joined["coverage"] = [_join_level(levels) for levels in zip(*(site["coverage"] for site in same), strict=True)]
    return joined


def _join_level(levels: Sequence[Json]) -> Json:
    observed = statistics.fmean(level["observed"] for level in levels)
    return {"level": levels[0]["level"], "observed": observed, "interval": None}


def _best_site(each: Sequence[dict[str, float | None] | None]) -> dict[str, float | None] | None:
    known = [scores for scores in each if scores]
    if len(known) < len(each):
        return None
    return over_seeds(known).metrics


def _own_rows(each: Sequence[Json | None], overlap: float) -> OwnRows | None:
    """The scores on own rows, or of the common model, if every cell has them."""
    known = [own for own in each if own]
    if len(known) < len(each):
        return None
    return OwnRows(
        over_seeds([own["metrics"] for own in known], overlap),
        _intervals([own.get("intervals") for own in known]),
        _tempered([own.get("tempered") for own in known], overlap),
    )


def _warnings(name: str, cells: Mapping[int, Cell]) -> tuple[str, ...]:
    """Seeds that failed, then what was noticed in any seed, then the sites that were lost."""
    failed = [f"{name}, seed {seed}: {cell.failure}" for seed, cell in cells.items() if cell.failure]
    failed += [
        f"{name}, seed {seed}: {' and '.join(keys)} not finite, so that the row has no mean: training diverged "
        "at a site, or an observation was given probability 0. Set a smaller rate, or leave the row out."
        for seed, cell in cells.items()
        if (keys := _not_finite(cell.metrics or {}))
    ]
    noticed = {warning for cell in cells.values() for warning in cell.warnings or []}
    lost = words.losses([failure for cell in cells.values() for failure in cell.failures or []])
    return (*failed, *(f"{name}: {warning}" for warning in [*sorted(noticed), *lost]))


def _not_finite(metrics: Mapping[str, float | None]) -> list[str]:
    """The scores that should be there and are not finite, as people call them."""
    return [words.METRICS[key].name for key in ("nll", "rmse") if key in metrics and not _finite([metrics[key]])]


def over_seeds(each: Sequence[Mapping[str, float | None]], overlap: float = 0.0) -> Scores:
    """Take means and standard errors of the scores that every seed has.

    Args:
        each: A seed's scores by name, for every seed.
        overlap: Test rows / training rows, where every seed splits the same table anew; see `metrics.paired`.

    Returns:
        The scores; none for no seed.
    """
    if not each:
        return Scores()
    keys = [key for key in each[0] if all(key in scores for scores in each)]
    values = {key: [scores[key] for scores in each] for key in keys}
    return Scores(
        metrics={key: _mean(v) for key, v in values.items()},
        errors={key: _error(v, overlap) for key, v in values.items() if len(v) > 1 and _finite(v)},
        values=values,
    )


def join_seeds(every: Sequence[Sequence[Mapping[str, Any]]]) -> list[Json]:
    """Join the reliability bins of several seeds; without intervals, as seeds may share test rows.

    Args:
        every: The bins of each seed, the same ones.

    Returns:
        The bins, with means weighted by the seeds' counts.
    """
    bins = []
    for same in zip(*every, strict=True):
        bins.append(
            {
                "low": same[0]["low"],
                "high": same[0]["high"],
                "count": sum(b["count"] for b in same),
                "confidence": _weighted_mean(same, "confidence"),
                "accuracy": _weighted_mean(same, "accuracy"),
                "interval": None,
            }
        )
    return bins


def _weighted_mean(bins: Sequence[Mapping[str, Any]], key: str) -> float | None:
    total = sum(b["count"] for b in bins)
    if not total:
        return None
    return float(sum(b["count"] * b[key] for b in bins if b["count"]) / total)


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where one is missing or not finite."""
    if not _finite(values):
        return None
    return statistics.fmean(v for v in values if v is not None)


def _whole_mean(values: Sequence[int | None]) -> int | None:
    mean = _mean(values)
    if mean is None:
        return None
    return round(mean)


def _finite(values: Sequence[float | None]) -> bool:
    return len(values) > 0 and all(v is not None and math.isfinite(v) for v in values)


def _error(values: Sequence[float | None], overlap: float) -> float:
    """The standard error of the mean; that of Nadeau and Bengio where seeds share rows."""
    return statistics.stdev(v for v in values if v is not None) * math.sqrt(1 / len(values) + overlap)
