"""Arithmetic on trees of tensors: dicts, tuples and named tuples whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # the registry torch.func itself walks

Tree: TypeAlias = Any  # a tensor, or a dict, tuple or named tuple of trees; () is nothing
Params: TypeAlias = dict[str, Tensor]


def leaves(tree: Tree) -> list[Tensor]:
    """List a tree's tensors, depth first."""
    return pytree.tree_leaves(tree)


def map(f: Callable[..., Any], *trees: Tree) -> Tree:
    """Apply a function leaf by leaf.

    Args:
        f: Takes one leaf of every tree.
        *trees: Trees of the same structure.

    Returns:
        A tree of that structure with f's results.
    """
    return pytree.tree_map(f, *trees)


def add(a: Tree, b: Tree) -> Tree:
    """Add two trees, leaf by leaf.

    Args:
        b: A tree of the same structure.

    Returns:
        a + b.
    """
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """Subtract two trees, leaf by leaf.

    Args:
        b: A tree of the same structure.

    Returns:
        a − b.
    """
    return map(torch.sub, a, b)


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    """Multiply every leaf by one factor.

    Args:
        factor: A number or a scalar tensor.
    """
    return map(lambda leaf: leaf * factor, tree)


def zeros_like(tree: Tree) -> Tree:
    """Make a tree of zeros.

    Args:
        tree: Gives structure, shapes, types and devices.

    Returns:
        A tree of the same form.
    """
    return map(torch.zeros_like, tree)


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    """Choose between two trees, leaf by leaf.

    Args:
        condition: Broadcasts against every leaf.
        a: What is taken where the condition holds.
        b: What is taken elsewhere; of the same structure.

    Returns:
        A tree of that structure.
    """
    return map(lambda x, y: torch.where(condition, x, y), a, b)


def stack(trees: Sequence[Tree]) -> Tree:
    """Stack trees along a new first dimension of every leaf.

    Args:
        trees: Trees of the same structure and shapes.

    Returns:
        One tree with leaves [len(trees), …].
    """
    return map(lambda *xs: torch.stack(xs), *trees)


def unstack(tree: Tree, count: int) -> list[Tree]:
    """Undo `stack`.

    Args:
        tree: A tree with leaves [count, …].
        count: How many trees are stacked.

    Returns:
        The trees, as views.
    """
    stacked, spec = pytree.tree_flatten(tree)
    parts = [leaf.unbind() for leaf in stacked]
    return [pytree.tree_unflatten([part[k] for part in parts], spec) for k in range(count)]


def mean(trees: Sequence[Tree], weights: Tensor) -> Tree:
    """Average trees, leaf by leaf.

    Args:
        trees: Trees of the same structure.
        weights: One number a tree [K]; normalised here.

    Returns:
        Σ wₖ treeₖ.

    Example:
        >>> import torch
        >>> from consilience import tree
        >>> trees = [{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}]
        >>> tree.mean(trees, torch.tensor([0.25, 0.75]))["w"].item()
        3.0
    """
    w = weights / weights.sum()
    return map(lambda *xs: sum(wk.to(x) * x for wk, x in zip(w, xs, strict=True)), *trees)


def all_finite(tree: Tree) -> bool:
    """Say whether a tree holds finite numbers only.

    Returns:
        True if no leaf holds an infinity or NaN.
    """
    return all(finite(leaf) for leaf in leaves(tree))


def finite(leaf: Tensor) -> bool:
    """Say whether a tensor holds finite numbers only; a finite sum says so in a tenth of the time.

    Args:
        leaf: Any tensor of numbers.

    Returns:
        True if it holds no infinity and no NaN.
    """
    return bool(torch.isfinite(leaf.sum())) or bool(torch.isfinite(leaf).all())


def ravel(params: Params, batch_dims: int = 0) -> Tensor:
    """Lay all leaves into one vector, in the order of their names in the dict.

    Args:
        batch_dims: How many leading dimensions of every leaf stay.

    Returns:
        A tensor […, P].

    Example:
        >>> import torch
        >>> from consilience import tree
        >>> tree.ravel({"w": torch.zeros(2, 3), "b": torch.zeros(3)}).shape
        torch.Size([9])
    """
    return torch.cat([p.flatten(batch_dims) for p in params.values()], dim=-1)


def unravel(vector: Tensor, like: Params) -> Params:
    """Undo `ravel`; leading dimensions stay.

    Args:
        vector: A tensor […, P].
        like: Gives names, order and shapes.

    Returns:
        Views into `vector`, shaped as in `like`.
    """
    parts = vector.split([p.numel() for p in like.values()], dim=-1)
    lead = vector.shape[:-1]
    return {k: v.reshape(*lead, *p.shape) for (k, p), v in zip(like.items(), parts, strict=True)}


def concatenate(trees: Iterable[Tree]) -> Tree:
    """Join trees along the first dimension of every leaf.

    Args:
        trees: Trees of the same structure.

    Returns:
        One tree with the rows of all.
    """
    parts = list(trees)
    if len(parts) == 1:
        return parts[0]
    return map(lambda *xs: torch.cat(xs), *parts)


def under_vmap() -> bool:
    """Say whether a vmap is running this code: tensors may then not be read or asked to require gradients."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def below(tensor: Tensor) -> Tensor:
    """Take a tensor out of any vmap: to be looked at, never to be computed with.

    Args:
        tensor: Perhaps what one client sees under a vmap.

    Returns:
        The values of all clients.
    """
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


_EXPORTING: ContextVar[bool] = ContextVar("exporting", default=False)


def is_exporting() -> bool:
    """Say whether a model is being traced for other programs, so that nothing may depend on the number of rows."""
    return _EXPORTING.get()


@contextmanager
def exporting() -> Iterator[None]:
    """Trace a model in the block."""
    token = _EXPORTING.set(True)
    try:
        yield
    finally:
        _EXPORTING.reset(token)
