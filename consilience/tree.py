"""Arithmetic on trees of tensors: dicts, tuples and named tuples whose leaves are tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree  # the registry torch.func itself walks

Tree: TypeAlias = Any  # a tensor, or a dict, tuple or named tuple of trees; () is nothing
Params: TypeAlias = dict[str, Tensor]


def leaves(tree: Tree) -> list[Tensor]:
    return pytree.tree_leaves(tree)


def map(f: Callable[..., Any], *trees: Tree) -> Tree:
    return pytree.tree_map(f, *trees)


def add(a: Tree, b: Tree) -> Tree:
    return map(torch.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    return map(torch.sub, a, b)


def scale(tree: Tree, factor: float | Tensor) -> Tree:
    return map(lambda leaf: leaf * factor, tree)


def zeros_like(tree: Tree) -> Tree:
    return map(torch.zeros_like, tree)


def inner(a: Tree, b: Tree) -> Tensor:
    """Σ aᵢ bᵢ over all leaves."""
    return torch.stack([(x * y).sum() for x, y in zip(leaves(a), leaves(b), strict=True)]).sum()


def where(condition: Tensor, a: Tree, b: Tree) -> Tree:
    return map(lambda x, y: torch.where(condition, x, y), a, b)


def stack(trees: Sequence[Tree]) -> Tree:
    return map(lambda *xs: torch.stack(xs), *trees)


def unstack(tree: Tree, count: int) -> list[Tree]:
    found, spec = pytree.tree_flatten(tree)
    parts = [leaf.unbind() for leaf in found]
    return [pytree.tree_unflatten([part[k] for part in parts], spec) for k in range(count)]


def mean(trees: Sequence[Tree], weights: Tensor) -> Tree:
    """Σ wₖ treeₖ with the weights normalised, leaf by leaf."""
    w = weights / weights.sum()
    return map(lambda *xs: sum(wk.to(x) * x for wk, x in zip(w, xs, strict=True)), *trees)


def detach(tree: Tree) -> Tree:
    return map(torch.detach, tree)


def all_finite(tree: Tree) -> bool:
    return all(finite(leaf) for leaf in leaves(tree))


def finite(leaf: Tensor) -> bool:
    """Whether all numbers are; a finite sum says so in a tenth of the time."""
    return bool(torch.isfinite(leaf.sum())) or bool(torch.isfinite(leaf).all())


def ravel(params: Params, batch_dims: int = 0) -> Tensor:
    """All leaves as one vector […, P], in the order of their names in the dict."""
    return torch.cat([p.flatten(batch_dims) for p in params.values()], dim=-1)


def unravel(vector: Tensor, like: Params) -> Params:
    """The inverse of `ravel`: views into `vector`, shaped as in `like`; leading dimensions stay."""
    parts = vector.split([p.numel() for p in like.values()], dim=-1)
    lead = vector.shape[:-1]
    return {k: v.reshape(*lead, *p.shape) for (k, p), v in zip(like.items(), parts, strict=True)}


def concatenate(trees: Iterable[Tree]) -> Tree:
    return map(lambda *xs: torch.cat(xs), *trees)


def under_vmap() -> bool:
    """Whether a vmap is running this code, so that tensors may not be read or asked to require gradients."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def below(tensor: Tensor) -> Tensor:
    """The values of all clients, below any vmap: to be looked at, never to be computed with."""
    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor
