"""Networks as feature maps: their weights are constants, neither learned nor sent, and known by their hash."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from itertools import chain
from typing import Self

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from consilience.errors import InputError
from consilience.models.controlled import control


class Frozen(nn.Module):
    """A network whose weights and running statistics are constants; it always predicts and never trains.

    The network is no submodule, so that nobody finds weights, statistics or dropout in it.

    Args:
        body: The network; it is copied.
        numbers: Its weights and statistics, as `numbers` returns them; those of `body` if empty.
        sha256: What their hash must be; not compared if empty.

    Attributes:
        body: The network, in evaluation mode.

    Raises:
        InputError: The numbers are not those of the hash or of this network, or the network needs other rows beside
            a row to compute its features.
    """

    body: nn.Module

    def __init__(self, body: nn.Module, numbers: str = "", sha256: str = "") -> None:
        super().__init__()
        body = control(body)  # whose dropout and batch normalisation a file can name
        if numbers:
            _restore_numbers(body, numbers)
        _refuse_batches(body)
        self.__dict__["body"] = body.requires_grad_(False)  # past `__setattr__`, which would make it a submodule
        if sha256 and sha256 != self.sha256:
            raise InputError("The frozen network's numbers are not those of its hash: restore the file from a copy.")

    @property
    def numbers(self) -> str:
        """Weights and running statistics as a text: safetensors in base64."""
        return base64.b64encode(self._bytes()).decode()

    @property
    def sha256(self) -> str:
        """The hash of weights and running statistics, in hexadecimal digits."""
        return hashlib.sha256(self._bytes()).hexdigest()

    def _bytes(self) -> bytes:
        return save({name: value.detach().cpu().contiguous() for name, value in self.body.state_dict().items()})

    def forward(self, x: Tensor) -> Tensor:
        """Run the network.

        Args:
            x: Inputs [N, …].

        Returns:
            Features [N, D].
        """
        numbers = chain(self.body.parameters(), self.body.buffers())
        dtype = next(value.dtype for value in numbers if value.is_floating_point())
        out: Tensor = self.body(x.to(dtype))  # Newton's method hands rows over in double precision
        return out.flatten(1).to(x.dtype)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the constants with the network around them: torch's hook for `to`, `double` and the like."""
        self.body._apply(fn, recurse)
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self

    def extra_repr(self) -> str:
        """Return the hash, which tells two frozen networks apart."""
        return f"sha256={self.sha256}"


def freeze(map_: nn.Module) -> nn.Module:
    """Make a network a feature map: its weights become constants, its dropout is off.

    Returns:
        The map; the same object if it has neither weights nor statistics.

    Example:
        >>> import consilience as co
        >>> network = co.models.freeze(co.models.mlp(2, 5))
        >>> list(network.parameters())
        []
    """
    if not map_.state_dict():
        return map_
    return Frozen(map_)


def _restore_numbers(body: nn.Module, numbers: str) -> None:
    """Put a frozen network's numbers into its layers; none is copied, so layers on `meta` do."""
    with torch.device("cpu"):
        values = load(base64.b64decode(numbers, validate=True))
    shapes = {name: value.shape for name, value in body.state_dict().items()}
    if {name: value.shape for name, value in values.items()} != shapes:
        raise InputError("The frozen network's numbers do not fit its layers: restore the file from a copy.")
    body.load_state_dict(values, assign=True)


def _refuse_batches(body: nn.Module) -> None:
    """Refuse layers whose output for a row depends on the rows beside it."""
    for name, layer in body.named_modules():
        if isinstance(layer, _BatchNorm) and layer.running_mean is None:
            raise InputError(f"Layer '{name}' keeps no running statistics: features of a row would depend on others.")


def count_constants(model: nn.Module) -> int:
    """Count the numbers that a network holds beside its weights.

    Returns:
        How many numbers its buffers and its frozen networks' own have.
    """
    count = sum(buffer.numel() for buffer in model.buffers())
    for layer in model.modules():
        if isinstance(layer, Frozen):
            count += count_constants(layer.body) + sum(weight.numel() for weight in layer.body.parameters())
    return count
