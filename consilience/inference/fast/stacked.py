"""Clients side by side, beneath the vmap that runs them: the same products of stacked tensors, with less around them.

A vmap makes new tensors at every operation, joins the parts of a gradient and picks rows number by number, which costs
as much processor time as it saves. Where a single vmap runs and all is plain, the work is done on the stacks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from consilience import tree
from consilience.data.sites import Data
from consilience.models.plain import Perceptron
from consilience.tree import Params

_functorch: Any = torch._C._functorch
threshold_backward: Any = torch.ops.aten.threshold_backward.default  # ReLU's gradient, at once

# Outputs, a batch and the likelihood's own weights → ∂ mean loss / ∂ outputs, and by each own weight.
Outcome = Callable[[Tensor, Data, Params], tuple[Tensor, list[Tensor]]]


def in_one_vmap() -> bool:
    """Say whether one vmap runs this code, and no other transformation."""
    levels = _functorch.get_interpreter_stack()
    return levels is not None and len(levels) == 1 and levels[0].key() == _functorch.TransformType.Vmap


def unbatch(tensor: Tensor) -> tuple[Tensor, int | None]:
    """Take a tensor out of the vmap.

    Args:
        tensor: What one client sees.

    Returns:
        The tensor as it is below the vmap, and which of its dimensions the vmap has taken; None: none.
    """
    if not _functorch.is_batchedtensor(tensor):
        return tensor, None
    return _functorch.get_unwrapped(tensor), _functorch.maybe_get_bdim(tensor)


def rebatch(stacked: Tensor) -> Tensor:
    """Put a tensor back into the vmap.

    Args:
        stacked: Of all clients [K, …].

    Returns:
        What one client sees […].
    """
    level = _functorch.peek_interpreter_stack().level()
    batched: Tensor = _functorch._add_batch_dim(stacked, 0, level)
    return batched


def take_rows(leaf: Tensor, order: Tensor) -> Tensor:
    """Pick rows by their numbers.

    Args:
        leaf: Rows of one client [N, …].
        order: Numbers of rows [n].

    Returns:
        Those rows [n, …].
    """
    if not in_one_vmap():
        return leaf.index_select(0, order)
    rows, rows_dim = unbatch(leaf)
    numbers, numbers_dim = unbatch(order)
    if rows_dim != 0 or numbers_dim != 0:
        return leaf.index_select(0, order)
    with temporarily_pop_interpreter_stack():
        first = _first_rows(*rows.shape[:2], numbers.device)
        taken = rows.flatten(0, 1).index_select(0, (numbers + first).flatten()).unflatten(0, numbers.shape)
    return rebatch(taken)


@lru_cache(maxsize=16)
def _first_rows(clients: int, count: int, device: torch.device) -> Tensor:
    """Where each client's rows begin in the rows of all [K, 1]."""
    return torch.arange(0, clients * count, count, device=device).unsqueeze(1)


def stacked_gradient(
    net: Perceptron, outcome: Outcome, extra: list[str], like: Params
) -> Callable[[Tensor, Data], Tensor]:
    """The gradients of a perceptron's mean loss at all clients of a vmap.

    Args:
        outcome: The gradient by the outputs and by the likelihood's own weights.
        extra: The names of these.
        like: Names and shapes of the weights of one client.

    Returns:
        A function of one client's flat weights and batch, inside the vmap, which writes into the same stack of vectors
        at every call.
    """
    gradient = torch.empty(0)  # of all clients, kept for the next call
    views: Params = {}  # of it

    def gradient_at(vector: Tensor, batch: Data) -> Tensor:
        nonlocal gradient, views
        x, vectors = _stacks(batch.x, vector)
        with temporarily_pop_interpreter_stack():
            params = tree.unravel(vectors, like)
            inputs, outputs = _passed(net, params, x)
        own = {k: rebatch(params[k]) for k in extra}
        delta, by_extra = outcome(rebatch(outputs), batch, own)
        deltas, *others = _stacks(delta, *by_extra)
        with temporarily_pop_interpreter_stack():
            if gradient.shape != vectors.shape:
                gradient = torch.empty(vectors.shape, dtype=vectors.dtype, device=vectors.device)
                views = tree.unravel(gradient, like)
            _write(net, params, inputs, deltas, views)
            for name, value in zip(extra, others, strict=True):
                views[name].copy_(value.view_as(views[name]))
        return rebatch(gradient)

    return gradient_at


def _stacks(*tensors: Tensor) -> list[Tensor]:
    """What all clients see [K, …], also of tensors that are the same for all, unless all of them are [1, …]."""
    plain = [unbatch(tensor) for tensor in tensors]
    clients = max(1 if dim is None else tensor.shape[dim] for tensor, dim in plain)
    with temporarily_pop_interpreter_stack():
        return [_stack(tensor, dim, clients) for tensor, dim in plain]


def _stack(tensor: Tensor, dim: int | None, clients: int) -> Tensor:
    """What all clients see, of a tensor below the vmap."""
    if dim is None:
        return tensor.expand(clients, *tensor.shape)
    if dim == 0:  # as nearly always
        return tensor
    return tensor.movedim(dim, 0)


def _passed(net: Perceptron, params: Params, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The inputs of every layer and the outputs, of all clients."""
    if net.flat:
        x = x.flatten(2)
    inputs = [x]
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        inputs.append(torch.baddbmm(params[b].unsqueeze(1), inputs[-1], params[w].mT).relu_())
    last = torch.baddbmm(params[net.biases[-1]].unsqueeze(1), inputs[-1], params[net.weights[-1]].mT)
    return inputs, last


def _write(net: Perceptron, params: Params, inputs: list[Tensor], delta: Tensor, gradients: Params) -> None:
    """The gradients of all layers, last one first, of all clients."""
    for w, b, x in zip(reversed(net.weights), reversed(net.biases), reversed(inputs), strict=True):
        torch.bmm(delta.mT, x, out=gradients[w])
        torch.sum(delta, 1, out=gradients[b])
        if x is not inputs[0]:
            delta = threshold_backward(torch.bmm(delta, params[w]), x, 0)
