"""Feature maps: fixed functions φ of a row, on which a linear layer learns. Their numbers are drawn from a seed.

`features` builds one by its name; `on_features` puts a network on one; `feature_map` finds it in a network again.
A map holds buffers and no weights, so nothing of it is learned or sent: whoever knows its arguments has the same map.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from consilience.errors import InputError, unknown_name
from consilience.key import Key
from consilience.models.convolutions import Convolutions, images

WIDTH = 1024  # random features of images
TABLE_WIDTH = 300  # the same of tables, which have fewer rows
LARGEST_WIDTH = 16_384  # whose Gram matrix takes a gigabyte in half precision


class RandomReLU(nn.Module):
    """x and max(0, Wx + b) with fixed W ~ N(0, 1/d), b ~ N(0, 1): an untrained hidden layer.

    Args:
        inputs: d, the numbers of a row.
        outputs: How many features there are in all; the first d are x itself if there is room for twice as many.
        seed: What W and b are drawn from.
    """

    def __init__(self, inputs: int, outputs: int, seed: int = 0) -> None:
        super().__init__()
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
        return torch.cat([x[:, : self.plain], nn.functional.linear(x, self.weight, self.bias).relu()], 1)  # type: ignore[arg-type]


class RandomFourier(nn.Module):
    """x and √2·cos(Wx + b): a sketch of a Gaussian process with a squared-exponential kernel (Rahimi and Recht 2007).

    Args:
        inputs: d, the numbers of a row, on scaled columns.
        outputs: How many features there are in all; the first d are x itself if there is room for twice as many.
        scale: The kernel's length-scale is scale·√d: the distance at which two rows of d scaled columns typically lie.
        seed: What W and b are drawn from.
    """

    def __init__(self, inputs: int, outputs: int, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
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
        waves = math.sqrt(2) * torch.cos(nn.functional.linear(x, self.weight, self.bias))  # type: ignore[arg-type]
        return torch.cat([x[:, : self.plain], waves], 1)


def _plain(inputs: int, outputs: int) -> int:
    """How many features are the inputs themselves: all, where they are no more than half."""
    if 2 * inputs <= outputs:
        return inputs
    return 0


Builder = Callable[[int | Sequence[int], int, int], nn.Module]


def _size(shape: int | Sequence[int]) -> int:
    if isinstance(shape, int):
        return shape
    return math.prod(shape)


def _identity(shape: int | Sequence[int], width: int, seed: int) -> nn.Module:
    return nn.Flatten()


def _relu(shape: int | Sequence[int], width: int, seed: int) -> nn.Module:
    return RandomReLU(_size(shape), width, seed)


def _fourier(shape: int | Sequence[int], width: int, seed: int) -> nn.Module:
    return RandomFourier(_size(shape), width, 1.0, seed)


def _convolutions(shape: int | Sequence[int], width: int, seed: int) -> nn.Module:
    return Convolutions(images(shape), width, seed)


FEATURES: dict[str, Builder] = {
    "identity": _identity,
    "relu": _relu,
    "fourier": _fourier,
    "conv": _convolutions,
}


def usual_features(shape: int | Sequence[int]) -> str:
    """Choose a feature map by the kind of the rows.

    Args:
        shape: A row's number of features, or its shape.

    Returns:
        Random convolutions for images, the columns and random Fourier features for tables.
    """
    if isinstance(shape, int):
        return f"fourier:{TABLE_WIDTH + shape}"
    return f"conv:{WIDTH}"


def features(name: str, shape: int | Sequence[int]) -> nn.Module:
    """Build a feature map by its name.

    Args:
        name: `identity`, `relu`, `fourier` or `conv`; `conv:512` has 512 features, `conv:512:7` is drawn from seed 7.
        shape: A row's number of features, or its shape.

    Returns:
        The map, without weights.

    Raises:
        InputError: There is no such map, or it does not fit the rows.
    """
    kind, *numbers = name.split(":")
    if kind not in FEATURES:
        raise unknown_name("feature map", kind, FEATURES)
    if len(numbers) > 2 or not all(n.isdecimal() for n in numbers):
        raise InputError(
            f"'{name}' is not a feature map: write for example `{kind}:512`, or `{kind}:512:7` for seed 7."
        )
    width = int(numbers[0]) if numbers else WIDTH
    if not 1 <= width <= LARGEST_WIDTH:
        raise InputError(f"'{name}' asks for {width:,} features: take 1 to {LARGEST_WIDTH:,}.")
    seed = int(numbers[1]) if len(numbers) > 1 else 0
    return FEATURES[kind](shape, width, seed)


def width_of(map_: nn.Module, shape: int | Sequence[int]) -> int:
    """Count a map's features.

    Args:
        map_: A feature map.
        shape: A row's number of features, or its shape.

    Returns:
        How many numbers it makes of a row.

    Raises:
        InputError: The map does not fit the rows.
    """
    row = torch.zeros(2, *((shape,) if isinstance(shape, int) else shape))
    try:
        with torch.no_grad():
            out = map_(row)
    except RuntimeError as error:
        raise InputError(f"The feature map cannot take rows of shape {tuple(row.shape[1:])}: {error}.") from error
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
    """
    layers = [network]
    if type(network) is nn.Sequential:
        layers = list(network)
    return nn.Sequential(freeze(map_), *layers)


def freeze(map_: nn.Module) -> nn.Module:
    """Make a network a feature map: its weights become constants, its dropout is left out.

    Args:
        map_: Any network.

    Returns:
        The map; the same object if it has no weights.
    """
    if not any(True for _ in map_.parameters()):
        return map_
    return Frozen(map_)


class Frozen(nn.Module):
    """A network whose weights are constants: buffers that are neither learned nor sent.

    Args:
        body: The network; it is copied.
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = _without_weights(body)

    def forward(self, x: Tensor) -> Tensor:
        """Run the network in evaluation mode.

        Args:
            x: Inputs [N, …].

        Returns:
            Features [N, D].
        """
        out: Tensor = self.body(x).flatten(1)
        return out

    def train(self, mode: bool = True) -> Frozen:
        """Stay in evaluation mode.

        Args:
            mode: Not looked at.

        Returns:
            Itself.
        """
        return super().train(False)


def _without_weights(body: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose weights are buffers and whose dropout is gone."""
    import copy

    clone = copy.deepcopy(body).eval()
    for name, layer in list(clone.named_modules()):
        if "Dropout" in type(layer).__name__:
            owner, _, attribute = name.rpartition(".")
            setattr(clone.get_submodule(owner), attribute, nn.Identity())
    for layer in clone.modules():
        for name, weight in list(layer._parameters.items()):
            del layer._parameters[name]
            layer.register_buffer(name, None if weight is None else weight.detach().clone())
    return clone


def last_layer(model: nn.Module) -> nn.Linear:
    """Find a network's last layer.

    Args:
        model: A network whose only weights are those of its last linear layer.

    Returns:
        That layer.

    Raises:
        InputError: The network learns in other places too.
    """
    layers = _layers(model)
    learns_elsewhere = any(True for layer in layers[:-1] for _ in layer.parameters())
    if not isinstance(layers[-1], nn.Linear) or learns_elsewhere:
        raise InputError(
            "This method learns one linear layer on fixed features, and the model has other weights: use the model "
            "'linear', or name a feature map (`consilience features` lists them)."
        )
    return layers[-1]


def _layers(model: nn.Module) -> list[nn.Module]:
    """A network's layers, one after the other."""
    if type(model) is nn.Sequential:
        return list(model)
    return [model]


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
    before = _layers(model)[:-1]

    def call(x: Tensor) -> Tensor:
        for layer in before:
            x = layer(x)
        return x

    return call
