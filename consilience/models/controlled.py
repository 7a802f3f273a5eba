"""A user's network made ready for training anywhere: weights and dropout from the key, statistics without padding."""

from __future__ import annotations

import copy
import hashlib
import math

import torch
from torch import Tensor, nn

from consilience.errors import InputError
from consilience.models.batchnorm import BatchNorm, statistics
from consilience.models.seeded import Dropout

_NORMED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_STATELESS = (nn.Sequential, nn.Flatten, nn.Linear, nn.ReLU)


def control(model: nn.Module) -> nn.Module:
    """Copy a network, with dropout and batch normalisation that are ours; names and weights stay.

    Returns:
        The copy, in evaluation mode.
    """
    clone = copy.deepcopy(model)
    ours = {layer: new for layer in clone.modules() if (new := _replace(layer)) is not None}
    for name, layer in list(clone.named_modules(remove_duplicate=False)):
        if layer in ours and not name:
            return ours[layer].eval()
        if layer in ours:
            owner, _, attribute = name.rpartition(".")
            setattr(clone.get_submodule(owner), attribute, ours[layer])
    return clone.eval()


def _replace(layer: nn.Module) -> nn.Module | None:
    """Our layer for one of torch's; None where torch's own may stay, or none of ours fits."""
    if type(layer) is nn.Dropout or type(layer) in _CHANNELS:
        return Dropout(layer.p, type(layer) in _CHANNELS)  # type: ignore[arg-type]
    if type(layer) in _NORMED and layer.running_mean is not None and layer.momentum is not None:
        ours = BatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine)  # type: ignore[arg-type]
        ours.to(layer.running_mean)  # type: ignore[arg-type]
        ours.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "num_batches_tracked"})
        return ours
    return None


def refuse_uncontrolled(model: nn.Module) -> None:
    """Refuse layers whose randomness or statistics we cannot control.

    Args:
        model: A network after `control`.

    Raises:
        InputError: If there is such a layer.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            kind = type(layer).__name__
            raise InputError(f"Layer '{name}' is {kind}, whose randomness no key controls; use Dropout or set p=0.")
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"Layer '{name}' needs running statistics and a fixed momentum; set both, or use GroupNorm."
            )
        if not isinstance(layer, BatchNorm) and getattr(layer, "running_mean", None) is not None:
            raise InputError(f"Layer '{name}' keeps running statistics that are not sent; use BatchNorm or GroupNorm.")


@torch.no_grad()
def draw_weights(model: nn.Module, seed: int) -> nn.Module:
    """Copy a network, with weights that are a function of the seed alone.

    Every layer's `reset_parameters` draws them, and after those the `_reset_parameters` that torch's attention and
    transformers have, inner layers first. A weight that neither sets keeps its value if all its numbers are equal, as
    a scale of ones has; others were drawn when the network was built, from no seed that a run knows.

    Args:
        model: A network after `control`.
        seed: What its weights are drawn from.

    Returns:
        The copy, on the processor, so that the numbers are the same for every device.

    Raises:
        InputError: The seed does not decide a weight, or a layer draws a buffer, which would not move to the server.
    """
    fresh = copy.deepcopy(model).to("cpu")
    built = {name: weight.clone() for name, weight in fresh.named_parameters()}
    moving = set(statistics(fresh))
    buffers = {name: buffer.clone() for name, buffer in fresh.named_buffers() if name not in moving}
    for weight in fresh.parameters():
        if weight.is_floating_point() or weight.is_complex():
            weight.fill_(math.nan)
    layers = list(fresh.modules())
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` takes a millisecond
        for attribute, those in (("reset_parameters", layers), ("_reset_parameters", reversed(layers))):
            for layer in those:
                reset = getattr(layer, attribute, None)
                if callable(reset):
                    reset()
    for name, weight in fresh.named_parameters():
        if weight.isnan().any():
            weight.copy_(_constant(fresh, name, built[name]))
    for name, buffer in fresh.named_buffers():
        if name in buffers and not torch.equal(buffers[name], buffer):
            raise InputError(
                f"A layer draws the buffer '{name}' in `reset_parameters`, and it would not move to the server: make "
                "it a parameter, or draw it from a fixed seed when the network is built."
            )
    return fresh


def _constant(model: nn.Module, name: str, built: Tensor) -> Tensor:
    """A weight that no layer draws, as the network was built; refused where its numbers differ."""
    if bool((built == built.flatten()[:1]).all()):
        return built
    path, _, attribute = name.rpartition(".")
    remedy = f"give {_owner(model, path)} a method `reset_parameters` that draws it with torch"
    if attribute.startswith("original"):
        remedy = "leave the parametrisation out"
    raise InputError(
        f"The seed does not set the weight '{name}', which was drawn when the network was built: {remedy}."
    )


def _owner(model: nn.Module, path: str) -> str:
    """The kind of the layer that holds a weight; lists of weights have no methods of their own."""
    while isinstance(model.get_submodule(path), nn.ParameterList | nn.ParameterDict):
        path = path.rpartition(".")[0]
    return type(model.get_submodule(path)).__name__


def refuse_undrawn(model: nn.Module) -> None:
    """Refuse a network whose weights are not a function of the seed alone.

    Args:
        model: A network after `control`.

    Raises:
        InputError: There is such a weight, or a layer draws from another source of randomness.
    """
    if all(type(layer) in _STATELESS for layer in model.modules()):
        return
    again = dict(draw_weights(model, 0).named_parameters())
    for name, weight in draw_weights(model, 0).named_parameters():
        if not torch.equal(weight, again[name]):
            raise InputError(
                f"The seed does not set the weight '{name}': its `reset_parameters` draws other numbers every time. "
                "Draw them with torch."
            )


def describe_constants(model: nn.Module) -> dict[str, str]:
    """Hash what the layers of a user's own compute with beside their weights: torch's and ours have nothing.

    Args:
        model: A network after `control`.

    Returns:
        The SHA-256 of each such buffer, by name.
    """
    own = [
        (prefix, layer)
        for prefix, layer in model.named_modules()
        if not type(layer).__module__.startswith(("torch.", "consilience."))
    ]
    buffers = [pair for prefix, layer in own for pair in layer.named_buffers(prefix, recurse=False)]
    return {name: hashlib.sha256(_bytes(buffer)).hexdigest() for name, buffer in buffers}


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().data)


def _stir(model: nn.Module) -> None:
    """Move every weight a little, as training would."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator).to(weight), alpha=0.01)


def has_hooks(model: nn.Module) -> bool:
    """Say whether somebody listens to a network's passes, or has changed what a layer computes.

    Returns:
        True if a layer has a hook.
    """
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, kind) for layer in model.modules() for kind in kinds)


@torch.no_grad()
def refuse_hidden_state(model: nn.Module, x: Tensor) -> None:
    """Refuse a network that draws random numbers, or remembers what it saw, behind our back.

    Args:
        model: A network after `control`.
        x: A few inputs to try it on.

    Raises:
        InputError: If equal passes differ, or a pass changes a buffer that is not a running statistic.
    """
    if all(type(layer) in _STATELESS for layer in model.modules()) and not has_hooks(model):
        return
    for training in (False, True):
        clone = copy.deepcopy(model).train(training)
        before = {k: b.clone() for k, b in clone.named_buffers() if k not in statistics(clone)}
        first = clone(x)
        again = clone(x)
        _stir(clone)  # what follows the weights, such as a power iteration, may stand still until they move
        clone(x)
        for name, buffer in clone.named_buffers():
            if name in before and not torch.equal(before[name], buffer):
                raise InputError(
                    f"The model changes its buffer '{name}' in training, and it would not move to the server; "
                    "remove it."
                )
        if not torch.equal(first, again):
            raise InputError("The model gives different outputs for the same input: randomness inside is not allowed.")
