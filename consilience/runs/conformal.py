"""Prediction sets of a run: calibrated on the rows that its sites held out, measured on their test rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience.data.sites import Data, Sites, concatenate
from consilience.distributions.predictive import Predictive
from consilience.errors import InputError
from consilience.key import Key, Stream
from consilience.method import Method, is_personal, own_models
from consilience.method.which import has_common
from consilience.metrics.times import find_time_grid, with_baseline
from consilience.prediction_sets.coverage import choose_ranks, fewest_rows
from consilience.prediction_sets.kinds import (
    Calibration,
    check_calibration,
    choose_kind,
    find_guarantee,
    own_guarantee,
    site_table,
)
from consilience.prediction_sets.measured import groups_of, measure, measure_groups, uninformed
from consilience.prediction_sets.nonconformity import CALIBRATION, PREDICTION, draws, row_scores, score_from
from consilience.prediction_sets.score_counts import add_noise
from consilience.prediction_sets.sets import Guarantee, contains
from consilience.privacy.entropy import Simulated
from consilience.runs.problem import Problem
from consilience.runs.result import Result
from consilience.task import Task
from consilience.tree import Tree

LEVEL = 0.9
GUARANTEE = "guarantee"  # where run.json has what the sets promise and do
OF_NEWCOMER = "newcomer_guarantee"  # and what those of the model for all do, where sites have models of their own
GRID = 1000
NONE_OF_NEWCOMER = (
    "This run knows thresholds of the sites' own models, and none of a model for newcomers: say whose rows these are "
    "with site= (--site)."
)
OTHER_MODEL = {  # by whether a site's own model predicts
    True: "These thresholds are of the model for all sites: leave site= out, or calibrate the sites' own models, "
    "co.conformal(result).",
    False: "These thresholds are of the sites' own models: say whose rows these are with site= (--site); a newcomer's "
    "are co.conformal(result, newcomer=True).",
}
NONE_ASIDE = "No rows are held out for prediction sets: split with conformal=0.2, or run with `--conformal 0.2`."


class SiteModels(NamedTuple):
    """The models that predict the sites' rows.

    Attributes:
        each: One for each site, in their order; the same one where there is one for all.
        own: Whether sites have models of their own.
    """

    each: Sequence[Predictive]
    own: bool


def conformal(
    result: Result,
    level: float = LEVEL,
    kind: str | None = None,
    *,
    score: str | None = None,
    grid: int = GRID,
    noise: float = 0.0,
    sites: Sites | Problem | None = None,
    newcomer: bool = False,
) -> Guarantee:
    """Calibrate prediction sets of a run on the rows that its sites held out; nobody trains again.

    Args:
        result: The run, of any method.
        level: The share of rows that the sets shall cover.
        kind: `class`, `pooled`, `quantile` or `own`; if None, `class` where every class has rows enough, else
            `pooled`.
        score: `hinge`, `aps` or `raps` for classes, `residual` or `quantile` for numbers, `time` for times to an event;
            the first of them if None.
        grid: How many edges scores are counted on.
        noise: The variance of the Gaussian noise in every cell of the summed counts, whose cost in level is accounted
            for.
        sites: Whose rows, as they are or as a `Problem` with the run's seed; those of the run if None.
        newcomer: Calibrate the model that a newcomer gets, where sites have models of their own, which are calibrated
            otherwise; each with thresholds of its own, as no model's are another's.

    Returns:
        Thresholds and what they promise, for `result.predict(x, level=guarantee)`, and with `site=` where sites have
        models of their own.

    Raises:
        InputError: No rows, or too few, are held out; the sentence says of which class or site.

    Example:
        >>> import consilience as co
        >>> result = co.run("exact", co.Problem(co.datasets.moons(1500), sites=2, split="iid", conformal=0.3))
        >>> sets = co.conformal(result, level=0.9)
        >>> sets.kind, sets.level
        ('class', 0.9)
        >>> result.predict([[0.5, 0.2]], level=sets).sets.shape
        torch.Size([1, 2])
    """
    seed = int(result.report["seed"])
    if isinstance(sites, Problem):
        sites = sites.build_sites(seed)
    sites = sites or result.sites
    models = models_of(result.method, result.task, result.state, result.memories, sites, newcomer)
    return calibrate(models, sites, level, kind, score, grid, noise, seed)


def calibrate(
    models: SiteModels,
    sites: Sites,
    level: float = LEVEL,
    kind: str | None = None,
    score: str | None = None,
    grid: int = GRID,
    noise: float = 0.0,
    seed: int = 0,
) -> Guarantee:
    """Calibrate prediction sets of the models that predict the sites' rows; see `conformal`.

    Args:
        models: The models, from `models_of`.
        level: The share of rows that the sets shall cover.
        kind: The kind of guarantee; chosen if None.
        score: The score; the usual one if None.
        grid: How many edges scores are counted on.
        noise: The variance of the noise in every count.
        seed: What random parts are drawn from.

    Raises:
        InputError: No rows, or too few, are held out.
    """
    if sites.conformal is None:
        raise InputError(NONE_ASIDE)
    check_calibration(kind or "pooled", level, sites.classes is not None, noise)
    if kind is None:
        extra = 1
        if models.own:
            extra = sum(len(rows.y) > 0 for rows in sites.conformal)
        kind = choose_kind(level, _class_counts(sites), extra)
    found = score_from(score, sites.kind)
    edges = found.edges(grid, sites.classes)
    plan = Calibration(kind, level, found, edges, class_names(sites), seed, noise, models.own)
    scores = [_scores(plan, models.each[k], rows, k) for k, rows in enumerate(sites.conformal)]
    if kind == "own":
        return own_guarantee(plan, scores, sites.names)
    sizes = [len(part) for part in scores]
    ranks = None
    if kind == "quantile" and min(sizes) >= fewest_rows(level):
        ranks = choose_ranks(sizes, level)
    own: Sequence[int | None] = [None] * len(sizes)
    if ranks is not None:
        own = ranks.own
    labels = [rows.y for rows in sites.conformal]
    if kind == "quantile" and ranks is None:
        return find_guarantee(plan, torch.zeros(1, 1), sizes, sites.names)  # refuses the sites by name
    total = torch.stack([site_table(plan, s, y, r) for s, y, r in zip(scores, labels, own, strict=True)]).sum(0)
    total = add_noise(total, noise, Simulated(Key(seed).fold(Stream.SETS).fold(2)))
    return find_guarantee(plan, total, sizes, sites.names, ranks)


def guarantee_for(result: Result, level: float | Guarantee, site: str | None) -> Guarantee:
    """Find the thresholds of the model that predicts a site's rows; see `Result.guarantee`.

    Args:
        level: The share of rows to be covered, or thresholds of that model.
        site: Whose rows they are; None: a newcomer's.

    Returns:
        Those given, those of the rows at hand, or those that the run wrote down.

    Raises:
        InputError: The thresholds are of another model, or there are none for this level.
    """
    own = is_personal(result.method) and site is not None
    if isinstance(level, Guarantee):
        if own != level.own_models:
            raise InputError(OTHER_MODEL[own])
        return level
    if result.sites.conformal is not None:
        return conformal(result, level, newcomer=not own)
    written = GUARANTEE
    if is_personal(result.method) and not own:
        written = OF_NEWCOMER
    known = result.report.get(written) or {"refused": NONE_ASIDE}
    if written not in result.report and GUARANTEE in result.report:
        known = {"refused": NONE_OF_NEWCOMER}
    if "refused" in known:
        raise InputError(str(known["refused"]))
    guarantee = replace(Guarantee.from_json(known), own_models=own)  # older versions did not write whose it is
    if guarantee.level != level:
        raise InputError(
            f"This run was loaded without its rows and knows the thresholds of level={guarantee.level:g}: ask for "
            "that level, or hand in the rows, co.load(folder, sites=sites)."
        )
    return guarantee


def assess(models: SiteModels, sites: Sites, guarantee: Guarantee) -> dict[str, Any]:
    """Measure the sets of a guarantee on the test rows.

    Args:
        models: The models that the guarantee is of.

    Returns:
        The guarantee with its coverage over all rows, by site and by class, the worst first; widths are in the
        target's unit.
    """
    inside = []
    sizes = []
    for k, rows in enumerate(sites.test):
        if not len(rows.y):
            continue
        u = draws(Key(guarantee.seed), PREDICTION, len(rows.y), k + 1)
        with torch.no_grad():
            held, size = contains(models.each[k](rows.x), rows.y, guarantee, sites.names[k], u)
        inside.append(held)
        sizes.append(size * sites.target_scale)
    report = {**guarantee.to_json(), "promise": guarantee.promise, "assumption": guarantee.assumption}
    if not inside:
        return report
    every = torch.cat(inside)
    size = torch.cat(sizes)
    by_site = groups_of([len(rows.y) for rows in sites.test], sites.names)
    report["overall"] = measure(every, size).to_json()
    if not sites.outcome:
        unit = 1.0 if sites.classes else sites.target_scale
        targets = concatenate(sites.train).y
        report["uninformed"] = uninformed(unit * targets, guarantee.level, sites.classes or 0)
    report["by_site"] = [covered.to_json() for covered in measure_groups(every, size, by_site)]
    if sites.classes is not None:
        y = concatenate(sites.test).y
        by_class = {name: y == c for c, name in enumerate(class_names(sites))}
        report["by_class"] = [covered.to_json() for covered in measure_groups(every, size, by_class)]
    return report


def report_guarantee(
    method: Method,
    task: Task,
    state: Tree,
    memories: Mapping[int, Tree],
    sites: Sites,
    level: float | None,
    seed: int,
) -> dict[str, Any]:
    """Say what a run's prediction sets promise and do.

    Args:
        memories: What each client kept, by number, which sites' own models are made of.
        level: The share of rows that the sets shall cover; the usual one if None.
        seed: What random parts are drawn from.

    Returns:
        What `run.json` says under `guarantee`, or why there are no sets; the same of a newcomer's sets under
        `newcomer_guarantee`, where sites have models of their own beside a common one. Nothing where no rows were
        held out.
    """
    if sites.conformal is None:
        return {}

    def found(newcomer: bool) -> dict[str, Any]:
        models = models_of(method, task, state, memories, sites, newcomer)
        try:
            guarantee = calibrate(models, sites, level or LEVEL, seed=seed)
        except InputError as error:
            return {"refused": str(error)}  # a run is not lost by it
        return assess(models, sites, guarantee)

    report = {GUARANTEE: found(newcomer=False)}
    if is_personal(method) and has_common(method):
        report[OF_NEWCOMER] = found(newcomer=True)
    return report


def check_level(sites: Sites, level: float | None) -> None:
    """Refuse a level that cannot be reached, before anybody trains.

    Args:
        level: The share of rows that the sets shall cover; None where nobody asked.

    Raises:
        InputError: No rows are held out, or it is not a level.
    """
    if level is None:
        return
    if sites.conformal is None:
        raise InputError(NONE_ASIDE)
    check_calibration("pooled", level, sites.classes is not None)


def class_names(sites: Sites) -> tuple[str, ...]:
    """Name the classes, by their numbers where they have no names.

    Returns:
        The names; none for a regression.
    """
    return sites.class_names or tuple(str(c) for c in range(sites.classes or 0))


def _class_counts(sites: Sites) -> list[int] | None:
    """Calibration rows of each class."""
    if sites.classes is None:
        return None
    counts: list[int] = torch.bincount(concatenate(sites.conformal or ()).y, minlength=sites.classes).tolist()
    return counts


def models_of(
    method: Method, task: Task, state: Tree, memories: Mapping[int, Tree], sites: Sites, newcomer: bool = False
) -> SiteModels:
    """Make the models that predict the sites' rows; of times, on the baseline of all training rows.

    Args:
        memories: What each client kept, by number, which sites' own models are made of.
        newcomer: Whether all rows are predicted as a newcomer's are.
    """
    own = None
    if not newcomer:
        own = own_models(method, task, state, memories, len(sites))
    each = own or [method.predictive(task, state)] * len(sites)
    grid = find_time_grid(task, sites)
    if grid is not None:
        with torch.no_grad():
            on_baseline = {model: with_baseline(model, sites.train, grid) for model in dict.fromkeys(each)}
        each = [on_baseline[model] for model in each]
    return SiteModels(each, own is not None)


def _scores(plan: Calibration, model: Predictive, rows: Data, site: int) -> Tensor:
    if not len(rows.y):
        return torch.zeros(0, dtype=torch.float64)
    u = draws(Key(plan.seed), CALIBRATION, len(rows.y), site)
    with torch.no_grad():
        return row_scores(plan.score, model(rows.x), rows.y, u, plan.level)
