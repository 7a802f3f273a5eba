"""Features that differ from site to site: the same scanner tilted, the same sensor noisier."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from consilience.errors import InputError
from consilience.key import Key
from consilience.splits.split import Rows, Split


class Shift(ABC):
    """How the features of a site change with its place, 0 at the first site and 1 at the last."""

    @abstractmethod
    def __call__(self, x: Tensor, place: float, key: Key) -> Tensor: ...

    @abstractmethod
    def __str__(self) -> str: ...


@dataclass(frozen=True)
class Rotation(Shift):
    """Images are turned by an angle that goes evenly from −degrees at the first site to +degrees at the last."""

    degrees: float

    def __call__(self, x: Tensor, place: float, key: Key) -> Tensor:
        return rotate(x, (2 * place - 1) * self.degrees)

    def __str__(self) -> str:
        return f"rotate:{self.degrees:g}"


@dataclass(frozen=True)
class Noise(Shift):
    """Gaussian noise whose deviation goes evenly from 0 at the first site to this at the last."""

    deviation: float

    def __post_init__(self) -> None:
        if not 0 <= self.deviation < math.inf:
            raise InputError(f"noise:{self.deviation} is not a deviation from 0 up: try noise:0.3.")

    def __call__(self, x: Tensor, place: float, key: Key) -> Tensor:
        return x + self.deviation * place * torch.randn(x.shape, generator=key.generator()).to(x)

    def __str__(self) -> str:
        return f"noise:{self.deviation:g}"


@dataclass(frozen=True)
class Shifted(Split):
    """Rows as another split hands them out, with features that change from site to site; the server's stay."""

    split: Split
    shifts: tuple[Shift, ...]

    def deal(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        return self.split.deal(rows, sites, key)

    def follow(self, test: Rows, train: Sequence[Rows], key: Key) -> list[Tensor]:
        return self.split.follow(test, train, key)

    def __call__(self, rows: Rows, sites: int, key: Key) -> list[Tensor]:
        return self.split(rows, sites, key)

    def moved(self, x: Tensor, site: int, sites: int, key: Key) -> Tensor:
        """A site's features."""
        for i, shift in enumerate(self.shifts):
            x = shift(x, site / max(sites - 1, 1), key.fold(i).fold(site))
        return x

    def __str__(self) -> str:
        return "+".join(str(part) for part in (self.split, *self.shifts))


def shifted(split: Split, *shifts: Shift) -> Shifted:
    """A split whose sites also differ in their features: shifted(iid(), Rotation(30))."""
    return Shifted(split, shifts)


def rotate(x: Tensor, degrees: float) -> Tensor:
    """Square images turned about their middle, with linear interpolation and zeros from outside; rows may be flat."""
    side = math.isqrt(x[0].numel()) if x.ndim == 2 else x.shape[-1]
    if x.ndim not in (2, 4) or x.shape[-1] != (side**2 if x.ndim == 2 else x.shape[-2]):
        raise InputError(f"Rows of the shape {tuple(x.shape[1:])} are no square images and cannot turn: use noise.")
    images, angle = x.reshape(len(x), -1, side, side), math.radians(degrees)
    turn = x.new_tensor([[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]])
    grid = affine_grid(turn.expand(len(x), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False).reshape(x.shape)
