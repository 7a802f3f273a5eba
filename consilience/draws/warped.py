"""A density that follows skewness and heavy tails: a Gaussian of numbers that are each bent by a sinh–arcsinh map.

z = sinh(δ · asinh((u − ξ) / η) − ε), Jones and Pewsey 2009; the z have a Gaussian copula. Its tails are smooth, so that
it can be asked for densities between the sites' draws and a little beyond, where kernel densities cannot.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

STEPS = 60  # of the search for four numbers a column
MOST = 2000  # draws that it looks at
HELD = 0.5  # pseudo-observations that hold δ and ε at the Gaussian, as a share of √S


class Warped(NamedTuple):
    """The density of one site's draws.

    Attributes:
        place: ξ [d].
        scale: η [d].
        skew: ε [d].
        tail: δ [d].
        mean: Of the bent numbers [d].
        precision: Of the bent numbers [d, d].
    """

    place: Tensor
    scale: Tensor
    skew: Tensor
    tail: Tensor
    mean: Tensor
    precision: Tensor

    def log(self, u: Tensor) -> Tensor:
        """Evaluate the log-density of rows [S, d], up to a constant."""
        z, logs = _bend(u, self.place, self.scale, self.skew, self.tail)
        away = z - self.mean
        return logs.sum(1) - 0.5 * ((away @ self.precision) * away).sum(1)


def fit_warped(u: Tensor) -> Warped:
    """Fit the density to draws [S, d]: each column by maximum likelihood, then the correlation."""
    middle, width = u.median(0).values, u.std(0).clamp(min=1e-300)
    part = u[:: max(1, len(u) // MOST)]
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
        z, _ = _bend(u, place, scale, skew, tail)
        mean = z.mean(0)
        precision = torch.linalg.inv(z.mT.cov().reshape(u.shape[1], u.shape[1]))
    return Warped(place, scale, skew, tail, mean, precision)


def _bend(u: Tensor, place: Tensor, scale: Tensor, skew: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """z, and log dz/du of each number."""
    y = (u - place) / scale
    inner = tail * y.asinh() - skew
    logs = _log_cosh(inner) + tail.log() - 0.5 * torch.log1p(y * y) - scale.log()
    return inner.clamp(-30, 30).sinh(), logs


def _log_cosh(x: Tensor) -> Tensor:
    return x.abs() + torch.log1p((-2 * x.abs()).exp()) - 0.6931471805599453
