"""An intercept for every site, of numbers: sums in which it is out of the way, and τ by restricted likelihood (REML).

With ρ = τ²/σ² a site's numbers have the covariance σ²(I + ρ 11ᵀ), whose inverse is (I − c 11ᵀ)/σ², c = ρ/(1 + nρ). So
Σ φφᵀ − c (Σφ)(Σφ)ᵀ, and the same of targets, add up to weighted least squares; c = 1/n is a free intercept. With its
first two derivatives by log ρ the sums give those of the restricted likelihood,

    2 f(ρ) = log|A| + Σ log(1 + nρ) + (n − p) log r,    A, r: the matrix and what is left over of these sums,

so that a round is a step of Newton's method in √ρ.  Equal to `lmer(y ~ x + (1 | site))`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from consilience import tree
from consilience.data.sites import Data
from consilience.distributions.likelihood import GaussianNoise
from consilience.glm.centres import Given
from consilience.glm.derivatives import FLAT, Quadratic, laplace, triangle
from consilience.glm.linear_model import layer_of, priors_of
from consilience.glm.regression import line_hessian, regress
from consilience.glm.sums import Sums, square_matrix, summarise
from consilience.models.maps import feature_map
from consilience.task import Task

FIRST = 0.3  # √ρ where the search begins: sites differ by a third of the noise
LEAST = 1e-4  # √ρ that counts as 0
MOST = 1e3
ROUNDING = 1e-8  # of a Gram matrix's largest eigenvalue, that may be missing from the smallest
TOLERANCE = 1e-9  # of √ρ


class Bent(NamedTuple):
    """A site's sums at a ρ, and how they change with log ρ.

    Attributes:
        logs: log(1 + nρ) with its first two derivatives [3].
        sums: With c in them.
        slope: Their first derivative.
        bend: Their second derivative.
    """

    logs: Tensor
    sums: Sums
    slope: Sums
    bend: Sums


class Ratio(NamedTuple):
    """Where the search for √ρ stands.

    Attributes:
        point: √ρ where the sums were last asked for.
        next: Where they are asked for next.
        low: The largest √ρ known to lie below the mode.
        high: The smallest one known to lie above it.
    """

    point: Tensor
    next: Tensor
    low: Tensor
    high: Tensor

    @property
    def distance(self) -> float:
        """How far the next step goes, relative."""
        return float((self.next - self.point).abs() / self.next.clamp(min=LEAST))


def free_sums(task: Task, data: Data) -> Sums:
    """Add up a site's rows about their own mean: its intercept is free."""
    plain = summarise(feature_map(task.model), data, None)
    rows = plain.counts[0]
    within = _less(plain, torch.where(rows > 0, 1 / rows.clamp(min=1.0), 0.0))
    return within._replace(counts=(plain.counts - 1).clamp(min=0))


def bent_sums(task: Task, data: Data, root: Tensor | None = None) -> Bent:
    """Add up a site's rows where its intercept is drawn from N(0, τ²)."""
    plain = summarise(feature_map(task.model), data, None)
    rho = (torch.tensor(FIRST, dtype=torch.float64) if root is None else root.double()) ** 2
    n = plain.counts[0]
    reach = 1 + n * rho
    logs = torch.stack([reach.log(), n * rho / reach, n * rho / reach**2])
    nothing = tree.map(torch.zeros_like, plain)
    slope = _less(nothing, rho / reach**2, plain)
    bend = _less(nothing, rho * (1 - n * rho) / reach**3, plain)
    return Bent(logs, _less(plain, rho / reach), slope, bend)


def _less(start: Sums, share: Tensor, of: Sums | None = None) -> Sums:
    """Take a share of the products of a site's totals from sums."""
    of = start if of is None else of
    width = of.features
    totals = of.gram[:width]  # the triangle begins with Σφ
    numbers = of.cross[:, 0]
    gram = start.gram - share * triangle(torch.outer(totals, totals))
    cross = start.cross - share * torch.outer(numbers, totals)
    return start._replace(gram=gram, cross=cross, square=start.square - share * numbers**2)


def seek(task: Task, before: Ratio | None, totals: Bent) -> Ratio:
    """Take a step towards the ρ at which the restricted likelihood is largest.

    Args:
        task: The statistical problem.
        before: Where the search stood; None where it begins.
        totals: The sums of all sites, at its `next`.

    Returns:
        Where it stands now.
    """
    point = torch.tensor(FIRST, dtype=torch.float64)
    low, high = torch.tensor(0.0, dtype=torch.float64), torch.tensor(MOST, dtype=torch.float64)
    if before is not None:
        point, low, high = before.next, before.low, before.high
    moved = torch.zeros((), dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        value = _restricted(task, totals, moved)
        (first,) = torch.autograd.grad(value, moved, create_graph=True)
        (second,) = torch.autograd.grad(first, moved)
    first, second = first.detach(), second.detach()
    slope, bend = 2 * first / point, (4 * second - 2 * first) / point**2  # by √ρ
    if float(slope) > 0:
        high = torch.minimum(high, point)
    else:
        low = torch.maximum(low, point)
    following = point - (slope / bend if float(bend) > 0 else slope.sign() * point)
    if float(slope) < 0 and float(second) > 0:  # further from 0, the logarithm is nearer to a parabola
        following = point * (-0.5 * first / second).exp()
    if not float(low) < float(following) < float(high):
        following = (
            (low + high) / 2 if float(low) > 0 and float(high) < MOST else following.clamp(point / 10, point * 5)
        )
    if float(high) <= 2 * LEAST or (float(low) == 0 and float(following) < LEAST):
        following = torch.tensor(LEAST, dtype=torch.float64)
    return Ratio(point, following, low, high)


def _restricted(task: Task, totals: Bent, moved: Tensor) -> Tensor:
    """−log restricted likelihood, near the ρ of the sums: exact in its first two derivatives."""
    width = totals.sums.features

    def bend(base: Tensor, slope: Tensor, second: Tensor) -> Tensor:
        return base + moved * slope + 0.5 * moved**2 * second

    matrix = square_matrix(bend(totals.sums.gram, totals.slope.gram, totals.bend.gram), width)
    cross = bend(totals.sums.cross, totals.slope.cross, totals.bend.cross)
    square = bend(totals.sums.square, totals.slope.square, totals.bend.square).sum()
    logs = bend(*totals.logs)
    values, vectors = torch.linalg.eigh(matrix.detach())
    kept = vectors[:, values > FLAT * values[-1]]
    inner = kept.T @ matrix @ kept
    right = cross @ kept
    fit = torch.linalg.solve(inner, right.T).T
    left = square - (fit * right).sum()
    outputs = len(cross)
    spare = totals.sums.counts.sum() * outputs - kept.shape[1] * outputs
    noise = task.likelihood.noise if isinstance(task.likelihood, GaussianNoise) else None
    value: Tensor = 0.5 * outputs * (torch.linalg.slogdet(inner)[1] + logs)
    misfit: Tensor = 0.5 * spare * left.log() if noise is None else 0.5 * left / noise
    return value + misfit


def given_numbers(task: Task, totals: Sums, root: Tensor | None) -> Given:
    """Find the posterior of the weights where every site has its own intercept.

    Args:
        task: The statistical problem.
        totals: The sums of all sites, their intercepts out of the way.
        root: √ρ; None where intercepts are free.

    Returns:
        The model.
    """
    prior, noise_prior = priors_of(task)
    assert isinstance(task.likelihood, GaussianNoise)
    if root is None:
        precision = prior.precision.clone()
        precision[:, 0] = 0.0
        prior = Quadratic(prior.mean, precision)
    fixed = torch.tensor(math.log(task.likelihood.noise or 1.0), dtype=torch.float64)
    line = regress(totals, prior, noise_prior or fixed)
    matrix = line_hessian(line, totals, prior, noise_prior)
    count = prior.mean.numel()
    ridge = torch.zeros(len(matrix), dtype=torch.float64)
    ridge[:count] = FLAT * matrix[:count, :count].diagonal().mean()
    posterior = laplace(line.weights, matrix + torch.diag(ridge), layer_of(task), line.log_noise)
    rows = torch.block_diag(*[line.gram * torch.exp(-line.log_noise)] * len(line.weights))
    information = laplace(line.weights, rows, layer_of(task)).precision
    tau: Tensor | tuple[()] = ()
    if root is not None:
        tau = torch.where(root > LEAST, root, 0.0) * (line.log_noise / 2).exp()
    return Given(posterior, information, tau)


def doubt_within(send: Sums | Bent) -> str | None:
    """Say why no rows can have sent this, a sentence about the reply as "it"; None where nothing is wrong."""
    sums = send.sums if isinstance(send, Bent) else send
    values = torch.linalg.eigvalsh(square_matrix(sums.gram, sums.features))
    if float(values[0]) < -ROUNDING * max(1.0, float(values[-1])):
        return "its Gram matrix is not positive semi-definite."
    if isinstance(send, Bent) and float(send.logs[0]) < 0:
        return "it has fewer rows than none."
    return None
