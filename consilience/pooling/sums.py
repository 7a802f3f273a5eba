"""Sums over rows of fixed features: sufficient statistics that add up, so that a split of the rows cannot matter.

A site sends `Sums`; totals are their sum, whoever holds which rows. `moments` turns totals into what heads are fitted
to. A site that leaves is subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from consilience import tree
from consilience.data.sites import Data

CHUNK = 1024  # rows whose features are held at a time: memory grows with D², not with n
FLAT = 1e-10  # of a feature's mean square, below which its variance is rounding


class Sums(NamedTuple):
    """What a site's rows add up to, with φ₀ = 1 before the D features.

    Attributes:
        cross: Σ y φᵀ [C, D + 1]: a row a class, which begins with the class's count; or a row a target.
        gram: The upper triangle of Σ φφᵀ, row by row [T]; one for each class [C, T] where a head wants it.
        square: Σ y² of every target [M]; of no use for classes, [0].
    """

    cross: Tensor
    gram: Tensor
    square: Tensor


class Moments(NamedTuple):
    """Totals about their mean, every feature in units of its deviation: z = (φ − mean) / scale.

    Attributes:
        size: n, the number of rows.
        mean: Of each feature [D].
        scale: The deviation of each feature [D]; 1 where it is constant.
        scatter: Σ zzᵀ [D, D].
        cross: Σ (y − ȳ) zᵀ [C, D].
        target: ȳ of every target, or the share of every class [C].
        spread: Σ (y − ȳ)² [C].
    """

    size: Tensor
    mean: Tensor
    scale: Tensor
    scatter: Tensor
    cross: Tensor
    target: Tensor
    spread: Tensor

    def standardise(self, features: Tensor) -> Tensor:
        """Put features in these units.

        Args:
            features: φ [N, D].

        Returns:
            z [N, D].
        """
        return (features.to(self.mean) - self.mean) / self.scale


def in_chunks(data: Data) -> Iterator[Data]:
    """Cut rows into parts.

    Args:
        data: A client's rows.

    Yields:
        Up to `CHUNK` rows at a time.
    """
    for x, y, w in zip(data.x.split(CHUNK), data.y.split(CHUNK), data.w.split(CHUNK), strict=True):
        yield Data(x, y, w)


def targets(y: Tensor, classes: int | None) -> Tensor:
    """Write targets as columns.

    Args:
        y: Labels [N], or targets [N] or [N, M].
        classes: How many there are; None for numbers.

    Returns:
        Ones and zeros [N, C], or numbers [N, M], in double precision.
    """
    if classes is None:
        return y.double().reshape(len(y), -1)
    return one_hot(y.long(), classes).double()


def summarise(features: Callable[[Tensor], Tensor], data: Data, classes: int | None, by_class: bool = False) -> Sums:
    """Add up a client's rows, a chunk at a time.

    Args:
        features: From rows to φ without its leading 1.
        data: The rows; padding has weight 0.
        classes: How many there are; None for numbers.
        by_class: Whether each class gets a Gram matrix of its own.

    Returns:
        The sums, in double precision.
    """
    totals: Sums | None = None
    for part in in_chunks(data):
        sums = _sum_chunk(features(part.x).double(), part, classes, by_class)
        totals = sums if totals is None else Sums(*(a + b for a, b in zip(totals, sums, strict=True)))
    assert totals is not None
    return totals._replace(gram=_triangle(totals.gram))


def _sum_chunk(phi: Tensor, part: Data, classes: int | None, by_class: bool) -> Sums:
    """The sums of one chunk, with whole Gram matrices."""
    phi = torch.cat([torch.ones_like(phi[:, :1]), phi], 1)
    w = part.w.to(phi)
    y = targets(part.y, classes)
    square = phi.new_zeros(0)
    if classes is None:
        square = (w.unsqueeze(1) * y * y).sum(0)
    if not by_class:
        return Sums((w.unsqueeze(1) * y).T @ phi, (w.unsqueeze(1) * phi).T @ phi, square)
    if tree.under_vmap():
        grams = [(y[:, c : c + 1] * w.unsqueeze(1) * phi).T @ phi for c in range(y.shape[1])]
        return Sums((w.unsqueeze(1) * y).T @ phi, torch.stack(grams), square)
    rows = [phi[part.y == c] * w[part.y == c].unsqueeze(1) for c in range(y.shape[1])]
    grams = [mine.T @ phi[part.y == c] for c, mine in enumerate(rows)]
    return Sums((w.unsqueeze(1) * y).T @ phi, torch.stack(grams), square)


def _triangle(matrix: Tensor) -> Tensor:
    """The upper triangle of the last two dimensions as a vector."""
    rows, columns = torch.triu_indices(*matrix.shape[-2:], device=matrix.device)
    return matrix[..., rows, columns]


def square_matrix(triangle: Tensor, size: int) -> Tensor:
    """Fold a triangle back into a symmetric matrix.

    Args:
        triangle: As `Sums.gram` has it [..., T].
        size: D + 1.

    Returns:
        The matrix [..., D + 1, D + 1].
    """
    rows, columns = torch.triu_indices(size, size, device=triangle.device)
    matrix = triangle.new_zeros(*triangle.shape[:-1], size, size)
    matrix[..., rows, columns] = triangle
    matrix[..., columns, rows] = triangle
    return matrix


def add(parts: Sequence[Sums]) -> Sums:
    """Add sums up.

    Args:
        parts: One a client.

    Returns:
        The sums of all rows.
    """
    return Sums(*(torch.stack([torch.as_tensor(leaf).double() for leaf in leaves]).sum(0) for leaves in zip(*parts, strict=True)))


def subtract(totals: Sums, part: Sums) -> Sums:
    """Take a client out again.

    Args:
        totals: The sums of several clients.
        part: Those of one of them.

    Returns:
        The sums of the others, to rounding.
    """
    return Sums(*(a - b.to(a) for a, b in zip(totals, part, strict=True)))


def moments(totals: Sums) -> Moments:
    """Centre and scale totals: the same as if every site had standardised its features by all sites' moments.

    Args:
        totals: The sums of all rows.

    Returns:
        Their moments.
    """
    gram = square_matrix(whole_gram(totals), totals.cross.shape[1])
    size = gram[0, 0]
    mean = gram[0, 1:] / size
    scatter = gram[1:, 1:] - size * torch.outer(mean, mean)
    variance = scatter.diagonal() / size
    mean_square = gram.diagonal()[1:] / size
    scale = torch.where(variance > FLAT * mean_square, variance.clamp(min=0).sqrt(), 1.0)
    total = totals.cross[:, 0]
    cross = (totals.cross[:, 1:] - torch.outer(total, mean)) / scale
    squares = total  # a one is its own square
    if len(totals.square):
        squares = totals.square
    scatter = scatter / scale / scale.unsqueeze(1)
    return Moments(size, mean, scale, scatter, cross, total / size, squares - total**2 / size)


def whole_gram(totals: Sums) -> Tensor:
    """Add the classes' triangles where there is one for each.

    Args:
        totals: Sums.

    Returns:
        One triangle [T].
    """
    if totals.gram.ndim > 1:
        return totals.gram.sum(0)
    return totals.gram
