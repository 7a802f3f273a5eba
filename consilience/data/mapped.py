"""Rows as the features that a fixed map makes of them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from consilience.data.sites import Sites
from consilience.models.frozen import freeze
from consilience.models.maps import width_of

CHUNK = 4096  # rows at a time


def map_sites(sites: Sites, feature_map: nn.Module) -> Sites:
    """Replace every row by its features, once, so that training on them need not compute them in every epoch.

    A network on these sites learns what the same network learns on `on_features(feature_map, network)` and the rows
    themselves, up to rounding; it takes features and no rows.

    Args:
        feature_map: Fixed features; any weights of it are frozen.

    Returns:
        The sites with the features in place of the rows, in every role.

    Raises:
        InputError: The map does not fit the rows.

    Example:
        >>> import consilience as co
        >>> sites = co.Problem("moons", sites=3).build_sites()
        >>> co.data.map_sites(sites, co.models.features("fourier:50", 2)).train[0].x.shape[1]
        50
    """
    width = width_of(feature_map, sites.features)
    frozen = freeze(feature_map)

    @torch.no_grad()
    def compute(x: Tensor) -> Tensor:
        if not len(x):
            return x.new_zeros(0, width)
        return torch.cat([frozen(part) for part in x.split(CHUNK)])

    return dataclasses.replace(
        sites.map_x(compute), features=width, image=None, feature_names=None, feature_shift=None, feature_scale=None
    )
