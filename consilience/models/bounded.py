"""Features of bounded length: what makes a row's part in a sum something that noise can hide."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from consilience.errors import InputError
from consilience.models.convolutions import Convolutions


class Bounded(nn.Module):
    """Features divided by their length, so that no row's are longer than 1. Every constant is agreed, none is a row's.

    Args:
        length: R: features are divided by max(R, their length). With 0 every row's become exactly as long as 1.
        groups: Features whose numbers leave the same remainder are a group, and each row's mean over a group is taken
            off first: what all rows share then takes no room. 0: nothing is taken off.

    Raises:
        InputError: The length bounds nothing.
    """

    def __init__(self, length: float = 0.0, groups: int = 0) -> None:
        super().__init__()
        if not 0 <= length < math.inf or type(groups) is not int or groups < 0:
            raise InputError(f"Features are not clipped by length={length}, groups={groups}: give numbers from 0.")
        self.length = float(length)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        """Bound features.

        Args:
            x: [N, …], flattened.

        Returns:
            The same, no longer than 1 up to rounding [N, D].
        """
        x = x.flatten(1)
        if self.groups:
            x = x - self._means(x)
        if not self.length:
            return normalize(x, dim=1, eps=1e-12)
        bounded: Tensor = x / x.norm(dim=1, keepdim=True).clamp(min=self.length)
        return bounded

    def _means(self, x: Tensor) -> Tensor:
        """Each row's mean over the group that a feature is in [N, D]."""
        group = torch.arange(x.shape[1], device=x.device) % self.groups
        member = torch.nn.functional.one_hot(group, self.groups).to(x)
        return (x @ member / member.sum(0).clamp(min=1)) @ member.mT

    def extra_repr(self) -> str:
        """Return the arguments that build it again."""
        return f"{self.length}, {self.groups}"


def usual_bound(feature_map: nn.Module, width: int) -> Bounded:
    """Choose how features are bounded by the kind of their map.

    Args:
        feature_map: What makes them of a row.
        width: D, how many there are.

    Returns:
        For random convolutions, all rows at length 1 without their mean over the filters in each cell; for others, at
        most √D, the usual length of D scaled columns.
    """
    if isinstance(feature_map, Convolutions):
        return Bounded(0.0, feature_map.grid**2)
    return Bounded(math.sqrt(width))
