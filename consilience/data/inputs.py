"""The server's unlabelled rows from elsewhere: another data set, brought to the shape of the sites' rows."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from consilience.data.dataset import Dataset
from consilience.data.sites import Features, Sites
from consilience.errors import InputError
from consilience.key import Key

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


def inputs_from(sites: Sites, rows: Dataset | Tensor, count: int | None = None, seed: int = 0) -> Sites:
    """The same sites with `count` rows drawn from elsewhere, or all of them, as the server's inputs.

    Images are resized and their channels matched; then the sites' scaling is applied. Labels are never looked at.
    """
    x = rows.x if isinstance(rows, Dataset) else rows
    if count is not None and not 0 < count <= len(x):
        raise InputError(
            f"There are {len(x)} rows to draw the server's inputs from: ask for 1 to {len(x)}, not {count}."
        )
    chosen = x if count is None else x[Key(seed).fold(5).permutation(len(x))[:count].sort().values]
    return dataclasses.replace(
        sites, inputs=sites.scaled(reshape(chosen, sites.features).double()).to(sites.train[0].x)
    )


def reshape(x: Tensor, features: Features) -> Tensor:
    """Rows in the shape a network takes: images by their size and channels; columns cannot be made up."""
    wanted = (features,) if isinstance(features, int) else tuple(features)
    if tuple(x.shape[1:]) == wanted:
        return x
    if x.ndim != 4 or len(wanted) != 3 or x.shape[1] not in (1, 3, wanted[0]) or wanted[0] not in (1, 3, x.shape[1]):
        raise InputError(
            f"The server's inputs have the shape {tuple(x.shape[1:])} a row and {wanted} is needed: only images can be "
            "resized, and only grey and colour matched."
        )
    x = _channels(x, wanted[0])
    if tuple(x.shape[2:]) == wanted[1:]:
        return x
    return interpolate(x, size=wanted[1:], mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)


def _channels(x: Tensor, wanted: int) -> Tensor:
    """Grey repeated in every colour, or colour as its luminance."""
    if x.shape[1] == wanted:
        return x
    if wanted == 1:
        return torch.einsum("nchw,c->nhw", x, x.new_tensor(LUMINANCE)).unsqueeze(1)
    return x.expand(-1, wanted, -1, -1)
