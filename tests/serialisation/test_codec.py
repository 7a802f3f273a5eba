"""What crosses the wire, and its hash."""

from __future__ import annotations

import torch

from consilience.serialisation.codec import digest


def test_one_number_of_any_stride_can_be_hashed() -> None:
    """A column of a matrix of one row has the matrix's stride, and torch calls it contiguous."""
    column = torch.arange(6.0).reshape(1, 6)[:, 2]

    assert digest("", {"a": column}) == digest("", {"a": torch.tensor([2.0])})
