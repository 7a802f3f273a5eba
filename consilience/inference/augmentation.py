"""Images changed at random before every step, by the key, so that every engine sees the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from consilience.errors import InputError
from consilience.key import Key
from consilience.models.seeded import uniforms

Augment: TypeAlias = Callable[[Tensor, Key], Tensor]  # a batch's inputs, the step's own key → inputs of the same shape


@dataclass(frozen=True)
class CropAndFlip:
    """Pad every side with zeros, crop an image of the old size anywhere, and mirror every second one, left to right.

    Chen and Chao, ICLR 2021, App. B.1: padding 2 for 32 × 32, 4 for 64 × 64.

    Attributes:
        padding: pixels added to each side
    """

    padding: int = 2

    def __call__(self, x: Tensor, key: Key) -> Tensor:
        """Crop and mirror every image of a batch.

        Args:
            x: images [rows, channels, height, width]
            key: the step's own key

        Returns:
            Images of the same shape.

        Raises:
            InputError: if the rows are not images.
        """
        if x.ndim != 4:
            raise InputError(
                f"Rows of shape {tuple(x.shape[1:])} are not images and cannot be cropped: leave augment out."
            )
        count, channels, height, width = x.shape
        uniform = uniforms(torch.as_tensor(key.seed), (count, 3), x)
        down, right = (uniform[:, :2] * (2 * self.padding + 1)).long().clamp(max=2 * self.padding).unbind(-1)
        rows = down.unsqueeze(1) + torch.arange(height, device=x.device)
        columns = torch.arange(width, device=x.device).expand(count, width)
        columns = right.unsqueeze(1) + torch.where(uniform[:, 2:] < 0.5, columns, width - 1 - columns)
        wide = pad(x, [self.padding] * 4)
        tall = wide.gather(2, rows[:, None, :, None].expand(count, channels, height, wide.shape[3]))
        return tall.gather(3, columns[:, None, None, :].expand(count, channels, height, width))
