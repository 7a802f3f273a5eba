"""The scores of many parts of the rows, such as sites, each score of many parts at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from consilience.distributions.counts import Counts
from consilience.distributions.predictive import Categorical, Distribution, Normal
from consilience.distributions.survival import Survival
from consilience.metrics.binning import adaptive, align, weigh_gaps
from consilience.metrics.scores import VIEWS, recalibration, scores
from consilience.metrics.single import each, table

CELLS = 100_000  # rows × parts of one block: its matrix takes less than a megabyte


def scores_by_part(p: Distribution, y: Tensor, sizes: Sequence[int]) -> list[dict[str, float]]:
    """Compute every score of each part of the rows: what `scores` gives for it, at less cost where parts are many.

    Args:
        sizes: How many rows each part has; the parts lie one after another.

    Returns:
        For each part the scores by name; none for a part without rows.
    """
    parts: list[dict[str, float]] = []
    start = 0
    for block in _blocks(sizes):
        rows = slice(start, start + sum(block))
        parts += _score_block(_take(p, rows), y[rows], block)
        start = rows.stop
    return parts


def _blocks(sizes: Sequence[int]) -> Iterator[list[int]]:
    """The parts in blocks of neighbours, each with a small matrix of rows × parts."""
    block: list[int] = []
    for size in sizes:
        if block and (sum(block) + size) * (len(block) + 1) > CELLS:
            yield block
            block = []
        block = [*block, size]
    if block:
        yield block


def _take(p: Distribution, rows: slice) -> Distribution:
    if isinstance(p, Categorical):
        return Categorical(p.log_probs[rows])
    if isinstance(p, Counts | Survival):
        return p.take(rows)
    return Normal(p.mean[rows], p.var[rows], p.noise.expand_as(p.mean)[rows])


def _score_block(p: Distribution, y: Tensor, sizes: Sequence[int]) -> list[dict[str, float]]:
    """The scores of neighbouring parts; a large part is a block of its own."""
    if not any(sizes):
        return [{} for _ in sizes]
    if len(sizes) == 1:
        return [scores(p, y)]
    if isinstance(p, Survival):  # who is compared with whom differs from part to part
        ends = itertools.accumulate(sizes)
        parts = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        return [scores(p.take(rows), y[rows]) if rows.stop > rows.start else {} for rows in parts]
    p, y = align(p, y)
    part = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    values = each(table(p), p, y, torch.nn.functional.one_hot(part, len(sizes)).double())
    columns = {name: value.tolist() for name, value in values.items()}
    if isinstance(p, Categorical):
        columns |= _calibration_errors(p, y, part, sizes)
    each_part: list[dict[str, float]] = []
    end = 0
    for k, size in enumerate(sizes):
        end += size
        metrics = {name: column[k] for name, column in columns.items() if size and column[k] == column[k]}
        if size and isinstance(p, Categorical):
            own = Categorical(p.log_probs[end - size : end])
            metrics |= {name: e.value for name, e in recalibration(own, y[end - size : end]).items()}
        each_part.append(metrics)
    return each_part


def _calibration_errors(p: Categorical, y: Tensor, part: Tensor, sizes: Sequence[int]) -> dict[str, list[float]]:
    """The calibration errors of every part, whose rows lie in bins of its own."""
    columns: dict[str, list[float]] = {}
    for name, make in VIEWS.items():
        views = make(p)
        error, debiased = torch.zeros(2, len(sizes), dtype=torch.float64)
        for view in views:
            bins = len(view.edges) + 1
            where = torch.bucketize(view.confidence, view.edges)
            if make is adaptive:  # its edges depend on the rows
                own = [make(Categorical(rows))[0] for rows in p.log_probs.split(list(sizes)) if len(rows)]
                where = torch.cat([torch.bucketize(v.confidence, v.edges) for v in own])
            hit = (y == view.label).double()
            sums = [
                torch.bincount(part * bins + where, value, len(sizes) * bins).reshape(len(sizes), bins).T
                for value in (torch.ones_like(hit), hit, view.confidence - hit)
            ]
            gap, less_bias = weigh_gaps(*sums)
            error += gap / len(views)
            debiased += less_bias / len(views)
        columns[name] = error.tolist()
        if name == "ece":
            columns["ece_debiased"] = debiased.tolist()
    return columns
