"""Constrained parameters in unconstrained space and back, with the Jacobian: where posteriors are multiplied.

A posterior density of u is p(x(u)) · |dx/du|. Draws carry the Jacobian with them when they are moved; a density that is
given by a formula gets it from `log_jacobian`, once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from consilience.errors import InputError

Shape = tuple[int, ...]


class Transform(Protocol):
    """A map between a parameter x of some shape and a vector u of unconstrained numbers."""

    def width(self, shape: Shape) -> int:
        """Say how many unconstrained numbers stand for a parameter of this shape."""

    def free(self, x: Tensor) -> Tensor:
        """Map parameters [S, …] to unconstrained numbers [S, width]; not finite where x is out of bounds."""

    def constrain(self, u: Tensor, shape: Shape) -> Tensor:
        """Map unconstrained numbers [S, width] back to parameters [S, …]."""

    def log_jacobian(self, u: Tensor, shape: Shape) -> Tensor:
        """Evaluate log |dx/du| for each row of u [S]."""

    def __str__(self) -> str:
        """Write the transform as `parse` reads it."""


@dataclass(frozen=True)
class Interval:
    """Each number by itself: a real number, one above or below a bound, or one between two.

    Attributes:
        low: The lower bound; −∞ for none.
        high: The upper bound; ∞ for none.
    """

    low: float = -math.inf
    high: float = math.inf

    def width(self, shape: Shape) -> int:
        """Count the numbers; see `Transform.width`."""
        return math.prod(shape)

    def free(self, x: Tensor) -> Tensor:
        """Take logarithms of distances to the bounds; see `Transform.free`."""
        flat = x.reshape(len(x), -1)
        if math.isinf(self.low) and math.isinf(self.high):
            return flat
        if math.isinf(self.high):
            return (flat - self.low).log()
        if math.isinf(self.low):
            return (self.high - flat).log()
        return (flat - self.low).log() - (self.high - flat).log()

    def constrain(self, u: Tensor, shape: Shape) -> Tensor:
        """Undo `free`; see `Transform.constrain`."""
        x = u
        if not math.isinf(self.low) and not math.isinf(self.high):
            x = self.low + (self.high - self.low) * u.sigmoid()
        elif not math.isinf(self.low):
            x = self.low + u.exp()
        elif not math.isinf(self.high):
            x = self.high - u.exp()
        return x.reshape(len(u), *shape)

    def log_jacobian(self, u: Tensor, shape: Shape) -> Tensor:
        """Evaluate Σ log |dx/du|; see `Transform.log_jacobian`."""
        if math.isinf(self.low) and math.isinf(self.high):
            return torch.zeros_like(u).sum(1)
        if math.isinf(self.low) or math.isinf(self.high):
            return u.sum(1)
        return (math.log(self.high - self.low) + logsigmoid(u) + logsigmoid(-u)).sum(1)

    def __str__(self) -> str:
        known = {(-math.inf, math.inf): "real", (0.0, math.inf): "positive", (0.0, 1.0): "unit"}
        return known.get((self.low, self.high), f"interval({self.low:g},{self.high:g})")


@dataclass(frozen=True)
class Simplex:
    """The last dimension holds shares that sum to 1, by breaking a stick: Stan's map, 0 at equal shares."""

    def width(self, shape: Shape) -> int:
        """Count the shares but the last; see `Transform.width`."""
        return math.prod(shape[:-1]) * (shape[-1] - 1)

    def free(self, x: Tensor) -> Tensor:
        """Take the logit of each share of what is left; see `Transform.free`."""
        rest = x.flip(-1).cumsum(-1).flip(-1)  # x_j + … + x_K, as accurate as the small shares are
        u = x[..., :-1].log() - rest[..., 1:].log() + self._offset(x.shape[-1], x)
        return u.reshape(len(x), -1)

    def constrain(self, u: Tensor, shape: Shape) -> Tensor:
        """Break the stick; see `Transform.constrain`."""
        v = self._shifted(u, shape)
        left = torch.cat([torch.zeros_like(v[..., :1]), logsigmoid(-v).cumsum(-1)], -1)
        taken = torch.cat([logsigmoid(v), torch.zeros_like(v[..., :1])], -1)
        return (left + taken).exp()

    def log_jacobian(self, u: Tensor, shape: Shape) -> Tensor:
        """Sum the logs of the triangular matrix's diagonal; see `Transform.log_jacobian`."""
        v = self._shifted(u, shape)
        stays = logsigmoid(-v)
        left = stays.cumsum(-1) - stays
        return (left + logsigmoid(v) + stays).reshape(len(u), -1).sum(1)

    def _shifted(self, u: Tensor, shape: Shape) -> Tensor:
        return u.reshape(len(u), *shape[:-1], shape[-1] - 1) - self._offset(shape[-1], u)

    @staticmethod
    def _offset(count: int, like: Tensor) -> Tensor:
        return torch.arange(count - 1, 0, -1).to(like).log()

    def __str__(self) -> str:
        return "simplex"


@dataclass(frozen=True)
class Ordered:
    """The last dimension increases: its first number, then the logarithms of the steps."""

    def width(self, shape: Shape) -> int:
        """Count the numbers; see `Transform.width`."""
        return math.prod(shape)

    def free(self, x: Tensor) -> Tensor:
        """Take logarithms of the steps; see `Transform.free`."""
        return torch.cat([x[..., :1], x.diff(dim=-1).log()], -1).reshape(len(x), -1)

    def constrain(self, u: Tensor, shape: Shape) -> Tensor:
        """Add the steps up; see `Transform.constrain`."""
        v = u.reshape(len(u), *shape)
        return torch.cat([v[..., :1], v[..., 1:].exp()], -1).cumsum(-1)

    def log_jacobian(self, u: Tensor, shape: Shape) -> Tensor:
        """Sum the logarithms of the steps; see `Transform.log_jacobian`."""
        return u.reshape(len(u), *shape)[..., 1:].reshape(len(u), -1).sum(1)

    def __str__(self) -> str:
        return "ordered"


@dataclass(frozen=True)
class Correlation:
    """A correlation matrix, or its Cholesky factor, by partial correlations (Lewandowski, Kurowicka and Joe 2009).

    Attributes:
        factor: Whether the parameter is the Cholesky factor.
    """

    factor: bool = False

    def width(self, shape: Shape) -> int:
        """Count the pairs; see `Transform.width`."""
        return math.prod(shape[:-2]) * (shape[-1] * (shape[-1] - 1) // 2)

    def free(self, x: Tensor) -> Tensor:
        """Take the inverse hyperbolic tangents of partial correlations; see `Transform.free`."""
        lower = x
        if not self.factor:
            lower, failed = torch.linalg.cholesky_ex(x)
            lower = lower.masked_fill((failed != 0)[..., None, None], math.nan)
        rows, columns = self._pairs(x.shape[-1])
        before = (lower**2).cumsum(-1) - lower**2
        partial = lower[..., rows, columns] / (1 - before[..., rows, columns]).clamp(min=1e-300).sqrt()
        return torch.atanh(partial).reshape(len(x), -1)

    def constrain(self, u: Tensor, shape: Shape) -> Tensor:
        """Build the factor row by row; see `Transform.constrain`."""
        lower = self._lower(u, shape)[0]
        if self.factor:
            return lower
        return lower @ lower.mT

    def log_jacobian(self, u: Tensor, shape: Shape) -> Tensor:
        """Sum by partial correlations; see `Transform.log_jacobian`."""
        _, rests = self._lower(u, shape)
        size = shape[-1]
        _, columns = self._pairs(size)
        v = u.reshape(len(u), *shape[:-2], -1)
        inner = 2 * (math.log(2) - v - softplus(-2 * v))  # log(1 − tanh² u)
        if self.factor:
            total = inner + rests / 2
        else:
            total = inner * (1 + (size - columns.to(u) - 2) / 2)
        return total.reshape(len(u), -1).sum(1)

    def _lower(self, u: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
        """The Cholesky factor, and log of what is left of each row before each entry below the diagonal."""
        size = shape[-1]
        v = u.reshape(len(u), *shape[:-2], -1)
        rows, rests, at = [], [], 0
        for i in range(size):
            part = v[..., at : at + i]
            at += i
            left = (2 * (math.log(2) - part - softplus(-2 * part))).cumsum(-1)
            left = torch.cat([torch.zeros_like(v[..., :1]), left], -1)  # log of 1 − Σ L²
            entries = part.tanh() * (left[..., :-1] / 2).exp()
            rests.append(left[..., :-1])
            ends = (left[..., -1:] / 2).exp()
            rows.append(torch.cat([entries, ends, torch.zeros(*v.shape[:-1], size - i - 1).to(v)], -1))
        return torch.stack(rows, -2), torch.cat(rests, -1)

    @staticmethod
    def _pairs(size: int) -> tuple[Tensor, Tensor]:
        rows, columns = torch.tril_indices(size, size, -1)
        return rows, columns

    def __str__(self) -> str:
        if self.factor:
            return "cholesky"
        return "correlation"


REAL = Interval()
POSITIVE = Interval(0.0)
UNIT = Interval(0.0, 1.0)
BY_NAME: dict[str, Transform] = {
    "real": REAL,
    "positive": POSITIVE,
    "unit": UNIT,
    "simplex": Simplex(),
    "ordered": Ordered(),
    "correlation": Correlation(),
    "cholesky": Correlation(factor=True),
}


def parse(text: str) -> Transform:
    """Read a transform.

    Args:
        text: A name, or `interval(LOW,HIGH)`.

    Raises:
        InputError: There is none such.
    """
    if text in BY_NAME:
        return BY_NAME[text]
    found = re.fullmatch(r"interval\(([^,]+),([^,]+)\)", text.replace(" ", ""))
    try:
        assert found is not None
        low, high = map(float, found.groups())
        assert low < high
    except (AssertionError, ValueError):
        names = ", ".join(BY_NAME)
        raise InputError(f"There is no transform '{text}': give one of {names}, or interval(LOW,HIGH).") from None
    return Interval(low, high)


def infer(sites: Sequence[Tensor], prior: Tensor | None) -> Transform:
    """Guess a parameter's transform from draws; those of a prior show its bounds best.

    Args:
        sites: The draws of each site [S, …].
        prior: Draws of the prior, where there are any.
    """
    every = [*sites]
    if prior is not None:
        every.append(prior)
    x = torch.cat([each.reshape(-1, *each.shape[1:]) for each in every])
    if x.ndim >= 2 and x.shape[-1] >= 2:
        whole = _whole(x)
        if whole is not None:
            return whole
    low, high = float(x.min()), float(x.max())
    if low <= 0:
        return REAL
    if prior is not None:
        if high < 1 and float(prior.max()) > 0.9:
            return UNIT
        return POSITIVE
    flat = [each.reshape(len(each), -1) for each in sites]
    raw = max(float(_skewness(each).abs().max()) for each in flat)
    logs = max(float(_skewness(each.log()).abs().max()) for each in flat)
    if logs <= raw or any(float((each.mean(0) / each.std(0)).min()) < 4 for each in flat):
        return POSITIVE
    return REAL


def _whole(x: Tensor) -> Transform | None:
    """A transform of the last dimensions together."""
    size = x.shape[-1]
    if x.ndim >= 3 and x.shape[-2] == size:
        diagonal = x.diagonal(dim1=-2, dim2=-1)
        if torch.allclose(x, x.mT, atol=1e-6) and torch.allclose(diagonal, torch.ones_like(diagonal), atol=1e-6):
            return Correlation()
        norms = (x**2).sum(-1)
        below = torch.equal(x, x.tril()) and bool((diagonal > 0).all())
        if below and torch.allclose(norms, torch.ones_like(norms), atol=1e-5):
            return Correlation(factor=True)
    if bool((x >= 0).all()) and torch.allclose(x.sum(-1), torch.ones_like(x.sum(-1)), atol=1e-5):
        return Simplex()
    if bool((x.diff(dim=-1) > 0).all()):
        flat = x.reshape(-1, size)
        if bool((flat.max(0).values[:-1] > flat.min(0).values[1:]).any()):  # in order, though their ranges overlap
            return Ordered()
    return None


def _skewness(x: Tensor) -> Tensor:
    """The third standardised moment of each column."""
    away = x - x.mean(0)
    return (away**3).mean(0) / (away**2).mean(0).clamp(min=1e-300) ** 1.5
