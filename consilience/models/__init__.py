"""Networks by name; any nn.Module will do in their place."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from torch import nn

from consilience.errors import InputError, unknown_name
from consilience.models.cnn import cnn_chen, cnn_dhondt, cnn_hasan, cnn_hasan_released, cnn_ozer
from consilience.models.mlp import linear, mlp, mlp_groupnorm, mlp_swish
from consilience.models.mobilenet import mobilenetv2, mobilenetv2_batchnorm
from consilience.models.resnet import group_norm, resnet

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


def model(name: str, features: int | Sequence[int], outputs: int | None) -> nn.Module:
    """A network by its name, residual ones of any depth 6n + 2 ('resnet110_batchnorm') included, or from
    `package.module:factory`, called with (features, outputs)."""
    if name in MODELS:
        return MODELS[name](features, outputs)
    depth = re.fullmatch(r"resnet(\d+)(_batchnorm)?", name)
    if depth:
        return resnet(features, outputs, int(depth[1]), nn.BatchNorm2d if depth[2] else group_norm)
    if ":" not in name:
        raise unknown_name("model", name, MODELS)
    module, _, attribute = name.partition(":")
    try:
        factory = cast(Factory, getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise InputError(f"Cannot load the model '{name}': {error}.") from error
    built = factory(features, outputs)
    if not isinstance(built, nn.Module):
        raise InputError(f"'{name}' returned {type(built).__name__}; a factory must return a torch nn.Module.")
    return built
