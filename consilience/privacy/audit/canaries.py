"""Rows made to be noticed: an audit puts half of them among a site's own rows and looks for them in what leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.key import Key

FAR = 4.0  # SDs of the target from its mean, for an outcome that no model expects


def wrong_outcomes(data: Data, classes: int | None, count: int, key: Key) -> Data:
    """Give rows that look real an outcome that is not theirs: another class, or a number far from the others.

    Args:
        data: Rows to look like.
        classes: How many there are; None for numbers.
        count: How many rows to make; rows come again where there are more than that in `data`.

    Returns:
        The canaries.
    """
    order = torch.cat([key.fold(i).permutation(len(data.y)) for i in range(-(-count // len(data.y)))])[:count]
    y = data.y[order]
    if classes is None:
        signs = torch.where(key.fold(-1).uniform(count) < 0.5, -1.0, 1.0).to(y)
        spread = FAR * data.y.std(0, correction=0).clamp(min=1e-6)
        y = data.y.mean(0) + signs.reshape(-1, *[1] * (y.ndim - 1)) * spread
    elif classes > 1:
        y = (y + 1 + (key.fold(-1).uniform(count) * (classes - 1)).long().clamp(max=classes - 2)) % classes
    return Data.of(data.x[order], y)


def corners(low: Tensor, high: Tensor, classes: int | None, count: int, key: Key) -> Data:
    """Draw rows whose every feature lies at one end of its range or the other, with outcomes drawn by lot.

    Args:
        low: The lowest value of each feature, of the shape of a row.
        classes: How many there are; None for numbers, which are −1 or 1.
        count: How many rows to make.

    Returns:
        The canaries.

    Raises:
        InputError: A range is empty.
    """
    if not bool((low <= high).all()):
        raise InputError("A feature's lowest value lies above its highest: exchange them.")
    coins = key.fold(0).uniform(count * low.numel()).reshape(count, *low.shape)
    x = torch.where(coins < 0.5, low, high)
    chance = key.fold(1).uniform(count)
    if classes is None:
        return Data.of(x, torch.where(chance < 0.5, -1.0, 1.0).to(x))
    return Data.of(x, (chance * classes).long().clamp(max=classes - 1))
