"""Prediction sets as commands show and write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from consilience.cli.handed import say
from consilience.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from consilience.data.sites import Data
    from consilience.prediction_sets.sets import Guarantee
    from consilience.study.model import Model


def find_thresholds(pooled: Model, level: float, thresholds: Path | None) -> Guarantee:
    """Find a model's thresholds for a level, or those that a site keeps for itself."""
    from consilience.study.prediction_sets import check_whose, read_thresholds

    guarantee = pooled.guarantee
    if thresholds is not None:
        guarantee = read_thresholds(thresholds, pooled)
    if guarantee is None:
        raise InputError(
            "This model holds no thresholds for prediction sets: the sites run `site calibrate`, the coordinator "
            "`study calibrate`."
        )
    if guarantee.level != level:
        raise InputError(
            f"The thresholds of this model are for --set {guarantee.level:g}, not for {level:g}: another level needs "
            "another study."
        )
    check_whose(pooled, guarantee)
    return guarantee


def show_coverage(pooled: Model, guarantee: Guarantee, rows: Data, site: str) -> dict[str, Any]:
    """Say how often a model's prediction sets hold the truth on a site's rows, and how large they are.

    Args:
        pooled: The model.
        guarantee: Its thresholds.
        rows: Rows that it has not seen.
        site: What the site is called on its page.

    Returns:
        The same for the site's page, as in `run.json`; classes of fewer rows than the study shows are left out.
    """
    from consilience.prediction_sets.measured import measure, measure_groups
    from consilience.prediction_sets.sets import contains
    from consilience.report.schema.numbers import percent
    from consilience.report.schema.prediction_sets import vacuous, write_size

    inside, sizes = contains(pooled.on_network_scale(rows.x), rows.y, guarantee)
    target = pooled.agreement.target
    if pooled.agreement.kind == "regression":
        sizes = sizes * target.spread
    covered = measure(inside, sizes)
    low, high = (percent(end) for end in covered.interval)
    size = write_size(covered.size, not target.classes, guarantee.score)
    share = f"{percent(covered.coverage, 1)} of {covered.rows:,} rows ({low} to {high})"
    say(f"Prediction sets for {percent(guarantee.level)} hold {share}, {size} on average.")

    known = guarantee.level * len(target.classes) or None
    said = vacuous(covered.size, known, not target.classes, guarantee.score)
    if said:
        say(said, "yellow")

    report = {**guarantee.to_json(), "promise": guarantee.promise, "assumption": guarantee.assumption}
    report["overall"] = covered.to_json()
    report["by_site"] = [{**covered.to_json(), "name": site}]
    classes = {name: rows.y == c for c, name in enumerate(target.classes)}
    shown = {name: own for name, own in classes.items() if int(own.sum()) >= pooled.agreement.smallest}
    if shown:
        report["by_class"] = [group.to_json() for group in measure_groups(inside, sizes, shown)]
    return report


def set_columns(pooled: Model, guarantee: Guarantee, x: Tensor) -> tuple[list[str], list[list[str]]]:
    """Write prediction sets as further columns of a table: classes, the ends of an interval, or a lower bound."""
    from consilience.distributions.predictive import Categorical, Normal
    from consilience.distributions.survival import Survival
    from consilience.prediction_sets.sets import lower_bounds, prediction_intervals, prediction_sets

    site = None
    if guarantee.kind == "own":
        site = guarantee.names[0]
    target = pooled.agreement.target
    p = pooled.on_network_scale(x)
    if isinstance(p, Categorical):
        sets = prediction_sets(p, guarantee, site)
        say_vacuous(guarantee.level, sets, None, None)
        return write_sets(guarantee.level, target.classes, sets)
    if isinstance(p, Survival):
        bounds = lower_bounds(p, guarantee, site)
        say_vacuous(guarantee.level, None, bounds, None)
        return write_bounds(guarantee.level, bounds)
    assert isinstance(p, Normal)  # counts have no sets
    low, high = (end * target.spread + target.centre for end in prediction_intervals(p, guarantee, site))
    say_vacuous(guarantee.level, None, low, high)
    return write_intervals(guarantee.level, low, high)


def say_vacuous(
    level: float, sets: Tensor | None, low: Tensor | None, high: Tensor | None, width: float | None = None
) -> None:
    """Say where the sets of a table hold everything, and so tell nothing.

    Args:
        level: The share of rows to be covered.
        sets: Sets of classes [N, C]; None where numbers or times are predicted.
        low: Lower ends of intervals, or lower bounds of times; None for classes.
        high: Upper ends; None for classes and times.
        width: The width that would do without any column; None where that is not known.
    """
    from consilience.prediction_sets.nonconformity import FOR_TIMES
    from consilience.report.schema.prediction_sets import vacuous

    said = ""
    if sets is not None and len(sets):
        said = vacuous(float(sets.sum(1).double().mean()), level * sets.shape[1], is_regression=False)
    elif high is not None and low is not None and len(low):
        said = vacuous(float((high - low).mean()), width, is_regression=True)
    elif low is not None and len(low):
        said = vacuous(float(low.mean()), None, is_regression=True, score=next(iter(FOR_TIMES)))
    if said:
        say(said, "yellow")


def write_sets(level: float, classes: Sequence[str], sets: Tensor) -> tuple[list[str], list[list[str]]]:
    """Write sets of classes as a column."""
    texts = [" | ".join(c for c, inside in zip(classes, row, strict=True) if inside) for row in sets.tolist()]
    return [f"set{100 * level:g}"], [[text] for text in texts]


def write_intervals(level: float, low: Tensor, high: Tensor) -> tuple[list[str], list[list[str]]]:
    """Write the ends of intervals as two columns."""
    rows = [[f"{a:.6g}", f"{b:.6g}"] for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    percent = f"{100 * level:g}"
    return [f"set_low{percent}", f"set_high{percent}"], rows


def write_bounds(level: float, low: Tensor) -> tuple[list[str], list[list[str]]]:
    """Write lower bounds of times as a column."""
    return [f"set_low{100 * level:g}"], [[f"{bound:.6g}"] for bound in low.tolist()]
