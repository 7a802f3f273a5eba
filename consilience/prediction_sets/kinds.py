"""Thresholds from what the sites sent: four kinds of guarantee, each under its own assumption.

class      counts by class; ⌈(1 − α)(N_c + 1)⌉-th score of class c. Label shift only: at every site, newcomers too
pooled     counts; ⌈(1 − α)(N + K)⌉-th score (Lu et al. 2023). Rows of the mixture of the K sites
quantile   one score a site; the k-th smallest of them (Humbert et al. 2023). Sites that are alike
own        nothing is sent; ⌈(1 − α)(n + 1)⌉-th score of the site. Always valid there

Tables of the first three are whole numbers and add up, so that a secure sum serves as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.errors import InputError, unknown_name
from consilience.prediction_sets.coverage import Ranks, beta_least, choose_k, fewest_rows, quantile_least, rank
from consilience.prediction_sets.nonconformity import Score
from consilience.prediction_sets.score_counts import count_by_class, count_scores, mark_rank
from consilience.prediction_sets.sets import Guarantee

KINDS = ("class", "pooled", "quantile", "own")
SPENT = 0.1  # of the miss rate, on the chance that noise is larger than it is taken to be


class Calibration(NamedTuple):
    """What is agreed before anything is counted.

    Attributes:
        kind: One of `KINDS`.
        level: The share of rows to be covered.
        score: Which score.
        edges: The grid [G].
        classes: The names of the classes; none for numbers.
        seed: What random parts of scores are drawn from.
        noise: The variance of the noise in every cell of the summed counts.
        own_models: Whether each site's rows are scored by a model of its own. By class, scores are then no more alike
            at all sites, so that the rank is that of a mixture of sites.
    """

    kind: str
    level: float
    score: Score
    edges: Tensor
    classes: tuple[str, ...] = ()
    seed: int = 0
    noise: float = 0.0
    own_models: bool = False


def choose_kind(level: float, counts: Sequence[int] | None, extra: int = 1) -> str:
    """Choose a kind where nobody asked for one.

    Args:
        level: The share of rows to be covered.
        counts: Calibration rows of each class over all sites; None for numbers.
        extra: The number of sites where each has a model of its own, else 1; as for `find_threshold`.

    Returns:
        `class` where every class has rows enough, as it alone holds at every single site and at newcomers; else
        `pooled`.

    Example:
        >>> import consilience as co
        >>> co.prediction_sets.choose_kind(0.9, [200, 150]), co.prediction_sets.choose_kind(0.9, [200, 5])
        ('class', 'pooled')
    """
    if counts is not None and min(counts) >= extra * fewest_rows(level):
        return "class"
    return "pooled"


def check_calibration(kind: str, level: float, is_classification: bool, noise: float = 0.0) -> None:
    """Refuse what cannot be calibrated.

    Args:
        kind: The kind asked for.
        level: The share of rows to be covered.
        is_classification: Whether classes are predicted.
        noise: The variance of the noise in every count.

    Raises:
        InputError: There is no such kind, it is not for such a problem, or the level is not one.
    """
    if kind not in KINDS:
        raise unknown_name("kind of guarantee", kind, KINDS)
    if not 0 < level < 1:
        raise InputError(f"level={level:g} is not between 0 and 1: write for example 0.9.")
    if kind == "class" and not is_classification:
        raise InputError("A guarantee by class needs classes, and there are none here: use kind 'pooled'.")
    if noise and kind in ("quantile", "own"):
        raise InputError(f"Noise is for counts, and kind '{kind}' sends none: use kind 'pooled' or 'class'.")
    if not 0 <= noise < math.inf:
        raise InputError(f"noise={noise:g} is a variance: write 0 or more.")


def site_table(plan: Calibration, scores: Tensor, labels: Tensor, own_rank: int | None = None) -> Tensor:
    """Make what a site sends.

    Args:
        scores: The scores of its calibration rows [N].
        labels: Their classes [N]; not looked at where numbers are predicted.
        own_rank: Which score a site sends by `quantile`; ⌈level · (N + 1)⌉ if None.

    Returns:
        Counts in int64, [C, G + 1] by class and [1, G + 1] else; tables of sites add up.

    Raises:
        InputError: Too few rows are held out for one score to be sent.
    """
    if plan.kind == "class":
        return count_by_class(scores, labels, len(plan.classes), plan.edges)
    if plan.kind == "pooled":
        return count_scores(scores, plan.edges).unsqueeze(0)
    if own_rank is None:
        own_rank = rank(plan.level, len(scores))
    if own_rank > len(scores):
        raise few_rows(plan.level, {"This site": len(scores)}, "")
    return mark_rank(scores, own_rank, plan.edges)


def find_guarantee(
    plan: Calibration,
    total: Tensor,
    sizes: Sequence[int],
    sites: Sequence[str],
    ranks: Ranks | None = None,
    groups: int | None = None,
) -> Guarantee:
    """Find the thresholds from the sum of the sites' tables.

    Args:
        plan: What is agreed; not `own`.
        total: The tables added up.
        sizes: How many calibration rows each site has; only `quantile` needs more than their number.
        ranks: What the sites sent by `quantile`, and what to take; if None, the usual ranks and the best k for them.
        groups: How many sites have rows, where masks or noise hide which: then `sizes` is of all of them together, and
            noise hides that too.

    Raises:
        InputError: Too few rows are held out; the sentence says of which class or site.
    """
    if not sum(sizes) and not plan.noise:
        raise InputError("No rows are held out to calibrate prediction sets: split with conformal=0.2.")
    if plan.kind == "quantile":
        return _from_quantiles(plan, total, sizes, sites, ranks)
    names: tuple[str, ...] = ("",)
    if plan.kind == "class":
        names = plan.classes
    extra = 1
    if plan.kind == "pooled" or plan.own_models:
        extra = groups or sum(n > 0 for n in sizes)
    rows = tuple(max(round(count), 0) for count in total.sum(1).tolist())
    if not plan.noise:
        _check_rows(plan, rows, extra)
    thresholds = tuple(find_threshold(counts, plan.edges, plan.level, extra, plan.noise) for counts in total)
    if plan.noise and any(math.isinf(threshold) for threshold in thresholds):
        raise InputError(
            f"The noise is too large for sets of {_percent(plan.level)} from about {min(rows):,} rows: hold "
            "more out, count on a coarser grid, or add less noise."
        )
    level = _level_for(plan.level, plan.noise)
    least = min(beta_least(min(rank(level, n, extra), n), n) for n in rows if n > 0)
    return _guarantee(plan, thresholds, names, rows, sites, least)


def own_guarantee(plan: Calibration, scores: Sequence[Tensor], sites: Sequence[str]) -> Guarantee:
    """Find each site's threshold by its own rows; nothing is sent.

    Args:
        plan: What is agreed; the grid is not looked at.
        scores: The scores of every site's calibration rows.

    Raises:
        InputError: A site has too few rows.
    """
    sizes = {site: len(found) for site, found in zip(sites, scores, strict=True)}
    _check_sites(plan.level, sizes)
    ranks = [rank(plan.level, n) for n in sizes.values()]
    thresholds = tuple(float(found.double().sort().values[r - 1]) for found, r in zip(scores, ranks, strict=True))
    least = min(beta_least(r, n) for r, n in zip(ranks, sizes.values(), strict=True))
    return _guarantee(plan, thresholds, tuple(sites), tuple(sizes.values()), sites, least)


def find_threshold(counts: Tensor, edges: Tensor, level: float, extra: int = 1, noise: float = 0.0) -> float:
    """Find the smallest edge below which enough scores lie.

    Enough at edge j means C_j ≥ (1 − α)(N + extra), or with T_j = N − C_j, α C_j − (1 − α) T_j ≥ (1 − α) extra: linear
    in the counts, so that N need not be known. Noise of variance v in each cell is sub-Gaussian with that variance
    (Canonne, Kamath and Steinke 2020) and adds to the left side V_j = v (α² j + (1 − α)² (G + 1 − j)); with a margin
    of √(2 V_j ln(G/δ)) no edge below the true threshold is taken but with probability δ. Both fit into the level as
    α' + δ = α.

    Args:
        counts: Of all sites [G + 1].
        edges: The grid [G].
        level: The share of rows to be covered, 1 − α.
        extra: 1 for exchangeable rows, the number of sites for their mixture.
        noise: The variance of the noise in each cell.

    Returns:
        The threshold; infinite where no edge is enough.
    """
    cumulative = counts.cumsum(0)[:-1]
    if not noise:
        enough = cumulative >= rank(level, int(counts.sum()), extra)
    else:
        alpha = 1 - _level_for(level, noise)
        failure = 1 - level - alpha
        cells = torch.arange(1, len(edges) + 1, dtype=torch.float64)
        var = noise * (alpha**2 * cells + (1 - alpha) ** 2 * (len(edges) + 1 - cells))
        margin = (2 * var * math.log(len(edges) / failure)).sqrt()
        tail = counts.sum() - cumulative
        enough = alpha * cumulative - (1 - alpha) * tail >= (1 - alpha) * extra + margin
    if not bool(enough.any()):
        return math.inf
    return float(edges[int(enough.int().argmax())])


def _level_for(level: float, noise: float) -> float:
    """The level that ranks are found for: a part of the miss rate is spent on noise."""
    if not noise:
        return level
    return 1 - (1 - SPENT) * (1 - level)


def _from_quantiles(
    plan: Calibration, total: Tensor, sizes: Sequence[int], sites: Sequence[str], ranks: Ranks | None
) -> Guarantee:
    """The k-th smallest of the sites' scores."""
    _check_sites(plan.level, dict(zip(sites, sizes, strict=True)))
    if ranks is None:
        ranks = choose_k([rank(plan.level, n) for n in sizes], sizes, plan.level)
    enough = total[0].cumsum(0)[:-1] >= ranks.k
    threshold = math.inf
    if bool(enough.any()):
        threshold = float(plan.edges[int(enough.int().argmax())])
    least = quantile_least(ranks.own, sizes, ranks.k)
    return _guarantee(plan, (threshold,), ("",), (sum(sizes),), sites, least)


def _guarantee(
    plan: Calibration,
    thresholds: tuple[float, ...],
    names: tuple[str, ...],
    rows: tuple[int, ...],
    sites: Sequence[str],
    least: float,
) -> Guarantee:
    return Guarantee(
        plan.kind,
        plan.level,
        str(plan.score),
        thresholds,
        names,
        rows,
        tuple(sites),
        least,
        plan.noise,
        plan.seed,
        plan.own_models,
    )


def _check_rows(plan: Calibration, rows: Sequence[int], extra: int) -> None:
    """Refuse thresholds that so few rows cannot give."""
    if plan.kind == "class":
        few = {f"'{name}'": n for name, n in zip(plan.classes, rows, strict=True) if rank(plan.level, n, extra) > n}
        if few:
            raise few_rows(plan.level, few, ", or use kind 'pooled'", extra)
    elif rank(plan.level, rows[0], extra) > rows[0]:
        needed = extra * fewest_rows(plan.level)
        raise InputError(
            f"{rows[0]:,} rows of {extra} site(s) are held out, and sets of {_percent(plan.level)} need about "
            f"{needed:,}: hold more out, or lower the level."
        )


def _check_sites(level: float, sizes: dict[str, int]) -> None:
    few = {site: n for site, n in sizes.items() if n < fewest_rows(level)}
    if few:
        raise few_rows(level, few, ", or use kind 'pooled'")


def few_rows(level: float, counts: dict[str, int], more: str, extra: int = 1) -> InputError:
    """Make the refusal of a level that rows are too few for.

    Args:
        counts: Rows by the name of their class or site.
        more: What else can be done, from a comma on.
        extra: As for `find_threshold`.

    Returns:
        The error.
    """
    listed = ", ".join(f"{name} has {n}" for name, n in counts.items())
    return InputError(
        f"Too few rows are held out for sets of {_percent(level)}, which need {extra * fewest_rows(level)}: {listed}. "
        f"Hold more out, lower the level{more}."
    )


def _percent(level: float) -> str:
    return f"{100 * level:g} %"
