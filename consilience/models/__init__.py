"""Networks by name; any nn.Module will do in their place.

Factories, each called with (features, outputs):
    mlp: `linear`, `mlp`, `mlp_swish`, `mlp_groupnorm`
    cnn: `cnn` and the networks of papers, `cnn_hasan`, `cnn_hasan_released`, `cnn_ozer`, `cnn_chen`, `cnn_dhondt`
    resnet: `resnet`, of any depth 6n + 2
    mobilenet: `mobilenetv2`, `mobilenetv2_batchnorm`

Feature maps are fixed functions of a row, on which a network learns: `features` builds one by its name in `FEATURES`,
`freeze` makes one of any network, and `on_features` puts a network on it.

`variational` makes layers of any network Bayesian; `model` builds one by its name in `MODELS` or its import path.
The other files hold what a network may not hide (`controlled`, `batchnorm`, `seeded`) and fast paths (`plain`,
`softmax`, `remembered`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from consilience.errors import InputError, unknown_name
from consilience.models.cnn import cnn, cnn_chen, cnn_dhondt, cnn_hasan, cnn_hasan_released, cnn_ozer
from consilience.models.convolutions import Convolutions
from consilience.models.frozen import Frozen, freeze
from consilience.models.maps import (
    FEATURES,
    RandomFourier,
    RandomReLU,
    feature_map,
    features,
    on_features,
    usual_features,
    width_of,
)
from consilience.models.mlp import linear, mlp, mlp_groupnorm, mlp_swish
from consilience.models.mobilenet import mobilenetv2, mobilenetv2_batchnorm
from consilience.models.resnet import group_norm, resnet
from consilience.models.variational import variational
from consilience.plugins import import_own

__all__ = [
    "FEATURES",
    "MODELS",
    "Convolutions",
    "Factory",
    "Frozen",
    "RandomFourier",
    "RandomReLU",
    "cnn",
    "cnn_chen",
    "cnn_dhondt",
    "cnn_hasan",
    "cnn_hasan_released",
    "cnn_ozer",
    "feature_map",
    "features",
    "freeze",
    "is_import_path",
    "linear",
    "mlp",
    "mlp_groupnorm",
    "mlp_swish",
    "mobilenetv2",
    "mobilenetv2_batchnorm",
    "model",
    "on_features",
    "resnet",
    "usual_features",
    "variational",
    "width_of",
]

Factory = Callable[[int | Sequence[int], int | None], nn.Module]

MODELS: dict[str, Factory] = {
    "linear": linear,
    "mlp": mlp,
    "mlp_swish": mlp_swish,
    "mlp_groupnorm": mlp_groupnorm,
    "cnn_hasan": cnn_hasan,
    "cnn_hasan_released": cnn_hasan_released,
    "cnn_ozer": cnn_ozer,
    "cnn_chen": cnn_chen,
    "cnn_dhondt": cnn_dhondt,
    **{f"resnet{depth}": partial(resnet, depth=depth) for depth in (20, 32, 44, 56)},
    **{f"resnet{depth}_batchnorm": partial(resnet, depth=depth, norm=nn.BatchNorm2d) for depth in (20, 32, 44, 56)},
    "mobilenetv2": mobilenetv2,
    "mobilenetv2_batchnorm": mobilenetv2_batchnorm,
}


def model(
    name: str, features: int | Sequence[int], outputs: int | None, feature_map: nn.Module | None = None
) -> nn.Module:
    """Build a network by its name.

    Args:
        name: One of `MODELS`, a residual network of any depth 6n + 2 ('resnet110_batchnorm'), or a factory's import
            path 'package.module:factory', called with (features, outputs).
        features: A row's number of features, or its shape.
        outputs: The number of classes; None for regression.
        feature_map: What the network learns on; the rows themselves if None.

    Returns:
        The network, the feature map included.

    Raises:
        InputError: If there is no such network, its factory cannot be used, or the map does not fit the rows.

    Example:
        >>> import consilience as co
        >>> sum(p.numel() for p in co.models.model("mlp", 2, 3).parameters())
        10703
    """
    if feature_map is not None:
        return on_features(feature_map, model(name, width_of(feature_map, features), outputs))
    if name in MODELS:
        return MODELS[name](features, outputs)
    depth = re.fullmatch(r"resnet(\d+)(_batchnorm)?", name)
    if depth and depth[2]:
        return resnet(features, outputs, int(depth[1]), nn.BatchNorm2d)
    if depth:
        return resnet(features, outputs, int(depth[1]), group_norm)
    if not is_import_path(name):
        raise unknown_name("model", name, MODELS)
    factory = import_own(name, "The model")
    try:
        network = factory(features, outputs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"The model '{name}' cannot be made for {features} features and {outputs or 1} outputs: "
            f"{type(error).__name__}: {error}; a factory is called with both."
        ) from error
    if not isinstance(network, nn.Module):
        raise InputError(f"'{name}' returned {type(network).__name__}; a factory must return a torch nn.Module.")
    return network


def is_import_path(name: str) -> bool:
    """Say whether a network is named by code to be imported, and not by one of the package's own names.

    Returns:
        True for 'package.module:factory'.
    """
    return ":" in name
