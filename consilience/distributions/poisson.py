"""The likelihood of counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience.distributions.counts import Counts
from consilience.errors import InputError
from consilience.tree import Params


@dataclass(frozen=True)
class Poisson:
    """Counts: the output is the logarithm of the rate, that of one unit of exposure where rows have an exposure."""

    outcome_kind: ClassVar[str] = "counts"
    link: ClassVar[str] = "log"  # what a linear model's outputs are, for tables of effects
    by_rows: ClassVar[bool] = True

    def extra(self) -> Params:
        """Return nothing: a Poisson has no weights."""
        return {}

    def nll(self, outputs: Tensor, y: Tensor, params: Params) -> Tensor:
        """Evaluate −log p(count | rate) for every row [N]."""
        count, log_exposure = read_counts(y, outputs)
        log_rate = outputs.reshape(count.shape) + log_exposure
        return log_rate.exp() - count * log_rate + torch.lgamma(count + 1)

    def gradients(self, outputs: Tensor, y: Tensor, params: Params) -> tuple[Tensor, Params]:
        """Differentiate `nll`.

        Args:
            outputs: Log-rates [N, 1].
            y: Counts, with exposures where rows have one.

        Returns:
            rate − count, and nothing for weights of its own.
        """
        count, log_exposure = read_counts(y, outputs)
        rate = (outputs.reshape(count.shape) + log_exposure).exp()
        return (rate - count).reshape(outputs.shape), {}

    def outcome(self, outputs: Tensor, members: Sequence[Params]) -> Counts:
        """Take the mean and the variance of the members' rates."""
        rates = outputs.squeeze(-1).exp()
        var = torch.zeros_like(rates[0])
        if len(rates) > 1:
            var = rates.var(0)
        return Counts(rates.mean(0), var)

    def check(self, outputs: Tensor, y: Tensor, classes: int | None) -> None:
        """Refuse a network without one output a row."""
        if outputs.ndim != 2 or outputs.shape[1] != 1:
            raise InputError(
                f"The model gives outputs of shape {tuple(outputs.shape[1:])} for a row; counts need (1,), a log-rate."
            )


def read_counts(y: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cut targets into counts and the logarithms of their exposures.

    Args:
        y: Counts [N], or counts and exposures [N, 2].

    Returns:
        Counts, and log-exposures, 0 where there are none [N]. The exposure of padding, which is 0, counts as 1.
    """
    if y.ndim < 2 or y.shape[-1] == 1:
        count = y.reshape(y.shape[0]).to(like)
        return count, torch.zeros_like(count)
    exposure = y[:, 1].to(like)
    return y[:, 0].to(like), torch.where(exposure > 0, exposure, torch.ones_like(exposure)).log()
