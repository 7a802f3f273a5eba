"""Elliptical slice sampling of many chains side by side.

Murray, Adams and MacKay 2010; around a Gaussian that is not the prior, Nishihara, Murray and Adams 2014.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from consilience.glm.noisy_derivatives import Normal
from consilience.key import Key

TRIES = 40  # for each draw, at most


def draw_slices(target: Callable[[Tensor], Tensor], around: Normal, chains: int, warm_up: int, draws: int) -> Tensor:
    """Draw from a density by elliptical slice sampling; the same numbers every time.

    Every evaluation is a try of all chains, each of which goes on to its next draw when it has found one.

    Args:
        target: Its logarithm, from [S, P] to [S].
        around: A Gaussian near it, which decides how fast it goes and not where.
        chains: How many go side by side.
        warm_up: Draws of each that are thrown away.
        draws: Draws of each that are kept.

    Returns:
        Draws [chains, draws, P]. A chain that finds none within `TRIES` each stays where it is, which `disagreement`
        shows.
    """
    factor = torch.linalg.cholesky(torch.linalg.inv(around.precision))
    count = warm_up + draws
    shape = (chains, count + 1, len(around.mean))
    away, directions = (Key(1).normal(shape, around.mean) @ factor.mT).split([1, count], 1)
    away = away.squeeze(1)
    generator = Key(2).generator()
    each = torch.arange(chains)
    done = torch.zeros(chains, dtype=torch.long)
    drawn = torch.zeros(chains, count, len(around.mean), dtype=torch.float64)

    def toss() -> Tensor:
        return torch.rand(chains, generator=generator, dtype=torch.float64)

    def ratio(away: Tensor) -> Tensor:
        return target(around.mean + away) + 0.5 * (away @ around.precision * away).sum(1)

    least = ratio(away) + (toss() + 1e-300).log()
    angle = 2 * math.pi * toss()
    low, high = angle - 2 * math.pi, angle
    for _ in range(TRIES * count):
        direction = directions[each, done.clamp(max=count - 1)]
        tried = away * angle.cos().unsqueeze(1) + direction * angle.sin().unsqueeze(1)
        height = ratio(tried)
        taken = height > least
        away = torch.where(taken.unsqueeze(1), tried, away)
        new = taken & (done < count)
        drawn[each[new], done[new]] = away[new]
        done = done + taken
        if int(done.min()) >= count:
            break
        low = torch.where(angle < 0, angle, low)
        high = torch.where(angle < 0, high, angle)
        first = 2 * math.pi * toss()
        low = torch.where(taken, first - 2 * math.pi, low)
        high = torch.where(taken, first, high)
        angle = torch.where(taken, first, low + (high - low) * toss())
        least = torch.where(taken, height + (toss() + 1e-300).log(), least)
    unfinished = torch.arange(count) >= done.unsqueeze(1)
    drawn = torch.where(unfinished.unsqueeze(2), away.unsqueeze(1), drawn)
    return around.mean + drawn[:, warm_up:]


def disagreement(drawn: Tensor) -> float:
    """Say how far chains are from drawing from the same (Gelman and Rubin 1992).

    Args:
        drawn: Draws [chains, draws, P].

    Returns:
        R̂ of the weight where it is largest: the deviation of all draws over that within chains; 1, if they agree.
    """
    within = drawn.var(1).mean(0)
    between = drawn.mean(1).var(0)
    return float((1 + between / within).sqrt().max())
