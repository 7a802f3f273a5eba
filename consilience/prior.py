"""What is believed about the weights before any data; fixed, and the same at every client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from consilience import tree
from consilience.key import Key
from consilience.posterior import Dense, Gaussian, Natural, draw
from consilience.tree import Params

WIDE = 1e12  # the variance that stands for none preferred


class Prior(Protocol):
    def log_density(self, params: Params) -> Tensor:
        """log p(θ)."""

    def gradient(self, vector: Tensor) -> Tensor | None:
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

    def gradient(self, vector: Tensor) -> Tensor | None:
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

    def gradient(self, vector: Tensor) -> Tensor | None:
        return None

    def gaussian(self, like: Params) -> Gaussian:
        return Isotropic(WIDE).gaussian(like)

    def dense(self, like: Params) -> Dense:
        return Isotropic(WIDE).dense(like)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        raise TypeError("a flat prior cannot be drawn from")


@dataclass(frozen=True, eq=False)
class Believed:
    """What others believe, as a prior: PVI's cavity. Where precisions are negative it is no density, yet a target."""

    belief: Natural
    like: Params  # all weights, in their order
    rest: Prior  # for the weights the belief says nothing about

    def log_density(self, params: Params) -> Tensor:
        linear, precision = self.belief
        if isinstance(precision, Tensor):
            theta = tree.ravel(params)
            return cast(Tensor, theta @ linear - 0.5 * theta @ precision @ theta)
        others = {k: v for k, v in params.items() if k not in precision}
        own = {k: v for k, v in params.items() if k in precision}
        total = sum(((linear[k] - 0.5 * precision[k] * v) * v).sum() for k, v in own.items())
        return cast(Tensor, total + (self.rest.log_density(others) if others else 0.0))

    def gradient(self, vector: Tensor) -> Tensor | None:
        linear, precision = self.belief
        if isinstance(precision, Tensor):
            return cast(Tensor, precision @ vector - linear)
        other = self.rest.gradient(vector)
        gradients = tree.unravel(torch.zeros_like(vector) if other is None else other, self.like)
        params = tree.unravel(vector, self.like)
        return tree.ravel(
            {k: precision[k] * params[k] - linear[k] if k in precision else v for k, v in gradients.items()}
        )

    def gaussian(self, like: Params) -> Gaussian:
        linear, precision = self.belief
        given = self.rest.gaussian(like)
        mean = {k: linear[k] / precision[k] if k in precision else v for k, v in given.mean.items()}
        return Gaussian(mean, {k: 1 / precision[k] if k in precision else v for k, v in given.var.items()})

    def dense(self, like: Params) -> Dense:
        linear, precision = self.belief
        return Dense(torch.linalg.solve(precision, linear), precision)

    def draw(self, key: Key, n: int, like: Params) -> Params:
        return draw(self.gaussian(like), key, n).params
