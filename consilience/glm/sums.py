"""Sums over rows of fixed features: sufficient statistics that add up, so that a split of the rows cannot matter.

A site sends `Sums`; totals are their sum, whoever holds which rows. `moments` turns totals into what heads are fitted
to. A site that leaves is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.inference.fast.shared import once
from consilience.models.maps import feature_map

CHUNK = 1024  # rows whose features are held at a time: memory grows with D², not with n
MOST = 4 * 2**30  # bytes of Gram matrices that a server is asked to hold
HELD = 7  # matrices at a time while a head is fitted: 5.4 GB were measured for 10,000 features
SECONDS = 3.3e-10  # of one processor for the cube of the features: 21 were measured for 4,000
BLOCK = 128  # rows of a Gram matrix that are added to at a time, from the diagonal on
FLAT = 1e-10  # of a feature's mean square, below which its variance is rounding


class Sums(NamedTuple):
    """What a site's rows add up to, with φ₀ = 1 before the D features.

    Attributes:
        counts: Rows of each class [C]; all rows [1] for numbers.
        cross: Σ y φᵀ [C, D + 1]: a row a class, which begins with the class's count; or a row a target.
        gram: The upper triangle of Σ φφᵀ, row by row [T]; one for each class [C, T] where a head wants it.
        square: Σ y² of every target [M]; of no use for classes, [0].
        scale: Where Gram matrices are sent in half precision, their first rows and the features' SDs
            [G, 2, D + 1]: matrices then hold correlations about the mean; [0] for any other precision.
    """

    counts: Tensor
    cross: Tensor
    gram: Tensor
    square: Tensor
    scale: Tensor

    @property
    def features(self) -> int:
        """D + 1, the number of features and the leading 1."""
        return self.cross.shape[1]


class Moments(NamedTuple):
    """Totals about their mean, every feature in units of its SD: z = (φ − mean) / scale.

    Attributes:
        size: n, the number of rows.
        mean: Of each feature [D].
        scale: The SD of each feature [D]; 1 where it is constant.
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
    """Cut rows into parts; those that stay in their file are read as they are asked for.

    Yields:
        Up to `CHUNK` rows at a time.
    """
    for x, y, w in zip(data.x.split(CHUNK), data.y.split(CHUNK), data.w.split(CHUNK), strict=True):
        yield Data(x, y.long() if y.dtype == torch.uint8 else y, w)


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

    Example:
        >>> import consilience as co
        >>> import torch
        >>> from consilience.glm.sums import add, summarise
        >>> sites = co.Problem("moons", sites=2).build_sites()
        >>> total = add([summarise(lambda x: x, part, 2) for part in sites.train])
        >>> total.features
        3
    """
    sums: Sums | None = None
    for part in in_chunks(data):
        phi = features(part.x)
        phi = torch.cat([torch.ones_like(phi[:, :1]), phi], 1).double()
        if sums is None:
            sums = _nothing(phi, part, classes, by_class)
        sums = _add_chunk(sums, phi, part, classes)
    assert sums is not None
    return sums._replace(gram=_triangle(sums.gram))


@once
def sum_rows(model: nn.Module, data: Data, classes: int | None, by_class: bool) -> Sums:
    """Add up a client's rows under a network's feature map; once, where several rules ask for the same sums.

    Args:
        model: The network, whose last layer is left out.
        data: The rows; padding has weight 0.
        classes: How many there are; None for numbers.
        by_class: Whether each class gets a Gram matrix of its own.

    Returns:
        The sums, in double precision.
    """
    return summarise(feature_map(model), data, classes, by_class)


def _nothing(phi: Tensor, part: Data, classes: int | None, by_class: bool) -> Sums:
    """The sums of no rows, with whole Gram matrices."""
    outputs = targets(part.y[:1], classes).shape[1]
    size = phi.shape[1]
    zeros = partial(torch.zeros, dtype=torch.float64, device=phi.device)
    gram = zeros(outputs, size, size) if by_class else zeros(size, size)
    if classes is None:
        return Sums(zeros(1), zeros(outputs, size), gram, zeros(outputs), zeros(0))
    return Sums(zeros(outputs), zeros(outputs, size), gram, zeros(0), zeros(0))


def _add_chunk(sums: Sums, phi: Tensor, part: Data, classes: int | None) -> Sums:
    """Add a chunk; of Gram matrices, at least the upper triangle."""
    w = part.w.double().unsqueeze(1)
    y = targets(part.y, classes)
    counts = (w * y).sum(0)
    square = sums.square
    if classes is None:
        square = square + (w * y * y).sum(0)
        counts = w.sum().reshape(1)
    cross = sums.cross + (w * y).T @ phi
    return Sums(sums.counts + counts, cross, _add_gram(sums.gram, phi, w, part.y), square, sums.scale)


def _add_gram(gram: Tensor, phi: Tensor, w: Tensor, y: Tensor) -> Tensor:
    """Gram matrices with a chunk's rows added, in place where no vmap forbids it; half of the work where it can be."""
    if tree.under_vmap():
        if gram.ndim == 2:
            return gram + (w * phi).T @ phi
        members = one_hot(y.long(), len(gram)).double().T.unsqueeze(-1)
        return gram + (members * w * phi).mT @ phi
    if gram.ndim == 2:
        _add_upper(gram, w * phi, phi)
        return gram
    for c, own in enumerate(gram):
        rows = (y == c).nonzero().squeeze(1)
        _add_upper(own, (w * phi)[rows], phi[rows])
    return gram


def _add_upper(gram: Tensor, left: Tensor, right: Tensor) -> None:
    """Add leftᵀ·right to the upper triangle of a matrix, and to some of the rest."""
    for start in range(0, len(gram), BLOCK):
        gram[start : start + BLOCK, start:].addmm_(left[:, start : start + BLOCK].T, right[:, start:])


def _triangle(matrix: Tensor) -> Tensor:
    """The upper triangle of the last two dimensions as a vector."""
    return matrix.flatten(-2).index_select(-1, _upper(matrix.shape[-1], matrix.device))


@lru_cache(maxsize=2)
def _upper(size: int, device: torch.device) -> Tensor:
    """Where the upper triangle's numbers lie in a square matrix, row by row; finding out takes longer than to pick."""
    places: Tensor = torch.triu_indices(size, size, device=device)
    return places[0] * size + places[1]


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


def compress(sums: Sums, dtype: torch.dtype) -> Sums:
    """Round sums for sending; counts stay whole.

    Half precision holds neither large numbers nor small differences of them, so that Gram matrices become correlations
    about the mean, beside means and SDs in single precision.

    Args:
        dtype: float64, float32 or float16.

    Returns:
        What is sent.
    """
    if dtype != torch.float16:
        return sums._replace(cross=sums.cross.to(dtype), gram=sums.gram.to(dtype), square=sums.square.to(dtype))
    gram = square_matrix(sums.gram.reshape(-1, sums.gram.shape[-1]), sums.features)
    first = gram[:, 0].float()
    about = gram - _about_zero(first.double())
    spread = about.diagonal(dim1=1, dim2=2)
    varies = spread > 1e-6 * gram.diagonal(dim1=1, dim2=2)  # above what single precision leaves of a first row
    deviation = torch.where(varies, spread.clamp(min=0).sqrt(), 0.0).float()
    inverse = torch.where(varies, 1 / deviation.double().clamp(min=1e-30), 0.0)
    correlation = _triangle(about * _outer(inverse, inverse)).clamp(-1, 1)
    scale = torch.stack([first, deviation], 1)
    return Sums(sums.counts, sums.cross.float(), correlation.half().reshape(sums.gram.shape), sums.square, scale)


def decompress(sums: Sums) -> Sums:
    """Bring sums back to double precision.

    Args:
        sums: As they were sent.

    Returns:
        The sums, as well as they are known.
    """
    wide = Sums(*(torch.as_tensor(leaf).double() for leaf in sums))
    if not len(sums.scale):
        return wide
    first, deviation = wide.scale.unbind(1)
    correlation = square_matrix(wide.gram.reshape(len(first), -1), wide.features)
    gram = _triangle(correlation * _outer(deviation, deviation) + _about_zero(first))
    return wide._replace(gram=gram.reshape(wide.gram.shape), scale=wide.scale[:0, 0, 0])


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def _about_zero(first: Tensor) -> Tensor:
    """What a Gram matrix with this first row (n, Σφ) holds beyond the scatter about the mean [G, D + 1, D + 1]."""
    return _outer(first, first) / first[:, :1].clamp(min=1e-30).unsqueeze(-1)


def add(parts: Sequence[Sums]) -> Sums:
    """Add sums up.

    Args:
        parts: One a client, as they were sent.

    Returns:
        The sums of all rows, in double precision.
    """
    wide = [decompress(part) for part in parts]
    return Sums(*(torch.stack(leaves).sum(0) for leaves in zip(*wide, strict=True)))


def subtract(totals: Sums, part: Sums) -> Sums:
    """Take a client out again.

    Args:
        totals: The sums of several clients.
        part: Those of one of them.

    Returns:
        The sums of the others, to rounding.
    """
    return Sums(*(a - b for a, b in zip(totals, decompress(part), strict=True)))


def moments(totals: Sums) -> Moments:
    """Centre and scale totals: the same as if every site had standardised its features by all sites' moments."""
    gram = square_matrix(whole_gram(totals), totals.features)
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

    Returns:
        One triangle [T].
    """
    if totals.gram.ndim > 1:
        return totals.gram.sum(0)
    return totals.gram


def doubt(sums: Sums) -> str | None:
    """Say why no rows can have these sums. One triangle of a Gram matrix is sent: none is asymmetric.

    Args:
        sums: As a client sent them.

    Returns:
        A sentence about the reply, as "it"; None where there is nothing to say.
    """
    wide = decompress(sums)
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2}[sums.gram.dtype]
    triangle = whole_gram(wide)
    if bool((wide.counts < 0).any()) or abs(float(wide.counts.sum() - triangle[0])) > tolerance * float(triangle[0]):
        return "its counts do not add up."
    classes = len(sums.square) == 0
    if classes and not torch.allclose(wide.cross[:, 0], wide.counts, rtol=tolerance, atol=tolerance):
        return "its counts do not add up."
    parts = wide.gram.reshape(-1, wide.gram.shape[-1])
    for part in parts:
        if not _is_a_sum_of_squares(square_matrix(part, wide.features), tolerance):
            return "its Gram matrix is not positive semi-definite, as a sum of squares is."
    if classes and not _add_up(wide.cross, parts[:, : wide.features], tolerance):
        return "its sums by class are not those of its Gram matrix."
    if not _is_a_sum_of_squares(_with_targets(wide), tolerance):
        return "no rows have both its Gram matrix and its sums with the targets."
    return None


def _add_up(cross: Tensor, first: Tensor, tolerance: float) -> bool:
    """Whether classes' sums of features are the first rows of the Gram matrices: of each class, or of all together."""
    if len(first) == 1:
        cross = cross.sum(0, keepdim=True)
    return torch.allclose(cross, first, rtol=tolerance, atol=tolerance * float(first.abs().max()))


def _with_targets(wide: Sums) -> Tensor:
    """The Gram matrix of features and targets together; of several numbers, their products are not known."""
    gram = square_matrix(whole_gram(wide), wide.features)
    squares = wide.square
    cross = wide.cross
    if not len(squares):
        squares = wide.counts  # a one is its own square, and a row has one class
    elif len(squares) > 1:
        squares, cross = squares[:0], cross[:0]
    return torch.cat([torch.cat([gram, cross.T], 1), torch.cat([cross, squares.diag()], 1)])


def _is_a_sum_of_squares(matrix: Tensor, tolerance: float) -> bool:
    """Whether a symmetric matrix is positive semi-definite, to rounding of what its rows' lengths are."""
    length = matrix.diagonal().clamp(min=0).sqrt().clamp(min=1e-150)
    scaled = matrix / _outer(length, length)
    if not bool(torch.isfinite(scaled).all()):
        return False
    values = torch.linalg.eigvalsh(scaled)
    return float(values[0]) > -tolerance * len(values) * max(float(values[-1]), 1.0)


def check_memory(features: int, classes: int, by_class: bool) -> None:
    """Refuse Gram matrices that no machine of usual size holds, before any work is done.

    Args:
        by_class: Whether there is one for each class.

    Raises:
        InputError: They would take more than `MOST` bytes.
    """
    matrices = HELD + 2 * classes * by_class
    need = 8 * matrices * (features + 1) ** 2
    if need > MOST:
        fewer = int(math.sqrt(MOST / (8 * matrices))) - 1
        remedy = f"take at most {fewer:,}, or learn on a feature map of these, such as relu:1000"
        if by_class:
            remedy += ", or take a head with one Gram matrix for all classes"
        seconds = SECONDS * features**3
        raise InputError(
            f"{features:,} features need about {need / 2**30:.0f} GB for Gram matrices, and {seconds:.0f} s of a "
            f"processor to solve: {remedy}."
        )


def in_parts(x: Tensor) -> tuple[Tensor, ...]:
    """Cut rows into parts that are held at a time; an exported program has any number of rows, and they stay whole.

    Args:
        x: Rows, [N, …].

    Returns:
        The parts in order.
    """
    if tree.is_exporting():
        return (x,)
    parts: tuple[Tensor, ...] = x.split(CHUNK)
    return parts
