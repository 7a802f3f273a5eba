"""What is believed about the weights before any data; fixed, and the same at every client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from consilience import tree
from consilience.key import Key
from consilience.posterior import Dense, Gaussian, draw
from consilience.tree import Params

WIDE = 1e12  # the variance that stands for none preferred


class Prior(Protocol):
    def log_density(self, params: Params) -> Tensor:
        """log p(θ)."""

    def slope(self, vector: Tensor) -> Tensor | None:
        """−∇ log p(θ) for the weights as one vector; None where it is 0."""

    def gaussian(self, like: Params) -> Gaussian:
        """The prior as a diagonal Gaussian over these weights."""

    def dense(self, like: Params) -> Dense:
        """The same with its full precision matrix, for small models."""

    def draw(self, key: Key, n: int, like: Params) -> Params:
        """n draws, leaves [n, …]."""


@dataclass(frozen=True)
class Isotropic:
    """N(0, var·I)."""

    var: float = 1.0

    def log_density(self, params: Params) -> Tensor:
        theta = tree.ravel(params)
        return -0.5 * (theta @ theta / self.var + theta.numel() * math.log(2 * math.pi * self.var))

    def slope(self, vector: Tensor) -> Tensor | None:
        return vector / self.var

    def gaussian(self, like: Params) -> Gaussian:
        return Gaussian(tree.zeros_like(like), {k: torch.full_like(v, self.var) for k, v in like.items()})

    def dense(self, like: Params) -> Dense:
        theta = tree.ravel(like)
        return Dense(torch.zeros_like(theta), torch.eye(theta.numel()).to(theta) / self.var)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        return draw(self.gaussian(like), key, n).params


@dataclass(frozen=True)
class Flat:
    """Nothing is preferred: for distillation, where the teacher is all there is, or where a tilt is the prior."""

    def log_density(self, params: Params) -> Tensor:
        return tree.leaves(params)[0].new_zeros(())

    def slope(self, vector: Tensor) -> Tensor | None:
        return None

    def gaussian(self, like: Params) -> Gaussian:
        return Isotropic(WIDE).gaussian(like)

    def dense(self, like: Params) -> Dense:
        return Isotropic(WIDE).dense(like)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        raise TypeError("a flat prior cannot be drawn from")
