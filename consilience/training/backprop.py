"""The gradient of a plain multilayer perceptron by the chain rule, written out: about half the time autograd takes.

Anything else goes the general way. Under vmap and outside it the same products are taken; outside, they are written
into memory that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.likelihood import Likelihood
from consilience.models.plain import perceptron
from consilience.task import Task, mean_nll
from consilience.tree import Params

threshold_backward: Any = torch.ops.aten.threshold_backward.default  # ReLU's gradient where `given` is above 0, at once


def perceptron_gradient(task: Task, like: Params) -> Callable[[Tensor, Data], Tensor] | None:
    """∇ of the batch's mean negative log-likelihood as one vector, for a plain perceptron; None for other networks.

    Outside vmap it is written into the same vector at every call.
    """
    net = perceptron(task.model)
    own = [] if net is None else [name for layer in zip(net.weights, net.biases, strict=True) for name in layer]
    extra = [name for name in like if name not in own]
    if net is None or own + extra != list(like):
        return None
    weights, biases = net.weights, net.biases

    def passed(params: Params, batch: Data) -> tuple[list[Tensor], Tensor, list[Tensor]]:
        """What each layer is given; the gradient by the outputs and by the likelihood's own weights."""
        reached, outputs = net.passed(params, batch.x)
        return reached, *outcome_gradient(task.likelihood, outputs, batch, {k: params[k] for k in extra})

    def together(vector: Tensor, batch: Data) -> Tensor:
        params = tree.unravel(vector, like)
        reached, delta, found = passed(params, batch)
        for w, given in zip(reversed(weights), reversed(reached), strict=True):
            found = [(delta.mT @ given).flatten(), delta.sum(0), *found]
            if given is not reached[0]:
                delta = threshold_backward(delta @ params[w], given, 0)
        return torch.cat(found)

    if tree.under_vmap():
        return together

    gradient = torch.empty_like(tree.ravel(like))
    gradients, params = tree.unravel(gradient, like), Params()
    seen: Tensor | None = None  # whose views `params` are

    def alone(vector: Tensor, batch: Data) -> Tensor:
        nonlocal seen, params
        if vector is not seen:  # steps that overwrite their vector come with the same one every time
            seen, params = vector, tree.unravel(vector, like)
        reached, delta, found = passed(params, batch)
        for w, b, given in zip(reversed(weights), reversed(biases), reversed(reached), strict=True):
            torch.mm(delta.mT, given, out=gradients[w])
            torch.sum(delta, 0, out=gradients[b])
            if given is not reached[0]:
                delta = threshold_backward(delta @ params[w], given, 0)
        for name, value in zip(extra, found, strict=True):
            gradients[name].copy_(value.view_as(gradients[name]))
        return gradient

    return alone


def outcome_gradient(likelihood: Likelihood, outputs: Tensor, batch: Data, own: Params) -> tuple[Tensor, list[Tensor]]:
    """∂ mean loss / ∂ outputs, and by the likelihood's own weights: in closed form if it says so, else by autograd."""
    if "gradients" in vars(type(likelihood)):
        shares = batch.w / batch.w.sum().clamp(min=1e-12)
        delta, by_own = likelihood.gradients(outputs, batch.y, own)  # type: ignore[attr-defined]
        return delta * shares.unsqueeze(-1), [(shares @ by_own[k]).reshape(-1) for k in own]

    def loss(outputs: Tensor, own: Params) -> Tensor:
        return mean_nll(likelihood.nll(outputs, batch.y, own), batch.w)

    if tree.under_vmap():
        delta, others = torch.func.grad(loss, argnums=(0, 1))(outputs, own)
        return delta, [others[k].flatten() for k in own]
    with torch.enable_grad():
        leaves: list[Any] = [leaf.detach().requires_grad_() for leaf in (outputs, *own.values())]
        delta, *rest = torch.autograd.grad(loss(leaves[0], dict(zip(own, leaves[1:], strict=True))), leaves)
    return delta, [leaf.flatten() for leaf in rest]
