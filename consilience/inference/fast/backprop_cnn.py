"""The gradient of a plain convolutional network by the chain rule, written out, with the channels last in memory.

The images themselves get no gradient, ReLU is passed where pooling has left one number of a window, and all is written
into one flat vector that stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.inference.fast.backprop import outcome_gradient, views_of, write_extra, write_linear
from consilience.inference.fast.stacked import threshold_backward
from consilience.models.plain_cnn import Passed, PlainCNN, Stage, channels_last, plain_cnn
from consilience.task import Task
from consilience.tree import Params

pool_backward: Any = torch.ops.aten.max_pool2d_with_indices_backward.default
convolution_backward: Any = torch.ops.aten.convolution_backward.default


def cnn_gradient(task: Task, like: Params) -> Callable[[Tensor, Data], Tensor] | None:
    """∇ of the batch's mean negative log-likelihood for a plain convolutional network, outside vmap.

    Args:
        task: the target, of which the network and the likelihood count

    Returns:
        A function of the flat weights and a batch, which writes into the same flat vector at every call. None for other
    """
    net = plain_cnn(task.model)
    if net is None:
        return None
    extra = [name for name in like if name not in net.names]  # the likelihood's own weights
    gradient = torch.empty_like(tree.ravel(like))
    gradients = tree.unravel(gradient, like)
    views = views_of(like)

    def gradient_at(vector: Tensor, batch: Data) -> Tensor:
        params = views(vector)
        passes = _run_stages(net, params, batch.x)
        inputs, outputs = net.head.passed(params, passes[-1].outputs)
        delta, extra_gradients = outcome_gradient(task.likelihood, outputs, batch, {k: params[k] for k in extra})
        delta = write_linear(net.head, params, inputs, delta, gradients)
        write_extra(extra, extra_gradients, gradients)
        delta = delta @ params[net.head.weights[0]]
        _write_stages(net, params, passes, delta.view(passes[-1].outputs.shape), gradients)
        return gradient

    return gradient_at


def _run_stages(net: PlainCNN, params: Params, x: Tensor) -> list[Passed]:
    """All convolutions in turn, with what their gradients need."""
    x = channels_last(x)
    passes: list[Passed] = []
    for stage in net.stages:
        passes.append(stage.passed(params, x))
        x = passes[-1].outputs
    return passes


def _write_stages(net: PlainCNN, params: Params, passes: list[Passed], delta: Tensor, gradients: Params) -> None:
    """The gradients of all convolutions, last one first, from that by the last one's outputs."""
    for stage, passed in zip(reversed(net.stages), reversed(passes), strict=True):
        delta = write_stage(stage, params, passed, delta, gradients, by_inputs=stage is not net.stages[0])


def write_stage(
    stage: Stage, params: Params, passed: Passed, delta: Tensor, gradients: Params, by_inputs: bool
) -> Tensor:
    """Write the gradients of a stage's weights.

    Args:
        stage: The convolution and what follows it.
        passed: What it saw and made.
        delta: The gradient by its outputs.
        gradients: What is written over, by name.
        by_inputs: Whether the gradient by its inputs is needed.

    Returns:
        The gradient by its inputs; `delta` after pooling and ReLU where that is not needed.
    """
    if stage.rectified:
        delta = threshold_backward(delta, passed.outputs, 0)
    if stage.bias is not None:
        torch.sum(delta, (0, 2, 3), out=gradients[stage.bias])  # before pooling, which only adds zeros
    if passed.places is not None:
        window = stage.window
        delta = pool_backward(delta, passed.responses, window, window, (0, 0), (1, 1), False, passed.places)
    x = passed.inputs
    geometry = (stage.stride, stage.padding, (1, 1), False, (0, 0), 1)
    by_x, by_weight, _ = convolution_backward(delta, x, params[stage.weight], None, *geometry, (by_inputs, True, False))
    gradients[stage.weight].copy_(by_weight)
    if by_inputs:
        return by_x  # type: ignore[no-any-return]
    return delta
