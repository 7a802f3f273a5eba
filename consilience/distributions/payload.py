"""What may leave a site: a posterior, or something that stands for one; and how many bytes that is."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from consilience import tree
from consilience.tree import Tree


class Coreset(NamedTuple):
    """A few weighted pseudo-rows that stand for a site's rows.

    Attributes:
        x: Inputs [M, …].
        y: Targets [M].
        w: Weights [M], each the number of rows that a pseudo-row stands for.
    """

    x: Tensor
    y: Tensor
    w: Tensor


class Logits(NamedTuple):
    """A site's scores on the server's unlabelled inputs.

    Attributes:
        values: One score an input and class [N, C].
    """

    values: Tensor


def nbytes(value: Tree) -> int:
    """Count the bytes of all tensors in a payload, as they are sent.

    Args:
        value: A payload, or any tree.

    Example:
        >>> import torch
        >>> from consilience.distributions.payload import nbytes
        >>> nbytes({"w": torch.zeros(10), "b": torch.zeros(2)})
        48
    """
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(value))


def floats(value: Tree) -> int:
    """Count the numbers in a payload, the unit papers count in.

    Args:
        value: A payload, or any tree.
    """
    return sum(leaf.numel() for leaf in tree.leaves(value))
