"""The partial likelihood of times to an event.  Cox, JRSS B 1972; ties as Efron, JASA 1977."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from consilience.distributions.survival import Survival
from consilience.errors import InputError
from consilience.tree import Params


class Order(NamedTuple):
    """Who was at risk when, which does not depend on the weights. Rows are in descending order of their times.

    Attributes:
        rows: The rows in that order [N].
        event: 1 where the time is that of an event, 0 where it is censored [N].
        last: The last row that is as late: all up to it were at risk [N].
        first: The first row of the same time [N].
        share: Which share of the events at the same time has left the risk set already, by Efron [N].
    """

    rows: Tensor
    event: Tensor
    last: Tensor
    first: Tensor
    share: Tensor


def order_times(y: Tensor) -> Order:
    """Sort rows by their times.

    Args:
        y: Times and events [N, 2]. Padding has time 0, which is in nobody's risk set.
    """
    earlier, rows = (-y[:, 0]).sort(stable=True)
    event = y[rows, 1]
    first = torch.searchsorted(earlier, earlier)
    last = torch.searchsorted(earlier, earlier, right=True) - 1
    before = event.cumsum(0) - event  # events that stand before a row
    rank = before - before[first]
    ties = torch.zeros_like(event).index_add(0, first, event)[first]
    return Order(rows, event, last, first, rank / ties.clamp(min=1))


@dataclass(frozen=True)
class Cox:
    """Times to an event: the output is the logarithm of a row's hazard relative to others of its site.

    The likelihood of a site compares the row that has an event with all rows then at risk at that site, so it needs all
    of the site's rows at once, and the sites' baseline hazards may differ: it is stratified by site. Ties are Efron's.

    Attributes:
        times: The grid on which survival curves are given; () for one chosen from the training rows.
        horizon: The time at which risks are held against what was seen; None for the middle of the grid.
    """

    outcome_kind: ClassVar[str] = "survival"
    link: ClassVar[str] = "hazard"  # what a linear model's outputs are, for tables of effects
    by_rows: ClassVar[bool] = False

    times: tuple[float, ...] = ()
    horizon: float | None = None

    def extra(self) -> Params:
        """Return nothing: the partial likelihood has no weights."""
        return {}

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate each event's part of the negative log partial likelihood of these rows [N]."""
        order = order_times(y)
        log_hazard = outputs.reshape(len(y))[order.rows]
        shift = log_hazard.detach().max()
        hazard = (log_hazard - shift).exp()
        at_risk = hazard.cumsum(0)[order.last]
        tied = torch.zeros_like(hazard).index_add(0, order.first, hazard * order.event.to(hazard))[order.first]
        log_sum = (at_risk - order.share.to(hazard) * tied).log() + shift
        terms = torch.where(order.event > 0, log_sum - log_hazard, torch.zeros_like(log_sum))
        return torch.zeros_like(terms).index_copy(0, order.rows, terms)

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Survival:
        """Take the mean and the variance of the members' log-hazards; a curve needs a baseline."""
        risks = outputs.squeeze(-1)
        var = torch.zeros_like(risks[0])
        if len(risks) > 1:
            var = risks.var(0)
        nothing = risks.new_zeros(risks.shape[1], 0)
        return Survival(risks.mean(0), var, nothing, nothing)

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        """Refuse a network without one output a row."""
        if outputs.ndim != 2 or outputs.shape[1] != 1:
            raise InputError(
                f"The model gives outputs of shape {tuple(outputs.shape[1:])} for a row; survival needs (1,), a "
                "log-hazard."
            )
