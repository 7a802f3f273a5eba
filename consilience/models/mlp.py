"""Linear models and multilayer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import nn


def linear(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """One affine layer: logistic or linear regression.

    Args:
        features: A row's number of features, or its shape; images are flattened.
        outputs: The number of classes; None is one number, for regression.

    Returns:
        The network.

    Example:
        >>> import consilience as co
        >>> sum(p.numel() for p in co.models.linear(4, 3).parameters())
        15
    """
    return mlp(features, outputs, hidden=())


def mlp(
    features: int | Sequence[int],
    outputs: int | None = None,
    hidden: Sequence[int] = (100, 100),
    activation: Callable[[], nn.Module] = nn.ReLU,
    norm: Callable[[int], nn.Module] | None = None,
    normed: int | None = None,
) -> nn.Module:
    """Fully connected layers with an activation between, two of 100 by default; images are flattened.

    Args:
        features: A row's number of features, or its shape; images are flattened.
        outputs: The number of classes; None is one number, for regression.
        hidden: Widths of the hidden layers.
        activation: Makes what comes after each of them.
        norm: Makes a normalisation for a layer's width, which comes before the activation.
        normed: How many of the hidden layers, from the first, are normalised; None normalises all.

    Returns:
        The network.

    Example:
        >>> import consilience as co
        >>> sum(p.numel() for p in co.models.mlp(2, 2, hidden=(10,)).parameters())
        52
    """
    layers: list[nn.Module] = []
    if not isinstance(features, int):
        layers.append(nn.Flatten())
        features = math.prod(features)
    sizes = [features, *hidden]
    for i, (before, after) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(before, after))
        if norm is not None and (normed is None or i < normed):
            layers.append(norm(after))
        layers.append(activation())
    return nn.Sequential(*layers, nn.Linear(sizes[-1], outputs or 1))


def mlp_swish(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """Three hidden layers of 128 with Swish: the sine's network in d'Hondt et al., App. C.1.

    Args:
        features: A row's number of features, or its shape; images are flattened.
        outputs: The number of classes; None is one number, for regression.
    """
    return mlp(features, outputs, hidden=(128, 128, 128), activation=nn.SiLU)


def mlp_groupnorm(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """Three hidden layers of 50, the first two normalised in groups: the moons' network of d'Hondt et al., App. C.1.

    Args:
        features: A row's number of features, or its shape; images are flattened.
        outputs: The number of classes; None is one number, for regression.
    """
    return mlp(features, outputs, hidden=(50, 50, 50), norm=lambda width: nn.GroupNorm(2, width), normed=2)
