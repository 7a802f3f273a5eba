"""The gradient of U/n, which every chain steps along: as fast as bare torch for one client, `torch.func` under vmap.

The prior and the usual tilts know their gradients in closed form; only the likelihood goes through autograd. Running
statistics are among the weights: a pass moves them, their gradient is 0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call

from consilience import tree
from consilience.data.sites import Data
from consilience.key import Key
from consilience.task import Task, grad, mean_nll
from consilience.training.backprop import perceptron_gradient
from consilience.training.compiled import compile_step
from consilience.tree import Params

Gradient: TypeAlias = Callable[[Tensor, Data], Tensor]  # weights as one vector, a batch → ∇(U/n) as one vector
# The same with the step's key, for layers that draw → the weights with their running statistics moved, and ∇(U/n).
Pass: TypeAlias = Callable[[Tensor, Data, Key, int], tuple[Tensor, Tensor]]


def gradient_of(task: Task, like: Params, size: Tensor) -> Gradient:
    """The gradient for a client with `size` examples; what it returns may be overwritten by the next call."""
    learn = pass_of(task, like, size)
    return lambda vector, batch: learn(vector, batch, Key(0), 0)[1]


def pass_of(task: Task, like: Params, size: Tensor) -> Pass:
    """A training pass for a client with `size` examples, given the epoch's key and the number of the step in it."""
    likelihood = _written_out(task, like) or (_functional if tree.under_vmap() else _private_copy)(task, like)
    still = statistics_in(task, like)

    def own(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
        moved, found = likelihood(vector, batch, key, step)
        prior = task.prior.gradient(vector)
        return moved, found if prior is None else found.add_(prior / size)

    def learn(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
        anchor = task.anchor
        away = None if anchor is None else anchor.gradient - own(anchor.point, batch, key, step)[1]
        moved, found = own(vector, batch, key, step)
        found = found if away is None else found + away
        for tilt in task.tilts:
            if hasattr(tilt, "onto"):
                found = tilt.onto(found, vector)
            else:
                found = found + grad(lambda v, t=tilt: t(tree.unravel(v, like)), vector)  # type: ignore[misc]
        if still is None:
            return vector, found
        return torch.where(still, moved, vector), torch.where(still, 0.0, found)

    return learn


def full_gradient(task: Task, params: Params, data: Data, batch: int) -> Params:
    """∇(U/n) over all of a client's rows, `batch` of them at a time."""
    vector, gradient = tree.ravel(params), gradient_of(task, params, data.size)
    parts = [Data(*(leaf[i : i + batch] for leaf in data)) for i in range(0, len(data.w), batch)]
    total = sum((part.size * gradient(vector, part) for part in parts), torch.zeros_like(vector))
    return tree.unravel(total / data.size, params)


def statistics_in(task: Task, like: Params) -> Tensor | None:
    """Which numbers of the flat vector are running statistics; None if there are none."""
    names = set(task.statistics)
    if not names:
        return None
    return torch.cat([torch.full((p.numel(),), k in names, device=p.device) for k, p in like.items()])


def _written_out(task: Task, like: Params) -> Pass | None:
    """Plain perceptrons need no autograd; None for other networks, and where the step is compiled anyway."""
    gradient = None if task.compiled else perceptron_gradient(task, like)
    return None if gradient is None else lambda vector, batch, key, step: (vector, gradient(vector, batch))


def _functional(task: Task, like: Params) -> Pass:
    """Under vmap the network's weights must be passed in."""
    model = copy.deepcopy(task.model).train()
    layers, counting, moving = _named(model, "seed"), _named(model, "rows"), bool(task.statistics)

    def loss(vector: Tensor, batch: Data, seeds: Params) -> tuple[Tensor, Params]:
        params = tree.unravel(vector, like)
        inside = {k: v for k, v in params.items() if not k.startswith("likelihood.")}
        inside |= seeds | {f"{name}.rows".lstrip("."): batch.w for name in counting}
        outputs = functional_call(model, inside, (batch.x,))
        value = mean_nll(task.likelihood.nll(outputs, batch.y, params), batch.w)
        return value, {k: inside.get(k, v) for k, v in params.items()}  # the call writes moved statistics back

    if task.compiled and not (layers or counting or moving or tensors_of(task.likelihood)):

        def value(vector: Tensor, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
            return loss(vector, Data(x, y, w), {})[0]

        fast = compile_step(task.model, repr(task.likelihood), torch.func.grad(value))

        def quick(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
            return vector, fast(vector, *batch)

        return quick

    def learn(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
        seeds = {f"{name}.seed".lstrip("."): _seed(key, step, i) for i, name in enumerate(layers)}
        found, moved = torch.func.grad(loss, has_aux=True)(vector, batch, seeds)
        return tree.ravel(moved) if moving else vector, found

    return learn


def _private_copy(task: Task, like: Params) -> Pass:
    """For one client: a copy of the network whose weights and gradients are views of two flat vectors.

    A step is then a plain forward and backward pass, whatever the network, and no other thread sees the copy.
    """
    model, theta = copy.deepcopy(task.model).train(), tree.ravel(like).clone()
    gradient = torch.zeros_like(theta)
    weights, gradients = tree.unravel(theta, like), tree.unravel(gradient, like)
    own: Params = dict(model.named_parameters())
    moving = task.statistics
    for name, view in weights.items():
        if name in moving:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, view)
            continue
        leaf = own.get(name, view.detach())
        leaf.data, leaf.grad = view, None
        leaf.requires_grad_().grad = gradients[name]
        own[name] = leaf
    layers = [model.get_submodule(name) for name in _named(model, "seed")]
    counting = [model.get_submodule(name) for name in _named(model, "rows")]
    pooling = any(isinstance(layer, nn.MaxPool2d) for layer in model.modules())

    def bare(vector: Tensor, batch: Data, key: Key, step: int) -> tuple[Tensor, Tensor]:
        theta.copy_(vector)
        gradient.zero_()
        for i, layer in enumerate(layers):
            layer.seed = _seed(key, step, i)
        if counting:
            rows = batch.w if bool((batch.w <= 0).any()) else batch.w[:0]
            for layer in counting:
                layer.rows = rows
        # Max pooling is faster with the channels last in memory: a small CNN's step takes two thirds of the time.
        x = batch.x.contiguous(memory_format=torch.channels_last) if pooling and batch.x.ndim == 4 else batch.x
        with torch.enable_grad():
            mean_nll(task.likelihood.nll(model(x), batch.y, own), batch.w).backward()
        return theta, gradient

    return bare


def tensors_of(settings: object) -> bool:
    """Whether a setting is a tensor, which differs from client to client and cannot be compiled in."""
    return any(isinstance(value, Tensor) for value in vars(settings).values())


def _named(model: nn.Module, buffer: str) -> list[str]:
    """The layers that are handed something in this buffer at every step."""
    return [name for name, layer in model.named_modules() if buffer in layer._buffers]


def _seed(key: Key, step: int, layer: int) -> Tensor:
    return torch.as_tensor(key.fold(step).fold(layer).seed)
