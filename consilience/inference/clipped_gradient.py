"""The gradient of DP-SGD: a sum over rows of which none is longer than C.  Abadi et al., CCS 2016, Algorithm 1.

For plain perceptrons a row's gradient is never made: that of a linear layer is the outer product δaᵀ of what comes back
and what went in, so that its squared norm is ‖δ‖²‖a‖², and with the bias's ‖δ‖²(‖a‖² + 1) (Goodfellow 2015). The norms
scale the δ, and one product a layer sums them: a step costs little more than one without privacy. Other networks go
through vmap, a row at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.inference.fast.backprop import outcome_gradient
from consilience.inference.fast.stacked import threshold_backward
from consilience.inference.gradient import check_exact
from consilience.models.plain import Perceptron, perceptron
from consilience.task import Task
from consilience.tree import Params

NUMBERS = 2**24  # in the gradients of single rows that are held at a time

ClippedSum: TypeAlias = Callable[[Tensor, Data], Tensor]  # flat weights, rows → Σ w · g · min(1, C/‖g‖), flat


def clipped_sum(task: Task, like: Params, clip: float) -> ClippedSum:
    """Prepare the sum of the rows' gradients of the negative log-likelihood, each cut to length C.

    Rows of weight 0 add nothing; the other weights should be 1, or a row counts by more than C.

    Args:
        task: The target, of which the network and the likelihood count.
        like: Names and shapes of the weights.

    Returns:
        A function of the flat weights and rows, whose value its next call may overwrite.
    """
    net = perceptron(task.model)
    if net is not None:
        names = [name for layer in zip(net.weights, net.biases, strict=True) for name in layer]
        if names == list(like):
            return _ghost_sum(net, task, like, clip)
    return _plain_sum(task, like, clip)


def _ghost_sum(net: Perceptron, task: Task, like: Params, clip: float) -> ClippedSum:
    """By norms alone: no row's gradient is made. Outside vmap the sum is written into memory that stays."""
    kept: list[Tensor] = []

    def total(vector: Tensor, rows: Data) -> Tensor:
        params = tree.unravel(vector, like)
        inputs, outputs = net.passed(params, rows.x)
        each = rows._replace(w=torch.ones_like(rows.w))
        delta = outcome_gradient(task.likelihood, outputs, each, {})[0] * len(rows.w)  # of the sum, not the mean
        deltas = [delta]
        for name, a in zip(reversed(net.weights[1:]), reversed(inputs[1:]), strict=True):
            deltas.append(threshold_backward(deltas[-1] @ params[name], a, 0))
        deltas.reverse()
        squares = torch.zeros_like(rows.w)
        for a, d in zip(inputs, deltas, strict=True):
            squares = squares + d.square().sum(-1) * (a.square().sum(-1) + 1)
        factors = (rows.w * _shrink(squares, clip)).unsqueeze(-1)
        finite = torch.isfinite(squares)
        if not bool(tree.below(finite).all()):  # 0 · ∞ is not 0
            inputs = [torch.where(finite.unsqueeze(-1), a, 0.0) for a in inputs]
            deltas = [torch.where(finite.unsqueeze(-1), d, 0.0) for d in deltas]
        cuts = [d * factors for d in deltas]
        if tree.under_vmap():
            parts = [((cut.mT @ a).flatten(), cut.sum(0)) for cut, a in zip(cuts, inputs, strict=True)]
            return torch.cat([leaf for pair in parts for leaf in pair])
        if not kept:
            kept.append(torch.empty_like(vector))
        gradients = tree.unravel(kept[0], like)
        for w, b, cut, a in zip(net.weights, net.biases, cuts, inputs, strict=True):
            torch.mm(cut.mT, a, out=gradients[w])
            torch.sum(cut, 0, out=gradients[b])
        return kept[0]

    return total


def _plain_sum(task: Task, like: Params, clip: float) -> ClippedSum:
    """By each row's gradient, so many at a time."""
    model = copy.deepcopy(task.model).train()

    def loss(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        params = tree.unravel(vector, like)
        weights = {k: v for k, v in params.items() if not k.startswith("likelihood.")}
        outputs = functional_call(model, weights, (x.unsqueeze(0),))
        return task.likelihood.nll(outputs, y.unsqueeze(0), params).sum()

    def total(vector: Tensor, rows: Data) -> Tensor:
        at_a_time = max(1, NUMBERS // len(vector))
        summed = torch.zeros_like(vector)
        for x, y, w in zip(*(leaf.split(at_a_time) for leaf in rows), strict=True):
            gradients = vmap(grad(loss), (None, 0, 0))(vector, x, y)
            squares = gradients.square().sum(-1)
            gradients = torch.where(torch.isfinite(squares).unsqueeze(-1), gradients, 0.0)
            summed = summed + (w * _shrink(squares, clip)) @ gradients
        return summed

    return total


def _shrink(squares: Tensor, clip: float) -> Tensor:
    """min(1, C/‖g‖), and 0 where a norm is beyond all numbers; a trifle less, so that rounding never exceeds C."""
    factors = (clip * (1 - 1e-6) / squares.sqrt().clamp(min=1e-30)).clamp(max=1.0)
    return torch.where(torch.isfinite(squares), factors, torch.zeros_like(factors))


def check_rows_apart(task: Task) -> None:
    """Refuse networks in which rows of a batch meet, and targets whose gradient is not a sum over rows.

    Raises:
        InputError: The network normalises over the batch or drops units at random, or the gradient is anchored.
    """
    mixing = (nn.modules.batchnorm._BatchNorm,)
    if any(isinstance(layer, mixing) or "rows" in layer._buffers for layer in task.model.modules()):
        raise InputError(
            "DPSGD cannot bound what one row does where batch normalisation mixes it with others: use GroupNorm or "
            "LayerNorm."
        )
    check_exact(task, "DPSGD")
    if task.anchor is not None:
        raise InputError(
            "DPSGD bounds gradients of single rows, and this method mixes in gradients over all rows: choose another "
            "method, for example one that averages weights."
        )
