"""The gradient of U/n, which every chain steps along: as fast as bare torch for one client, `torch.func` under vmap.

The prior and the usual tilts know their gradients in closed form; only the likelihood goes through autograd. Running
statistics are among the weights: a pass moves them, their gradient is 0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.inference.fast.backprop import perceptron_gradient
from consilience.inference.fast.backprop_cnn import cnn_gradient
from consilience.inference.fast.compiled import compile_step
from consilience.key import Key
from consilience.models.plain_cnn import channels_last, suits_channels_last
from consilience.task import Task, grad, mean_nll
from consilience.tree import Params

Gradient: TypeAlias = Callable[[Tensor, Data], Tensor]  # weights as one vector, a batch → ∇(U/n) as one vector
# The same with the step's key, for layers that draw → the weights with their running statistics moved, and ∇(U/n).
Pass: TypeAlias = Callable[[Tensor, Data, Key, int], tuple[Tensor, Tensor]]


def gradient_of(task: Task, like: Params, size: Tensor) -> Gradient:
    """The gradient of U/n, for networks that do not draw.

    Args:
        size: n, the client's number of examples

    Returns:
        A function of weights and a batch, whose value may be overwritten by its next call.
    """
    learn = pass_of(task, like, size)
    return lambda vector, batch: learn(vector, batch, Key(0), 0)[1]


def pass_of(task: Task, like: Params, size: Tensor) -> Pass:
    """A training pass: forward and backward through likelihood, prior, tilts and anchor.

    Args:
        size: n, the client's number of examples

    Returns:
        A function of weights, a batch, the epoch's key and the number of the step in it. Its values are the weights
        with their running statistics moved, and ∇(U/n), which its next call may overwrite.
    """
    likelihood_pass = _likelihood_pass(task, like)
    is_statistic = statistics_in(task, like)

    def tilted_pass(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
        current, gradient = likelihood_pass(vector, batch, key, step)
        prior = task.prior.gradient(vector)
        if prior is not None:
            gradient = gradient.add_(prior / size)
        for tilt in task.tilts:
            if hasattr(tilt, "onto"):
                gradient = tilt.onto(gradient, vector)
            else:
                gradient = gradient + grad(lambda v, t=tilt: t(tree.unravel(v, like)), vector)  # type: ignore[misc]
        return current, gradient

    def learn(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
        anchor = task.anchor
        if anchor is not None:  # first, since the next pass may overwrite this one's gradient
            correction = anchor.gradient - tilted_pass(anchor.point, batch, key, step)[1]
        current, gradient = tilted_pass(vector, batch, key, step)
        if anchor is not None:
            gradient = gradient + correction
        if is_statistic is None:
            return vector, gradient
        return torch.where(is_statistic, current, vector), torch.where(is_statistic, 0.0, gradient)

    return learn


def full_gradient(task: Task, params: Params, data: Data, batch: int) -> Params:
    """∇(U/n) over all of a client's rows.

    Args:
        batch: how many rows are passed at a time

    Returns:
        The gradient, shaped as the weights.
    """
    vector = tree.ravel(params)
    gradient = gradient_of(task, params, data.size)
    total = torch.zeros_like(vector)
    for i in range(0, len(data.w), batch):
        part = Data(*(leaf[i : i + batch] for leaf in data))
        total = total + part.size * gradient(vector, part)
    return tree.unravel(total / data.size, params)


def statistics_in(task: Task, like: Params) -> Tensor | None:
    """Which numbers of the flat vector are running statistics.

    Args:
        task: whose network is asked about

    Returns:
        A mask [P]; None if there are no running statistics.
    """
    names = set(task.statistics)
    if not names:
        return None
    return torch.cat([torch.full((p.numel(),), k in names, device=p.device) for k, p in like.items()])


def check_exact(task: Task, who: str) -> None:
    """Refuse networks whose training pass is not the function they predict with.

    Args:
        task: whose network is asked about
        who: what needs the two to be one, as the message begins

    Raises:
        InputError: if the network has dropout or running statistics.
    """
    if task.statistics or _layers_with(task.model, "seed"):
        raise InputError(
            f"{who} needs a network that computes the same in training and in prediction: without dropout, and with "
            "GroupNorm or LayerNorm instead of batch normalisation."
        )


def tensors_of(settings: object) -> bool:
    """Whether a setting is a tensor, which differs from client to client and cannot be compiled in.

    Args:
        settings: an object whose attributes are settings

    Returns:
        Whether one of them is a tensor.
    """
    return any(isinstance(value, Tensor) for value in vars(settings).values())


def _likelihood_pass(task: Task, like: Params) -> Pass:
    """The pass through the likelihood alone, the fastest way that this network and this engine allow."""
    if not task.compiled:
        gradient = perceptron_gradient(task, like)
        if gradient is not None:  # plain perceptrons need no autograd
            return lambda vector, batch, key, step: (vector, gradient(vector, batch))
    if tree.under_vmap():
        return _functional_pass(task, like)
    by_stages = cnn_gradient(task, like)
    if by_stages is not None:
        return lambda vector, batch, key, step: (vector, by_stages(vector, batch))
    return _module_pass(task, like)


def _functional_pass(task: Task, like: Params) -> Pass:
    """Under vmap the network's weights must be passed in."""
    model = copy.deepcopy(task.model).train()
    drawing = _layers_with(model, "seed")
    counting = _layers_with(model, "rows")
    has_statistics = bool(task.statistics)

    def loss(vector: Tensor, batch: Data, seeds: Params) -> tuple[Tensor, Params]:
        params = tree.unravel(vector, like)
        inside = {k: v for k, v in params.items() if not k.startswith("likelihood.")}
        inside |= seeds | {f"{name}.rows".lstrip("."): batch.w for name in counting}
        outputs = functional_call(model, inside, (batch.x,))
        value = mean_nll(task.likelihood.nll(outputs, batch.y, params), batch.w)
        return value, {k: inside.get(k, v) for k, v in params.items()}  # the call writes moved statistics back

    if task.compiled and not (drawing or counting or has_statistics or tensors_of(task.likelihood)):

        def value(vector: Tensor, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            return loss(vector, Data(x, y, w), {})[0]

        compiled_gradient = compile_step(task.model, repr(task.likelihood), torch.func.grad(value))
        return lambda vector, batch, key, step: (vector, compiled_gradient(vector, *batch))

    def learn(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
        seeds = {f"{name}.seed".lstrip("."): _seed(key, step, i) for i, name in enumerate(drawing)}
        gradient, current = torch.func.grad(loss, has_aux=True)(vector, batch, seeds)
        if has_statistics:
            return tree.ravel(current), gradient
        return vector, gradient

    return learn


def _module_pass(task: Task, like: Params) -> Pass:
    """For one client: a copy of the network whose weights and gradients are views of two flat vectors.

    A step is then a plain forward and backward pass, whatever the network, and no other thread sees the copy.
    """
    model = copy.deepcopy(task.model).train()
    theta = tree.ravel(like).clone()
    gradient = torch.zeros_like(theta)
    params = _bind(model, tree.unravel(theta, like), tree.unravel(gradient, like), task.statistics)
    drawing = [model.get_submodule(name) for name in _layers_with(model, "seed")]
    counting = [model.get_submodule(name) for name in _layers_with(model, "rows")]
    rearranged = suits_channels_last(model)

    def learn(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
        theta.copy_(vector)
        gradient.zero_()
        for i, layer in enumerate(drawing):
            layer.seed = _seed(key, step, i)
        if counting:
            padded = bool((batch.w <= 0).any())
            rows = batch.w if padded else batch.w[:0]
            for layer in counting:
                layer.rows = rows
        x = batch.x
        if rearranged and x.ndim == 4:
            x = channels_last(x)
        with torch.enable_grad():
            mean_nll(task.likelihood.nll(model(x), batch.y, params), batch.w).backward()
        return theta, gradient

    return learn


def _bind(model: nn.Module, weights: Params, gradients: Params, statistics: Collection[str]) -> Params:
    """Make a network's weights, gradients and running statistics these views; return all weights by name."""
    params: Params = dict(model.named_parameters())
    for name, view in weights.items():
        if name in statistics:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, view)
            continue
        leaf = params.get(name, view.detach())
        leaf.data = view
        leaf.grad = None
        leaf.requires_grad_().grad = gradients[name]
        params[name] = leaf
    return params


def _layers_with(model: nn.Module, buffer: str) -> list[str]:
    """The layers that are handed something in this buffer at every step."""
    return [name for name, layer in model.named_modules() if buffer in layer._buffers]


def _seed(key: Key, step: int, layer: int) -> Tensor:
    return torch.as_tensor(key.fold(step).fold(layer).seed)
