"""Stochastic gradient Hamiltonian Monte Carlo whose steps have the posterior's shape.

Chen et al., ICML 2014; a constant matrix of curvatures as in Ahn et al., ICML 2012, and Girolami and Calderhead 2011.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.posterior import Point, Posterior, Samples, centre
from consilience.errors import InputError
from consilience.inference.chain import chain, keep_after_burn_in, sample
from consilience.inference.kernels import At
from consilience.inference.laplace import Curvature, ggn
from consilience.messages import Client
from consilience.task import Task
from consilience.tree import Tree

LARGEST = 0.5  # of the way to the mode that one step may go: at 2, the chain would no longer be stable
OTHER_CURVATURE = 0.5  # of U/n in a weight without a curvature of its own: that of a log-variance, Fisher's ½ a row
ROWS = 50  # whose curvature is held in memory at a time


@dataclass(frozen=True)
class PreconditionedSGHMC:
    """v ← (1−α)v − ε C∇U/n + √(2εαT/n)·C^½ ξ;  θ ← θ + v, with C⁻¹ the curvature of U/n and ε = α·min(c·batch/n, ½).

    In the metric of C the posterior is about as wide in every direction, so that one step suits all of them and a chain
    forgets where it began after about 1/c epochs, however unequal the curvatures are. The noise of the batches adds
    the share c/2 to the variance if rows are drawn independently, and less as an epoch uses every row once. The matrix
    C is as large as the number of weights squared, and is taken at three places on the way: for linear models, where
    the curvature is exact and changes little, not for networks, on which the chain diverges.

    Attributes:
        rate: c, in shares of the way to the mode an epoch
        friction: α; momentum is 1 − α
        epochs: passes over the client's rows
        burn: epochs thrown away
        samples: how many samples are kept, evenly spaced after burning
        batch: rows a step
        temperature: 1: the posterior; 0: optimisation
        curvature: `ggn`, or `fisher`, which is cheaper by a factor of the number of outputs
    """

    moves_statistics: ClassVar[bool] = True

    rate: float = 1.0
    friction: float = 0.3
    epochs: int = 40
    burn: int = 15
    samples: int = 6
    batch: int = 50
    temperature: float = 1.0
    curvature: Curvature = ggn

    def __call__(self, task: Task, start: Posterior, client: Client) -> Samples:
        """Sample exp(−U/T).

        Raises:
            InputError: if fewer epochs are left after burning than samples are asked for.
            Diverged: if the weights are not finite.
        """
        left = self.epochs - self.burn
        if not 1 <= self.samples <= left:
            raise InputError(
                f"samples={self.samples}: at least 1, and one of each of the {left} epochs after burning at most."
            )
        like = centre(start, task.like).params
        place: Posterior = Point(like)
        for i, (begin, end) in enumerate(pairwise((0, self.burn // 2, self.burn))):
            stage = client._replace(key=client.key.fold(-2 - i))
            trace = chain(task, place, stage, self.kernel(task, place, client), end - begin, self.batch)
            place = Point(tree.unravel(trace.vector, like))
        kept = list(keep_after_burn_in(left, 0, left // self.samples))[: self.samples]
        return sample(task, place, client, self.kernel(task, place, client), left, self.batch, kept)

    def kernel(self, task: Task, place: Posterior, client: Client) -> Step:
        """Make steps of the shape that the posterior has at a place.

        Args:
            place: where the curvature is taken
        """
        size = client.data.size
        root = whitener(task, place, client.data, self.curvature)
        pace = (self.rate * self.batch / size).clamp(max=LARGEST)
        return Step(root, pace * self.friction, self.friction, self.temperature)


class Step(NamedTuple):
    """One step with a constant matrix.

    Attributes:
        root: C^½ [P, P], with C the inverse of the curvature of U/n
        rate: ε
        friction: α
        temperature: T
    """

    root: Tensor
    rate: Tensor
    friction: float
    temperature: float

    def init(self, vector: Tensor) -> Tree:
        """The velocity before the first step.

        Args:
            vector: the first weights, flat

        Returns:
            Zeros.
        """
        return torch.zeros_like(vector)

    def step(self, vector: Tensor, gradient: Tensor, state: Tree, at: At) -> tuple[Tensor, Tree]:
        """Move the velocity, then the weights by it.

        Args:
            gradient: ∇(U/n) on this step's batch

        Returns:
            The new weights and velocity.
        """
        scale = (2 * self.rate * self.friction * self.temperature / at.size).sqrt()
        push = scale * at.noise(vector) - self.rate * (self.root.mT @ gradient)
        velocity = (1 - self.friction) * state + self.root @ push
        return vector + velocity, velocity


def whitener(task: Task, place: Posterior, data: Data, curvature: Curvature) -> Tensor:
    """Find the matrix that turns standard normals into draws of the shape of the posterior, √n too wide.

    Args:
        place: where the curvature is taken
        curvature: how it is taken

    Returns:
        A root of the inverse curvature of U/n [P, P], in the order of all weights.
    """
    like = centre(place, task.like).params
    uncertain = {name: like[name] for name in task.uncertain}
    total = task.prior.dense(uncertain).precision.double()
    for i in range(0, len(data.w), ROWS):
        factors = curvature(task, like, Data(*(leaf[i : i + ROWS] for leaf in data))).double()
        total = total + factors.mT @ factors
    ridge = 1e-9 * total.diagonal().mean() * torch.eye(len(total), dtype=total.dtype)
    lower, _ = torch.linalg.cholesky_ex((total + ridge) / data.size)
    identity = torch.eye(len(total), dtype=total.dtype)
    root = torch.linalg.solve_triangular(lower.mT, identity, upper=True).to(tree.ravel(like))
    return _embed(root, [name in uncertain for name in like for _ in range(like[name].numel())])


def _embed(root: Tensor, has_curvature: list[bool]) -> Tensor:
    """The root among all weights; those without a curvature of their own get that of a log-variance."""
    if all(has_curvature):
        return root
    mask = torch.tensor(has_curvature)
    select = torch.eye(len(mask))[mask].to(root)  # [uncertain, all]
    others = torch.diag((~mask).to(root)) / OTHER_CURVATURE**0.5
    whole: Tensor = select.mT @ root @ select + others
    return whole
