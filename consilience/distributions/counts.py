"""Counts: a Poisson whose rate is not known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used
import torch
from torch import Tensor

SHARPEST = 1e7  # the shape of a Gamma from which on a rate counts as known
SMALLEST = 1e-12  # a rate that stands for none


class Counts(NamedTuple):
    """A distribution over counts for every row: Poisson, its rate Gamma distributed; so a negative binomial.

    Targets are counts [N], or counts with their exposure beside them [N, 2].

    Attributes:
        mean: The expected count of one unit of exposure [N].
        var: The variance of that rate, from not knowing the weights [N]; 0 for a Poisson.
    """

    mean: Tensor
    var: Tensor

    @property
    def total(self) -> Tensor:
        """The variance of an observed count at one unit of exposure [N]."""
        return self.mean + self.var

    def expose(self, y: Tensor) -> tuple[Counts, Tensor]:
        """Predict the counts of rows that were exposed for as long as they were.

        Args:
            y: Counts [N], or counts and exposures [N, 2].

        Returns:
            The distribution of the counts themselves, and the counts [N].
        """
        if y.ndim < 2 or y.shape[1] == 1:
            return self, y.reshape(len(y))
        exposure = y[:, 1].to(self.mean)
        return Counts(self.mean * exposure, self.var * exposure**2), y[:, 0]

    def log_prob(self, y: Tensor) -> Tensor:
        """Evaluate log p(y) for every row.

        Args:
            y: Counts [N], or counts and exposures [N, 2].

        Returns:
            Log-probabilities [N].
        """
        p, count = self.expose(y)
        k = count.to(p.mean).double()
        mean = p.mean.double().clamp(min=SMALLEST)
        var = p.var.double()
        poisson = torch.special.xlogy(k, mean) - mean - torch.lgamma(k + 1)
        shape = mean**2 / var.clamp(min=1e-300)
        known = shape > SHARPEST
        a = torch.where(known, torch.ones_like(shape), shape)
        odds = mean / a
        negative_binomial = (
            torch.lgamma(k + a) - torch.lgamma(a) - torch.lgamma(k + 1)
            + torch.special.xlogy(k, odds) - (k + a) * torch.log1p(odds)
        )  # fmt: skip
        return torch.where(known, poisson, negative_binomial).to(self.mean)

    def temper(self, t: float) -> Counts:
        """Widen or narrow the distribution; narrower than a Poisson it cannot be.

        Args:
            t: What multiplies the variance of an observation.

        Returns:
            The distribution with the same mean.
        """
        return Counts(self.mean, (t * self.total - self.mean).clamp(min=0))

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """Find central intervals, whose ends are counts: they hold at least what they promise.

        Args:
            level: What an interval promises.

        Returns:
            The smallest and the largest count of every row [N].
        """
        mean = np.maximum(self.mean.double().numpy(), SMALLEST)
        with np.errstate(over="ignore"):  # of next to no variance: infinite, as it is meant
            shape = mean**2 / np.maximum(self.var.double().numpy(), 1e-300)
        ends = []
        for q in ((1 - level) / 2, (1 + level) / 2):
            poisson = scipy.stats.poisson.ppf(q, mean)
            wide = np.minimum(shape, SHARPEST)
            mixed = scipy.stats.nbinom.ppf(q, wide, wide / (wide + mean))
            ends.append(torch.from_numpy(np.where(shape > SHARPEST, poisson, mixed)))
        return ends[0], ends[1]

    def finite(self) -> Tensor:
        """Find the rows whose numbers are finite [N]."""
        return torch.isfinite(self.total) & (self.mean >= 0) & (self.var >= 0)

    def take(self, rows: slice) -> Counts:
        """Take some rows."""
        return Counts(*(leaf[rows].clone() for leaf in self))

    @staticmethod
    def mix(parts: Sequence[Counts], weights: Tensor) -> Counts:
        """Mix distributions, keeping the mean and the variance.

        Args:
            parts: One a member, at the same inputs.
            weights: One number a member [K], which add up to 1.
        """
        means = torch.stack([p.mean for p in parts])
        w = weights.to(means).unsqueeze(1)
        mean = (w * means).sum(0)
        var = (w * (torch.stack([p.var for p in parts]) + (means - mean) ** 2)).sum(0)
        return Counts(mean, var)
