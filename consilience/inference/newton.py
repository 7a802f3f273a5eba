"""Newton's method for models of few weights: logistic and linear regression to machine precision."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from consilience import tree
from consilience.distributions.posterior import Point, Posterior, centre
from consilience.messages import Client
from consilience.progress import track
from consilience.task import Task

ROUNDING = 1e-13  # of a loss, relative: what is closer than this cannot tell one step from another


@dataclass(frozen=True)
class Newton:
    """θ ← θ − s H⁻¹ ∇U, with all rows in every step and s the best of 1, ½, ¼ … 0; finds the mode of a convex U.

    The matrix H is as large as the number of weights squared: for linear models, not for networks.

    Attributes:
        steps: at most so many; a convex problem needs about six
        halvings: how often a step may be halved

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> inference = co.Laplace(mode=co.inference.Newton())
        >>> len(co.run(co.methods.GaussianProduct(inference=inference), problem).replies)
        3
    """

    all_rows: ClassVar[bool] = True

    steps: int = 15
    halvings: int = 8

    def abridge(self) -> Newton:
        """Take no step, and so compute no matrix; see `consilience.method.settings.abridge`."""
        return dataclasses.replace(self, steps=0)

    def __call__(self, task: Task, start: Posterior, client: Client) -> Point:
        """Find the mode of U in double precision."""
        like = centre(start, task.like).params
        wide = {k: v.double() for k, v in like.items()}
        rows = client.data._replace(x=client.data.x.double(), w=client.data.w.double())
        if rows.y.dtype != torch.int64:
            rows = rows._replace(y=rows.y.double())

        def loss(vector: Tensor) -> Tensor:
            return task.loss(tree.unravel(vector, wide), rows, rows.size)

        vector = tree.ravel(wide)
        sizes = torch.tensor([2.0**-i for i in range(self.halvings)] + [0.0], dtype=torch.float64)
        for _ in track(range(self.steps), "step"):
            gradient = torch.func.grad(loss)(vector)
            # reverse over reverse: forward-mode differentiation is not safe in the threads of an engine
            curvature = torch.func.jacrev(torch.func.grad(loss))(vector)
            ridge = 1e-10 * curvature.diagonal().abs().mean() * torch.eye(len(vector), dtype=torch.float64)
            direction, _ = torch.linalg.solve_ex(curvature + ridge, gradient)
            candidates = vector - sizes.unsqueeze(1) * direction
            values = torch.stack([loss(candidate) for candidate in candidates])
            values = torch.where(torch.isfinite(values), values, torch.inf)
            least = values.min()
            best = (values <= least + ROUNDING * least.abs()).int().argmax()  # the longest of steps that are as good
            new = candidates.index_select(0, best.reshape(1)).squeeze(0)
            if not tree.under_vmap() and bool((new - vector).abs().max() < 1e-12):
                break
            vector = new
        return Point({k: v.to(like[k]) for k, v in tree.unravel(vector, wide).items()})
