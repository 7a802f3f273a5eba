"""Layers that draw random numbers from a seed they are handed, so that every engine sees the same numbers.

Such a layer has a scalar int64 buffer named `seed`, not saved with the weights. While training, every step hands it a
fresh one; at prediction the layer is in evaluation mode and draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from consilience.key import Key


def seed_draws(layer: nn.Module) -> None:
    """Give a layer its `seed`."""
    layer.register_buffer("seed", torch.zeros((), dtype=torch.int64), persistent=False)


def uniforms(seed: Tensor, shape: Sequence[int], like: Tensor) -> Tensor:
    """Draw uniforms on [0, 1); the first rows are the same however many follow, so batches may be padded.

    Args:
        seed: A scalar of int64.
        shape: Of what is drawn.
        like: Gives type and device.

    Returns:
        Uniforms of that shape.
    """
    return Key(seed).uniform(math.prod(shape), like).reshape(shape)


def normals(seed: Tensor, shape: Sequence[int], like: Tensor) -> Tensor:
    """Draw standard normals with the same promise (Box and Muller 1958, two uniforms each).

    Args:
        seed: A scalar of int64.
        shape: Of what is drawn.
        like: Gives type and device.

    Returns:
        Standard normals of that shape.
    """
    radius, angle = uniforms(seed, (*shape, 2), like).unbind(-1)
    return (-2 * torch.log1p(-radius)).sqrt() * torch.cos(2 * math.pi * angle)


class Dropout(nn.Module):
    """Dropout by its seed: of single numbers, or of whole channels.

    Args:
        p: The share that is dropped.
    """

    seed: Tensor

    def __init__(self, p: float = 0.5, channels: bool = False) -> None:
        super().__init__()
        self.p = p
        self.channels = channels
        seed_draws(self)

    def forward(self, x: Tensor) -> Tensor:
        """Drop while training, and scale what stays so that its mean does.

        Args:
            x: Inputs [N, …].

        Returns:
            Outputs of the same shape.
        """
        if not self.training or self.p == 0:
            return x
        shape: Sequence[int] = x.shape
        if self.channels:
            shape = (*x.shape[:2], *[1] * (x.ndim - 2))
        mask = uniforms(self.seed, shape, x) >= self.p
        return x * mask.to(x) / max(1 - self.p, torch.finfo(x.dtype).tiny)

    def extra_repr(self) -> str:
        """Return the settings as a printed network shows them."""
        if self.channels:
            return f"p={self.p}, channels"
        return f"p={self.p}"
