"""The feature map of tables: piecewise linear functions of each number beside random waves over the row."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from consilience.errors import InputError
from consilience.key import Key
from consilience.models.convolutions import check_width

LEVELS = tuple(0.02 + 0.12 * i for i in range(9))  # of the quantiles that a column is known by
SCORES = tuple(NormalDist().inv_cdf(level) for level in LEVELS)  # those of a column that is normal
STEPS = (1, 2, 4)  # every so many quantiles a hat: fewer and wider ones where columns are many
MOST_INPUTS = 1 << 16

Knots = Sequence[Sequence[float]]


class Hats(nn.Module):
    """x, hats at quantiles of each number, and √2·cos(Wx + b), the waves of `RandomFourier`.

    A hat is 1 at one quantile, 0 at the next ones and straight between, so that a linear layer learns a broken line of
    every number: a generalised additive model. Waves add what numbers say only together.

    Args:
        inputs: d, the numbers of a row, on scaled columns.
        outputs: How many features there are in all; hats are at most half of those beside x.
        knots: The quantiles at `LEVELS` of each number; none where it has no hats, such as a category's ones and
            zeros. Left out, every column is taken to be normal.
        scale: The length-scale of waves is scale·√d.
        seed: What W and b are drawn from.

    Raises:
        InputError: There are too many features, the scale is not above 0, or quantiles fall.
    """

    own: Tensor
    hat: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, outputs: int, knots: Knots = (), scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        check_width(outputs)
        if not 0 < scale < math.inf:
            raise InputError(f"scale={scale}: a length-scale is a number above 0.")
        self.inputs = inputs
        self.outputs = outputs
        if type(inputs) is not int or not 0 < inputs <= MOST_INPUTS:
            raise InputError(f"Hats on rows of {inputs} numbers cannot be: take 1 to {MOST_INPUTS:,}.")
        self.knots = tuple(tuple(float(knot) for knot in own) for own in knots) or (SCORES,) * inputs
        _check(self.knots, inputs)
        self.scale = scale
        self.seed = seed
        self.plain = inputs * (2 * inputs <= outputs)
        hats = _place_hats(self.knots, (outputs - self.plain) // 2)
        like = torch.empty(0, dtype=torch.float64)
        count = outputs - self.plain - len(hats)
        weight = Key(seed).fold(0).normal((count, inputs), like) / (scale * math.sqrt(inputs))
        self.register_buffer("weight", weight.float(), persistent=False)
        self.register_buffer("bias", (2 * math.pi * Key(seed).fold(1).uniform(count, like)).float(), persistent=False)
        self.register_buffer("own", torch.tensor([j for j, _ in hats], dtype=torch.int64), persistent=False)
        places = torch.tensor([places for _, places in hats], dtype=torch.float64).reshape(-1, 3)
        self.register_buffer("hat", places, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows.

        Args:
            x: [N, …], flattened.

        Returns:
            Features [N, outputs].
        """
        x = x.flatten(1)
        waves = math.sqrt(2) * torch.cos(linear(x, self.weight.to(x), self.bias.to(x)))
        before, top, after = self.hat.to(x).unbind(1)
        values = x[:, self.own]
        rising = torch.where(before < top, (values - before) / (top - before).clamp(min=1e-30), 1.0)
        falling = torch.where(top < after, (after - values) / (after - top).clamp(min=1e-30), 1.0)
        return torch.cat([x[:, : self.plain], torch.minimum(rising, falling).clamp(0, 1), waves], 1)

    def extra_repr(self) -> str:
        """Return the arguments that build it again; of quantiles, which are many, the hash."""
        digest = hashlib.sha256(repr(self.knots).encode()).hexdigest()[:16]
        return f"{self.inputs}, {self.outputs}, knots={digest}, scale={self.scale}, seed={self.seed}"


def _check(knots: Knots, inputs: int) -> None:
    if len(knots) != inputs or any(len(own) not in (0, len(LEVELS)) for own in knots):
        raise InputError(f"A row has {inputs} numbers: give each its {len(LEVELS)} quantiles, or none.")
    for own in knots:
        if any(not math.isfinite(knot) for knot in own) or any(a > b for a, b in pairwise(own)):
            raise InputError(f"Quantiles {tuple(own)} are no numbers that rise: give a column's quantiles in order.")


def _place_hats(knots: Knots, most: int) -> list[tuple[int, tuple[float, float, float]]]:
    """Each hat's column, and where it begins, is 1 and ends; one at an end stays 1 beyond it."""
    for step in STEPS:
        hats = []
        for column, own in enumerate(knots):
            places = list(dict.fromkeys(own[::step]))  # of quantiles that fall together, one
            if len(places) > 2:
                ends = zip([places[0], *places[:-1]], places, [*places[1:], places[-1]], strict=True)
                hats += [(column, end) for end in ends]
        if len(hats) <= most:
            return hats
    return []
