"""Small convolutional networks, each named for the first author of the paper that used it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from consilience.errors import InputError
from consilience.models.mlp import mlp


def cnn(
    features: int | Sequence[int], outputs: int | None, layers: Sequence[nn.Module], hidden: Sequence[int] = ()
) -> nn.Module:
    """The given convolutions and poolings, then fully connected layers with ReLU between.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.
        hidden: Widths of the fully connected layers before the last.

    Returns:
        The network.

    Raises:
        InputError: If the rows are not images, or too small for the poolings.
    """
    shape = image(features)
    body = nn.Sequential(*layers, nn.Flatten())
    try:
        with torch.no_grad():
            width = body(torch.zeros(1, *shape)).shape[1]
    except RuntimeError:
        raise InputError(f"Images of {shape[1]} × {shape[2]} are too small for this network: choose mlp.") from None
    return nn.Sequential(*body, mlp(width, outputs, hidden))


def cnn_hasan(features: int | Sequence[int], outputs: int | None = None, hidden: Sequence[int] = ()) -> nn.Module:
    """Three convolutions, each followed by max pooling, and one fully connected layer (Hasan 2023, §3.3.3).

    The text gives no widths; 64, 128 and 256 kernels of 3 × 3 are those of the released program.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.
        hidden: Widths of further fully connected layers before the last.

    Returns:
        The network.

    Raises:
        InputError: If the rows are not images, or too small for the poolings.
    """
    channels = image(features)[0]
    layers = [*_conv(channels, 64, 3), _pool(), *_conv(64, 128, 3), _pool(), *_conv(128, 256, 3), _pool()]
    return cnn(features, outputs, layers, hidden)


def cnn_hasan_released(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """As `cnn_hasan`, with the two further fully connected layers, of 128 and 256, that the released program has.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.

    Returns:
        The network.

    Raises:
        InputError: If the rows are not images, or too small for the poolings.
    """
    return cnn_hasan(features, outputs, hidden=(128, 256))


def cnn_ozer(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """Two convolutions of 5 × 5, each followed by max pooling, then layers of 120 and 84 (Özer et al. 2022, §6.1).

    The 6 and 16 kernels are those of its source, Li et al. 2022; the text's '400' is what 3 × 32 × 32 images leave.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.

    Returns:
        The network.

    Raises:
        InputError: If the rows are not images, or too small for the poolings.
    """
    channels = image(features)[0]
    return cnn(features, outputs, [*_conv(channels, 6, 5), _pool(), *_conv(6, 16, 5), _pool()], hidden=(120, 84))


def cnn_chen(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """Three convolutions, max pooling after the first two, and two fully connected layers (Chen and Chao 2021, §5.1).

    The text gives no widths; 32, 64 and 64 kernels and 64 hidden units are those of the released program.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.

    Returns:
        The network.

    Raises:
        InputError: If the rows are not images, or too small for the poolings.
    """
    channels = image(features)[0]
    layers = [*_conv(channels, 32, 3), _pool(), *_conv(32, 64, 3), _pool(), *_conv(64, 64, 3)]
    return cnn(features, outputs, layers, hidden=(64,))


def cnn_dhondt(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """Two convolutions, one max pooling and a layer of 128 (d'Hondt et al., App. C.1).

    The EMNIST network of Reddi et al. 2021 without its dropout, which d'Hondt et al. leave out too.

    Args:
        features: The images' shape, (channels, height, width).
        outputs: The number of classes; None is one number, for regression.

    Returns:
        The network.

    Raises:
        InputError: If the rows are not images, or too small for the poolings.
    """
    channels = image(features)[0]
    return cnn(features, outputs, [*_conv(channels, 32, 3), *_conv(32, 64, 3), _pool()], hidden=(128,))


def image(features: int | Sequence[int]) -> tuple[int, int, int]:
    """Check that rows are images.

    Args:
        features: A row's number of features, or its shape.

    Returns:
        Channels, height and width.

    Raises:
        InputError: If the rows are not images.
    """
    if isinstance(features, int) or len(features) != 3:
        raise InputError(f"A convolutional network needs images, and a row here has the shape {features}: choose mlp.")
    channels, height, width = features
    return channels, height, width


def _conv(before: int, after: int, kernel: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, kernel), nn.ReLU()]


def _pool() -> nn.Module:
    return nn.MaxPool2d(2)
