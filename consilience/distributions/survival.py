"""Times to an event: how the hazards of rows compare, and with a baseline, survival curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(9)  # for means over a Normal log-hazard
FARTHEST = 700.0  # a log-hazard whose ratio can still be written
SURE = 1e-12  # variance of a log-hazard that stands for none


def _ratio(log_hazard: Tensor) -> Tensor:
    """How many times the baseline a hazard is; finite, so that nothing happens where the baseline is 0."""
    return log_hazard.clamp(max=FARTHEST).exp()


class Survival(NamedTuple):
    """A distribution over the time to an event for every row.

    Targets are times and events [N, 2]: 1 where the time is that of the event, 0 where nobody looked for longer.

    Attributes:
        risk: The mean log-hazard relative to the baseline [N].
        var: Its variance, from not knowing the weights [N].
        hazard: The cumulative baseline hazard at each time [N, T]; T is 0 before there is a baseline.
        times: The times [N, T].
    """

    risk: Tensor
    var: Tensor
    hazard: Tensor
    times: Tensor

    @property
    def curves(self) -> Tensor:
        """S(t | x) at each time, averaged over the log-hazard [N, T]."""
        risk = self.risk.double().unsqueeze(1)
        if float(self.var.max()) <= SURE:
            return torch.exp(-self.hazard.double() * _ratio(risk))
        deviation = self.var.double().clamp(min=0).sqrt().unsqueeze(1)
        total = torch.zeros_like(self.hazard, dtype=torch.float64)
        for node, weight in zip(NODES.tolist(), (WEIGHTS / WEIGHTS.sum()).tolist(), strict=True):
            total = total + weight * torch.exp(-self.hazard.double() * _ratio(risk + node * deviation))
        return total

    def on(self, times: Tensor, hazard: Tensor) -> Survival:
        """Put the rows on a baseline.

        Args:
            times: A grid [T].
            hazard: The cumulative baseline hazard there [T].

        Returns:
            The same rows with survival curves.
        """
        shape = (len(self.risk), len(times))
        return Survival(self.risk, self.var, hazard.to(self.risk).expand(shape), times.to(self.risk).expand(shape))

    def log_prob(self, y: Tensor) -> Tensor:
        """Evaluate the log-probability of what was seen, on the grid's intervals.

        An event counts by the interval it lies in, a censored time by its interval's start; later than the grid, all
        that is known is that there was no event on it. Without a baseline nothing can be said: NaN.

        Args:
            y: Times and events [N, 2].

        Returns:
            Log-probabilities [N].
        """
        if not self.times.shape[1]:
            return torch.full_like(self.risk, torch.nan)
        curves = torch.cat([torch.ones(len(y), 1, dtype=torch.float64, device=self.risk.device), self.curves], 1)
        place = (self.times.double() < y[:, :1].double()).sum(1, keepdim=True)  # of the last grid point before the time
        before = curves.gather(1, place).squeeze(1)
        within = place.squeeze(1) < self.times.shape[1]
        after = curves.gather(1, (place + 1).clamp(max=self.times.shape[1])).squeeze(1)
        seen = (y[:, 1] > 0) & within
        return torch.where(seen, before - after, before).clamp(min=1e-300).log().to(self.risk)

    def temper(self, t: float) -> Survival:
        """Return the same: a temperature is not fitted to curves."""
        return self

    def finite(self) -> Tensor:
        """Find the rows whose numbers are finite [N]."""
        return torch.isfinite(self.risk) & torch.isfinite(self.var) & torch.isfinite(self.hazard).all(1)

    def take(self, rows: slice) -> Survival:
        """Take some rows."""
        return Survival(*(leaf[rows].clone() for leaf in self))

    @staticmethod
    def mix(parts: Sequence[Survival], weights: Tensor) -> Survival:
        """Mix distributions, keeping the mean and the variance of the log-hazard.

        Args:
            parts: One a member, at the same inputs and on the same baseline.
            weights: One number a member [K], which add up to 1.
        """
        risks = torch.stack([p.risk for p in parts])
        w = weights.to(risks).unsqueeze(1)
        risk = (w * risks).sum(0)
        var = (w * (torch.stack([p.var for p in parts]) + (risks - risk) ** 2)).sum(0)
        return parts[0]._replace(risk=risk, var=var)
