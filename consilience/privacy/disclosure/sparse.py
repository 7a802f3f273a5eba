"""Combinations of features that are 0 in all but a few rows: these rows can be read out of sums over all.

With G = Σ φφᵀ and a combination v, G v = Σ φ (φ·v): where φ·v is 0 in all rows but one, this is that row. Two columns
that differ in one row have such a v, and so has a total that is not the sum of its parts in one row. The sparsest
vector of a space is hard to find in general; what follows finds those that linear algebra finds.

Let Q be an orthonormal basis of the features' columns. A unit vector Q w lies in few rows S as far as ‖Q_S w‖² is near
1, and then these rows' leverages ‖q_i‖² add up to that at least. So where the few largest leverages add up to less than
1 nothing is there; otherwise a search takes turns from many starts: the few rows in which Q w is largest, then the w
that is largest in these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

SPILL = 1e-4  # of a combination's sum of squares, outside few rows: what blurs these rows by about 1 %
NOTHING = 1e-12  # of the largest singular value: rounding
CHUNK = 4096  # rows whose features are held at a time
SEARCHED = 4000  # rows of the largest leverages, among which few rows are looked for
STARTS = 400  # rows that the search begins at
TURNS = 30  # of the search; it mostly ends after three


class Sparse(NamedTuple):
    """A few rows that a combination of features shows.

    Attributes:
        rows: Their indices.
        weights: The combination, of features in units of their deviation [D].
    """

    rows: Tensor
    weights: Tensor


def find_sparse(
    features: Callable[[Tensor], Tensor], count: int, smallest: int, weights: Tensor | None = None
) -> list[Sparse]:
    """Find combinations of features, and of a constant, that are not 0 in fewer rows than `smallest`.

    Args:
        features: From indices of rows [n] to their features [n, D].
        count: N, how many rows there are.
        smallest: The fewest rows that a combination may show.
        weights: How much rows count in the sum Σ w φφᵀ [N], 0 or more; None: all alike.

    Returns:
        Those that were found, one for each set of rows; none of fewer rows than that in all.
    """
    few = smallest - 1
    if few < 1 or count < smallest:
        return []
    parts = torch.arange(count).split(CHUNK)
    root = torch.ones(count, dtype=torch.float64)
    if weights is not None:
        root = (weights.double() / weights.max().clamp_min(1e-300)).sqrt()
    scale, mean = _moments(features, parts)

    def rows_of(own: Tensor) -> Tensor:
        """A constant, and features about their mean in units of their SD, as long as they count."""
        z = (features(own).double() - mean) / scale
        return root[own].unsqueeze(1) * torch.cat([z.new_ones(len(z), 1), z], 1)

    basis = _orthonormal(rows_of, parts)
    leverage = torch.cat([(rows_of(part) @ basis).square().sum(1) for part in parts])
    searched = leverage.topk(min(count, max(SEARCHED, 40 * basis.shape[1]))).indices
    if float(leverage[searched[:few]].sum()) < 1 - SPILL:
        return []
    q = torch.cat([rows_of(part) @ basis for part in searched.split(CHUNK)])
    found: dict[tuple[int, ...], Tensor] = {}
    for places, w in _search(q, _starts(q, basis, few), few):
        rows = tuple(sorted(searched[places].tolist()))
        found.setdefault(rows, w)
    return [Sparse(torch.tensor(rows), (basis @ w)[1:]) for rows, w in found.items()]


def _moments(features: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """SD and mean of the features; 1 for an SD of 0."""
    total = sum(len(part) for part in parts)
    mean = torch.stack([features(part).double().sum(0) for part in parts]).sum(0) / total
    square = torch.stack([(features(part).double() - mean).square().sum(0) for part in parts]).sum(0)
    scale = (square / total).sqrt()
    scale[scale <= NOTHING * mean.abs()] = 1  # the same in all rows, but for rounding
    return scale, mean


def _orthonormal(rows_of: Callable[[Tensor], Tensor], parts: Sequence[Tensor]) -> Tensor:
    """B [D + 1, r], with rows times B orthonormal.

    By QR of one chunk under the triangle of those before it, as products of columns would halve the digits.
    """
    triangle: Tensor | None = None
    for part in parts:
        rows = rows_of(part)
        if triangle is not None:
            rows = torch.cat([triangle, rows])
        triangle = torch.linalg.qr(rows, mode="r").R
    assert triangle is not None
    _, sizes, directions = torch.linalg.svd(triangle, full_matrices=False)
    kept = sizes > NOTHING * sizes[0]
    basis: Tensor = directions[kept].T / sizes[kept]
    return basis


def _starts(q: Tensor, basis: Tensor, few: int) -> Tensor:
    """Where the search begins [s, r]: at rows of much leverage, and at what of each column the others do not explain.

    Of few rows that hold nearly all of a unit vector one holds the average, and its leverage is that at least.
    """
    own = q[q.square().sum(1) >= (1 - SPILL) / few][:STARTS]
    starts = torch.cat([own, basis])
    sizes: Tensor = starts.norm(dim=1, keepdim=True)
    return starts / sizes.clamp_min(1e-300)


def _search(q: Tensor, starts: Tensor, few: int) -> list[tuple[Tensor, Tensor]]:
    """Few rows that nearly all of some Q w lies in, with w; Q's rows are q [n, r]."""
    before = torch.zeros(0)
    for _ in range(TURNS):
        places = (q @ starts.T).abs().topk(few, dim=0).indices.T  # [s, few]
        rows = q[places]  # [s, few, r]
        _, sizes, directions = torch.linalg.svd(rows, full_matrices=False)
        starts = directions[:, 0]
        if len(before) and bool((sizes[:, 0] <= before * (1 + 1e-9)).all()):
            break
        before = sizes[:, 0]
    shown = sizes[:, 0].square() >= 1 - SPILL
    found = []
    for own, w in zip(places[shown], starts[shown], strict=True):
        held, order = (q[own] @ w).square().sort(descending=True)
        needed = int((held.cumsum(0) < 1 - SPILL).sum()) + 1
        found.append((own[order[:needed]], w))
    return found
