"""Fixed-point steps for numbers that are added up: as fine as the agreed bounds allow, so that no sum can overflow.

K sites round each summand to a multiple of a step s, so that their sum is wrong by at most K·s/2. If none of them is
larger than B, their sum is no more than K·B/s steps. With s the smallest power of 2 for which that is at most 2⁶²,
sums stay within 64 bits with a bit to spare. Where B is not known, or known so roughly that s would be larger than
`COARSEST`, s is that, and a larger number than then fits is refused at the site. It never wraps around.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from consilience import tree
from consilience.aggregation.summands import Cells, Counted, Weighed
from consilience.distributions.likelihood import LOG_NOISE
from consilience.distributions.payload import Logits
from consilience.distributions.posterior import Dense, Gaussian, Natural, Point, Samples
from consilience.errors import InputError
from consilience.glm.derivatives import Derivatives
from consilience.glm.sums import Sums
from consilience.privacy.secure_aggregation.fixed_point import LARGEST, decode, encode
from consilience.study.validation.form import leaves_of
from consilience.study.validation.magnitudes import Bounds
from consilience.tree import Params, Tree

COARSEST = 2.0**-20  # about 1e-6: numbers up to 4e12, over the number of sites, can still be written
FINEST = 2.0**-100  # for what is bounded by next to nothing


@dataclass(frozen=True)
class Scales:
    """How numbers are written in fixed point, and what they make up.

    Attributes:
        steps: One for each tensor.
        like: A tree of the same form.
        sites: How many sites add up.
    """

    steps: tuple[float, ...]
    like: Tree
    sites: int

    @property
    def count(self) -> int:
        """How many numbers there are, with the one that counts sites."""
        return 1 + sum(leaf.numel() for _, leaf in leaves_of(self.like))

    @property
    def most(self) -> int:
        """The largest multiple of a step that one site may have."""
        return LARGEST // self.sites

    def to_multiples(self, value: Tree) -> Tensor:
        """Write a site's summands as whole numbers, after a 1 that counts the site.

        Args:
            value: The summands, of the same form.

        Returns:
            Multiples of the steps, int64 [count].

        Raises:
            InputError: A number is too large, or not finite.
        """
        leaves = [leaf for _, leaf in leaves_of(value)]
        parts = [torch.ones(1, dtype=torch.int64)]
        for leaf, step in zip(leaves, self.steps, strict=True):
            if leaf.numel():
                parts.append(encode(leaf.reshape(-1), step, self.most))
        return torch.cat(parts)

    def to_total(self, multiples: Tensor, sites: int) -> Tree:
        """Read the sum of some sites' whole numbers.

        Args:
            multiples: Their sum, int64 [count].
            sites: How many were added.

        Returns:
            The total, each number within `sites` · step / 2 of the sum of what the sites had, and double precision.

        Raises:
            InputError: It cannot be their sum.
        """
        most = sites * self.most
        if int(multiples[0]) != sites or not bool(((multiples >= -most) & (multiples <= most)).all()):
            raise InputError(
                "The masks do not cancel: a reply is masked for other sites, or was changed; ask every site for its "
                "file again."
            )
        parts = iter(multiples[1:].split([leaf.numel() for _, leaf in leaves_of(self.like)]))
        steps = iter(self.steps)
        return tree.map(lambda leaf: decode(next(parts), next(steps)).reshape(leaf.shape), self.like)


def scales_of(summands: Tree, bounds: Bounds | None, rows: int, sites: int) -> Scales:
    """Choose the steps for summands; their numbers are not looked at.

    Args:
        summands: Of a site, real or invented; their kinds and shapes decide.
        bounds: What an honest site's numbers cannot exceed; None where nothing was agreed to know it by.
        rows: The most rows that any of the sites has.
        sites: How many add up.
    """
    limits = (math.inf for _ in leaves_of(summands))
    if bounds is not None:
        limits = (limit for limit, _ in _limits(summands, bounds, rows))
    return Scales(tuple(step_for(limit, sites) for limit in limits), summands, sites)


def step_for(limit: float, sites: int) -> float:
    """Choose the step for numbers up to a bound.

    Args:
        limit: The bound; infinite where there is none.
        sites: How many add up.

    Returns:
        The smallest power of 2 with which the sum fits, from `FINEST` to `COARSEST`.
    """
    if not limit * sites < COARSEST * LARGEST:
        return COARSEST
    return max(FINEST, 2.0 ** math.ceil(math.log2(max(limit, FINEST) / (LARGEST // sites))))


def _limits(value: Tree, bounds: Bounds, rows: int) -> Iterator[tuple[float, Tensor]]:
    """Every tensor with what bounds a site's, in the order of `leaves_of`."""
    match value:
        case Weighed(size, inner):
            yield float(rows), size
            for limit, leaf in _limits(inner, bounds, rows):
                yield rows * limit, leaf
        case Counted(size, inner):
            yield float(rows), size
            yield from _limits(inner, bounds, rows)
        case Cells():
            yield from ((math.inf, leaf) for leaf in value)
        case Point() | Samples() | Gaussian() | Dense() | Natural():
            yield from _posterior(value, bounds, rows)
        case Sums():
            limits = (rows, bounds.gradient_sum(rows), bounds.gram(rows), rows * max(1.0, bounds.target) ** 2, math.inf)
            yield from zip(map(float, limits), value, strict=True)
        case Derivatives(loss) if isinstance(loss, Tensor):
            yield rows * bounds.score(rows), loss
            yield bounds.gradient_sum(rows), value.gradient
            yield bounds.curvature(rows), value.curvature
        case Logits(values):
            yield bounds.score(rows), values
        case Tensor():
            yield rows * bounds.score(rows), value
        case Mapping():
            yield from ((bounds.step(rows), leaf) for _, leaf in leaves_of(dict(value)))
        case tuple():
            for child in value:
                yield from _limits(child, bounds, rows)


def _posterior(value: Tree, bounds: Bounds, rows: int) -> Iterator[tuple[float, Tensor]]:
    """Weights, Gaussians over them, and factors of such."""
    match value:
        case Point(params) | Samples(params):
            yield from _weights(params, bounds, rows)
        case Gaussian(mean, var):
            yield from _weights(mean, bounds, rows)
            yield from ((max(100.0, 2 * bounds.norm(rows) ** 2), leaf) for leaf in var.values())
        case Dense() | Natural():
            yield from _gaussian(value, bounds, rows)


def _weights(params: Params, bounds: Bounds, rows: int) -> Iterator[tuple[float, Tensor]]:
    """Weights; nothing is known of running statistics."""
    for name, leaf in params.items():
        limit = bounds.norm(rows)
        if name in bounds.statistics:
            limit = math.inf
        elif name == LOG_NOISE:
            limit = bounds.log_noise()
        yield limit, leaf


def _gaussian(value: Dense | Natural, bounds: Bounds, rows: int) -> Iterator[tuple[float, Tensor]]:
    """A vector or what is linear in the weights first, then precisions."""
    noise = bounds.noise or math.exp(-bounds.log_noise())
    trace = bounds.trace(rows, noise)
    first, precision = value
    limit = bounds.norm(rows)
    if isinstance(value, Natural):
        limit = trace * bounds.norm(rows)
    yield from ((limit, leaf) for _, leaf in leaves_of(first))
    yield from ((trace, leaf) for _, leaf in leaves_of(precision))
