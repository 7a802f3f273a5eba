"""Rows for tests of sums under noise, the same in all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from consilience.data import Data
from consilience.privacy.dp.mechanisms import Privacy

PRIVACY = Privacy(1.0, 1e-5)


def itself(x: Tensor) -> Tensor:
    return x


def make_rows(n: int, width: int, classes: int, size: float) -> Data:
    generator = torch.Generator().manual_seed(0)
    x = size * torch.randn(n, width, generator=generator, dtype=torch.float64)
    return Data.of(x, torch.randint(classes, (n,), generator=generator))
