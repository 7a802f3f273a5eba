"""What may leave a site: a posterior, or something that stands for one; and how many bytes that is."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from torch import Tensor

from consilience import tree
from consilience.posterior import Posterior
from consilience.tree import Tree


class Coreset(NamedTuple):
    x: Tensor
    y: Tensor
    w: Tensor


class Logits(NamedTuple):
    values: Tensor  # on the server's inputs


Payload: TypeAlias = Posterior | Coreset | Logits


def nbytes(value: Tree) -> int:
    """Bytes of all tensors in a payload, as they are sent."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree.leaves(value))


def floats(value: Tree) -> int:
    """How many numbers that is, the unit papers count in."""
    return sum(leaf.numel() for leaf in tree.leaves(value))
