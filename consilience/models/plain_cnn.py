"""Plain convolutional networks: convolutions with ReLU and max pooling, then a perceptron.

Channels come last in memory: torch's convolutions need no change of layout then, and its pooling is some ten times as
fast. ReLU and max pooling may change places, so ReLU comes second, where a window has left one number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, max_pool2d_with_indices

from consilience.models.batchnorm import BatchNorm
from consilience.models.controlled import has_hooks
from consilience.models.plain import Perceptron, perceptron_of
from consilience.tree import Params

Pair = tuple[int, int]
_FASTER = (nn.MaxPool2d, BatchNorm)  # torch's kernels for these gain most from channels that come last


class Passed(NamedTuple):
    """What a stage saw and made.

    Attributes:
        inputs: What it was given [N, C, H, W].
        responses: Of the convolution; the outputs themselves where nothing is pooled.
        places: Where the largest response of each window lay; None where nothing is pooled.
        outputs: What it made.
    """

    inputs: Tensor
    responses: Tensor
    places: Tensor | None
    outputs: Tensor


class Stage(NamedTuple):
    """A convolution, perhaps with max pooling and ReLU.

    Attributes:
        weight: The name of its weights.
        bias: The name of its bias; None where it has none.
        stride: Of the convolution.
        padding: Of the convolution, with zeros.
        window: Height and width of what is pooled into one number; None where nothing is.
        rectified: Whether it ends with ReLU.
    """

    weight: str
    bias: str | None
    stride: Pair
    padding: Pair
    window: Pair | None
    rectified: bool

    def respond(self, params: Params, x: Tensor) -> Tensor:
        """Run the convolution alone.

        Args:
            x: Inputs [N, C, H, W].

        Returns:
            Responses [N, O, H', W'].
        """
        bias = None
        if self.bias is not None:
            bias = params[self.bias]
        return conv2d(x, params[self.weight], bias, self.stride, self.padding)

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """Run the stage.

        Args:
            x: Inputs [N, C, H, W].

        Returns:
            Outputs [N, O, H', W'].
        """
        out = self.respond(params, x)
        if self.window is not None:
            out = max_pool2d(out, self.window)
        if self.rectified:
            out = out.relu_()
        return out

    def passed(self, params: Params, x: Tensor) -> Passed:
        """Run the stage and keep what its gradient needs.

        Args:
            x: Inputs [N, C, H, W].

        Returns:
            What it saw and made.
        """
        responses = self.respond(params, x)
        outputs = responses
        places = None
        if self.window is not None:
            outputs, places = max_pool2d_with_indices(responses, self.window)
        if self.rectified:
            outputs = outputs.relu_()
        return Passed(x, responses, places, outputs)


class PlainCNN(NamedTuple):
    """Stages of convolutions, then a perceptron on what they leave, flattened.

    Attributes:
        stages: The convolutions, first one first.
        head: The fully connected layers.
    """

    stages: tuple[Stage, ...]
    head: Perceptron

    @property
    def names(self) -> list[str]:
        """The names of all weights."""
        parts = [name for stage in self.stages for name in (stage.weight, stage.bias) if name is not None]
        return [*parts, *self.head.weights, *self.head.biases]

    def outputs(self, params: Params, x: Tensor) -> Tensor:
        """Run the network.

        Args:
            x: Images [N, C, H, W].
        """
        x = channels_last(x)
        for stage in self.stages:
            x = stage.outputs(params, x)
        return self.head.passed(params, x)[1]


def suits_channels_last(model: nn.Module) -> bool:
    """Say whether a network is faster with the channels last.

    Max pooling is some ten times as fast, batch normalisation and depthwise convolutions by a third; normalisation in
    groups is slower by more than other convolutions gain.

    Returns:
        Whether one of its layers is of those that gain.
    """
    for layer in model.modules():
        depthwise = isinstance(layer, nn.Conv2d) and layer.groups > 1
        if depthwise or isinstance(layer, _FASTER):
            return True
    return False


def channels_last(x: Tensor) -> Tensor:
    """Lay images out with the channels of a pixel beside each other.

    Args:
        x: Images [N, C, H, W].

    Returns:
        The same numbers of the same shape; a single channel, which lies either way, with strides that say so.
    """
    if x.shape[1] == 1:
        _, _, height, width = x.shape
        return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))
    return x.contiguous(memory_format=torch.channels_last)


def plain_cnn(model: nn.Module) -> PlainCNN | None:
    """Read a network as a plain convolutional one.

    Returns:
        Its stages; None if it is anything else, or somebody listens to its passes.
    """
    if type(model) is not nn.Sequential or has_hooks(model):
        return None
    layers = list(_layers(model))
    cuts = [i for i, (_, layer) in enumerate(layers) if type(layer) is nn.Flatten]
    if len(cuts) != 1 or cuts[0] == 0:
        return None
    stages = _stages(layers[: cuts[0]])
    head = perceptron_of(layers[cuts[0] :])
    if stages is None or head is None:
        return None
    used = [id(part) for _, layer in layers for part in layer._parameters.values() if part is not None]
    if len(set(used)) < len(used):
        return None  # layers share weights
    return PlainCNN(stages, head)


def _layers(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of chains within chains as they are called, by name."""
    for name, layer in model._modules.items():
        if type(layer) is nn.Sequential:
            yield from _layers(layer, f"{prefix}{name}.")
        elif layer is not None:
            yield f"{prefix}{name}", layer


def _stages(layers: list[tuple[str, nn.Module]]) -> tuple[Stage, ...] | None:
    """Convolutions with what follows each; None where a layer is none of these."""
    stages: list[Stage] = []
    for name, layer in layers:
        stage = _convolution(name, layer)
        if stage is not None:
            stages.append(stage)
            continue
        if not stages:
            return None
        last = stages.pop()
        window = _window(layer)
        if type(layer) is nn.ReLU and not last.rectified:
            stages.append(last._replace(rectified=True))
        elif window is not None and last.window is None:
            stages.append(last._replace(window=window))
        else:
            return None
    return tuple(stages)


def _convolution(name: str, layer: nn.Module) -> Stage | None:
    """A convolution of all channels, without gaps, padded with zeros by a number; None for any other layer."""
    if type(layer) is not nn.Conv2d or isinstance(layer.padding, str):
        return None
    if layer.groups != 1 or _pair(layer.dilation) != (1, 1) or layer.padding_mode != "zeros":
        return None
    bias = None
    if layer.bias is not None:
        bias = f"{name}.bias"
    return Stage(f"{name}.weight", bias, _pair(layer.stride), _pair(layer.padding), None, False)


def _window(layer: nn.Module) -> Pair | None:
    """What a layer takes the largest number of, where such windows lie side by side; None for any other layer."""
    if type(layer) is not nn.MaxPool2d or layer.return_indices or layer.ceil_mode:
        return None
    window = _pair(layer.kernel_size)
    if _pair(layer.stride) != window or _pair(layer.padding) != (0, 0) or _pair(layer.dilation) != (1, 1):
        return None
    return window


def _pair(size: int | tuple[int, ...]) -> Pair:
    """Height and width, where one number may stand for both."""
    if isinstance(size, int):
        return size, size
    return size[0], size[1]
