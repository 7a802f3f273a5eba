"""A user's network made ready for training anywhere: dropout draws from the key, batch statistics leave padding out."""

from __future__ import annotations

import copy

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

    Args:
        model: Any network.

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


def _stir(model: nn.Module) -> None:
    """Move every weight a little, as training would."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator).to(weight), alpha=0.01)


def has_hooks(model: nn.Module) -> bool:
    """Say whether somebody listens to a network's passes, or has changed what a layer computes.

    Args:
        model: Any network.

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
