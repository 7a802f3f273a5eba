"""MobileNetV2 for small images.  Sandler et al., CVPR 2018, Table 2."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from consilience.models.cnn import image
from consilience.models.resnet import Norm, conv3, group_norm

# Expansion, channels, blocks, stride. The second stage and the first convolution have stride 1 where the paper, for
# images of 224 × 224, has 2, so that 32 × 32 end as 4 × 4 and not as one pixel.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
FIRST = 32
LAST = 1280


class Inverted(nn.Module):
    """Widen, filter each channel by itself, narrow without an activation; carried past where the shape stays.

    Args:
        carries: Whether the input is added to what they give.
    """

    def __init__(self, body: nn.Module, carries: bool) -> None:
        super().__init__()
        self.body = body
        self.carries = carries

    def forward(self, x: Tensor) -> Tensor:
        """Run the block.

        Args:
            x: Inputs [N, C, H, W].

        Returns:
            Outputs.
        """
        out: Tensor = self.body(x)
        if self.carries:
            return x + out
        return out


def _inverted_block(before: int, after: int, stride: int, expansion: int, norm: Norm) -> Inverted:
    """One block from `before` to `after` channels."""
    wide = before * expansion
    widen: list[nn.Module] = []
    if expansion > 1:
        widen = [_conv1(before, wide), norm(wide), nn.ReLU6()]
    each = nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False)
    body = nn.Sequential(*widen, each, norm(wide), nn.ReLU6(), _conv1(wide, after), norm(after))
    return Inverted(body, carries=stride == 1 and before == after)


def mobilenetv2(features: int | Sequence[int], outputs: int | None = None, norm: Norm = group_norm) -> nn.Module:
    """MobileNetV2 of width 1, normalised in groups and without the dropout of some releases.

    Chen and Chao 2021 normalise by batch (`norm=nn.BatchNorm2d`), whose running statistics move with the weights.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.
        norm: Makes a normalisation for so many channels.

    Returns:
        The network.

    Raises:
        InputError: If the rows are not images.
    """
    layers = [conv3(image(features)[0], FIRST), norm(FIRST), nn.ReLU6()]
    before = FIRST
    for expansion, width, blocks, stride in STAGES:
        for block_stride in (stride, *[1] * (blocks - 1)):
            layers.append(_inverted_block(before, width, block_stride, expansion, norm))
            before = width
    layers += [_conv1(before, LAST), norm(LAST), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(LAST, outputs or 1))


def mobilenetv2_batchnorm(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """MobileNetV2 normalised by batch, as Chen and Chao 2021 use it.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.

    Returns:
        The network.

    Raises:
        InputError: If the rows are not images.
    """
    return mobilenetv2(features, outputs, nn.BatchNorm2d)


def _conv1(before: int, after: int) -> nn.Module:
    """A convolution of 1 × 1."""
    return nn.Conv2d(before, after, 1, bias=False)
