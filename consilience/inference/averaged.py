"""The variational Gaussian approximation of linear models.  Opper and Archambeau, Neural Computation 2009."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.likelihood import Softmax
from consilience.distributions.posterior import Dense, Posterior, centre
from consilience.errors import InputError
from consilience.inference.capabilities import Abridged
from consilience.inference.chain import Inference
from consilience.inference.newton import Newton
from consilience.messages import Client
from consilience.task import Task

NODES = 31  # of Gauss and Hermite, where rows have one output, or the logits of two classes
PAIRS = 64  # of a Sobol sequence with its reflection, where they have more
DAMPING = 0.7  # of steps of the mean, whose curvature moves with it
CLOSE = 1e-8  # standard deviations that the mean still moves
HELD = 2**25  # numbers of derivatives that are kept between steps
TOGETHER = 2**21  # numbers of second derivatives that are computed together


@dataclass(frozen=True)
class VariationalGaussian:
    """The Gaussian q = N(m, S) with the smallest KL(q‖p), for models whose outputs are linear in their weights.

    Laplace's approximation takes gradient and curvature at the mode; these are averaged over q. Few rows leave a
    likelihood skewed: at the mode it looks narrower, and nearer to the prior, than it is.

        m, S ← the mode, 0
    1   Λ ← Σ E_q[−∇² log p(y|θ)],  g ← Σ E_q[∇ log p(y|θ)]     row by row, over nodes of its outputs
    2   S ← (P₀ + Λ)⁻¹, P₀ being the prior's precision and m₀ its mean
    3   m ← m + S (g − P₀(m − m₀)), damped;  to 1, until m stays

    Attributes:
        mode: how the mode is found
        steps: at most so many

    Example:
        >>> import consilience as co
        >>> problem = co.Problem(co.datasets.moons(200), sites=3, split="iid", model="linear")
        >>> result = co.run(co.methods.GaussianProduct(inference=co.inference.VariationalGaussian(steps=5)), problem)
        >>> type(result.replies[0].payload).__name__
        'Dense'
    """

    moves_statistics: ClassVar[bool] = True
    narrowest: ClassVar[None] = None  # prior and rows explain every precision

    mode: Inference = Newton()
    steps: int = 60

    def abridge(self) -> VariationalGaussian:
        """Take one step; see `consilience.method.settings.abridge`."""
        mode = self.mode
        if isinstance(mode, Abridged):
            mode = mode.abridge()
        return dataclasses.replace(self, mode=mode, steps=1)

    def __call__(self, task: Task, start: Posterior, client: Client) -> Dense:
        """Find the Gaussian in double precision.

        Args:
            start: where the search for the mode begins

        Returns:
            A Gaussian with a whole precision matrix.

        Raises:
            InputError: if some weights are no part of a linear model, or the likelihood is no product over rows.
        """
        like = centre(self.mode(task, start, client), task.like).params
        if set(like) != set(task.uncertain) or not task.by_rows:
            raise InputError(
                "VariationalGaussian is for linear models of classes or counts, or of numbers with known noise: use "
                "Laplace, or give the task noise=…."
            )
        mode = {name: leaf.double() for name, leaf in like.items()}
        prior = Dense(*(leaf.double() for leaf in task.prior.dense(mode)))
        rows = _Rows(task, mode, client.data)
        mean = tree.ravel(mode)
        var = torch.zeros(len(mean), len(mean)).to(mean)
        precision = prior.precision
        damping = torch.full_like(mean[0], DAMPING)
        share = torch.ones_like(damping)
        last = torch.full_like(damping, torch.inf)
        for i in range(self.steps):
            gradient, curvature = rows.average(mean, var)  # 1
            precision = torch.lerp(precision, prior.precision + curvature, share)
            var = torch.cholesky_inverse(torch.linalg.cholesky(precision))  # 2
            step = var @ (gradient - prior.precision @ (mean - prior.mean))
            length = (step @ (precision @ step)).sqrt()  # in standard deviations
            damping = torch.where(length > last, DAMPING / 2, damping)  # separated rows: both would go to and fro
            share = torch.where(length > last, 0.5, share)
            last = length
            mean = mean + damping * step  # 3
            if i > 0 and not tree.under_vmap() and bool((step.abs() < CLOSE * var.diagonal().sqrt()).all()):
                break
        vector = tree.ravel(like)
        return Dense(mean.to(vector), precision.to(vector))


class _Rows:
    """A site's rows, whose gradients and curvatures are averaged over a Gaussian of their outputs."""

    def __init__(self, task: Task, mode: tree.Params, data: Data) -> None:
        """Keep the rows in double precision.

        Args:
            mode: Weights, from which outputs are counted.
        """
        self.task = task
        self.mode = mode
        self.start = tree.ravel(mode)
        y = data.y
        if y.is_floating_point():
            y = y.double()
        self.rows = Data(data.x.double(), y, data.w.double())
        outputs = task.outputs(mode, self.rows.x[:1]).shape[-1]
        self.against = torch.eye(outputs, dtype=torch.float64)
        if isinstance(task.likelihood, Softmax):  # only differences of logits count
            self.against = self.against[:, :-1]
        free = self.against.shape[1]
        self.nodes, self.weights = _nodes(free)
        size = max(1, TOGETHER // (len(self.nodes) * free**2))
        self.parts = [Data(*(leaf[i : i + size] for leaf in self.rows)) for i in range(0, len(data.w), size)]
        self.known: list[tuple[Tensor, Tensor]] = []
        if len(data.w) * free * len(self.start) <= HELD:
            self.known = [self._linearise(part) for part in self.parts]

    def average(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Average over q.

        Args:
            mean: Of the weights [P].
            var: Their covariance [P, P].

        Returns:
            The rows' gradient of log p, and their curvature, summed.
        """
        gradient = torch.zeros_like(mean)
        curvature = torch.zeros_like(var)
        for place, part in enumerate(self.parts):
            slopes, outputs = self.known[place] if self.known else self._linearise(part)
            centres = outputs + slopes @ (mean - self.start)
            spread = slopes @ var @ slopes.mT
            jitter = 1e-14 * (1 + spread.diagonal(dim1=-2, dim2=-1).sum(-1))
            root = torch.linalg.cholesky(spread + jitter.reshape(-1, 1, 1) * torch.eye(spread.shape[-1]).to(spread))
            at = centres.unsqueeze(1) + self.nodes.to(mean) @ root.mT  # [N, nodes, outputs]
            first, second = self._derivatives(at, part.y)
            weighted = part.w.unsqueeze(1) * torch.einsum("q,nqa->na", self.weights.to(mean), first)
            bent = part.w.reshape(-1, 1, 1) * torch.einsum("q,nqab->nab", self.weights.to(mean), second)
            gradient = gradient - torch.einsum("na,nap->p", weighted, slopes)
            curvature = curvature + torch.einsum("nap,nab,nbq->pq", slopes, bent, slopes)
        return gradient, (curvature + curvature.mT) / 2

    def _linearise(self, part: Data) -> tuple[Tensor, Tensor]:
        """Every row's derivatives by the weights [N, outputs, P], and its outputs at the mode [N, outputs]."""

        def outputs(vector: Tensor, x: Tensor) -> Tensor:
            z = self.task.outputs(tree.unravel(vector, self.mode), x.unsqueeze(0)).squeeze(0)
            free: Tensor = z[..., : self.against.shape[1]]
            if len(z) > len(free):
                free = free - z[-1]
            return free

        slopes: Tensor = torch.func.vmap(torch.func.jacrev(outputs), (None, 0))(self.start, part.x)
        return slopes, torch.func.vmap(outputs, (None, 0))(self.start, part.x)

    def _derivatives(self, at: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient and the Hessian of −log p(y|outputs) at every node."""

        def nll(outputs: Tensor, y: Tensor) -> Tensor:
            z = self.against.to(outputs) @ outputs
            return self.task.likelihood.nll(z.unsqueeze(0), y.unsqueeze(0), self.mode).squeeze(0)

        first: Callable[[Tensor, Tensor], Tensor] = torch.func.grad(nll)
        both = (first, torch.func.jacrev(first))
        gradient, hessian = (torch.func.vmap(torch.func.vmap(f, (0, None)), (0, 0))(at, y) for f in both)
        return gradient, hessian


def _nodes(outputs: int) -> tuple[Tensor, Tensor]:
    """Nodes of a standard Gaussian [Q, outputs], whose covariance is 1, and their weights [Q]."""
    if outputs == 1:
        places, weights = np.polynomial.hermite_e.hermegauss(NODES)
        return torch.from_numpy(places).unsqueeze(1), torch.from_numpy(weights / weights.sum())
    uniform = torch.quasirandom.SobolEngine(outputs, scramble=True, seed=0).draw(PAIRS, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    nodes = torch.cat([half, -half])
    if len(nodes) > 2 * outputs:
        root = torch.linalg.cholesky(nodes.mT @ nodes / len(nodes))
        nodes = torch.linalg.solve_triangular(root, nodes.mT, upper=False).mT
    return nodes, torch.full((len(nodes),), 1 / len(nodes), dtype=torch.float64)
