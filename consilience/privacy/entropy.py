"""Random numbers that protect somebody: at a real site from the operating system, in a simulation from the run's key.

A run's keys come from a seed that everybody knows, so that noise drawn from them could be subtracted. Within
`secret_draws` they are not used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.errors import InputError
from consilience.key import Key

_SECRET: ContextVar[bool] = ContextVar("secret", default=False)
Words = NDArray[np.uint64]


class Source(Protocol):
    """Where random bits come from.

    Attributes:
        simulated: Whether somebody who knows a run's seed knows them too.
    """

    simulated: bool

    def words(self, count: int) -> Words:
        """Draw words of 64 bits.

        Returns:
            Uniform numbers [count].
        """


class Entropy:
    """The operating system's random bits: for noise that protects somebody."""

    simulated = False

    def words(self, count: int) -> Words:
        """Draw words of 64 bits, as `Source.words` says.

        Returns:
            Uniform numbers [count].

        Raises:
            InputError: The operating system has none to give.
        """
        try:
            content = os.urandom(8 * count)
        except (OSError, NotImplementedError) as error:
            raise InputError(
                f"The operating system gives no random numbers ({error}), and noise from anywhere else can be "
                "subtracted: nothing is sent; try again on a machine that does."
            ) from error
        return np.frombuffer(content, dtype=np.uint64)


class Simulated:
    """Random bits from a run's seed, so that a simulation can be repeated. Whoever knows the seed can subtract them.

    Args:
        key: What they come from.
    """

    simulated = True

    def __init__(self, key: Key) -> None:
        self.generator = np.random.Generator(np.random.Philox(key=int(key.seed) & (2**64 - 1)))

    def words(self, count: int) -> Words:
        """Draw words of 64 bits, as `Source.words` says.

        Returns:
            Uniform numbers [count].
        """
        return self.generator.integers(0, 2**64, count, dtype=np.uint64)


@contextmanager
def secret_draws() -> Iterator[None]:
    """Draw from the operating system within the block, as every real site must."""
    token = _SECRET.set(True)
    try:
        yield
    finally:
        _SECRET.reset(token)


def are_secret() -> bool:
    """Say whether draws come from the operating system here.

    Returns:
        True within `secret_draws`.
    """
    return _SECRET.get()


def protecting_uniform(key: Key, n: int, like: Tensor) -> Tensor:
    """Draw uniforms on [0, 1) that decide who takes part in a step.

    Args:
        key: What they come from in a simulation.

    Returns:
        Uniforms [n].
    """
    if are_secret():
        return torch.from_numpy(uniforms(Entropy(), n)).to(like.device)
    return key.uniform(n).to(like.device)


def protecting_normal(key: Key, like: Tensor) -> Tensor:
    """Draw standard normals that hide somebody.

    Args:
        key: What they come from in a simulation.
        like: Gives shape, type and device.
    """
    if are_secret():
        normal: Tensor = torch.special.ndtri(torch.from_numpy(uniforms(Entropy(), like.numel()) + 2.0**-54))
        return normal.reshape(like.shape).to(like)
    return key.normal_like(like)


def noise_source(key: Key) -> Source:
    """Choose where the bits of noise come from.

    Args:
        key: What they come from in a simulation.

    Returns:
        The operating system within `secret_draws`, the key elsewhere.
    """
    if are_secret():
        return Entropy()
    return Simulated(key)


def uniforms(source: Source, count: int) -> NDArray[np.float64]:
    """Draw uniform multiples of 2⁻⁵³ in [0, 1).

    Args:
        source: Where random bits come from.

    Returns:
        Uniform numbers [count].
    """
    return (source.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
