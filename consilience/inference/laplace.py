"""Laplace's approximation.  MacKay, Neural Computation 1992; Daxberger et al., NeurIPS 2021."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Dense, Gaussian, Posterior, centre
from consilience.errors import InputError
from consilience.inference.chain import Inference
from consilience.inference.layers import Roots, curvature_root, label_gradient
from consilience.inference.point import SGD
from consilience.messages import Client
from consilience.models.plain import Perceptron, perceptron
from consilience.task import Task
from consilience.tree import Params

PASSED = 500  # rows that are passed back at a time where no row has a matrix
# Weights and rows → a matrix [R, P] whose rows r give the curvature Σ r rᵀ of −Σ log p(y|x,θ).
Curvature: TypeAlias = Callable[[Task, Params, Data], Tensor]


def fisher(task: Task, params: Params, rows: Data) -> Tensor:
    """The empirical Fisher: one gradient of log p(y|x,θ) a row, at the labels seen.

    Args:
        task: the network and the likelihood
        params: where the curvature is taken
        rows: whose curvature is summed, by their weights

    Returns:
        The gradients [rows, P].
    """
    uncertain, fixed = _split(task, params)

    def nll(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        weights = fixed | tree.unravel(vector, uncertain)
        return task.likelihood.nll(task.outputs(weights, x.unsqueeze(0)), y.unsqueeze(0), weights).squeeze(0)

    gradients: Tensor = torch.func.vmap(torch.func.grad(nll), (None, 0, 0))(tree.ravel(uncertain), rows.x, rows.y)
    return gradients * rows.w.sqrt().unsqueeze(-1)


def ggn(task: Task, params: Params, rows: Data) -> Tensor:
    """The generalised Gauss–Newton matrix JᵀΛJ: the Hessian of the network's linearisation; exact for linear models.

    Λ = −∂² log p(y|z)/∂z² in the outputs z, at the labels seen. Where it is not definite (an output that is a
    log-variance) its negative directions are left out.

    Args:
        task: the network and the likelihood
        params: where the curvature is taken
        rows: whose curvature is summed, by their weights

    Returns:
        √Λ J of all rows [rows · outputs, P].
    """
    uncertain, fixed = _split(task, params)

    def outputs(vector: Tensor, x: Tensor) -> Tensor:
        return task.outputs(fixed | tree.unravel(vector, uncertain), x.unsqueeze(0)).squeeze(0)

    def factor(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        z = outputs(vector, x)
        nll = lambda z: task.likelihood.nll(z.unsqueeze(0), y.unsqueeze(0), params).squeeze(0)
        values, vectors = torch.linalg.eigh(torch.func.jacrev(torch.func.grad(nll))(z))
        root = vectors * values.clamp(min=0).sqrt()
        product: Tensor = root.mT @ torch.func.jacrev(outputs)(vector, x)
        return product

    factors: Tensor = torch.func.vmap(factor, (None, 0, 0))(tree.ravel(uncertain), rows.x, rows.y)
    return (factors * rows.w.sqrt().reshape(-1, 1, 1)).flatten(0, 1)  # from [rows, outputs, P]


# The same curvatures by their roots at the outputs, for networks whose layers can be written out.
ROOTS: dict[Curvature, Roots] = {ggn: curvature_root, fisher: label_gradient}


@dataclass(frozen=True)
class Laplace:
    """N(θ̂, H⁻¹) around the mode θ̂, with H the data's curvature plus the prior's precision.

    Attributes:
        mode: how the mode is found
        curvature: `ggn`, or `fisher`, which is cheaper by a factor of the number of outputs
        dense: the whole matrix H, for small models
        batch: rows whose curvature is held in memory at a time

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> result = co.run(co.methods.GaussianProduct(inference=co.Laplace()), problem)
        >>> type(result.replies[0].payload).__name__
        'Gaussian'
    """

    moves_statistics: ClassVar[bool] = True
    narrowest: ClassVar[None] = None  # prior and rows explain every precision

    mode: Inference = SGD()
    curvature: Curvature = ggn
    dense: bool = False
    batch: int = 50

    def __call__(self, task: Task, start: Posterior, client: Client) -> Gaussian | Dense:
        """Find the mode and the curvature there.

        Args:
            start: where the search for the mode begins

        Returns:
            A Gaussian, with a whole precision matrix if `dense`.

        Raises:
            InputError: if `dense` and some weights have no curvature: a learned noise, running statistics.
            Diverged: if the weights are not finite.
        """
        mode = centre(self.mode(task, start, client), task.like).params
        if task.by_rows:
            curvature = sum_curvature(task, mode, client.data, self.curvature, self.dense, self.batch)
        else:
            curvature = _hessian(task, mode, client.data)
        if not self.dense and curvature.ndim == 2:
            curvature = curvature.diagonal()
        uncertain = {k: mode[k] for k in task.uncertain}
        if not self.dense:
            precision = curvature + 1 / tree.ravel(task.prior.gaussian(uncertain).var)
            return Gaussian(mode, tree.unravel(1 / precision, uncertain))
        if len(uncertain) < len(mode):
            raise InputError("dense=True needs a known noise and no running statistics: give the task noise=….")
        return Dense(tree.ravel(uncertain), curvature + task.prior.dense(uncertain).precision)


def sum_curvature(
    task: Task, params: Params, data: Data, curvature: Curvature, dense: bool = False, batch: int = 50
) -> Tensor:
    """Sum the curvature of −log p(y|x,θ) over rows.

    Args:
        task: the network and the likelihood
        params: where the curvature is taken
        data: the rows, counted by their weights
        curvature: which one: `ggn` or `fisher`
        dense: the whole matrix, and not its diagonal
        batch: rows whose curvature is held in memory at a time

    Returns:
        The matrix [P, P], or its diagonal [P].
    """
    roots = ROOTS.get(curvature)
    net = perceptron(task.model)
    if roots is not None and net is not None and not dense:
        return _perceptron_diagonal(task, net, params, data, roots)
    total: Tensor | float = 0.0
    for i in range(0, len(data.w), batch):
        factors = curvature(task, params, Data(*(leaf[i : i + batch] for leaf in data)))
        if dense:
            total = total + factors.mT @ factors
        else:
            total = total + (factors**2).sum(0)
    return torch.as_tensor(total)


def _perceptron_diagonal(task: Task, net: Perceptron, params: Params, data: Data, roots: Roots) -> Tensor:
    """The diagonal for a plain perceptron: Σ (δ ⊗ a)² = Σ δ² ⊗ a² in every layer, so that no row has a matrix."""
    totals: dict[str, Tensor | float] = dict.fromkeys([*net.weights, *net.biases], 0.0)
    for i in range(0, len(data.w), PASSED):
        rows = Data(*(leaf[i : i + PASSED] for leaf in data))
        inputs, z = net.passed(params, rows.x)
        delta = roots(task, params, z, rows.y).movedim(-1, 0)  # [roots, rows, outputs]
        for layer in reversed(range(len(inputs))):
            weight, bias, a = net.weights[layer], net.biases[layer], inputs[layer]
            squares = (delta**2).sum(0) * rows.w.unsqueeze(-1)
            totals[weight] = totals[weight] + squares.mT @ a**2
            totals[bias] = totals[bias] + squares.sum(0)
            if layer:
                delta = (delta @ params[weight]) * (a > 0)
    return torch.cat([torch.as_tensor(totals[name]).flatten() for name in task.uncertain])


def _hessian(task: Task, params: Params, rows: Data) -> Tensor:
    """The Hessian of −log p(y|x,θ) over all rows at once, in double precision: for likelihoods that are no product."""
    uncertain, fixed = _split(task, {name: leaf.double() for name, leaf in params.items()})
    wide = Data(rows.x.double(), rows.y.double(), rows.w.double())

    def loss(vector: Tensor) -> Tensor:
        weights = fixed | tree.unravel(vector, uncertain)
        return (wide.w * task.likelihood.nll(task.outputs(weights, wide.x), wide.y, weights)).sum()

    matrix: Tensor = torch.func.jacrev(torch.func.grad(loss))(tree.ravel(uncertain))
    return matrix.to(tree.ravel(params))


def _split(task: Task, params: Params) -> tuple[Params, Params]:
    """The weights that have a curvature, and the rest."""
    names = set(task.uncertain)
    uncertain = {k: v for k, v in params.items() if k in names}
    fixed = {k: v for k, v in params.items() if k not in names}
    return uncertain, fixed
