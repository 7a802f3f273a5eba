"""The gradient of a plain multilayer perceptron by the chain rule, written out: about half the time autograd takes.

Anything else goes the general way. Under vmap and outside it the same products are taken, and written into memory that
stays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.likelihood import Likelihood
from consilience.inference.fast.stacked import in_one_vmap, stacked_gradient, threshold_backward
from consilience.models.plain import Perceptron, perceptron
from consilience.task import Task, mean_nll
from consilience.tree import Params


def perceptron_gradient(task: Task, like: Params) -> Callable[[Tensor, Data], Tensor] | None:
    """∇ of the batch's mean negative log-likelihood for a plain perceptron.

    Args:
        task: the target, of which the network and the likelihood count

    Returns:
        A function of the flat weights and a batch, whose value is flat too and may be overwritten by the next call.
        None for other networks.
    """
    net = perceptron(task.model)
    if net is None:
        return None
    names = [name for layer in zip(net.weights, net.biases, strict=True) for name in layer]
    extra = [name for name in like if name not in names]  # the likelihood's own weights
    if names + extra != list(like):
        return None
    if in_one_vmap():
        return stacked_gradient(net, partial(outcome_gradient, task.likelihood), extra, like)
    if tree.under_vmap():
        return _pure_gradient(net, task.likelihood, extra, like)
    return _overwriting_gradient(net, task.likelihood, extra, like)


def _pure_gradient(
    net: Perceptron, likelihood: Likelihood, extra: list[str], like: Params
) -> Callable[[Tensor, Data], Tensor]:
    """A new vector at every call, as a vmap within another transformation needs it."""
    weights = net.weights

    def gradient_at(vector: Tensor, batch: Data) -> Tensor:
        params = tree.unravel(vector, like)
        inputs, outputs = net.passed(params, batch.x)
        delta, parts = outcome_gradient(likelihood, outputs, batch, {k: params[k] for k in extra})
        for w, x in zip(reversed(weights), reversed(inputs), strict=True):
            parts = [(delta.mT @ x).flatten(), delta.sum(0), *parts]
            if x is not inputs[0]:
                delta = threshold_backward(delta @ params[w], x, 0)
        return torch.cat(parts)

    return gradient_at


def _overwriting_gradient(
    net: Perceptron, likelihood: Likelihood, extra: list[str], like: Params
) -> Callable[[Tensor, Data], Tensor]:
    """The same vector at every call, written over."""
    gradient = torch.empty_like(tree.ravel(like))
    gradients = tree.unravel(gradient, like)
    views = views_of(like)

    def gradient_at(vector: Tensor, batch: Data) -> Tensor:
        params = views(vector)
        inputs, outputs = net.passed(params, batch.x)
        delta, extra_gradients = outcome_gradient(likelihood, outputs, batch, {k: params[k] for k in extra})
        write_linear(net, params, inputs, delta, gradients)
        write_extra(extra, extra_gradients, gradients)
        return gradient

    return gradient_at


def views_of(like: Params) -> Callable[[Tensor], Params]:
    """Cut flat weights into named ones, once where the same vector comes again.

    Args:
        like: Names and shapes of the weights.

    Returns:
        A function from the flat weights to views of them, by name.
    """
    params = Params()
    last: Tensor | None = None  # whose views `params` are

    def views(vector: Tensor) -> Params:
        nonlocal last, params
        if vector is not last:  # steps that overwrite their vector come with the same one every time
            last = vector
            params = tree.unravel(vector, like)
        return params

    return views


def write_linear(net: Perceptron, params: Params, inputs: list[Tensor], delta: Tensor, gradients: Params) -> Tensor:
    """Write the gradients of a perceptron's layers.

    Args:
        inputs: What every layer was given, as `Perceptron.passed` returns it.
        delta: The gradient by the network's outputs.
        gradients: What is written over, by name.

    Returns:
        The gradient by the first layer's outputs.
    """
    for w, b, x in zip(reversed(net.weights), reversed(net.biases), reversed(inputs), strict=True):
        torch.mm(delta.mT, x, out=gradients[w])
        torch.sum(delta, 0, out=gradients[b])
        if x is not inputs[0]:
            delta = threshold_backward(delta @ params[w], x, 0)
    return delta


def write_extra(names: list[str], values: list[Tensor], gradients: Params) -> None:
    """Write the gradients of the likelihood's own weights.

    Args:
        gradients: What is written over, by name.
    """
    for name, value in zip(names, values, strict=True):
        gradients[name].copy_(value.view_as(gradients[name]))


def outcome_gradient(
    likelihood: Likelihood, outputs: Tensor, batch: Data, extra: Params
) -> tuple[Tensor, list[Tensor]]:
    """The gradient of the mean loss by the outputs and by the likelihood's own weights.

    In closed form if the likelihood gives one as `gradients`, else by autograd.

    Args:
        likelihood: of the outcomes given the outputs
        outputs: of the network, one row each
        extra: the likelihood's own weights

    Returns:
        ∂ mean loss / ∂ outputs, and that by each of the likelihood's own weights, flat.
    """
    if "gradients" in vars(type(likelihood)):
        shares = batch.w / batch.w.sum().clamp(min=1e-12)
        delta, by_extra = likelihood.gradients(outputs, batch.y, extra)  # type: ignore[attr-defined]
        return delta * shares.unsqueeze(-1), [(shares @ by_extra[k]).reshape(-1) for k in extra]

    def loss(outputs: Tensor, extra: Params) -> Tensor:
        return mean_nll(likelihood.nll(outputs, batch.y, extra), batch.w)

    if tree.under_vmap():
        delta, others = torch.func.grad(loss, argnums=(0, 1))(outputs, extra)
        return delta, [others[k].flatten() for k in extra]
    with torch.enable_grad():
        leaves: list[Any] = [leaf.detach().requires_grad_() for leaf in (outputs, *extra.values())]
        delta, *rest = torch.autograd.grad(loss(leaves[0], dict(zip(extra, leaves[1:], strict=True))), leaves)
    return delta, [leaf.flatten() for leaf in rest]
