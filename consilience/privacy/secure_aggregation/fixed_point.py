"""Numbers as whole multiples of an agreed step: what masks hide exactly, and discrete noise is added to."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.errors import InputError

LARGEST = 2**62  # so that a sum of two does not leave the 64 bits, and an overflow is seen before it wraps


def encode(values: Tensor, step: float, most: int = LARGEST) -> Tensor:
    """Round to whole multiples of a step.

    Args:
        values: Finite numbers of any shape.
        step: The distance between neighbouring numbers that can be written; the error is at most half of it.
        most: The largest multiple that may occur, so that a sum over all sites fits into 64 bits.

    Returns:
        The multiples, int64.

    Raises:
        InputError: A number is too large for the step; nothing wraps around.

    Example:
        >>> import torch
        >>> from consilience.privacy.secure_aggregation.fixed_point import decode, encode
        >>> decode(encode(torch.tensor([0.5, -1.25], dtype=torch.float64), 0.25), 0.25).tolist()
        [0.5, -1.25]
    """
    multiples = (values.double() / step).round()
    if not bool((multiples.abs() <= most).all()):
        largest = float(values.double().abs().max())
        raise InputError(
            f"{largest:g} does not fit into fixed point with steps of {step:g}: agree on larger steps, or on bounds "
            "for what is summed."
        )
    return multiples.to(torch.int64)


def decode(multiples: Tensor, step: float) -> Tensor:
    """Turn whole multiples of a step back into numbers.

    Args:
        multiples: int64, of any shape.

    Returns:
        The numbers, float64.
    """
    return multiples.double() * step
