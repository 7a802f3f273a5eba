"""Counts that may be shown: small ones are withheld, and so are those that would give them away by subtraction."""

from __future__ import annotations

from collections.abc import Sequence


def withhold(counts: Sequence[int], smallest: int) -> list[int | None]:
    """Withhold small counts of cells whose total is known.

    A single withheld cell would be the total less the others: so at least two are, and together they hold at least
    `smallest` rows, the next larger cells joining them until they do. An empty cell is shown.

    Args:
        counts: Rows of every cell; a row is in one of them.
        smallest: The fewest rows that a shown cell may have.

    Returns:
        The counts; None where one is withheld.

    Example:
        >>> from consilience.privacy.disclosure.small_cells import withhold
        >>> withhold([120, 3, 40], 10)
        [120, None, None]
    """
    hidden = {i for i, count in enumerate(counts) if 0 < count < smallest}
    larger = sorted((i for i, count in enumerate(counts) if count >= smallest), key=lambda i: counts[i])
    while hidden and (len(hidden) < 2 or sum(counts[i] for i in hidden) < smallest):
        if not larger:
            hidden |= {i for i, count in enumerate(counts) if count == 0}  # none is left: the empty ones hide it
            break
        hidden.add(larger.pop(0))
    return [None if i in hidden else count for i, count in enumerate(counts)]


def coarsen(cumulative: Sequence[int], smallest: int) -> list[int | None]:
    """Leave out the edges of a histogram between which there are few rows.

    Args:
        cumulative: Rows up to every edge; none up to the first, all up to the last.
        smallest: The fewest rows between two edges that are shown; none may be there too.

    Returns:
        Rows up to every edge; None where an edge is left out.
    """
    shown: list[int | None] = [None] * len(cumulative)
    total = cumulative[-1]
    last = 0
    shown[0] = 0
    for i, count in enumerate(cumulative[1:-1], 1):
        beyond = total - count
        is_enough = count == last or count - last >= smallest
        if is_enough and (beyond == 0 or beyond >= smallest):
            shown[i] = count
            last = count
    shown[-1] = total
    return shown
