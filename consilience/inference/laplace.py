"""Laplace's approximation.  MacKay, Neural Computation 1992; Daxberger et al., NeurIPS 2021."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.errors import InputError
from consilience.inference.point import SGD
from consilience.parties import Client
from consilience.posterior import Dense, Gaussian, Posterior, centre
from consilience.task import Task
from consilience.training.chain import Inference
from consilience.tree import Params

# Weights and rows → a matrix [R, P] whose rows r give the curvature Σ r rᵀ of −Σ log p(y|x,θ).
Curvature: TypeAlias = Callable[[Task, Params, Data], Tensor]


def fisher(task: Task, params: Params, rows: Data) -> Tensor:
    """The empirical Fisher: one gradient of log p(y|x,θ) a row, at the labels seen."""
    own, fixed = _parted(task, params)

    def nll(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        weights = {**fixed, **tree.unravel(vector, own)}
        return task.likelihood.nll(task.outputs(weights, x.unsqueeze(0)), y.unsqueeze(0), weights).squeeze(0)

    gradients: Tensor = torch.func.vmap(torch.func.grad(nll), (None, 0, 0))(tree.ravel(own), rows.x, rows.y)
    return gradients * rows.w.sqrt().unsqueeze(-1)


def ggn(task: Task, params: Params, rows: Data) -> Tensor:
    """The generalised Gauss–Newton matrix JᵀΛJ: the Hessian of the network's linearisation; exact for linear models.

    Λ = −∂² log p(y|z)/∂z² in the outputs z, at the labels seen. Where it is not definite (an output that is a
    log-variance) its negative directions are left out.
    """
    own, fixed = _parted(task, params)

    def outputs(vector: Tensor, x: Tensor) -> Tensor:
        return task.outputs({**fixed, **tree.unravel(vector, own)}, x.unsqueeze(0)).squeeze(0)

    def each(vector: Tensor, x: Tensor, y: Tensor) -> Tensor:
        z = outputs(vector, x)
        nll = lambda z: task.likelihood.nll(z.unsqueeze(0), y.unsqueeze(0), params).squeeze(0)
        values, vectors = torch.linalg.eigh(torch.func.jacrev(torch.func.grad(nll))(z))
        root = vectors * values.clamp(min=0).sqrt()
        rows_of: Tensor = root.mT @ torch.func.jacrev(outputs)(vector, x)
        return rows_of

    found: Tensor = torch.func.vmap(each, (None, 0, 0))(tree.ravel(own), rows.x, rows.y)  # [rows, outputs, P]
    return (found * rows.w.sqrt().reshape(-1, 1, 1)).flatten(0, 1)


@dataclass(frozen=True)
class Laplace:
    """N(θ̂, H⁻¹) around the mode θ̂, with H the data's curvature plus the prior's precision."""

    moves_statistics: ClassVar[bool] = True

    mode: Inference = SGD()  # how the mode is found
    curvature: Curvature = ggn  # `ggn`, or `fisher`, which is cheaper by a factor of the number of outputs
    dense: bool = False  # the whole matrix H, for small models
    batch: int = 50  # rows whose curvature is held in memory at a time

    def __call__(self, task: Task, start: Posterior, client: Client) -> Gaussian | Dense:
        mode = centre(self.mode(task, start, client), task.like).params
        total: Tensor | float = 0.0
        for part in range(0, len(client.data.w), self.batch):
            factors = self.curvature(task, mode, Data(*(leaf[part : part + self.batch] for leaf in client.data)))
            total = total + (factors.mT @ factors if self.dense else (factors**2).sum(0))
        own = {k: mode[k] for k in task.uncertain}
        if self.dense:
            if len(own) < len(mode):
                raise InputError("A full curvature needs a known noise and no running statistics: give noise=…")
            return Dense(tree.ravel(own), total + task.prior.dense(own).precision)
        precision = total + 1 / tree.ravel(task.prior.gaussian(own).var)
        return Gaussian(mode, tree.unravel(1 / precision, own))


def _parted(task: Task, params: Params) -> tuple[Params, Params]:
    """The weights that have a curvature, and the rest."""
    names = set(task.uncertain)
    return {k: v for k, v in params.items() if k in names}, {k: v for k, v in params.items() if k not in names}
