"""Features that differ from site to site: the same scanner tilted, the same sensor noisier."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from consilience.data.splits.split import Rows, Split
from consilience.errors import InputError
from consilience.key import Key


class Shift(ABC):
    """How the features of a site change with its place, 0 at the first site and 1 at the last."""

    @abstractmethod
    def __call__(self, x: Tensor, place: float, key: Key) -> Tensor:
        """Change a site's features.

        Args:
            x: Features, [N, …].
            place: 0 at the first site, 1 at the last.

        Returns:
            Features of the same shape.
        """

    @abstractmethod
    def __str__(self) -> str:
        """Write the shift as `parse` reads it."""


@dataclass(frozen=True)
class Rotation(Shift):
    """Images are turned by an angle that goes evenly from −degrees at the first site to +degrees at the last.

    Attributes:
        degrees: The largest angle.

    Example:
        >>> import consilience as co
        >>> split = co.splits.shifted(co.splits.natural(), co.splits.Rotation(15))
        >>> str(split)
        'natural+rotate:15'
    """

    degrees: float

    def __call__(self, x: Tensor, place: float, key: Key) -> Tensor:
        """Turn a site's images, as in `Shift`."""
        return rotate(x, (2 * place - 1) * self.degrees)

    def __str__(self) -> str:
        """Write the shift as `parse` reads it."""
        return f"rotate:{self.degrees:g}"


@dataclass(frozen=True)
class Noise(Shift):
    """Gaussian noise whose standard deviation goes evenly from 0 at the first site to `deviation` at the last.

    Attributes:
        deviation: The largest standard deviation, from 0 up.

    Example:
        >>> import consilience as co
        >>> split = co.splits.shifted(co.splits.iid(), co.splits.Noise(0.5))
        >>> len(co.datasets.moons().split(split, 4).train)
        4
    """

    deviation: float

    def __post_init__(self) -> None:
        if not 0 <= self.deviation < math.inf:
            raise InputError(f"deviation={self.deviation} is not a standard deviation from 0 up: try Noise(0.3).")

    def __call__(self, x: Tensor, place: float, key: Key) -> Tensor:
        """Add noise to a site's features, as in `Shift`."""
        return x + self.deviation * place * torch.randn(x.shape, generator=key.generator()).to(x)

    def __str__(self) -> str:
        """Write the shift as `parse` reads it."""
        return f"noise:{self.deviation:g}"


@dataclass(frozen=True)
class Shifted(Split):
    """Rows as another split hands them out, with features that change from site to site; the server's stay.

    Attributes:
        split: What deals the rows.
        shifts: What changes the features, one after another.
    """

    split: Split
    shifts: tuple[Shift, ...]

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Deal as the split inside."""
        return self.split.deal(rows, sites, key)

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        """Follow as the split inside."""
        return self.split.follow(test, train, key)

    def __call__(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        """Hand out as the split inside."""
        return self.split(rows, sites, key)

    def shift(self, x: Tensor, site: int, sites: int, key: Key) -> Tensor:
        """Change the features of a site.

        Args:
            x: Its features, [N, …].
            site: Its number, from 0.

        Returns:
            Features of the same shape.
        """
        place = site / max(sites - 1, 1)
        for i, shift in enumerate(self.shifts):
            x = shift(x, place, key.fold(i).fold(site))
        return x

    def __str__(self) -> str:
        """Write the split as `parse` reads it."""
        return "+".join(str(part) for part in (self.split, *self.shifts))


def shifted(split: Split, *shifts: Shift) -> Shifted:
    """Let sites differ in their features too: `shifted(iid(), Rotation(30))`.

    Args:
        split: What deals the rows.
        *shifts: What changes the features, one after another.

    Returns:
        The split.

    Example:
        >>> import consilience as co
        >>> str(co.splits.shifted(co.splits.iid(), co.splits.Rotation(30)))
        'iid+rotate:30'
    """
    return Shifted(split, shifts)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Turn square images about their middle, with linear interpolation and zeros from outside.

    Args:
        x: Images [N, channels, side, side], or flat ones [N, side²].

    Returns:
        Images of the same shape.

    Raises:
        InputError: The images are not square.
    """
    side = _side(x)
    if side is None:
        raise InputError(f"Rows of the shape {tuple(x.shape[1:])} are not square images and cannot turn: use Noise.")
    images = x.reshape(len(x), -1, side, side)
    angle = math.radians(degrees)
    turn = x.new_tensor([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]])
    grid = affine_grid(turn.expand(len(x), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False).reshape(x.shape)


def _side(x: Tensor) -> int | None:
    """The side of square images; None where rows are not such images."""
    if x.ndim == 2:
        side = math.isqrt(x.shape[1])
        return side if side**2 == x.shape[1] else None
    if x.ndim == 4 and x.shape[-1] == x.shape[-2]:
        return int(x.shape[-1])
    return None
