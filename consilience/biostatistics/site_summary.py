"""What one site says of its columns: counts and sums under the rules of disclosure, and nothing of single rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from consilience.biostatistics.variables import Column, Variable
from consilience.errors import InputError
from consilience.privacy.disclosure.rules import SMALLEST_CELL, by_rule
from consilience.privacy.disclosure.small_cells import coarsen, withhold

BINS = 20  # of equal width over the agreed range of a number
WITHHELD = -1


class Summary(NamedTuple):
    """One site's columns, as they leave it.

    Attributes:
        rows: How many there are.
        cells: Rows of every level and, in the last place, without a value [V, L + 1]; −1 where a count is withheld. A
            number has the last place alone.
        moments: Mean and deviation of a number's known values [V, 2]; 0 where they are withheld.
        told: Whether they are told [V].
        cumulative: Known values of a number up to the edges of the agreed bins [V, BINS + 1]; −1 where an edge is left
            out.
    """

    rows: Tensor
    cells: Tensor
    moments: Tensor
    told: Tensor
    cumulative: Tensor


def summarise(variables: Sequence[Variable], columns: Sequence[Column], smallest: int) -> Summary:
    """Describe a site's columns.

    Args:
        variables: What is known of them beforehand.
        smallest: The fewest rows that a shown cell may have.

    Raises:
        InputError: The site has too few rows.
    """
    rows = len(columns[0].values)
    if rows < smallest:
        sentence = f"The site has fewer than {smallest} rows, and no table of them may be shown: take part with more."
        raise InputError(by_rule(SMALLEST_CELL, sentence))
    found = nothing(variables)._replace(rows=torch.tensor(rows))
    for j, (variable, column) in enumerate(zip(variables, columns, strict=True)):
        known = column.values[~column.gaps].double()
        cells = _cells(variable, column)
        hidden = withhold(cells, smallest)
        if not variable.levels:
            found.cells[j, -1] = _sent(hidden[-1])
            _describe_numbers(found, j, variable, known, smallest)
            continue
        places = [*range(len(variable.levels)), -1]
        found.cells[j, places] = torch.tensor([_sent(count) for count in hidden])
    return found


def nothing(variables: Sequence[Variable]) -> Summary:
    """Make the summary of no rows: its names, types and shapes are those of every summary.

    Returns:
        Zeros.
    """
    most = max(len(variable.levels) for variable in variables)
    count = len(variables)
    return Summary(
        torch.tensor(0),
        torch.zeros(count, most + 1, dtype=torch.int64),
        torch.zeros(count, 2, dtype=torch.float64),
        torch.zeros(count, dtype=torch.int64),
        torch.full((count, BINS + 1), WITHHELD),
    )


def _cells(variable: Variable, column: Column) -> list[int]:
    """Rows of every level and without a value; of a number, with and without a value."""
    missing = int(column.gaps.sum())
    if not variable.levels:
        return [len(column.gaps) - missing, missing]
    counts = column.values[~column.gaps].long().bincount(minlength=len(variable.levels))
    return [*counts.tolist(), missing]


def _sent(count: int | None) -> int:
    if count is None:
        return WITHHELD
    return count


def _describe_numbers(found: Summary, j: int, variable: Variable, known: Tensor, smallest: int) -> None:
    """Fill in mean, SD and histogram, where enough values differ from the commonest one."""
    if len(known) < max(smallest, 2):
        return
    others = int((known != known.mode().values).sum())
    if 0 < others < smallest:  # a mean would count them
        return
    found.moments[j] = torch.stack([known.mean(), known.std()])
    found.told[j] = 1
    if int(found.cells[j, -1]) == WITHHELD:
        found.moments[j] = _round(found.moments[j], known, variable)
    edges = torch.linspace(variable.low, variable.high, BINS + 1, dtype=torch.float64)
    up_to = [0, *((known <= edge).sum().item() for edge in edges[1:-1]), len(known)]
    if int(found.cells[j, -1]) == WITHHELD:  # how many are known would tell how many are not
        return
    shown = coarsen([int(count) for count in up_to], smallest)
    found.cumulative[j] = torch.tensor([_sent(count) for count in shown])


def _round(moments: Tensor, known: Tensor, variable: Variable) -> Tensor:
    """Round so coarsely that a mean does not tell how many values it is of.

    A mean of n multiples of u is a multiple of u/n, which gives n away; rounded to a step of u/n or more, it fits the
    neighbours of n as well.
    """
    alike = 1e-6 * max(variable.high - variable.low, 1e-300)
    distinct = (known / alike).round().unique() * alike
    if len(distinct) < 2:
        return moments
    least = float(distinct.diff().min()) / len(known)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    return (moments / step).round() * step
