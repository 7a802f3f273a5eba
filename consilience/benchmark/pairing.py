"""Differences of a table's rows to a reference, paired over seeds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from consilience.benchmark.row_summary import Paired, RowSummary, Scores
from consilience.metrics.paired import SEEDS, Difference, arrow, difference, holm
from consilience.metrics.scores import BETTER


def pair(rows: Sequence[RowSummary], reference: str, overlap: float = 0.0) -> list[RowSummary]:
    """Take every row's differences to the reference, paired over seeds, from six seeds on.

    Holm's correction is over the rows of a table, for each score; bounds are no competitors and have no test.

    Args:
        overlap: Test rows / training rows, where every seed splits the same table anew; see `metrics.paired`.

    Returns:
        The rows with their differences, plain and tempered.
    """
    base = next((row for row in rows if row.row == reference), None)
    if base is None:
        return list(rows)
    others = [row for row in rows if row is not base and row.seeds == base.seeds]
    plain = _differences(base.scores, {row.row: row.scores for row in others}, others, overlap)
    soft: dict[str, dict[str, Paired]] = {}
    if base.tempered:
        tempered = {row.row: row.tempered.scores for row in others if row.tempered}
        soft = _differences(base.tempered.scores, tempered, others, overlap)
    own = _differences(base.scores, {row.row: row.own_rows.scores for row in others if row.own_rows}, others, overlap)
    new = _differences(base.scores, {row.row: row.newcomer.scores for row in others if row.newcomer}, others, overlap)
    paired = [_with_differences(row, plain.get(row.row), soft.get(row.row)) for row in rows]
    return [_with_own_differences(row, own.get(row.row), new.get(row.row)) for row in paired]


def _with_differences(row: RowSummary, plain: dict[str, Paired] | None, soft: dict[str, Paired] | None) -> RowSummary:
    if plain:
        row = dataclasses.replace(row, scores=dataclasses.replace(row.scores, differences=plain))
    if soft and row.tempered:
        scores = dataclasses.replace(row.tempered.scores, differences=soft)
        row = dataclasses.replace(row, tempered=dataclasses.replace(row.tempered, scores=scores))
    return row


def _with_own_differences(
    row: RowSummary, own: dict[str, Paired] | None, newcomer: dict[str, Paired] | None
) -> RowSummary:
    """The scores on own rows, and those of the common model, less the reference's."""
    if own and row.own_rows is not None:
        scores = dataclasses.replace(row.own_rows.scores, differences=own)
        row = dataclasses.replace(row, own_rows=dataclasses.replace(row.own_rows, scores=scores))
    if newcomer and row.newcomer is not None:
        scores = dataclasses.replace(row.newcomer.scores, differences=newcomer)
        row = dataclasses.replace(row, newcomer=dataclasses.replace(row.newcomer, scores=scores))
    return row


def _differences(
    base: Scores, others: Mapping[str, Scores], rows: Sequence[RowSummary], overlap: float
) -> dict[str, dict[str, Paired]]:
    """Row → score → difference to the base, for rows that have the score on enough seeds."""
    bounds = {row.row for row in rows if row.needs == "bound"}
    paired: dict[str, dict[str, Paired]] = {}
    for key in base.values:
        by_word = {word: _difference(scores, base, key, overlap) for word, scores in others.items()}
        apart = {word: d for word, d in by_word.items() if d is not None}
        tested = [word for word in apart if word not in bounds]
        adjusted = dict(zip(tested, holm([apart[word].p for word in tested]), strict=True))
        for word, d in apart.items():
            entry = Paired(d)
            if word in adjusted:
                p = adjusted[word]
                entry = Paired(d, p, arrow(d, p, BETTER.get(key, 0)))
            paired.setdefault(word, {})[key] = entry
    return paired


def _difference(scores: Scores, base: Scores, key: str, overlap: float) -> Difference | None:
    """The difference in one score; None with too few seeds, or with values that are not finite."""
    a = [v for v in scores.values.get(key, []) if v is not None and math.isfinite(v)]
    b = [v for v in base.values[key] if v is not None and math.isfinite(v)]
    whole = len(a) == len(scores.values.get(key, [])) and len(b) == len(base.values[key])
    if not whole or len(a) < SEEDS:
        return None
    return difference(a, b, overlap)
