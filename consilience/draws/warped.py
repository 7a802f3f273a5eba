"""A density that follows skewness and heavy tails: independent bent numbers, and cubes for what is left of skewness.

Draws are whitened and turned to the directions that are most skewed, by third cumulants; there each number is bent,
z = sinh(δ · asinh((v − ξ) / η) − ε), Jones and Pewsey 2009. The whitened z, w, have what skewness is left in any other
direction: log p = −½|w|² + ⅙ κ·H₃(w), Edgeworth's first term. It matters: K means that are each off by a little
skewness are off in one direction, and by √K times as many SDs of the pool. The density is smooth, so that it can be
asked for between the sites' draws and a little beyond, where kernel densities cannot.
"""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

ANGLES, SWEEPS = 90, 8  # of the search for the most skewed directions
STEPS = 60  # of the search for four numbers a column
MOST = 2000  # draws that it looks at
REACH = 2.0  # |w| beyond √d from which cubes grow no more
NOISY = 0.1  # variance of the cubes' Monte Carlo error from which they are left out: d³ / 6S
DOUBT = 3.0  # cumulants are drawn to 0 as their squares are to so many times their Monte Carlo variance
HELD = 0.5  # pseudo-observations that hold δ and ε at the Gaussian, as a share of √S


class Warped(NamedTuple):
    """The density of one site's draws.

    Attributes:
        middle: What draws are whitened about [d].
        turn: Whitens and turns them [d, d]: v = (u − middle) · turn.
        place: ξ [d].
        scale: η [d].
        skew: ε [d].
        tail: δ [d].
        mean: Of the bent numbers [d].
        lower: A factor of their precision [d, d]: w = (z − mean) · lower.
        cubes: Third cumulants of w [d, d, d].
    """

    middle: Tensor
    turn: Tensor
    place: Tensor
    scale: Tensor
    skew: Tensor
    tail: Tensor
    mean: Tensor
    lower: Tensor
    cubes: Tensor

    def log(self, u: Tensor) -> Tensor:
        """Evaluate the log-density of rows [S, d], up to a constant."""
        z, logs = self._bent(u)
        w = (z - self.mean) @ self.lower
        return logs.sum(1) - 0.5 * (w * w).sum(1) + self._skewed(w)

    def distance(self, at: Tensor) -> float:
        """Say how many SDs a point [d] is from the draws' mean, where they are bent to a Gaussian."""
        z, _ = self._bent(at.unsqueeze(0))
        return float(((z - self.mean) @ self.lower).norm())

    def without(self, u: Tensor, part: int, parts: int) -> Warped:
        """Fit what is no single column's again, to draws of which every so-many-th stretch is left out."""
        rows = torch.arange(len(u)) * parts * parts // len(u) % parts != part
        return Warped(*self[:6], *_together(self._bent(u[rows])[0]))

    def _bent(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """z, and log dz/dv of each number."""
        return _bend((u - self.middle) @ self.turn, self.place, self.scale, self.skew, self.tail)

    def _skewed(self, w: Tensor) -> Tensor:
        """⅙ κ·H₃(w), of the nearest point within reach."""
        d = w.shape[1]
        near = w * ((REACH + d**0.5) / w.norm(dim=1, keepdim=True).clamp(min=1e-9)).clamp(max=1)
        squares = (near @ self.cubes.reshape(d, d * d)).reshape(-1, d, d)
        cubed = ((squares @ near.unsqueeze(2))[..., 0] * near).sum(1)
        value: Tensor = (cubed - 3 * near @ torch.einsum("iij->j", self.cubes)) / 6
        return value


def fit_warped(u: Tensor) -> Warped:
    """Fit the density to draws [S, d]: each direction by maximum likelihood, then what they have in common."""
    centre, white, cubes = _together(u)
    turn = white @ _most_skewed(cubes)
    v = (u - centre) @ turn
    middle, width = v.median(0).values, v.std(0)
    part = v[:: max(1, len(v) // MOST)]
    numbers = torch.zeros(4, u.shape[1], dtype=u.dtype, requires_grad=True)
    search = torch.optim.LBFGS([numbers], max_iter=STEPS, line_search_fn="strong_wolfe", history_size=20)
    hold = HELD * len(part) ** 0.5

    def parts() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        place, scale, skew, tail = numbers
        return (
            middle + width * place,
            width * (2.5 * torch.tanh(scale / 2.5)).exp(),
            skew,
            (1.5 * torch.tanh(tail)).exp(),
        )

    def loss() -> Tensor:
        search.zero_grad()
        z, logs = _bend(part, *parts())
        value: Tensor = ((0.5 * z * z - logs).sum() + hold * (numbers[2:] ** 2).sum()) / len(part)
        value.backward()
        return value

    search.step(loss)
    with torch.no_grad():
        place, scale, skew, tail = (each.detach() for each in parts())
        z, _ = _bend(v, place, scale, skew, tail)
        return Warped(centre, turn, place, scale, skew, tail, *_together(z))


def _most_skewed(cubes: Tensor) -> Tensor:
    """Find the rotation [d, d] with which the squared skewness of single numbers is largest, pair by pair."""
    d = len(cubes)
    turn = torch.eye(d, dtype=cubes.dtype)
    angles = torch.arange(ANGLES, dtype=cubes.dtype) * (math.pi / 2 / ANGLES)
    c, s = angles.cos(), angles.sin()
    for _ in range(SWEEPS):
        largest = 0.0
        for i, j in itertools.combinations(range(d), 2):
            a, b, e, f = cubes[i, i, i], cubes[i, i, j], cubes[i, j, j], cubes[j, j, j]
            first = c**3 * a + 3 * c * c * s * b + 3 * c * s * s * e + s**3 * f
            second = -(s**3) * a + 3 * s * s * c * b - 3 * s * c * c * e + c**3 * f
            best = int((first**2 + second**2).argmax())
            if not best:
                continue
            largest = max(largest, float(angles[best]))
            both = torch.eye(d, dtype=cubes.dtype)
            both[i, i] = both[j, j] = c[best]
            both[j, i], both[i, j] = s[best], -s[best]
            turn = turn @ both
            cubes = torch.einsum("abc,ai,bj,ck->ijk", cubes, both, both, both)
        if not largest:
            break
    return turn


def _together(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The mean of bent numbers [S, d], a factor of their precision, and the third cumulants of what both whiten."""
    d = z.shape[1]
    mean = z.mean(0)
    lower = torch.linalg.cholesky(torch.linalg.inv(z.mT.cov().reshape(d, d)))
    w = (z - mean) @ lower
    cubes = torch.zeros(d, d, d, dtype=z.dtype)
    if few_enough(d, len(z)):
        products = (w.unsqueeze(2) * w.unsqueeze(1)).reshape(len(w), d * d)
        cubes = (products.mT @ w).reshape(d, d, d) / len(w)
        same = torch.eye(d, dtype=z.dtype)
        noise = 1 + same.unsqueeze(2) + same.unsqueeze(1) + same  # times 1 / S: 1 of three different numbers, 2 of two
        noise = torch.where(noise == 4, 6.0, noise) * DOUBT / len(w)
        cubes = cubes**3 / (cubes**2 + noise)
    return mean, lower, cubes


def few_enough(width: int, draws: int) -> bool:
    """Whether third cumulants of so many numbers can be told from so many draws."""
    return width**3 <= 6 * NOISY * draws


def _bend(u: Tensor, place: Tensor, scale: Tensor, skew: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """z, and log dz/du of each number."""
    y = (u - place) / scale
    inner = tail * y.asinh() - skew
    logs = _log_cosh(inner) + tail.log() - 0.5 * torch.log1p(y * y) - scale.log()
    return inner.clamp(-30, 30).sinh(), logs


def _log_cosh(x: Tensor) -> Tensor:
    return x.abs() + torch.log1p((-2 * x.abs()).exp()) - 0.6931471805599453
