"""The slope of a plain multilayer perceptron by the chain rule, written out: about half the time autograd takes.

For `nn.Sequential` of Linear layers with ReLU between them, after an optional Flatten; anything else goes the general
way. Under vmap and outside it the same operations run, so engines agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from consilience import tree
from consilience.data.data import Data
from consilience.likelihood import Likelihood
from consilience.task import Task, mean_nll
from consilience.tree import Params


def plain_layers(model: nn.Module) -> list[str] | None:
    """The names of the Linear layers of a plain perceptron; None for any other network."""
    if type(model) is not nn.Sequential or hooked(model):
        return None
    named = list(model.named_children())
    if named and type(named[0][1]) is nn.Flatten:
        named = named[1:]
    kinds = [type(layer) for _, layer in named]
    if kinds != [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]:
        return None
    return [name for name, layer in named if isinstance(layer, nn.Linear) and layer.bias is not None]


def hooked(model: nn.Module) -> bool:
    """Whether somebody listens to the network's passes, or has changed what a layer computes."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(layer, kind) for layer in model.modules() for kind in kinds)


def perceptron_slope(task: Task, like: Params) -> Callable[[Tensor, Data], Tensor] | None:
    """∇ of the batch's mean negative log-likelihood as one vector, for a plain perceptron; None for other networks."""
    names = plain_layers(task.model)
    own = [f"{name}.{part}" for name in names or () for part in ("weight", "bias")]
    extra = [name for name in like if name not in own]
    if names is None or own + extra != list(like):
        return None

    def slope(vector: Tensor, batch: Data) -> Tensor:
        params = tree.unravel(vector, like)
        reached = [batch.x.flatten(1)]  # what each layer is given
        for name in names[:-1]:
            reached.append(linear(reached[-1], params[f"{name}.weight"], params[f"{name}.bias"]).relu_())
        outputs = linear(reached[-1], params[f"{names[-1]}.weight"], params[f"{names[-1]}.bias"])
        delta, found = outcome_slope(task.likelihood, outputs, batch, {k: params[k] for k in extra})
        for name, given in zip(reversed(names), reversed(reached), strict=True):
            found = [(delta.mT @ given).flatten(), delta.sum(0), *found]
            if given is not reached[0]:
                delta = (delta @ params[f"{name}.weight"]).mul_(given > 0)
        return torch.cat(found)

    return slope


def outcome_slope(likelihood: Likelihood, outputs: Tensor, batch: Data, own: Params) -> tuple[Tensor, list[Tensor]]:
    """∂ mean loss / ∂ outputs, and by the likelihood's own weights: in closed form if it says so, else by autograd."""
    closed = getattr(likelihood, "slope", None) if "slope" in vars(type(likelihood)) else None
    if closed is not None:
        return closed(outputs, batch.y).mul_((batch.w / batch.w.sum().clamp(min=1e-12)).unsqueeze(-1)), []

    def loss(outputs: Tensor, own: Params) -> Tensor:
        return mean_nll(likelihood.nll(outputs, batch.y, own), batch.w)

    if tree.vectorised():
        delta, others = torch.func.grad(loss, argnums=(0, 1))(outputs, own)
        return delta, [others[k].flatten() for k in own]
    with torch.enable_grad():
        leaves: list[Any] = [leaf.detach().requires_grad_() for leaf in (outputs, *own.values())]
        delta, *rest = torch.autograd.grad(loss(leaves[0], dict(zip(own, leaves[1:], strict=True))), leaves)
    return delta, [leaf.flatten() for leaf in rest]
