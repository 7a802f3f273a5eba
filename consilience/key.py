"""Explicit randomness, equal on every engine.

A key is a 64-bit seed. `fold` derives a new key by a hash, so a draw depends on run, round, client, epoch and batch and
never on which process draws it. Draws are operators that seed a generator of their own; under vmap each client's
seed makes its own draw, so a loop over clients and a vmap over them see the same numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from consilience import tree

_GOLDEN, _MIX1, _MIX2 = -7046029254386353131, -4658895280553007687, -7723592293110705685  # splitmix64, signed


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _folded(seed: int, i: int) -> int:
    """`Key.fold` in plain integers, thirty times faster than on tensors of one number."""
    word = (1 << 64) - 1
    z = (seed + (i + 1) * _GOLDEN) & word
    z = ((z ^ (z >> 30)) * _MIX1) & word
    z = ((z ^ (z >> 27)) * _MIX2) & word
    z ^= z >> 31
    return z - (1 << 64) if z >> 63 else z  # as int64 has it


class Stream(enum.IntEnum):
    """What a run's key is folded by first, so that no two parts of a run draw the same numbers.

    The values are part of every saved run and signed study: they never change.
    """

    INIT = 0  # the state before the first round
    LOCAL = 1  # the clients' work, folded by round and client
    AGGREGATE = 2  # the server's work, folded by round
    PARTICIPATION = 3  # who takes part, folded by round
    ROLES = 3  # which row of a study's site trains, chooses or tests; a study draws no participation


class Key(NamedTuple):
    seed: Tensor | int

    def fold(self, i: int | Tensor) -> Key:
        """A new key for the i-th of whatever comes next (splitmix64)."""
        if isinstance(self.seed, int) and isinstance(i, int):
            return Key(_folded(self.seed, i))
        z = torch.as_tensor(self.seed, dtype=torch.int64) + (torch.as_tensor(i, dtype=torch.int64) + 1) * _GOLDEN
        z = (z ^ _shift(z, 30)) * _MIX1
        z = (z ^ _shift(z, 27)) * _MIX2
        return Key(z ^ _shift(z, 31))

    def normal_like(self, vector: Tensor) -> Tensor:
        """Standard normals in the shape of `vector` (as seen by one client)."""
        return _draw("normal", self, vector.shape, vector)

    def normal(self, shape: Sequence[int], like: Tensor | None = None) -> Tensor:
        return _draw("normal", self, shape, like)

    def uniform(self, n: int, like: Tensor | None = None) -> Tensor:
        """Uniforms; the first m of n are the same for every n, so clients may be padded."""
        return _draw("uniform", self, (n,), like)

    def permutation(self, n: int) -> Tensor:
        return self.order(torch.ones(n))

    def order(self, w: Tensor) -> Tensor:
        """A random order of the rows with w > 0, followed by the padding; depends on the key alone."""
        return torch.argsort(self.uniform(w.shape[0]).to(w.device) + 2.0 * (w <= 0))

    def generator(self) -> torch.Generator:
        """For code outside vmap that needs many draws of different kinds."""
        return torch.Generator().manual_seed(int(self.seed))

    @property
    def tensor(self) -> Key:
        """The same key as a tensor, which vmap can stack."""
        return Key(torch.as_tensor(self.seed, dtype=torch.int64))

    @property
    def plain(self) -> Key:
        """The same key as a plain integer, which folds fastest; not under vmap."""
        return Key(int(self.seed))


def _draw(kind: str, key: Key, shape: Sequence[int], like: Tensor | None) -> Tensor:
    dtype = torch.float32 if like is None else like.dtype
    op, bare = (normal, _normal) if kind == "normal" else (uniform, _uniform)
    plain = isinstance(key.seed, int) and not tree.under_vmap()
    drawn = bare(key.seed, shape, dtype) if plain else op(torch.as_tensor(key.seed), list(shape), dtype)
    return drawn if like is None else drawn.to(like.device)


def _normal(seed: Tensor | int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.randn(list(shape), generator=torch.Generator().manual_seed(int(seed)), dtype=dtype)


def _uniform(seed: Tensor | int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.rand(list(shape), generator=torch.Generator().manual_seed(int(seed)), dtype=dtype)


_library = torch.library.Library("consilience", "DEF")  # `custom_op` would import torch's compiler, which takes seconds


def _operator(name: str, bare: Callable[[Tensor, Sequence[int], torch.dtype], Tensor]) -> Any:
    """The same draw as an operator: under vmap every client's seed makes its own."""
    _library.define(f"{name}(Tensor seed, int[] shape, ScalarType dtype) -> Tensor")
    _library.impl(name, bare, "CompositeExplicitAutograd")
    op = getattr(torch.ops.consilience, name)

    @torch.library.register_fake(f"consilience::{name}", lib=_library)  # type: ignore[untyped-decorator]
    def _(seed: Tensor, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(list(shape), dtype=dtype)

    @torch.library.register_vmap(f"consilience::{name}", lib=_library)  # type: ignore[untyped-decorator]
    def _(info: Any, in_dims: Any, seed: Tensor, shape: Sequence[int], dtype: torch.dtype) -> tuple[Tensor, int]:
        return torch.stack([op(s, shape, dtype) for s in seed.movedim(in_dims[0], 0)]), 0

    return op


normal, uniform = _operator("normal", _normal), _operator("uniform", _uniform)
