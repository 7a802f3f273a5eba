"""What a value looks like: its names, types and shapes, and the kinds of value inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from consilience.tree import Tree

FREE = -1  # a dimension that the rows of a site decide


class Leaf(NamedTuple):
    """One tensor's look.

    Attributes:
        dtype: The type of its numbers, such as `float32`.
        shape: Its dimensions; `FREE` where the rows of a site decide.
    """

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        dimensions = ", ".join(str(n) for n in self.shape).replace(str(FREE), "any")
        return f"({dimensions}) of {self.dtype}"

    def fits(self, other: Leaf) -> bool:
        """Say whether another leaf has this type and shape.

        Args:
            other: The leaf of a value that was received.
        """
        if self.dtype != other.dtype or len(self.shape) != len(other.shape):
            return False
        return all(n in (FREE, m) for n, m in zip(self.shape, other.shape, strict=True))


class Form(NamedTuple):
    """What a value looks like.

    Attributes:
        outline: The structure around the tensors: types, names and their order.
        leaves: The look of every tensor, by its path.
        counts_everyone: Whether class counts add up to the size, as in a rehearsal; else they may be fewer.
    """

    outline: str
    leaves: dict[str, Leaf]
    counts_everyone: bool = False


class Range(NamedTuple):
    """What one tensor holds.

    Attributes:
        path: Where it stands, such as `send.params.0.weight`.
        shape: Its dimensions.
        dtype: The type of its numbers.
        nbytes: Its size.
        low: The smallest number; 0 where there are none.
        high: The largest number; 0 where there are none.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    low: float
    high: float


def form_of(value: Tree) -> Form:
    """Describe a value.

    Args:
        value: A tree of tensors.
    """
    leaves = {path: Leaf(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for path, t in leaves_of(value)}
    return Form(_outline(value), leaves)


def merge_forms(first: Form, second: Form) -> Form | None:
    """Free the dimensions in which two forms differ.

    Args:
        first: The form of a reply to a message.
        second: The form of a reply to the same message from another number of rows.

    Returns:
        The form both share, or None where they are put together differently.
    """
    if first.outline != second.outline:
        return None
    leaves = {}
    for path, leaf in first.leaves.items():
        other = second.leaves[path]
        if leaf.dtype != other.dtype or len(leaf.shape) != len(other.shape):
            return None
        pairs = zip(leaf.shape, other.shape, strict=True)
        leaves[path] = Leaf(leaf.dtype, tuple(n if n == m else FREE for n, m in pairs))
    return Form(first.outline, leaves, first.counts_everyone and second.counts_everyone)


def leaves_of(value: Tree, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Walk through every tensor with its path, such as `posterior.params.0.weight`.

    Args:
        value: A tree of tensors.
        path: Where the value stands in a larger one.

    Yields:
        Path and tensor.
    """
    if isinstance(value, Tensor):
        yield path, value
    for name, child in _children(value):
        yield from leaves_of(child, f"{path}.{name}".removeprefix("."))


def counts_of(value: Tree) -> list[Tensor]:
    """Find the class counts in a value: the tensors named `counts`.

    Args:
        value: A tree of tensors.
    """
    return [leaf for path, leaf in leaves_of(value) if path.split(".")[-1] == "counts"]


def kinds_of(value: Tree) -> tuple[str, ...]:
    """List the types of value inside by name, as a study lists them under `leaves`.

    Args:
        value: A tree of tensors.

    Returns:
        The names in order; `numbers` where there are tensors alone.
    """
    kinds = {type(node).__name__ for node in nodes_of(value) if hasattr(node, "_fields")}
    return tuple(sorted(kinds)) or ("numbers",)


def nodes_of(value: Tree) -> Iterator[Tree]:
    """Walk through a value and all that is inside it.

    Args:
        value: A tree of tensors.

    Yields:
        The value, then its parts, from the outside to the inside.
    """
    yield value
    for _, child in _children(value):
        yield from nodes_of(child)


def ranges(value: Tree) -> list[Range]:
    """Describe every tensor inside a value.

    Args:
        value: A tree of tensors.
    """
    return [_range(path, leaf) for path, leaf in leaves_of(value)]


def _range(path: str, leaf: Tensor) -> Range:
    low = high = 0.0
    if leaf.numel():
        low = float(leaf.min())
        high = float(leaf.max())
    dtype = str(leaf.dtype).removeprefix("torch.")
    return Range(path, tuple(leaf.shape), dtype, leaf.numel() * leaf.element_size(), low, high)


def _children(value: Tree) -> list[tuple[str, Tree]]:
    """The named parts of a dict or tuple; anything else has none."""
    if isinstance(value, dict):
        return [(str(name), child) for name, child in value.items()]
    if isinstance(value, tuple):
        names = getattr(value, "_fields", range(len(value)))
        return [(str(name), child) for name, child in zip(names, value, strict=True)]
    return []


def _outline(value: Tree) -> str:
    """The structure as text, with a star for every tensor."""
    if isinstance(value, Tensor):
        return "*"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_outline(child)}" for name, child in value.items()) + "}"
    if isinstance(value, tuple):
        return f"{type(value).__name__}({', '.join(map(_outline, value))})"
    return repr(value)
