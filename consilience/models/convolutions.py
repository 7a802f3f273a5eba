"""Random convolutions: features of images that need no training and no other images (after Coates and Ng 2011)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

from consilience import tree
from consilience.errors import InputError
from consilience.key import Key

KERNELS = (3, 5, 7)  # widths of the filters: strokes, corners and larger shapes
GRID = 4  # cells a side, within which a filter's responses are averaged
CONTRAST = 0.01  # variance of a patch below which it counts as flat
THRESHOLD = 0.2  # the largest response that a filter ignores, of a patch scaled to length 1
PIXELS = 32 * 28 * 28  # of images at a time, so that responses stay in the processor's cache
STRIP = 8  # responses beside each other that one matrix product gives, at most
FEWEST = 16  # images at a time, however large
SMALL = 64 * 64  # pixels of a grey image up to which strips are taken
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

    cells: Tensor

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
        even = height % self.grid == 0 and width % self.grid == 0
        self.in_strips = channels == 1 and even and height * width <= SMALL  # elsewhere patches take too much memory
        self.register_buffer("cells", _cells(self.grid, height, width), persistent=False)
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
        _, height, width = self.shape
        chunk = max(PIXELS // (height * width), FEWEST)
        pooled = self._pooled
        if self.in_strips and not tree.under_vmap() and not tree.is_exporting():
            pooled = self._pooled_in_strips
        return torch.cat([pooled(part) for part in x.split(chunk)])[:, : self.outputs]

    def extra_repr(self) -> str:
        """Return the arguments that build it again."""
        return f"{self.shape}, {self.outputs}, seed={self.seed}"

    def _pooled(self, x: Tensor) -> Tensor:
        """The features of a few images, all scales beside each other."""
        cells = self.cells.to(x)
        parts = []
        for k in self.kernels:
            padded = pad(x, (k // 2,) * 4)
            response = conv2d(padded, self.get_buffer(f"filters{k}").to(x)).div_(_contrast(padded, k, 1))
            thresholds = self.get_buffer(f"thresholds{k}").to(x).reshape(-1, 1, 1)
            parts.append((response - thresholds).relu_().flatten(2) @ cells)
            parts.append(response.neg_().sub_(thresholds).relu_().flatten(2) @ cells)
        return torch.cat(parts, 1).flatten(1)

    def _pooled_in_strips(self, x: Tensor) -> Tensor:
        """The same, faster: images are last in memory, so that all arithmetic runs along many of them.

        A matrix product gives the responses of all filters at a strip of places, from the patch that the strip sees.
        """
        _, height, width = self.shape
        strip = _strip(width // self.grid)
        strips = width // strip
        turned = x.permute(1, 2, 3, 0).contiguous()
        pixels = height * width // self.grid**2
        parts = []
        for k in self.kernels:
            padded = pad(turned, (0, 0, *(k // 2,) * 4))
            patches = padded.unfold(1, k, 1).unfold(2, k + strip - 1, strip)  # [C, H, strips, N, k, k + strip − 1]
            columns = patches.permute(0, 4, 5, 1, 2, 3).reshape(-1, height * strips * len(x))
            response = _widen(self.get_buffer(f"filters{k}").to(x), strip) @ columns
            contrast = _contrast(padded, k, 0).reshape(height, strips, strip, len(x)).permute(2, 0, 1, 3)
            response = response.reshape(-1, contrast.numel()).div_(contrast.reshape(-1))
            thresholds = self.get_buffer(f"thresholds{k}").to(x).reshape(-1, 1)
            parts.append(self._add_up((response - thresholds).clamp_(min=0), strip))
            parts.append(self._add_up(response.add_(thresholds).clamp_(max=0), strip).neg_())
        return torch.cat(parts).reshape(-1, len(x)).div_(pixels).T

    def _add_up(self, response: Tensor, strip: int) -> Tensor:
        """Sums over the cells of the grid [count, cells, N]; one after the other is faster than both at once."""
        _, height, width = self.shape
        sums = response.reshape(len(response), strip, -1).sum(1)
        sums = sums.reshape(len(response) * self.grid, height // self.grid, -1).sum(1)
        strips = width // self.grid // strip
        if strips > 1:
            sums = sums.reshape(len(response) * self.grid**2, strips, -1).sum(1)
        return sums


def _cells(grid: int, height: int, width: int) -> Tensor:
    """The matrix that averages over the cells of a grid, which overlap where they do not fit [H · W, cells]."""
    return torch.kron(_shares(grid, height), _shares(grid, width))


def _shares(parts: int, length: int) -> Tensor:
    """The mean of each part of a line as a matrix [length, parts], cut as torch's adaptive pooling does."""
    places = torch.arange(length).unsqueeze(1)
    part = torch.arange(parts)
    first = part * length // parts
    last = ((part + 1) * length + parts - 1) // parts
    return ((places >= first) & (places < last)) / (last - first)


def _strip(cell: int) -> int:
    """How many responses beside each other are taken at a time: so many that strips fill a cell of the grid."""
    return max(size for size in range(1, STRIP + 1) if cell % size == 0)


def _widen(filters: Tensor, strip: int) -> Tensor:
    """The matrix that takes a strip's patch to the filters' responses [count · strip, C · k · (k + strip − 1)]."""
    count, channels, k, _ = filters.shape
    matrix = filters.new_zeros(count, strip, channels, k, k + strip - 1)
    for place in range(strip):
        matrix[:, place, :, :, place : place + k] = filters
    return matrix.reshape(count * strip, -1)


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


def _contrast(padded: Tensor, k: int, channels: int) -> Tensor:
    """The length of every patch without its mean, at least that of a flat one.

    Images have zeros around them; channels, height and width follow each other from a dimension on, and one is left.
    """
    numbers = padded.shape[channels] * k * k
    mean = _patch_sums(padded, k, channels).div_(numbers)
    square = _patch_sums(padded * padded, k, channels).div_(numbers)
    variance = (square - mean * mean).clamp(min=0)
    return (numbers * (variance + CONTRAST)).sqrt_()


def _patch_sums(x: Tensor, k: int, channels: int) -> Tensor:
    """The sum over every patch of k × k and its channels; pooling does the same six times as slowly."""
    if x.shape[channels] > 1:
        x = x.sum(channels, keepdim=True)
    for side in (channels + 2, channels + 1):
        size = x.shape[side] - k + 1
        shifted = [x.narrow(side, shift, size) for shift in range(k)]
        x = shifted[0] + shifted[1]
        for part in shifted[2:]:
            x += part
    return x
