"""Step sizes over a client's training, or over the rounds: progress in [0, 1) → a factor of the rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

Schedule: TypeAlias = Callable[[float | Tensor], float | Tensor]


def constant(progress: float | Tensor) -> float | Tensor:
    """1, all the way.

    Args:
        progress: share of the training that is done, in [0, 1)

    Returns:
        The factor of the rate.

    Example:
        >>> import consilience as co
        >>> co.inference.constant(0.3)
        1.0
    """
    return 1.0


def cosine(progress: float | Tensor) -> float | Tensor:
    """From 1 to 0 along half a cosine.

    Args:
        progress: share of the training that is done, in [0, 1)

    Returns:
        The factor of the rate.

    Example:
        >>> import consilience as co
        >>> [round(co.inference.cosine(t), 2) for t in (0.0, 0.5, 1.0)]
        [1.0, 0.5, 0.0]
    """
    angle = math.pi * progress
    if isinstance(angle, Tensor):
        return 0.5 * torch.cos(angle) + 0.5
    return 0.5 * math.cos(angle) + 0.5


def stepwise(progress: float | Tensor) -> float | Tensor:
    """A tenth from 30 % on and a hundredth from 60 % on: over the rounds, Chen and Chao, ICLR 2021, App. B.2.

    Args:
        progress: share of the rounds that is done, in [0, 1)

    Returns:
        The factor of the rate.

    Example:
        >>> import consilience as co
        >>> [round(float(co.inference.stepwise(t)), 2) for t in (0.0, 0.4, 0.7)]
        [1.0, 0.1, 0.01]
    """
    share = torch.as_tensor(progress)
    return torch.where(share >= 0.6, 0.01, torch.where(share >= 0.3, 0.1, torch.ones_like(share)))
