"""Feature maps: fixed functions φ of a row, on which a linear layer learns. Their numbers are drawn from a seed.

`features` builds one by its name; `on_features` puts a network on one; `feature_map` finds it in a network again.
A map holds buffers and no weights, so nothing of it is learned or sent: whoever knows its arguments has the same map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from consilience.errors import InputError, unknown_name
from consilience.key import Key
from consilience.models.bounded import Bounded, usual_bound
from consilience.models.convolutions import LARGEST_WIDTH, Convolutions, check_width, images
from consilience.models.frozen import Frozen, freeze
from consilience.models.hats import LEVELS, Hats, Knots

WIDTH = 1024  # random features of images
SMALL_WIDTH = 512  # the same of images with fewer pixels than `SMALL`
SMALL = 256
TABLE_WIDTH = 300  # waves beside the columns of tables and their hats
WIDEST_TABLE = 1000  # features of a table with many columns, whose hats are fewer
DIGITS = 18  # of a width or a seed, which then fits into 64 bits


class RandomReLU(nn.Module):
    """x and max(0, Wx + b) with fixed W ~ N(0, 1/d), b ~ N(0, 1): an untrained hidden layer.

    Args:
        inputs: d, the numbers of a row.
        outputs: How many features there are in all; the first d are x itself if there is room for twice as many.
        seed: What W and b are drawn from.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, outputs: int, seed: int = 0) -> None:
        super().__init__()
        check_width(outputs)
        self.inputs = inputs
        self.outputs = outputs
        self.seed = seed
        self.plain = _plain(inputs, outputs)
        draws = Key(seed).normal((outputs - self.plain, inputs + 1), torch.empty(0, dtype=torch.float64))
        self.register_buffer("weight", (draws[:, :-1] / math.sqrt(inputs)).float(), persistent=False)
        self.register_buffer("bias", draws[:, -1].float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows.

        Args:
            x: [N, …], flattened.

        Returns:
            Features [N, outputs].
        """
        x = x.flatten(1)
        return torch.cat([x[:, : self.plain], linear(x, self.weight.to(x), self.bias.to(x)).relu()], 1)

    def extra_repr(self) -> str:
        """Return the arguments that build it again."""
        return f"{self.inputs}, {self.outputs}, seed={self.seed}"


class RandomFourier(nn.Module):
    """x and √2·cos(Wx + b): a sketch of a Gaussian process with a squared-exponential kernel (Rahimi and Recht 2007).

    Args:
        inputs: d, the numbers of a row, on scaled columns.
        outputs: How many features there are in all; the first d are x itself if there is room for twice as many.
        scale: The kernel's length-scale is scale·√d: the distance at which two rows of d scaled columns typically lie.
        seed: What W and b are drawn from.

    Raises:
        InputError: There are too many features, or the scale is not above 0.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        check_width(outputs)
        if not 0 < scale < math.inf:
            raise InputError(f"scale={scale}: a length-scale is a number above 0.")
        self.inputs = inputs
        self.outputs = outputs
        self.scale = scale
        self.seed = seed
        self.plain = _plain(inputs, outputs)
        like = torch.empty(0, dtype=torch.float64)
        count = outputs - self.plain
        weight = Key(seed).fold(0).normal((count, inputs), like) / (scale * math.sqrt(inputs))
        self.register_buffer("weight", weight.float(), persistent=False)
        self.register_buffer("bias", (2 * math.pi * Key(seed).fold(1).uniform(count, like)).float(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map rows.

        Args:
            x: [N, …], flattened.

        Returns:
            Features [N, outputs].
        """
        x = x.flatten(1)
        waves = math.sqrt(2) * torch.cos(linear(x, self.weight.to(x), self.bias.to(x)))
        return torch.cat([x[:, : self.plain], waves], 1)

    def extra_repr(self) -> str:
        """Return the arguments that build it again."""
        return f"{self.inputs}, {self.outputs}, scale={self.scale}, seed={self.seed}"


def _plain(inputs: int, outputs: int) -> int:
    """How many features are the inputs themselves: all, where they are no more than half."""
    if 2 * inputs <= outputs:
        return inputs
    return 0


Builder = Callable[[int | Sequence[int], int, int, Knots], nn.Module]
MAPS = (RandomReLU, RandomFourier, Hats, Convolutions, Frozen, Bounded)


def _size(shape: int | Sequence[int]) -> int:
    if isinstance(shape, int):
        return shape
    return math.prod(shape)


def _identity(shape: int | Sequence[int], width: int, seed: int, knots: Knots) -> nn.Module:
    """The row itself, flattened: a linear model."""
    return nn.Flatten()


def _relu(shape: int | Sequence[int], width: int, seed: int, knots: Knots) -> nn.Module:
    """The row beside an untrained hidden layer, max(0, Wx + b): for tables and images."""
    return RandomReLU(_size(shape), width, seed)


def _fourier(shape: int | Sequence[int], width: int, seed: int, knots: Knots) -> nn.Module:
    """The row beside √2·cos(Wx + b): a sketch of a Gaussian process, for tables with scaled columns."""
    return RandomFourier(_size(shape), width, 1.0, seed)


def _hats(shape: int | Sequence[int], width: int, seed: int, knots: Knots) -> nn.Module:
    """The row beside broken lines of every number and √2·cos(Wx + b): for tables with scaled columns."""
    return Hats(_size(shape), width, knots, 1.0, seed)


def _convolutions(shape: int | Sequence[int], width: int, seed: int, knots: Knots) -> nn.Module:
    """Responses of random filters of several sizes, averaged over the cells of a grid: for images."""
    return Convolutions(images(shape), width, seed)


FEATURES: dict[str, Builder] = {
    "identity": _identity,
    "relu": _relu,
    "fourier": _fourier,
    "hats": _hats,
    "conv": _convolutions,
}


FOR_IMAGES = ("conv",)
AT_QUANTILES = ("hats",)


def knows_quantiles(name: str) -> bool:
    """Say whether a feature map is laid out by the quantiles of columns."""
    return name.partition(":")[0] in AT_QUANTILES


def usual_features(shape: int | Sequence[int], private: bool = False) -> str:
    """Choose a feature map by the kind of the rows.

    Args:
        shape: A row's number of features, or its shape.
        private: Whether noise is added, which is the larger the more features there are.

    Returns:
        Random convolutions for images; for tables the columns with random Fourier features, and with hats.

    Example:
        >>> import consilience as co
        >>> co.models.usual_features((1, 28, 28)), co.models.usual_features(4)
        ('conv:1024', 'hats:340')
    """
    kind = "conv"
    if isinstance(shape, int):
        kind = "fourier" if private else "hats"
    return f"{kind}:{_usual_width(kind, shape)}"


def _usual_width(kind: str, shape: int | Sequence[int]) -> int:
    """How many features rows get unless somebody says: fewer where rows are few or small."""
    if isinstance(shape, int):
        width = TABLE_WIDTH + shape
        if kind in AT_QUANTILES:
            width = max(width, min(width + len(LEVELS) * shape, WIDEST_TABLE))
        return min(width, LARGEST_WIDTH)
    if _size(shape) < SMALL:
        return SMALL_WIDTH
    return WIDTH


def features(name: str, shape: int | Sequence[int], knots: Knots = ()) -> nn.Module:
    """Build a feature map by its name.

    Args:
        name: One of `FEATURES`; `conv:512` has 512 features, `conv:512:7` is drawn from seed 7.
        shape: A row's number of features, or its shape.
        knots: Quantiles of every number, for maps that are laid out by them; as of normal columns if there are none.

    Returns:
        The map, without weights.

    Raises:
        InputError: There is no such map, or it does not fit the rows.

    Example:
        >>> import consilience as co
        >>> import torch
        >>> co.models.features("fourier:64", 3)(torch.zeros(5, 3)).shape
        torch.Size([5, 64])
    """
    kind, *numbers = name.split(":")
    if kind not in FEATURES:
        raise unknown_name("feature map", kind, FEATURES)
    if len(numbers) > 2 or not all(n.isdecimal() and len(n) < DIGITS for n in numbers):
        raise InputError(
            f"'{name}' is not a feature map: write for example `{kind}:512`, or `{kind}:512:7` for seed 7."
        )
    if numbers and kind == "identity":
        raise InputError(f"'{name}': the identity has the row's own features, write `identity` alone.")
    width = _usual_width(kind, shape)
    if numbers:
        width = int(numbers[0])
    seed = 0
    if len(numbers) > 1:
        seed = int(numbers[1])
    check_width(width)
    return FEATURES[kind](shape, width, seed, knots)


def width_of(map_: nn.Module, shape: int | Sequence[int]) -> int:
    """Count a map's features.

    Args:
        shape: A row's number of features, or its shape.

    Returns:
        How many numbers it makes of a row.

    Raises:
        InputError: The map does not fit the rows.

    Example:
        >>> import consilience as co
        >>> co.models.width_of(co.models.features("relu:100", 4), 4)
        100
    """
    if isinstance(shape, int):
        shape = (shape,)
    rows = torch.zeros(2, *shape)
    try:
        with torch.no_grad():
            out = freeze(map_)(rows)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"The feature map cannot take rows of shape {tuple(shape)}: {reason}.") from error
    if out.ndim != 2:
        raise InputError(f"The feature map gives {tuple(out.shape[1:])} for a row; a list of numbers is needed.")
    return int(out.shape[1])


def on_features(map_: nn.Module, network: nn.Module) -> nn.Module:
    """Put a network on a feature map.

    Args:
        map_: Fixed features; any weights of it are frozen.
        network: What learns on them; its layers follow.

    Returns:
        One network whose weights are those of `network`.

    Example:
        >>> import consilience as co
        >>> network = co.models.on_features(co.models.features("fourier:64", 3), co.models.linear(64, 2))
        >>> sum(p.numel() for p in network.parameters())
        130
    """
    layers = [network]
    if type(network) is nn.Sequential:
        layers = list(network)
    return nn.Sequential(freeze(map_), *layers)


def last_layer(model: nn.Module) -> nn.Linear:
    """Find a network's last layer.

    Args:
        model: A network whose only weights are those of its last linear layer.

    Raises:
        InputError: The network learns in other places too.
    """
    if not learns_last_layer(model):
        raise InputError(
            "This method learns one linear layer on fixed features, and the model has other weights: use the model "
            "'linear', or name a feature map (`consilience features` lists them)."
        )
    return cast(nn.Linear, flatten(model)[-1])


def learns_last_layer(model: nn.Module) -> bool:
    """Say whether a network's only weights are those of its last linear layer."""
    layers = flatten(model)
    return isinstance(layers[-1], nn.Linear) and not nn.Sequential(*layers[:-1]).state_dict()


def feature_map(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Find the feature map of a network whose only weights are those of its last linear layer.

    Args:
        model: A network as `on_features` makes it, or a linear one.

    Returns:
        A function from rows [N, …] to features [N, D].

    Raises:
        InputError: The network learns in other places too.
    """
    last_layer(model)
    before = flatten(model)[:-1]

    def call(x: Tensor) -> Tensor:
        for layer in before:
            x = layer(x)
        return x

    return call


def bound_features(feature_map: nn.Module | None, shape: int | Sequence[int]) -> nn.Module:
    """Put a bound on the length of features, as is usual for their kind.

    Args:
        feature_map: What makes them; None: they are the rows themselves.
        shape: A row's number of features, or its shape.

    Returns:
        The map with the bound behind it.
    """
    if feature_map is None:
        feature_map = nn.Flatten()
    return nn.Sequential(freeze(feature_map), usual_bound(feature_map, width_of(feature_map, shape)))


def is_bounded(model: nn.Module) -> bool:
    """Say whether the features under a network's last layer have a bounded length.

    Args:
        model: A network as a chain of layers.

    Returns:
        Whether the layer before the last one is `Bounded`.
    """
    return any(isinstance(layer, Bounded) for layer in flatten(model)[-2:-1])


def without_last(model: nn.Module) -> nn.Module:
    """Cut the last linear layer off a network, so that its features remain.

    Args:
        model: A network as a chain of layers.

    Returns:
        The layers before the last one, which shares them.

    Raises:
        InputError: The last layer is not linear, or the only one.
    """
    layers = flatten(model)
    if not isinstance(layers[-1], nn.Linear):
        raise InputError("The network does not end with a linear layer, so there are no features below it.")
    if all(isinstance(layer, nn.Flatten) for layer in layers[:-1]):
        raise InputError("The network is linear, so there are no features below its last layer: use `identity`.")
    return nn.Sequential(*layers[:-1])


def flatten(model: nn.Module) -> list[nn.Module]:
    """List the layers of a chain, those of chains within it in their place.

    Returns:
        Its layers; the network alone where it is no chain.
    """
    if type(model) is not nn.Sequential:
        return [model]
    return [layer for part in model for layer in flatten(part)]


def longest_features(feature_map: nn.Module, longest: float) -> float:
    """Bound the length of features by that of rows.

    Args:
        feature_map: A map that `features` builds for tables.
        longest: The length of the longest row.

    Returns:
        The largest length of its features.

    Raises:
        InputError: Nothing is known of this map.
    """
    if isinstance(feature_map, nn.Flatten):
        return longest
    if not isinstance(feature_map, (RandomReLU, RandomFourier, Hats)):
        raise InputError("The length of such features has no known bound: choose identity, relu, fourier or hats.")
    plain = 0.0
    if feature_map.plain:
        plain = longest
    if isinstance(feature_map, RandomFourier | Hats):
        lines = 0.0
        if isinstance(feature_map, Hats):
            lines = math.sqrt(len(feature_map.own.unique()))  # hats of a column sum to 1
        return math.hypot(plain, lines, math.sqrt(2 * len(feature_map.bias)))
    affine = torch.cat([feature_map.weight, feature_map.bias.unsqueeze(1)], 1).double()
    return math.hypot(plain, float(torch.linalg.matrix_norm(affine, 2)) * math.hypot(longest, 1.0))


def describe_maps(model: nn.Module) -> list[str]:
    """Say which feature maps a network holds: what decides its numbers beside its weights.

    Returns:
        A text for each map: the arguments that build it again, or the hash of its numbers.
    """
    return [f"{type(layer).__name__}({layer.extra_repr()})" for layer in model.modules() if isinstance(layer, MAPS)]
