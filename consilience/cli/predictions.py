"""Predictions for a table as a table: by a run's folder, or by the model of a study."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from consilience.biostatistics.spreadsheets import inert
from consilience.cli.handed import at_home, say, warn_unsigned
from consilience.errors import InputError, unknown_name
from consilience.method.which import has_common
from consilience.report.schema.numbers import count

if TYPE_CHECKING:
    from torch import Tensor

    from consilience.data.cells import Cells
    from consilience.distributions.counts import Counts
    from consilience.distributions.predictive import Categorical, Distribution, Normal
    from consilience.distributions.survival import Survival
    from consilience.prediction_sets.sets import Guarantee
    from consilience.runs.result import Result
    from consilience.study.model import Model
    from consilience.study.protocol.columns import Column
    from consilience.study.protocol.target import Target

Z95 = 1.959964
RELATIVE = (
    "This model predicts how hazards compare, not chances of no event: sites run `consilience site statistics`, and "
    "the coordinator `consilience study choose`, for a baseline."
)
NEWCOMERS = "This is the model that a newcomer gets. Name a site that took part with --site for its own."
TIMES = 10  # at most, at which chances of no event are written


class Predictions(NamedTuple):
    """What a table of predictions says of each row, beside the parts of its uncertainty."""

    head: list[str]
    rows: list[list[str]]
    decisions: list[str]  # the most probable class, or the mean
    abstains: list[bool]  # whether the decision is left open


class Rows(NamedTuple):
    """The rows of a table to predict for."""

    x: Tensor  # of those that can be predicted, as the model takes them
    places: list[int]  # the number of each of them in the table, from 0
    bad: dict[int, str]  # why the others cannot be predicted
    total: int
    ids: list[str]  # of all rows; empty where nobody asked


class Predicted(NamedTuple):
    """What a model says of the rows that it can predict."""

    predictions: Predictions
    parts: Mapping[str, Sequence[float]]  # of their uncertainty
    guarantee: Guarantee | None = None  # of prediction sets


def predict_with_run(
    folder: Path, table: Path, id_: str | None, abstain: float | None, level: float | None, site: str | None = None
) -> tuple[Rows, Predicted]:
    """Predict with the model in a run's folder, which knows how its tables were read; or a site's own."""
    from consilience.cli.prediction_sets import say_vacuous, write_bounds, write_intervals, write_sets
    from consilience.data.formats import read_table
    from consilience.distributions.counts import Counts
    from consilience.distributions.predictive import Categorical, Normal
    from consilience.distributions.survival import Survival
    from consilience.metrics.times import recall_baseline
    from consilience.runs.run import load
    from consilience.study.protocol.target import Target

    result = load(folder)
    _check_abstain(abstain, bool(result.sites.classes))
    _check_level(result, level)
    _check_site(result, site)
    guarantee = result.guarantee(level, site)
    encoded = result.read(table)
    names = read_table(table, fewest=1)
    _check_blank(table, names.blank)
    rows = Rows(encoded.x, encoded.places, encoded.bad, encoded.total, _ids(names.columns, id_))
    made = result.predict(encoded.x, level=guarantee, site=site)
    parts = {name: getattr(made, name).tolist() for name in ("aleatoric", "epistemic", "disagreement")}
    target = Target(result.sites.name, result.class_names)
    if made.probs is not None:
        predictions = _predict(Categorical(made.probs.log()), target, abstain)
    elif made.survival is not None:
        assert made.mean is not None and made.var is not None
        nothing = made.mean.new_zeros(len(made.mean), 0)
        curves = recall_baseline(Survival(made.mean, made.var, nothing, nothing), result.report)
        assert isinstance(curves, Survival)
        predictions = _time_predictions(curves, (result.report.get("predicted") or {}).get("horizon"), abstain)
    elif result.sites.outcome == "counts":
        assert made.mean is not None and made.var is not None
        predictions = _count_predictions(Counts(made.mean, made.var - made.mean), abstain)
    else:
        assert made.mean is not None and made.var is not None
        predictions = _predict(Normal(made.mean, made.var, torch.zeros_like(made.var)), target, abstain)
    if level is None:
        return rows, Predicted(predictions, parts)
    say_vacuous(level, made.sets, made.low, made.high, (result.report.get("guarantee") or {}).get("uninformed"))
    if made.sets is not None:
        predictions = _with_sets(predictions, *write_sets(level, result.class_names, made.sets))
    elif made.low is not None and made.high is not None:
        predictions = _with_sets(predictions, *write_intervals(level, made.low, made.high))
    elif made.low is not None:
        predictions = _with_sets(predictions, *write_bounds(level, made.low))
    else:
        raise InputError("Prediction sets are for classes, numbers and times: leave --set out.")
    return rows, Predicted(predictions, parts, guarantee)


def predict_with_model(
    pooled: Model, table: Path, id_: str | None, abstain: float | None, level: float | None, thresholds: Path | None
) -> tuple[Rows, Predicted]:
    """Predict with a study's model, by the columns that were agreed."""
    from consilience.cli.prediction_sets import find_thresholds, set_columns
    from consilience.distributions.predictive import check_finite

    _check_abstain(abstain, bool(pooled.agreement.target.classes))
    guarantee = None
    if level is not None:
        guarantee = find_thresholds(pooled, level, thresholds)
    rows = _read_rows(table, pooled.agreement.columns, id_)
    parts = {name: values.tolist() for name, values in pooled.uncertainty(rows.x).items()}
    p = pooled(rows.x)
    check_finite(p)
    predictions = _predict(p, pooled.agreement.target, abstain)
    if pooled.agreement.target.event and pooled.baseline is None:
        say(RELATIVE, "yellow")
    if guarantee is not None:
        predictions = _with_sets(predictions, *set_columns(pooled, guarantee, rows.x))
    return rows, Predicted(predictions, parts, guarantee)


def _ids(cells: Mapping[str, Cells], name: str | None) -> list[str]:
    """The texts of the column that names the rows."""
    if name is None:
        return []
    if name not in cells:
        raise unknown_name("column", name, cells)
    return [cell.text for cell in cells[name]]


def _check_level(result: Result, level: float | None) -> None:
    """Refuse a level that the run wrote down no thresholds for: its folder holds no rows to find others by."""
    known = (result.report.get("guarantee") or {}).get("level")
    if None not in (level, known) and level != known:
        raise InputError(
            f"The thresholds of this run are for --set {known:g}, not for {level:g}: run it again with "
            f"--level {level:g}."
        )


def _check_site(result: Result, site: str | None) -> None:
    """Refuse a site that the run does not know, and say whose model predicts where sites have their own."""
    from consilience.method import is_personal

    if site is not None and site not in result.sites.names:
        raise unknown_name("site", site, result.sites.names)
    if not is_personal(result.method):
        return
    if site is not None:
        say(f"The own model of site {site}.")
    elif has_common(result.method):
        say(NEWCOMERS)


def _check_abstain(abstain: float | None, classes: bool) -> None:
    """Refuse a threshold that nothing, or everything, would reach."""
    if abstain is None:
        return
    if classes and not 0 <= abstain <= 1:
        raise InputError(f"--abstain {abstain:g} is not a probability: write for example --abstain 0.8.")
    if not abstain > 0 and not classes:
        raise InputError(f"--abstain {abstain:g} is not the width of an interval: write a number above 0.")


def read_checked_model(path: Path, study_file: Path | None, memory: Path | None) -> Model:
    """Read a model, checked against its study where that is given; a site's own with what the site kept."""
    from consilience.study.model import read_model
    from consilience.study.protocol.members import read

    if study_file is None:
        if memory is not None:
            raise InputError("A memory is held against its study: give --study too.")
        pooled = read_model(path, None)
        warn_unsigned(pooled.agreement)
        return pooled
    study = read(study_file)
    pooled = read_model(path, study)
    active = {site.name for site in study.active}
    gone = [name for name in pooled.facts.sites if name not in active]
    if gone:
        say(f"This is an outdated model: it includes {', '.join(gone)}, no longer in the study.", "yellow")
    if memory is not None:
        return at_home(pooled, study, memory)
    if pooled.is_personal:
        say("This is the model that a newcomer gets. A site that took part gives --memory for its own.")
    return pooled


def _read_rows(table: Path, columns: Sequence[Column], id_: str | None) -> Rows:
    """Read a table whose rows can be told apart by their number."""
    from consilience.study.protocol.columns import bad_rows, inspect

    found = inspect(table, columns, None)
    _check_blank(table, found.blank)
    bad = bad_rows(columns, found)
    if bad and len(bad) == found.rows:
        found.sound()
    sound = np.ones(found.rows, dtype=np.bool_)
    sound[list(bad)] = False
    parts = [column.features(found.cells[column.name].select(sound)) for column in columns]
    x = torch.cat(parts, 1).float()
    return Rows(x, np.flatnonzero(sound).tolist(), bad, found.rows, _ids(found.cells, id_))


def _check_blank(table: Path, blank: int | None) -> None:
    """Refuse blank lines, by which programs count rows differently."""
    if blank is not None:
        raise InputError(
            f"{table.name}, line {blank} is blank, and programs number the rows below it differently. Remove it, "
            "so that every prediction can be matched to its row."
        )


def _predict(p: Distribution, target: Target, abstain: float | None) -> Predictions:
    from consilience.distributions.counts import Counts
    from consilience.distributions.predictive import Categorical, Normal
    from consilience.distributions.survival import Survival

    if isinstance(p, Categorical):
        return _class_predictions(p, target, abstain)
    if isinstance(p, Counts):
        return _count_predictions(p, abstain)
    if isinstance(p, Survival):
        return _time_predictions(p, target.horizon, abstain)
    assert isinstance(p, Normal)
    return _number_predictions(p, target, abstain)


def _class_predictions(p: Categorical, target: Target, smallest: float | None) -> Predictions:
    """Probabilities of all classes; abstains unless one of them reaches the smallest probability."""
    top, label = p.probs.max(-1)
    rows = [[f"{v:.6f}" for v in row] for row in p.probs.tolist()]
    decisions = [target.classes[i] for i in label.tolist()]
    return Predictions([f"p({c})" for c in target.classes], rows, decisions, (~(top >= (smallest or 0))).tolist())


def _number_predictions(p: Normal, target: Target, widest: float | None) -> Predictions:
    """Means with 95 % intervals; abstains unless an interval is at most as wide as the widest."""
    if widest is None:
        widest = math.inf
    reach = Z95 * p.total.sqrt()
    rows = [[f"{v:.6g}" for v in row] for row in zip(p.mean, p.mean - reach, p.mean + reach, strict=True)]
    mean = "mean"
    if target.unit:
        mean = f"mean ({target.unit})"
    return Predictions([mean, "low95", "high95"], rows, [row[0] for row in rows], (~(2 * reach <= widest)).tolist())


def _count_predictions(p: Counts, widest: float | None) -> Predictions:
    """Expected counts of one unit of exposure with 95 % intervals; abstains unless an interval is narrow enough."""
    if widest is None:
        widest = math.inf
    low, high = p.interval(0.95)
    rows = [[f"{v:.6g}" for v in row] for row in zip(p.mean, low, high, strict=True)]
    return Predictions(["mean", "low95", "high95"], rows, [row[0] for row in rows], (~(high - low <= widest)).tolist())


def _time_predictions(p: Survival, horizon: float | None, widest: float | None) -> Predictions:
    """Log-hazards with 95 % intervals, and chances of no event by some times, where there is a baseline."""
    if widest is None:
        widest = math.inf
    reach = Z95 * p.var.sqrt()
    times = p.times[0].tolist()
    every = max(1, -(-len(times) // TIMES))
    shown = [i for i, time in enumerate(times) if (i + 1) % every == 0 or time == horizon]
    head = ["log-hazard", "low95", "high95", *(f"S({times[i]:g})" for i in shown)]
    ends = zip(p.risk, p.risk - reach, p.risk + reach, p.curves[:, shown], strict=True)
    rows = [[f"{v:.6g}" for v in (*row[:3], *row[3].tolist())] for row in ends]
    return Predictions(head, rows, [row[0] for row in rows], (~(2 * reach <= widest)).tolist())


def _with_sets(predictions: Predictions, head: list[str], sets: list[list[str]]) -> Predictions:
    """The table with further columns."""
    rows = [[*row, *map(inert, more)] for row, more in zip(predictions.rows, sets, strict=True)]
    return predictions._replace(head=[*predictions.head, *head], rows=rows)


def write_csv(predictions: Predictions, parts: Mapping[str, Sequence[float]], rows: Rows, id_: str | None) -> str:
    """A line for each row: its prediction, the parts of its uncertainty, the decision; empty for a bad row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ["row"]
    if id_ is not None:
        names.append(id_)
    writer.writerow([*names, *predictions.head, *parts, "decision"])
    lines = dict(zip(rows.places, _lines(predictions, parts), strict=True))
    empty = [*[""] * (len(predictions.head) + len(parts)), "not predicted"]
    for place in range(rows.total):
        writer.writerow([place + 1, *map(inert, rows.ids[place : place + 1]), *lines.get(place, empty)])
    return text.getvalue()


def _lines(predictions: Predictions, parts: Mapping[str, Sequence[float]]) -> Iterator[list[str]]:
    for i, row in enumerate(predictions.rows):
        decision = predictions.decisions[i]
        if predictions.abstains[i]:
            decision = "abstain"
        uncertainty = (f"{values[i]:.6f}" for values in parts.values())
        yield [*row, *uncertainty, inert(decision)]


def summarise(predictions: Predictions, parts: Mapping[str, Sequence[float]], abstain: float | None) -> None:
    """Say how many rows there are, and which parts of their uncertainty are not known."""
    rows = count(len(predictions.rows), "row")
    if abstain is not None:
        rows += f", {sum(predictions.abstains):,} left open (abstain)"
    say(f"{rows}.")
    if not parts:
        say("This model holds a single set of weights: epistemic uncertainty and disagreement are not known.")
    elif "disagreement" not in parts:
        say("The study releases samples without the sites' names: disagreement between sites is not known.")
