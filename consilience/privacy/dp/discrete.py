"""Whole numbers with a Gaussian's weights, drawn exactly: noise that floating point cannot give away.

A continuous Gaussian in floating point has holes, and which numbers can occur tells what was hidden (Mironov 2012). The
discrete Gaussian, P(k) ∝ exp(−k²/2σ²) over the integers, is drawn without any rounding (Canonne, Kamath and Steinke
2020):

    1   U uniform on 0 … t − 1, kept with probability exp(−U/t);  V ← how often exp(−1) comes in a row;  t = ⌊σ⌋ + 1
    2   Y ← ±(U + tV), but not −0: a discrete Laplace variable
    3   kept with probability exp(−(|Y| − σ²/t)²/2σ²); else again from 1

A decision "with probability p" compares a random number's first 53 bits with p in double precision. Where they are so
near that rounding could decide, it goes on with more bits and more digits, so that the draw is exact all the same.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from consilience.errors import InputError
from consilience.privacy.entropy import Source, uniforms

NEAR = 2.0**-45  # of a probability, beyond which rounding cannot decide: exp and its argument err by less than 1e-15
MORE_BITS = 192  # of a random number, where it can
DIGITS = 90  # of a probability then
LARGEST = 2.0**45  # σ, with which numbers and their squares' rounding stay as assumed
Whole = NDArray[np.int64]
Real = NDArray[np.float64]
Yes = NDArray[np.bool_]


def discrete_gaussian(count: int, sigma: float, source: Source) -> Tensor:
    """Draw independent whole numbers with P(k) ∝ exp(−k²/2σ²).

    Args:
        sigma: σ, nearly the standard deviation.
        source: Where random bits come from.

    Returns:
        The numbers, int64 [count].

    Raises:
        InputError: σ is no deviation, or too large for 64 bits.

    Example:
        >>> from consilience.key import Key
        >>> from consilience.privacy.dp.discrete import discrete_gaussian
        >>> from consilience.privacy.entropy import noise_source
        >>> discrete_gaussian(4, 3.0, noise_source(Key(0))).dtype
        torch.int64
    """
    if not 0 < sigma <= LARGEST:
        raise InputError(f"Noise of {sigma:g} steps cannot be drawn: agree on larger steps, or on less noise.")
    scale = math.floor(sigma) + 1
    square = Fraction(sigma) ** 2
    kept: list[Whole] = []
    missing = count
    while missing > 0:
        y = _laplace(int(2.2 * missing) + 16, scale, source)
        exponents = (np.abs(y) - sigma * sigma / scale) ** 2 / (2 * sigma * sigma)
        unrounded = lambda i, y=y: (abs(Fraction(int(y[i]))) - square / scale) ** 2 / (2 * square)
        y = y[_occurs(exponents, unrounded, source)][:missing]  # 3
        kept.append(y)
        missing -= len(y)
    return torch.from_numpy(np.concatenate(kept)) if kept else torch.zeros(0, dtype=torch.int64)


def _laplace(count: int, scale: int, source: Source) -> Whole:
    """About half of `count` draws of P(k) ∝ exp(−|k|/scale)."""
    u = _uniform(count, scale, source)
    u = u[_occurs(u / scale, lambda i: Fraction(int(u[i]), scale), source)]  # 1
    v = np.zeros(len(u), dtype=np.int64)
    going = np.arange(len(u))
    while len(going):
        going = going[_occurs(np.ones(len(going)), lambda i: Fraction(1), source)]
        v[going] += 1
    size = u + scale * v
    negative = (source.words(len(u)) & np.uint64(1)).astype(bool)
    y: Whole = np.where(negative, -size, size)[~(negative & (size == 0))]  # 2
    return y


def _uniform(count: int, below: int, source: Source) -> Whole:
    """Up to `count` uniform whole numbers below a limit: words beyond its last multiple would favour small ones."""
    words = source.words(count)
    last = 2**64 // below * below
    if last < 2**64:
        words = words[words < np.uint64(last)]
    return (words % np.uint64(below)).astype(np.int64)


def _occurs(exponents: Real, unrounded: Callable[[int], Fraction], source: Source) -> Yes:
    """Let events occur with probabilities exp(−exponent); `unrounded(i)` is the exponent without rounding."""
    bits = uniforms(source, len(exponents))
    chances = np.exp(-exponents)
    occurs = np.asarray(bits < chances)
    for i in np.nonzero(np.abs(bits - chances) <= NEAR)[0]:
        occurs[i] = _occurs_exactly(float(bits[i]), unrounded(int(i)), source)
    return occurs


def _occurs_exactly(bits: float, exponent: Fraction, source: Source) -> bool:
    """The same for one event, whose random number begins with these 53 bits."""
    with decimal.localcontext() as context:
        context.prec = DIGITS
        chance = (-(decimal.Decimal(exponent.numerator) / decimal.Decimal(exponent.denominator))).exp()
        more = decimal.Decimal(0)
        for i, word in enumerate(source.words(MORE_BITS // 64)):
            more += decimal.Decimal(int(word)) / decimal.Decimal(2) ** (53 + 64 * (i + 1))
        return decimal.Decimal(bits) + more < chance
