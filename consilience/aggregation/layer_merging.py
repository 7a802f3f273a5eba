"""Merging networks layer by layer: each client's layer counts in the directions that its rows have looked in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from consilience.distributions.posterior import Point, average
from consilience.inference.layers import Layers, from_matrix, layer_matrix
from consilience.tree import Params

TINY = 1e-9  # of the mean curvature, that pulls towards the average where no client has any
STEPS = 1000  # of conjugate gradients, at most
CLOSE = 1e-9  # of the residual relative to the right-hand side, where they end


def merge_by_weight(points: Sequence[Point], curvatures: Sequence[Params], weights: Tensor) -> Point:
    """Average every weight by the clients' curvatures there.

    Args:
        points: The clients' weights θₖ.
        curvatures: fₖ, the diagonals of their curvatures, each the sum over a client's rows.
        weights: By which weights without any curvature are averaged [K].

    Returns:
        Σₖ fₖ θₖ / Σₖ fₖ; the weighted average where no client has a curvature.
    """
    mean = average(points, weights).params
    merged: Params = dict(mean)
    for name in curvatures[0]:
        f = torch.stack([c[name].double() for c in curvatures])
        theta = torch.stack([p.params[name].double() for p in points])
        pull = TINY * f.mean() + torch.finfo(torch.float64).tiny
        merged[name] = (((f * theta).sum(0) + pull * mean[name].double()) / (f.sum(0) + pull)).to(mean[name])
    return Point(merged)


def merge_by_inputs(points: Sequence[Point], moments: Sequence[Layers], weights: Tensor, keep: float) -> Point:
    """Merge each layer so that it does on every client's inputs what that client's own layer does (RegMean).

    Args:
        moments: The second moments of their layers' inputs, Gₖ.
        weights: By which what is not a layer's matrix is averaged [K].
        keep: How much of the moments off the diagonal is kept, from 0 to 1.

    Returns:
        For every layer argmin_W Σₖ tr (W − Wₖ) G̃ₖ (W − Wₖ)ᵀ, G̃ = keep G + (1 − keep) diag G.
    """
    mean = average(points, weights).params
    merged: Params = dict(mean)
    for name in moments[0].inputs:
        whole = torch.stack([m.inputs[name].double() for m in moments])
        grams = keep * whole + (1 - keep) * torch.diag_embed(whole.diagonal(dim1=-2, dim2=-1))
        matrices = torch.stack([layer_matrix(p.params, name).double() for p in points])
        pull = TINY * grams.diagonal(dim1=-2, dim2=-1).mean() * torch.eye(grams.shape[-1], dtype=torch.float64)
        right = (matrices @ grams).sum(0) + layer_matrix(mean, name).double() @ pull
        merged |= from_matrix(torch.linalg.solve(grams.sum(0) + pull, right.mT).mT, name, mean)
    return Point(merged)


def merge_by_layers(points: Sequence[Point], moments: Sequence[Layers], weights: Tensor, damping: float = 0.0) -> Point:
    """Multiply the clients' Gaussians whose precisions are Kronecker products in each layer.

    Args:
        points: The clients' weights, the means of the Gaussians.
        moments: The second moments A and B of their layers, whose precision is A ⊗ B / n.
        weights: By which what is not a layer's matrix is averaged [K].
        damping: What each client's precision has beside it, in units of the mean curvature of a layer's weights.

    Returns:
        The mean of the product: for every layer the W with Σₖ Bₖ (W − Wₖ) Aₖ / nₖ + damping (W − Wₖ) = 0.
    """
    mean = average(points, weights).params
    merged: Params = dict(mean)
    for name in moments[0].inputs:
        a = torch.stack([m.inputs[name].double() / m.size.double() for m in moments])
        b = torch.stack([m.gradients[name].double() for m in moments])
        matrices = torch.stack([layer_matrix(p.params, name).double() for p in points])
        diagonals = torch.einsum("ko,ki->koi", b.diagonal(dim1=-2, dim2=-1), a.diagonal(dim1=-2, dim2=-1))
        beside = damping * float(diagonals.mean())
        curve = partial(_curve, a, b, beside)
        centre = layer_matrix(mean, name).double()
        diagonal = diagonals.sum(0) + len(points) * beside + TINY * diagonals.mean()
        away = solve(curve, curve(matrices - centre), diagonal)  # directions without curvature stay at the average
        merged |= from_matrix(centre + away, name, mean)
    return Point(merged)


def damp_factors(moments: Layers, damping: float) -> Layers:
    """Give each of a layer's two factors a constant on its diagonal, and so the layer's precision some of its own.

    Args:
        moments: The second moments of a client's layers.
        damping: The constant, for one row.

    Returns:
        A + n · damping and B + n · damping, whose product over n is n (A/n + damping) ⊗ (B/n + damping).
    """
    inputs = {name: _add_to_diagonal(a, moments.size * damping) for name, a in moments.inputs.items()}
    gradients = {name: _add_to_diagonal(b, moments.size * damping) for name, b in moments.gradients.items()}
    return Layers(inputs, gradients, moments.size)


def _add_to_diagonal(matrix: Tensor, value: Tensor) -> Tensor:
    """A matrix and a multiple of the identity."""
    return matrix.double() + value.double() * torch.eye(len(matrix), dtype=torch.float64, device=matrix.device)


def _curve(a: Tensor, b: Tensor, beside: float, w: Tensor) -> Tensor:
    """Σₖ Bₖ Wₖ Aₖ + beside Wₖ, of one W for all clients [O, I] or of one each [K, O, I]."""
    return (b @ w @ a + beside * w).sum(0)


def solve(apply: Callable[[Tensor], Tensor], right: Tensor, diagonal: Tensor) -> Tensor:
    """Solve a positive system by conjugate gradients from 0, preconditioned by its diagonal.

    Args:
        diagonal: The map's diagonal, of the shape of the unknown.

    Returns:
        The solution; of a singular map the one without a part that the map takes to 0.
    """
    x = torch.zeros_like(right)
    residual = right
    direction = residual / diagonal
    length = (residual * direction).sum()
    goal = CLOSE * float(right.norm())
    for _ in range(STEPS):
        if float(residual.norm()) <= goal:
            break
        image = apply(direction)
        step = length / (direction * image).sum()
        x = x + step * direction
        residual = residual - step * image
        scaled = residual / diagonal
        before = length
        length = (residual * scaled).sum()
        direction = scaled + (length / before) * direction
    return x
