"""Residual networks for small images.  He et al., CVPR 2016, §4.2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from consilience.errors import InputError
from consilience.models.cnn import image

Norm: TypeAlias = Callable[[int], nn.Module]  # a normalisation for so many channels

WIDTHS = (16, 32, 64)


def group_norm(channels: int) -> nn.Module:
    """Normalise in eight groups, so that the narrowest layers have two channels in each.

    Args:
        channels: A multiple of 8.
    """
    return nn.GroupNorm(8, channels)


class Residual(nn.Module):
    """Two convolutions of 3 × 3 around which the input is carried.

    Where the shape changes it is thinned out and padded with zero channels (option A), which takes no parameters.

    Args:
        stride: By which they thin out.
        extra: How many channels they add.
    """

    def __init__(self, body: nn.Module, stride: int, extra: int) -> None:
        super().__init__()
        self.body = body
        self.stride = stride
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """Run the block.

        Args:
            x: Inputs [N, C, H, W].

        Returns:
            Outputs.
        """
        carried = x
        if self.stride > 1 or self.extra > 0:  # a padding of nothing would be a copy
            carried = pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))
        return torch.relu_(self.body(x) + carried)


def _residual(before: int, after: int, stride: int, norm: Norm) -> Residual:
    """One block from `before` to `after` channels."""
    body = nn.Sequential(conv3(before, after, stride), norm(after), nn.ReLU(), conv3(after, after), norm(after))
    return Residual(body, stride, after - before)


def resnet(
    features: int | Sequence[int], outputs: int | None = None, depth: int = 20, norm: Norm = group_norm
) -> nn.Module:
    """A residual network of depth 6n + 2: three stages of n blocks with 16, 32 and 64 channels.

    The paper, and Chen and Chao 2021, normalise by batch (`norm=nn.BatchNorm2d`), whose running statistics move with
    the weights; groups have as many parameters and no statistics.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.
        depth: How many layers: 8, 14, 20, …
        norm: Makes a normalisation for so many channels.

    Raises:
        InputError: If the rows are not images, or the depth is not 6n + 2.

    Example:
        >>> import consilience as co
        >>> sum(p.numel() for p in co.models.resnet((3, 32, 32), 10, depth=20).parameters())
        269722
    """
    if depth < 8 or depth % 6 != 2:
        raise InputError(f"There is no model resnet{depth}: depths are 6n + 2, as in resnet20, 32, 44 or 56.")
    layers = [conv3(image(features)[0], WIDTHS[0]), norm(WIDTHS[0]), nn.ReLU()]
    before = WIDTHS[0]
    for width in WIDTHS:
        for _ in range(depth // 6):
            stride = 1
            if before != width:
                stride = 2
            layers.append(_residual(before, width, stride, norm))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs or 1))


def conv3(before: int, after: int, stride: int = 1) -> nn.Module:
    """Make a convolution of 3 × 3 that keeps the size, or halves it; the normalisation after it has the bias.

    Args:
        before: Channels of its inputs.
        after: Channels of its outputs.
        stride: 1, or 2 to halve height and width.

    Returns:
        The layer.
    """
    return nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
