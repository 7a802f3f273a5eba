"""FedLPA's two solutions as its release has them, from the replies of our FedLPA.

Both begin with Aₖ/nₖ + √λ and Bₖ/nₖ + √λ of every client, weighed by their rows pₖ. "averaged factors" is
B⁻¹ (Σ pₖ Bₖ Wₖ Aₖ) A⁻¹ with A = Σ pₖ Aₖ and B = Σ pₖ Bₖ, which is not the product's mean. "descent" goes on from there:
10 000 steps of gradient descent on the mean square of Σ pₖ Bₖ (W − Wₖ) Aₖ over the layer's weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from consilience.aggregation.layer_merging import damp_factors
from consilience.distributions.posterior import Point, average
from consilience.inference.layers import from_matrix, layer_matrix
from consilience.messages import Received, payloads, weights

STEPS = 10_000
KRYLOV = 200  # directions that stand for the steps: more change nothing


def solutions(replies: Sequence[Received], ridge: float) -> dict[str, Point]:
    """Merge the clients' layers in both ways.

    Args:
        replies: Those of FedLPA.
        ridge: λ.

    Returns:
        The merged weights, by the name of the solution.
    """
    points, moments = zip(*payloads(replies), strict=True)
    sizes = weights(replies)
    share = (sizes / sizes.sum()).double()
    damped = [damp_factors(of_client, math.sqrt(ridge)) for of_client in moments]
    mean = average(points, sizes).params
    averaged = dict(mean)
    descended = dict(mean)
    for name in damped[0].inputs:
        a = torch.stack([m.inputs[name] / m.size.double() for m in damped])
        b = torch.stack([m.gradients[name] / m.size.double() for m in damped])
        b = b * share.view(-1, 1, 1)
        matrices = torch.stack([layer_matrix(p.params, name).double() for p in points])
        target = (b @ matrices @ a).sum(0)
        whole_a = (a * share.view(-1, 1, 1)).sum(0)
        start = torch.linalg.solve(whole_a, torch.linalg.solve(b.sum(0), target).mT).mT
        end = descend(lambda w, a=a, b=b: (b @ w @ a).sum(0), start, target, STEPS)  # type: ignore[misc]
        averaged |= from_matrix(start, name, mean)
        descended |= from_matrix(end, name, mean)
    return {"averaged factors": Point(averaged), "descent": Point(descended)}


def descend(curve: Callable[[Tensor], Tensor], start: Tensor, target: Tensor, steps: int) -> Tensor:
    """Where gradient descent with rate 1 on the mean of (L W − target)² ends, L symmetric, after so many steps.

    W₀ + Σᵢ (1 − M)ⁱ r with M = c L², r = c L (target − L W₀) and c = 2 / the number of weights, summed in the Krylov
    space of M and r: a few hundred products instead of twice as many as there are steps.

    Args:
        curve: L.
        start: W₀.
        target: What L W should be.
        steps: How many.

    Returns:
        W; not finite if the descent diverges.
    """
    c = 2 / start.numel()
    first = c * curve(target - curve(start))
    length = first.norm()
    if not float(length) > 0:
        return start
    basis = [first.flatten() / length]
    diagonal: list[Tensor] = []
    beside: list[Tensor] = []
    for _ in range(min(KRYLOV, start.numel())):
        image = c * curve(curve(basis[-1].view_as(start))).flatten()
        diagonal.append(image @ basis[-1])
        known = torch.stack(basis)
        for _ in range(2):  # twice is enough
            image = image - known.mT @ (known @ image)
        beside.append(image.norm())
        if float(beside[-1]) <= 1e-12 * float(torch.stack(diagonal).amax()):
            break
        basis.append(image / beside[-1])
    size = len(diagonal)
    off = torch.stack(beside[: size - 1] or [torch.zeros_like(length)])[: size - 1]
    small = torch.diag(torch.stack(diagonal)) + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(small)
    values = values.clamp(min=1e-300)
    summed = (1 - (1 - values) ** steps) / values  # Σᵢ (1 − λ)ⁱ
    summed = torch.where(values * steps < 1e-8, float(steps), summed)
    moved = torch.stack(basis[:size]).mT @ (vectors @ (summed * vectors[0]))
    return start + length * moved.view_as(start)
