"""Random convolutions: features of images that need no training and no other images (after Coates and Ng 2011)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, conv2d, pad

from consilience.errors import InputError
from consilience.key import Key

KERNELS = (3, 5, 7)  # widths of the filters: strokes, corners and larger shapes
GRID = 4  # cells a side, within which a filter's responses are averaged
CONTRAST = 0.01  # variance of a patch below which it counts as flat
THRESHOLD = 0.2  # the largest response that a filter ignores, of a patch scaled to length 1
CHUNK = 64  # images at a time, so that responses stay in the processor's cache
LARGEST_WIDTH = 16_384  # features, whose Gram matrix takes a gigabyte in half precision


def check_width(outputs: int) -> None:
    """Refuse a number of features that nobody can use.

    Args:
        outputs: How many there would be.

    Raises:
        InputError: There is none, or more than fit into memory.
    """
    if type(outputs) is not int or not 1 <= outputs <= LARGEST_WIDTH:
        raise InputError(f"A feature map of {outputs} features cannot be: take 1 to {LARGEST_WIDTH:,}.")


def images(shape: int | Sequence[int]) -> tuple[int, int, int]:
    """Read a row's shape as that of an image.

    Args:
        shape: Channels, height and width; height and width; or a number that is a square.

    Returns:
        Channels, height and width.

    Raises:
        InputError: It is none of these.
    """
    if isinstance(shape, int):
        side = math.isqrt(shape)
        if side * side == shape:
            return 1, side, side
        shape = (shape,)
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    raise InputError(
        f"Rows of {math.prod(shape):,} columns are not images: use the feature maps `relu` or `fourier` for tables."
    )


class Convolutions(nn.Module):
    """Responses of fixed random filters of several widths, of both signs, averaged over the cells of a grid.

    A response is that to a patch without its mean and scaled by its contrast, so that a faint stroke counts like a bold
    one. Each filter is Gaussian noise, smoothed, and ignores responses below a threshold of its own.

    Args:
        shape: Channels, height and width of an image.
        outputs: D, how many features there are.
        seed: What filters and thresholds are drawn from.
    """

    def __init__(self, shape: Sequence[int], outputs: int, seed: int = 0) -> None:
        super().__init__()
        check_width(outputs)
        self.shape = images(tuple(shape))
        self.outputs = outputs
        self.seed = seed
        channels, height, width = self.shape
        self.kernels = [k for k in KERNELS if k <= min(height, width)]
        if not self.kernels:
            raise InputError(f"Images of {height} × {width} are too small for convolutions: use `relu` instead.")
        self.grid = min(GRID, height, width)
        filters = math.ceil(outputs / (2 * self.grid**2))
        self.kernels = self.kernels[:filters]  # at least one filter of each size
        for i, k in enumerate(self.kernels):
            count = (filters + len(self.kernels) - 1 - i) // len(self.kernels)
            bank, thresholds = _draw_filters(Key(seed).fold(k), count, channels, k)
            self.register_buffer(f"filters{k}", bank, persistent=False)
            self.register_buffer(f"thresholds{k}", thresholds, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images.

        Args:
            x: [N, C, H, W], or rows that hold their numbers.

        Returns:
            Features [N, outputs].
        """
        x = x.reshape(-1, *self.shape)
        return torch.cat([self._pooled(part) for part in x.split(CHUNK)])[:, : self.outputs]

    def extra_repr(self) -> str:
        """Return the arguments that build it again."""
        return f"{self.shape}, {self.outputs}, seed={self.seed}"

    def _pooled(self, x: Tensor) -> Tensor:
        """The features of a few images, all scales beside each other."""
        parts = []
        for k in self.kernels:
            response = conv2d(x, self.get_buffer(f"filters{k}").to(x), padding=k // 2).div_(_contrast(x, k))
            thresholds = self.get_buffer(f"thresholds{k}").to(x).reshape(-1, 1, 1)
            parts.append(self._average((response - thresholds).relu_()))
            parts.append(self._average(response.neg_().sub_(thresholds).relu_()))
        return torch.cat(parts, 1)

    def _average(self, response: Tensor) -> Tensor:
        """A filter's mean response in each cell of the grid, in a row."""
        _, height, width = self.shape
        if height % self.grid == 0 and width % self.grid == 0:  # the same, and faster
            return avg_pool2d(response, (height // self.grid, width // self.grid)).flatten(1)
        return adaptive_avg_pool2d(response, self.grid).flatten(1)


def _draw_filters(key: Key, count: int, channels: int, k: int) -> tuple[Tensor, Tensor]:
    """Filters of mean 0 and length 1 [count, channels, k, k], and their thresholds [count]."""
    like = torch.empty(0, dtype=torch.float64)
    noise = key.fold(0).normal((count * channels, 1, k, k), like)
    binomial = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    smooth = conv2d(pad(noise, (1, 1, 1, 1)), (binomial[:, None] * binomial)[None, None])
    bank = smooth.reshape(count, channels, k, k)
    bank = bank - bank.mean((2, 3), keepdim=True)
    bank = bank / bank.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    return bank.float(), (THRESHOLD * key.fold(1).uniform(count, like)).float()


def _contrast(x: Tensor, k: int) -> Tensor:
    """The length of every patch without its mean [N, 1, H, W], at least that of a flat one."""
    numbers = x.shape[1] * k * k
    mean = _patch_means(x.mean(1, keepdim=True), k)
    square = _patch_means((x * x).mean(1, keepdim=True), k)
    variance = (square - mean * mean).clamp(min=0)
    return (numbers * (variance + CONTRAST)).sqrt()


def _patch_means(x: Tensor, k: int) -> Tensor:
    """The mean of every patch of k × k, zeros around the image; pooling does the same six times as slowly."""
    sums = pad(x, (k // 2,) * 4)
    for side in (-1, -2):
        size = sums.shape[side] - k + 1
        shifted = [sums.narrow(side, shift, size) for shift in range(k)]
        sums = shifted[0] + shifted[1]
        for part in shifted[2:]:
            sums += part
    return sums / k**2
