"""Linear models and multilayer perceptrons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn


def linear(features: int | Sequence[int], outputs: int | None = None) -> nn.Module:
    """One affine layer: logistic or linear regression."""
    return mlp(features, outputs, hidden=())


def mlp(features: int | Sequence[int], outputs: int | None = None, hidden: Sequence[int] = (100, 100)) -> nn.Module:
    """Fully connected layers with ReLU between; images are flattened. `outputs=None` is one number, for regression."""
    flat = isinstance(features, int)
    sizes = [features if isinstance(features, int) else math.prod(features), *hidden, outputs or 1]
    layers: list[nn.Module] = [] if flat else [nn.Flatten()]
    for i, (before, after) in enumerate(pairwise(sizes)):
        layers += [nn.ReLU()] * (i > 0) + [nn.Linear(before, after)]
    return nn.Sequential(*layers)
