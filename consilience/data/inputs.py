"""The server's unlabelled rows from elsewhere: another data set, brought to the shape of the sites' rows."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from consilience.data.dataset import Dataset, Draw
from consilience.data.sites import Features, Sites
from consilience.errors import InputError
from consilience.key import Key

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


def inputs_from(sites: Sites, rows: Dataset | Tensor, count: int | None = None, seed: int = 0) -> Sites:
    """Take the server's inputs from elsewhere.

    Images are resized and their channels matched; then the sites' scaling is applied. Labels are never looked at.

    Args:
        sites: The sites; they are left as they are.
        rows: A data set, or features [N, …] in their original units.
        count: How many rows to draw; None for all of them.
        seed: Equal seeds draw equal rows.

    Returns:
        The same sites with these rows as the server's inputs.

    Raises:
        InputError: There are fewer rows than `count`, or they cannot be brought to the shape of the sites' rows.

    Example:
        >>> import consilience as co
        >>> sites = co.Problem("moons", sites=3).build_sites()
        >>> co.data.inputs_from(sites, co.datasets.moons(100), 20).inputs.shape
        torch.Size([20, 2])
    """
    x = rows.x if isinstance(rows, Dataset) else rows
    if count is not None:
        if not 0 < count <= len(x):
            raise InputError(
                f"There are {len(x)} rows to draw the server's inputs from: ask for 1 to {len(x)}, not {count}."
            )
        order = Key(seed).fold(Draw.INPUTS).permutation(len(x))
        x = x[order[:count].sort().values]
    inputs = sites.scaled(reshape(x, sites.features).double())
    return dataclasses.replace(sites, inputs=inputs.to(sites.train[0].x))


def reshape(x: Tensor, features: Features) -> Tensor:
    """Bring rows to the shape a network takes: images by their size and channels; columns cannot be made up.

    Args:
        x: Rows, [N, …].
        features: How many features a network takes, or their shape.

    Returns:
        Rows, [N, *features].

    Raises:
        InputError: The rows are not images, or have a number of channels that cannot be matched.
    """
    shape = (features,) if isinstance(features, int) else tuple(features)
    if tuple(x.shape[1:]) == shape:
        return x
    if x.ndim != 4 or len(shape) != 3 or x.shape[1] not in (1, 3, shape[0]) or shape[0] not in (1, 3, x.shape[1]):
        raise InputError(
            f"A row of the server's inputs has the shape {tuple(x.shape[1:])} and {shape} is needed: only images can "
            "be resized, and only grey and colour matched."
        )
    x = _match_channels(x, shape[0])
    if tuple(x.shape[2:]) == shape[1:]:
        return x
    return interpolate(x, size=shape[1:], mode="bilinear", antialias=True, align_corners=False).clamp(0, 1)


def _match_channels(x: Tensor, channels: int) -> Tensor:
    """Grey repeated in every colour, or colour as its luminance."""
    if x.shape[1] == channels:
        return x
    if channels == 1:
        return torch.einsum("nchw,c->nhw", x, x.new_tensor(LUMINANCE)).unsqueeze(1)
    return x.expand(-1, channels, -1, -1)
