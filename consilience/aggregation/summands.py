"""Replies as numbers that are added up, and totals as what `aggregate` needs: nobody has to see a single reply.

A method that is a sum names its `Summation`. `split` turns a reply into numbers that are added up over sites, in the
open or under masks; `join` turns the total into replies from which `aggregate` makes what it would have made of the
sites' own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.aggregation.merging import Rule, aalv, cf, eaa, gaa, ppa
from consilience.distributions.posterior import Dense, Gaussian, Natural, natural
from consilience.messages import Received
from consilience.tree import Tree


class Counted(NamedTuple):
    """Summands of which every site has one.

    Attributes:
        rows: nₖ.
        value: xₖ.
    """

    rows: Tensor
    value: Tree


class Weighed(NamedTuple):
    """Summands that count by the rows behind them.

    Attributes:
        rows: nₖ.
        value: nₖ xₖ.
    """

    rows: Tensor
    value: Tree


class Cells(NamedTuple):
    """Counts, with noise or without: no bound is agreed for them, and their steps are those of noise.

    Attributes:
        values: Of every cell.
        groups: 1 where rows stand behind them, else 0.
    """

    values: Tensor
    groups: Tensor


class Summation(ABC):
    """How a method's replies are added up."""

    @abstractmethod
    def split(self, send: Tree, size: Tensor) -> Tree:
        """Turn a reply into summands.

        Args:
            send: What the method would send.
            size: How many rows stand behind it.

        Returns:
            A tree of numbers in double precision; `Counted` and `Weighed` say which of them rows multiply.
        """

    @abstractmethod
    def join(self, total: Any, sites: int, like: Tree) -> list[Received]:
        """Turn the sum over sites into what `aggregate` needs.

        Args:
            total: The sum of the sites' summands.
            sites: How many were summed.
            like: What a site sends, for its types.

        Returns:
            Replies from which `aggregate` makes the same as from the sites' own.
        """


def unchanged(value: Tree) -> Tree:
    """Take what is sent as it is.

    Args:
        value: What is sent, in double precision.

    Returns:
        The same.
    """
    return value


@dataclass(frozen=True)
class Total(Summation):
    """Sums that are wanted as they are: one reply of all rows.

    Attributes:
        forward: From what is sent to what is added up.
    """

    forward: Callable[[Any], Tree] = unchanged

    def split(self, send: Tree, size: Tensor) -> Counted:
        """Turn a reply into summands.

        Args:
            send: What the method would send.
            size: How many rows stand behind it.

        Returns:
            The numbers in double precision.
        """
        return Counted(_double(size), self.forward(tree.map(_double, send)))

    def join(self, total: Counted, sites: int, like: Tree) -> list[Received]:
        """Turn the sum over sites into what `aggregate` needs.

        Args:
            total: The sum of the sites' summands.
            sites: How many were summed.
            like: What a site sends, for its types.

        Returns:
            One reply with the total.
        """
        return [Received(0, total.rows, total.value)]


def fold_total(replies: Sequence[Received]) -> list[Received]:
    """Fold replies of which only Σₖ payloadₖ matters into one of all rows.

    Args:
        replies: What the server received.

    Returns:
        One reply with the sum of the payloads in double precision; none where there is none.
    """
    if not replies:
        return []
    how = Total()
    summands = [how.split(reply.payload, reply.size) for reply in replies]
    total = tree.map(lambda *leaves: torch.stack(leaves).sum(0), *summands)
    return how.join(total, len(replies), replies[0].payload)


@dataclass(frozen=True)
class Mean(Summation):
    """Replies of which the mean is all that matters: it comes once for each site.

    Attributes:
        equal: Whether every site counts the same, and not by its rows.
        forward: From what is sent to what is averaged.
        backward: Its inverse.
    """

    equal: bool = False
    forward: Callable[[Any], Tree] = unchanged
    backward: Callable[[Any], Tree] = unchanged

    def split(self, send: Tree, size: Tensor) -> Counted | Weighed:
        """Turn a reply into summands.

        Args:
            send: What the method would send.
            size: How many rows stand behind it.

        Returns:
            The numbers in double precision, times the rows unless all sites count the same.
        """
        rows = _double(size)
        value = self.forward(tree.map(_double, send))
        if self.equal:
            return Counted(rows, value)
        return Weighed(rows, tree.scale(value, rows))

    def join(self, total: Counted | Weighed, sites: int, like: Tree) -> list[Received]:
        """Turn the sum over sites into what `aggregate` needs.

        Args:
            total: The sum of the sites' summands.
            sites: How many were summed.
            like: What a site sends, for its types.

        Returns:
            The mean, once for each site.
        """
        weight = 1 / total.rows
        if self.equal:
            weight = torch.ones_like(total.rows) / sites
        mean = self.backward(tree.scale(total.value, weight))
        typed = tree.map(lambda leaf, own: leaf.to(own.dtype), in_order(mean, like), like)
        return [Received(k, total.rows / sites, typed) for k in range(sites)]


@dataclass(frozen=True)
class Each(Summation):
    """Replies of several parts, each summed in its own way.

    Attributes:
        parts: How each part of what is sent is summed.
    """

    parts: tuple[Mean, ...]

    def split(self, send: Any, size: Tensor) -> tuple[Tree, ...]:
        """Turn a reply into summands.

        Args:
            send: What the method would send.
            size: How many rows stand behind it.

        Returns:
            The summands of each part.
        """
        return tuple(part.split(own, size) for part, own in zip(self.parts, send, strict=True))

    def join(self, total: Any, sites: int, like: Any) -> list[Received]:
        """Turn the sum over sites into what `aggregate` needs.

        Args:
            total: The sum of the sites' summands.
            sites: How many were summed.
            like: What a site sends, for its types.

        Returns:
            The parts' means together, once for each site.
        """
        joined = [part.join(own, sites, one) for part, own, one in zip(self.parts, total, like, strict=True)]
        by_site = zip(*joined, strict=True)
        return [Received(k, of[0].size, tuple(part.payload for part in of)) for k, of in enumerate(by_site)]


def in_order(value: Tree, like: Tree) -> Tree:
    """Give the entries of dicts the order they have elsewhere, as vectors of weights are in the order of names.

    Args:
        value: A tree of tensors.
        like: The same tree, with the order that is wanted.

    Returns:
        The same value.
    """
    if isinstance(value, dict):
        return {name: in_order(value[name], child) for name, child in like.items()}
    if not isinstance(value, tuple):
        return value
    children = [in_order(child, other) for child, other in zip(value, like, strict=True)]
    if hasattr(value, "_fields"):
        return type(value)(*children)
    return tuple(children)


def to_natural(posterior: Gaussian | Dense) -> tuple[Natural, Tree]:
    """Write a Gaussian by what adds when densities multiply.

    Args:
        posterior: A diagonal or a dense Gaussian.

    Returns:
        Its natural parameters, and the weights that are points.
    """
    if isinstance(posterior, Dense):
        return natural(posterior), {}
    return natural(posterior), {name: m for name, m in posterior.mean.items() if name not in posterior.var}


def of_natural(value: tuple[Natural, Any]) -> Gaussian | Dense:
    """Undo `to_natural`.

    Args:
        value: Natural parameters, and the weights that are points.
    """
    (linear, precision), points = value
    if isinstance(precision, Tensor):
        return Dense(torch.linalg.solve(precision, linear), precision)
    mean = {**points, **{name: linear[name] / p for name, p in precision.items()}}
    return Gaussian(mean, {name: 1 / p for name, p in precision.items()})


def with_log_variances(posterior: Gaussian) -> Gaussian:
    """Put the logarithms of variances in their place.

    Returns:
        Means and log-variances.
    """
    return Gaussian(posterior.mean, {name: v.log() for name, v in posterior.var.items()})


def of_log_variances(value: Gaussian) -> Gaussian:
    """Undo `with_log_variances`."""
    return Gaussian(value.mean, {name: v.exp() for name, v in value.var.items()})


def with_squares(posterior: Gaussian) -> Gaussian:
    """Put mean squares in the place of variances."""
    return Gaussian(posterior.mean, {name: v + posterior.mean[name] ** 2 for name, v in posterior.var.items()})


def of_squares(value: Gaussian) -> Gaussian:
    """Undo `with_squares`.

    Args:
        value: Means and mean squares.

    Returns:
        The Gaussian; a variance that rounding made negative stays so, to be refused.
    """
    return Gaussian(value.mean, {name: v - value.mean[name] ** 2 for name, v in value.var.items()})


PRODUCT = Mean(True, to_natural, of_natural)  # of Gaussians


def merging(rule: Rule, equal: bool) -> Summation | None:
    """Say how a rule that merges Gaussians is a sum of two moments.

    Args:
        rule: How Gaussians are merged.
        equal: Whether every client counts the same.

    Returns:
        The summation; None where there is none, as the largest share is no sum (`cf`), nor are squared ones (`gaa`).
    """
    if rule is aalv:
        return Mean(equal, with_log_variances, of_log_variances)
    if rule is ppa:
        return Mean(equal, with_squares, of_squares)
    if rule is eaa or (rule is gaa and equal):
        return Mean(equal)
    if rule is cf and equal:
        return PRODUCT
    return None


def _double(leaf: Tensor) -> Tensor:
    return torch.as_tensor(leaf).detach().double()
