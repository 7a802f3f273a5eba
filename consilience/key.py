"""Explicit randomness, equal on every engine.

A key is a 64-bit seed. `fold` derives a new key by a hash, so a draw depends on run, round, client, epoch and batch and
never on which process draws it. Draws are operators that seed a generator of their own; under vmap each client's
seed makes its own draw, so a loop over clients and a vmap over them see the same numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from consilience import tree
from consilience.errors import InputError

_Draw: TypeAlias = Callable[[Tensor | int, Sequence[int], torch.dtype], Tensor]  # seed, shape, type → numbers

# splitmix64's constants, as signed integers
_GOLDEN = -7046029254386353131
_MIX1 = -4658895280553007687
_MIX2 = -7723592293110705685


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift to the right; torch's own is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _fold_integers(seed: int, i: int) -> int:
    """`Key.fold` in plain integers, thirty times faster than on tensors of one number."""
    word = (1 << 64) - 1
    z = (seed + (i + 1) * _GOLDEN) & word
    z = ((z ^ (z >> 30)) * _MIX1) & word
    z = ((z ^ (z >> 27)) * _MIX2) & word
    z ^= z >> 31
    if z >> 63:
        z -= 1 << 64  # as int64 has it
    return z


class Stream(enum.IntEnum):
    """What a run's key is folded by first, so that no two parts of a run draw the same numbers.

    The values are part of every saved run and signed study: they never change.

    Attributes:
        INIT: The state before the first round.
        LOCAL: The clients' work, folded by round and client.
        AGGREGATE: The server's work, folded by round.
        PARTICIPATION: Who takes part, folded by round.
        ROLES: Which row of a study's site trains, chooses or tests; a study draws no participation.
        PROBE: Rows that a model is tried on before it is kept.
        SETS: The random part of scores behind prediction sets, folded by role and site.
    """

    INIT = 0
    LOCAL = 1
    AGGREGATE = 2
    PARTICIPATION = 3
    ROLES = 3
    PROBE = 4
    SETS = 7


class Key(NamedTuple):
    """A seed from which draws are made and further keys derived; it holds no state, so equal keys draw equal numbers.

    Attributes:
        seed: 64 bits: a plain integer, or an int64 tensor, which vmap can stack.

    Example:
        >>> from consilience.key import Key
        >>> bool((Key(0).normal([3]) == Key(0).normal([3])).all())
        True
        >>> Key(0).fold(1) == Key(0).fold(2)
        False
    """

    seed: Tensor | int

    def fold(self, i: int | Tensor) -> Key:
        """Derive a key for the i-th of whatever comes next (splitmix64).

        Args:
            i: A number that tells this key from its siblings.

        Returns:
            A new key.

        Example:
            >>> from consilience.key import Key
            >>> Key(0).fold(1) == Key(0).fold(1)
            True
        """
        if isinstance(self.seed, int) and isinstance(i, int):
            return Key(_fold_integers(self.seed, i))
        z = torch.as_tensor(self.seed, dtype=torch.int64) + (torch.as_tensor(i, dtype=torch.int64) + 1) * _GOLDEN
        z = (z ^ _shift(z, 30)) * _MIX1
        z = (z ^ _shift(z, 27)) * _MIX2
        return Key(z ^ _shift(z, 31))

    def normal_like(self, vector: Tensor) -> Tensor:
        """Draw standard normals in the form of a tensor.

        Args:
            vector: Gives shape (as seen by one client), type and device.
        """
        return _draw(_normal, _normal_operator, self, vector.shape, vector)

    def normal(self, shape: Sequence[int], like: Tensor | None = None) -> Tensor:
        """Draw standard normals.

        Args:
            shape: Of what is drawn.
            like: Gives type and device; float32 on the CPU without it.

        Example:
            >>> from consilience.key import Key
            >>> Key(0).normal([2, 3]).shape
            torch.Size([2, 3])
        """
        return _draw(_normal, _normal_operator, self, shape, like)

    def uniform(self, n: int, like: Tensor | None = None) -> Tensor:
        """Draw uniforms on [0, 1); the first m of n are the same for every n, so clients may be padded.

        Args:
            like: Gives type and device; float32 on the CPU without it.

        Returns:
            Uniforms [n].

        Example:
            >>> from consilience.key import Key
            >>> Key(0).uniform(5)[:3].equal(Key(0).uniform(3))
            True
        """
        return _draw(_uniform, _uniform_operator, self, (n,), like)

    def permutation(self, n: int) -> Tensor:
        """Draw an order of n things.

        Returns:
            The numbers 0 … n − 1 in a random order [n].

        Example:
            >>> from consilience.key import Key
            >>> sorted(Key(0).permutation(4).tolist())
            [0, 1, 2, 3]
        """
        return self.order(torch.ones(n))

    def order(self, w: Tensor) -> Tensor:
        """Draw an order of the rows with w > 0, followed by the padding; it depends on the key alone.

        Args:
            w: The rows' weights [N].

        Returns:
            Row numbers [N].
        """
        return torch.argsort(self.uniform(w.shape[0]).to(w.device) + 2.0 * (w <= 0))

    def generator(self) -> torch.Generator:
        """Make a generator, for code outside vmap that needs many draws of different kinds."""
        return torch.Generator().manual_seed(int(self.seed))

    @property
    def tensor(self) -> Key:
        """The same key as a tensor, which vmap can stack."""
        return Key(torch.as_tensor(self.seed, dtype=torch.int64))

    @property
    def plain(self) -> Key:
        """The same key as a plain integer, which folds fastest; not under vmap."""
        return Key(int(self.seed))


def _draw(bare: _Draw, operator: Any, key: Key, shape: Sequence[int], like: Tensor | None) -> Tensor:
    """Draw directly from a plain seed, or by the operator that vmap knows."""
    dtype = torch.float32
    if like is not None:
        dtype = like.dtype
    if not dtype.is_floating_point:
        raise InputError(
            "Rows of token ids cannot be drawn or moved: choose a method that leaves its rows as they are."
        )
    if like is not None and like.is_meta:  # where nothing is allocated
        return torch.empty(list(shape), dtype=dtype, device="meta")
    if isinstance(key.seed, int) and not tree.under_vmap():
        numbers = bare(key.seed, shape, dtype)
    else:
        numbers = operator(torch.as_tensor(key.seed), list(shape), dtype)
    if like is None:
        return numbers
    return numbers.to(like.device)


def _normal(seed: Tensor | int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.randn(list(shape), generator=torch.Generator().manual_seed(int(seed)), dtype=dtype)


def _uniform(seed: Tensor | int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.rand(list(shape), generator=torch.Generator().manual_seed(int(seed)), dtype=dtype)


_library = torch.library.Library("consilience", "DEF")  # `custom_op` would import torch's compiler, which takes seconds


def _operator(name: str, bare: _Draw) -> Any:
    """Register a draw as an operator: under vmap every client's seed makes its own."""
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


_normal_operator = _operator("normal", _normal)
_uniform_operator = _operator("uniform", _uniform)
