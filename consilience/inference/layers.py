"""What a network's layers see and pass back: second moments of their inputs and of gradients at their outputs.

Martens and Grosse, ICML 2015 (Kronecker factors); Grosse and Martens, ICML 2016 (convolutions).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import pad, unfold

from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.task import Task
from consilience.tree import Params

# The task, weights, outputs z [N, O] and labels → R gradients at the outputs of every row, [N, O, R].
Roots: TypeAlias = Callable[[Task, Params, Tensor, Tensor], Tensor]


class Layers(NamedTuple):
    """Second moments of a network's linear and convolutional layers over some rows, by the layers' names.

    Attributes:
        inputs: A = Σ a aᵀ, a the layer's input, with a 1 at its end where the layer has a bias, [I, I]; of a
            convolution at T places a sum over rows and places, divided by T².
        gradients: B = Σ g gᵀ, g a gradient at the layer's output, [O, O]; of a convolution times T. Empty if not asked
            for.
        size: How many rows they are over, [].
    """

    inputs: Params
    gradients: Params
    size: Tensor


def label_gradient(task: Task, params: Params, z: Tensor, y: Tensor) -> Tensor:
    """Differentiate at the labels seen, for the empirical Fisher.

    Args:
        task: The network and the likelihood.
        z: The network's outputs [N, O].
        y: The labels or targets [N].

    Returns:
        One gradient a row [N, O, 1].
    """
    nll = lambda z, y: task.likelihood.nll(z.unsqueeze(0), y.unsqueeze(0), params).squeeze(0)
    gradient: Tensor = torch.func.vmap(torch.func.grad(nll))(z, y)
    return gradient.unsqueeze(-1)


def curvature_root(task: Task, params: Params, z: Tensor, y: Tensor) -> Tensor:
    """Take a root of Λ = −∂² log p(y|z)/∂z², for the Fisher itself: for classes Λ does not depend on the labels.

    Args:
        task: The network and the likelihood.
        z: The network's outputs [N, O].
        y: The labels or targets [N].

    Returns:
        R with R Rᵀ = Λ for every row [N, O, O]; directions in which Λ is negative are left out.
    """
    nll = lambda z, y: task.likelihood.nll(z.unsqueeze(0), y.unsqueeze(0), params).squeeze(0)
    values, vectors = torch.linalg.eigh(torch.func.vmap(torch.func.jacrev(torch.func.grad(nll)))(z, y))
    root: Tensor = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    return root


def layer_moments(task: Task, params: Params, data: Data, roots: Roots | None = None, batch: int = 100) -> Layers:
    """Sum the second moments of every layer over rows.

    Args:
        task: The network and the likelihood.
        params: Where the network stands.
        data: The rows, counted by their weights.
        roots: Which gradients at the outputs are passed back; None: inputs alone.
        batch: Rows that are held in memory at a time.
    """
    layers = linear_layers(task.model)
    inputs: Params = {}
    gradients: Params = {}
    for i in range(0, len(data.w), batch):
        rows = Data(*(leaf[i : i + batch] for leaf in data))
        seen, passed_back = _of_batch(task, layers, params, rows, roots)
        for name in layers:
            inputs[name] = inputs.get(name, 0.0) + seen[name]
            if roots is not None:
                gradients[name] = gradients.get(name, 0.0) + passed_back[name]
    return Layers(inputs, gradients, data.size)


def linear_layers(model: nn.Module) -> dict[str, nn.Linear | nn.Conv2d]:
    """Find the layers whose output is a matrix times their input, at one place or at many.

    Returns:
        The layers by name; convolutions in groups, or padded by a rule, are not among them.
    """
    layers: dict[str, nn.Linear | nn.Conv2d] = {}
    for name, layer in model.named_modules():
        plain = isinstance(layer, nn.Conv2d) and layer.groups == 1 and not isinstance(layer.padding, str)
        if isinstance(layer, nn.Linear) or plain:
            layers[name] = layer
    return layers


def layer_matrix(params: Params, name: str) -> Tensor:
    """Write a layer as one matrix.

    Returns:
        Its weights [O, I], with the bias as last column where it has one.
    """
    weight = params[f"{name}.weight"].flatten(1)
    bias = params.get(f"{name}.bias")
    if bias is None:
        return weight
    return torch.cat([weight, bias.unsqueeze(-1)], -1)


def from_matrix(matrix: Tensor, name: str, like: Params) -> Params:
    """Read a layer from its matrix.

    Args:
        matrix: As `layer_matrix` writes it.
        like: All weights, for shapes and types.

    Returns:
        The layer's weights by name.
    """
    weight = like[f"{name}.weight"]
    width = weight[0].numel()
    params = {f"{name}.weight": matrix[:, :width].reshape(weight.shape).to(weight)}
    if f"{name}.bias" in like:
        params[f"{name}.bias"] = matrix[:, width].to(weight)
    return params


def _of_batch(
    task: Task, layers: Mapping[str, nn.Linear | nn.Conv2d], params: Params, rows: Data, roots: Roots | None
) -> tuple[Params, Params]:
    """Both kinds of moments, over a few rows."""
    weights = {k: v for k, v in params.items() if not k.startswith("likelihood.")}
    seen: Params = {}
    shapes: dict[str, Tensor] = {}
    with _watching(layers, seen, shapes, {}):
        functional_call(task.model, weights, (rows.x,))
    inputs = {name: _second_moment(patches(layer, seen[name]), rows.w, -2) for name, layer in layers.items()}
    if roots is None:
        return inputs, {}

    def outputs(probes: Params) -> Tensor:
        with _watching(layers, {}, {}, probes):
            z: Tensor = functional_call(task.model, weights, (rows.x,))
        return z

    probes = {name: torch.zeros_like(out) for name, out in shapes.items()}
    z, pull = torch.func.vjp(outputs, probes)[:2]
    columns = roots(task, params, z.detach(), rows.y)
    gradients: Params = {}
    for column in columns.unbind(-1):
        (back,) = pull(column)
        for name, layer in layers.items():
            moment = _second_moment(_places(layer, back[name]), rows.w, 1)
            gradients[name] = gradients.get(name, 0.0) + moment
    return inputs, gradients


@contextmanager
def _watching(
    layers: Mapping[str, nn.Module], seen: Params, out: Params, probes: Mapping[str, Tensor]
) -> Iterator[None]:
    """Note what layers get and give while the block runs; probes are added to what they give."""
    handles = []
    for name, layer in layers.items():

        def note(_: nn.Module, args: tuple[Tensor, ...], result: Tensor, name: str = name) -> Tensor:
            seen[name] = args[0]
            out[name] = result
            if name in probes:
                return result + probes[name]
            return result

        handles.append(layer.register_forward_hook(note))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def patches(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
    """Lay out what a layer multiplies.

    Args:
        x: Its inputs [N, …].

    Returns:
        At each of T places, one for a linear layer, what its matrix is multiplied with, and a 1 for the bias [N, T, I].
    """
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        places = unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride).mT
    else:
        places = x.reshape(len(x), -1, x.shape[-1])
    if layer.bias is None:
        return places
    return pad(places, (0, 1), value=1.0)


def _places(layer: nn.Linear | nn.Conv2d, g: Tensor) -> Tensor:
    """Gradients at a layer's output, at each of T places [N, T, O]."""
    if isinstance(layer, nn.Conv2d):
        return g.flatten(2).mT
    return g.reshape(len(g), -1, g.shape[-1])


def _second_moment(v: Tensor, w: Tensor, power: int) -> Tensor:
    """Σ w v vᵀ over rows and T places, times T to a power [D, D]: inputs' and gradients' powers add up to −1."""
    return torch.einsum("nti,ntj,n->ij", v, v, w) * float(v.shape[1]) ** power


def last_linear(model: nn.Module) -> str:
    """Find the layer that a network ends with.

    Returns:
        The name of its last linear layer.

    Raises:
        InputError: It has none.
    """
    names: list[str] = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    if not names:
        raise InputError("This method needs a network that ends with a linear layer: use another model.")
    return names[-1]


def last_features(task: Task, params: Params, x: Tensor) -> Tensor:
    """Run a network up to its last layer.

    Args:
        x: Inputs [N, …].

    Returns:
        What the last linear layer gets [N, D].
    """
    name = last_linear(task.model)
    weights = {k: v for k, v in params.items() if not k.startswith("likelihood.")}
    seen: Params = {}
    with torch.no_grad(), _watching({name: task.model.get_submodule(name)}, seen, {}, {}):
        functional_call(task.model, weights, (x,))
    return seen[name]


@lru_cache(maxsize=16)  # so that it is made before tensors are fake, as in rehearsals: torch aborts where it is not
def resized(layer: nn.Linear, inputs: int, outputs: int) -> nn.Linear:
    """Make a linear layer of another size, of zeros: weights are always passed in, and nothing is drawn under vmap.

    Args:
        layer: Whose type and device it has.
        inputs: How many inputs it has.

    Returns:
        The layer, with a bias.
    """
    made = copy.deepcopy(layer)
    made.in_features = inputs
    made.out_features = outputs
    made.weight = nn.Parameter(layer.weight.new_zeros(outputs, inputs))
    made.bias = nn.Parameter(layer.weight.new_zeros(outputs))
    return made
